"""An agent as the hub knows it: one row, whatever protocol it speaks.

`RESOURCES`: an agent has a fixed amount of each while its process runs, and its tasks share it. An agent may declare at
its registration how much it has, and a task how much it may need. A new resource is a new row here, and a field of that
name in `Agent`, `RegisterAgent` and `Route`. `core.budgets.capacity` uses the amounts.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from dragoman.core.ids import SECOND, AgentId, Instant, SessionId
from dragoman.core.protocol_capabilities import CONVERSES, READS_DIRECT_MESSAGES


class BreakerState(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Whether the hub still gives work to an agent that fails. `until` is when an open breaker may be probed."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    until: Instant | None = None


class Offer(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One type of work that an agent does on declared terms: what it takes, what it gives, and who may ask.

    Schemas are JSON Schema; True takes anything. `pii`: input and result are personal data.
    """

    intent: str
    input_schema: Any = True
    output_schema: Any = True
    version: str = "1.0.0"
    required_capabilities: tuple[str, ...] = ()
    pii: bool = False
    timeout: int = 30 * SECOND
    description: str = ""


class Revoked(msgspec.Struct, frozen=True, gc=False):
    """The name of a revoked token; at `until` it would expire in any case."""

    jti: str
    until: Instant


class ConnectionEvent(enum.StrEnum):
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    SILENT = "silent"
    BACK = "back"
    """It shows signs of life again, without a new connection."""


class ConnectionChange(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One entry of an agent's connection history; `why` is a sentence, or empty."""

    at: Instant
    event: ConnectionEvent
    why: str = ""


MOST_CONNECTION_CHANGES = 24
"""How much of its connection history an agent's row keeps: the row is written whole."""
LONGEST_WHY = 200


PLANNER = "planner"
"""The role of an agent that controls the others."""

GUEST = "guest:"
"""The prefix of a `token_hash` that is none: no token has it."""


class Agent(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """An agent: who may send commands, for which work, and how it is reached.

    `work_types` is None for an agent that declared none: it gets any work of its kind. `declared` are the
    `capabilities` that it declared at its last registration; no person gave them to it, and it may withdraw them.
    `added_concurrent` is how many tasks at once it was added with, where it declares another number itself. `wake_at`
    is when the hub must look at this row again: the end of its breaker's pause, `silent_at` (the next check for signs
    of life of an agent that converses), or a time that it named itself. `silent_since`: it shows no sign of life any
    more. `connections` are the last changes of its connection, the newest last: links that keep order, and silence. An
    agent that only polls has no connection. `paused`: a person lets it get no new work. `instance` is the newest of its
    processes, where they name themselves, `former_instances` are those before it.
    """

    id: AgentId
    protocol: str
    created_at: Instant
    token_hash: str
    kind: str | None = None
    role: str | None = None
    name: str | None = None
    domain: str | None = None
    version: str | None = None
    capabilities: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    work_types: tuple[str, ...] | None = None
    untrusted: bool = False
    max_concurrent: int = 8
    added_concurrent: int | None = None
    memory_mb: int | None = None
    gpu_vram_mb: int | None = None
    protocol_version: str | None = None
    callback_url: str | None = None
    registered_at: Instant | None = None
    connected: bool = False
    instance: str | None = None
    former_instances: tuple[str, ...] = ()
    last_seen_at: Instant | None = None
    breaker: Breaker = Breaker()
    wake_at: Instant | None = None
    silent_at: Instant | None = None
    silent_since: Instant | None = None
    details: dict[str, Any] = {}
    offers: tuple[Offer, ...] = ()
    revoked: tuple[Revoked, ...] = ()
    paused: bool = False
    connections: tuple[ConnectionChange, ...] = ()

    def noted(self, now: Instant, event: ConnectionEvent, why: str = "") -> tuple[ConnectionChange, ...]:
        """Its `connections` with one more."""
        return (*self.connections, ConnectionChange(now, event, why[:LONGEST_WHY]))[-MOST_CONNECTION_CHANGES:]

    @property
    def called(self) -> str:
        """The name by which tasks address it and its like: its kind, or its own id if it has none."""
        return self.kind or self.id

    @property
    def converses(self) -> bool:
        return self.protocol in CONVERSES

    @property
    def reads_direct_messages(self) -> bool:
        return self.protocol in READS_DIRECT_MESSAGES

    @property
    def guest(self) -> bool:
        """It was admitted without a token (on loopback, by a protocol whose clients send none)."""
        return self.token_hash.startswith(GUEST)

    def offer(self, intent: str) -> Offer | None:
        """The terms on which it does such work, if it declared any."""
        return next((offer for offer in self.offers if offer.intent == intent), None)

    @property
    def does_personal_work(self) -> bool:
        """Its logs may be personal then, and are kept only where they are encrypted: with its tasks (a2acp-D13)."""
        return any(offer.pii for offer in self.offers)

    @property
    def sandbox(self) -> str | None:
        """The level of the sandbox in which the hub runs it; None for an agent that runs elsewhere, or in none. It is
        part of the child's spec, which no agent can write."""
        level: str | None = self.details.get("child", {}).get("sandbox")
        return level

    def can_do(self, work_type: str) -> bool:
        return self.work_types is None or work_type in self.work_types


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a person sets for an agent that they add; None leaves the default."""

    kind: str | None = None
    role: str | None = None
    name: str | None = None
    domain: str | None = None
    version: str | None = None
    capabilities: tuple[str, ...] = ()
    work_types: tuple[str, ...] | None = None
    untrusted: bool = False
    max_concurrent: int | None = None

    @classmethod
    def of(cls, source: object) -> Profile:
        """From an object with at least these fields."""
        return msgspec.convert(source, cls, from_attributes=True)

    def admitted(self, id: AgentId, protocol: str, *, at: Instant, token_hash: str) -> Agent:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return Agent(id=id, protocol=protocol, created_at=at, token_hash=token_hash, **given)


class Link(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An open way to reach an agent.

    `ordered`: messages arrive in order, or the link breaks (WebSocket, stream); such a link holds its leases until it
    breaks. Otherwise it is one waiting poll: it takes up to `credit` outgoing messages of one unit of work and is gone.
    `window` limits the unacknowledged notices on an ordered link whose peer acknowledges; None for one that does not.
    `quota` limits the bytes that it was `given` and that are not yet `written` to its peer, where the link reports
    that: messages for a slow reader wait in the store, not in memory. Seats limit work. `vouches`: while the link is
    open its agent is alive (the hub watches its process or its stream). `stopping`: its agent was asked to end, and
    takes no more work. `awaits`: a request that waits for its own answer (`Origin.awaited`); it takes nothing else, so
    it is no way to reach its agent. `behind`: how far the link went through what earlier links left unacknowledged, as
    the rank and the id of the last one; None when it is through.
    """

    session: SessionId
    agent: AgentId
    ordered: bool
    credit: int = 0
    window: int | None = None
    outstanding: int = 0
    quota: int | None = None
    given: int = 0
    written: int = 0
    vouches: bool = False
    stopping: bool = False
    awaits: bool = False
    behind: tuple[int, str] | None = None

    @property
    def has_room(self) -> bool:
        if self.ordered:
            return (self.window is None or self.outstanding < self.window) and not self.full
        return self.credit > 0 and not self.full

    @property
    def full(self) -> bool:
        return self.quota is not None and self.given - self.written >= self.quota


class Resource(msgspec.Struct, frozen=True, gc=False):
    """`name` is the field of an agent and of a route, and the limit's name in a refusal; `constraint` is the name by
    which a task asks for it; `least` is the smallest limit that an agent may declare; `lacking` is the code of `task
    why`."""

    name: str
    constraint: str
    unit: str
    least: int
    lacking: str

    @property
    def names(self) -> tuple[str, str]:
        """The names that chiffon's callers and agents may use for it; the first counts."""
        return self.constraint, self.name


#                   name         constraint       unit            least  lacking
MEMORY = Resource("memory_mb", "max_memory_mb", "MB of memory", 1, "lacks_memory")


GPU_MEMORY = Resource("gpu_vram_mb", "max_gpu_vram_mb", "MB of GPU memory", 0, "lacks_gpu_memory")


RESOURCES = (MEMORY, GPU_MEMORY)


CONSTRAINTS = frozenset(resource.constraint for resource in RESOURCES)
"""The names of these in a task's constraints: they are no budgets."""
