"""An agent as the hub knows it: one row, whatever protocol it speaks.

`RESOURCES` are those that an agent has a fixed amount of while its process runs, and that its tasks share. An agent may
say at its registration how much it has, and a task how much it may need. One more resource is one more row
here, and a field of that name in `Agent`, `RegisterAgent` and `Route`. What is done with the amounts is in
`core.budgets.capacity`.
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
    """How far we trust an agent to answer. `until` is when an open one may be probed."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    until: Instant | None = None


class Offer(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """One type of work that an agent does on declared terms: what it takes, what it gives, and who may ask.

    Schemas are JSON Schema; True takes anything. `pii`: what is said in it is personal.
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
    """A token that does not count any more, by its name; at `until` it would be over in any case."""

    jti: str
    until: Instant


PLANNER = "planner"
"""The role of an agent that steers the others."""

GUEST = "guest:"
"""The beginning of a `token_hash` that is none: nobody's token can have it."""


class Agent(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Who may speak, for what, and how it is reached.

    `work_types` is None for an agent that declared none: it is offered any work of its kind. `declared` are those of
    its `capabilities` that it said it has when it registered last; nobody gave them to it, and it may take them back.
    `added_concurrent` is how many tasks at once it was added with, where it says another number itself.
    `wake_at` is when the hub must look at this row again: an open breaker, `silent_at`, when it is to be seen whether
    an agent that converses is still heard, or a time that it named itself. `silent_since`: it is not heard any more.
    `paused`: a person lets it get no new work.
    `instance` is the newest of its processes, where they say which one they are, `former_instances` those before it.
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

    @property
    def called(self) -> str:
        """The name by which work is addressed to it and its like: its kind, or its own id when it has none."""
        return self.kind or self.id

    @property
    def converses(self) -> bool:
        return self.protocol in CONVERSES

    @property
    def reads_direct_messages(self) -> bool:
        return self.protocol in READS_DIRECT_MESSAGES

    @property
    def guest(self) -> bool:
        """It was let in without a token (on loopback, by a protocol whose clients send none)."""
        return self.token_hash.startswith(GUEST)

    def offer(self, intent: str) -> Offer | None:
        """The terms on which it does such work, if it declared any."""
        return next((offer for offer in self.offers if offer.intent == intent), None)

    @property
    def does_personal_work(self) -> bool:
        """Then what it logs may be personal, and is kept only where that is shut: with its tasks (a2acp-D13)."""
        return any(offer.pii for offer in self.offers)

    @property
    def sandbox(self) -> str | None:
        """The level of the sandbox that the hub runs it in; None for one that runs elsewhere, or in none. It stands
        with how the hub starts it, where no agent can write."""
        level: str | None = self.details.get("child", {}).get("sandbox")
        return level

    def can_do(self, work_type: str) -> bool:
        return self.work_types is None or work_type in self.work_types


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What people say of an agent that they let in; what is None is as the hub has it."""

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
        """From anything that has these fields, and perhaps more."""
        return msgspec.convert(source, cls, from_attributes=True)

    def admitted(self, id: AgentId, protocol: str, *, at: Instant, token_hash: str) -> Agent:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return Agent(id=id, protocol=protocol, created_at=at, token_hash=token_hash, **given)


class Link(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A way to reach an agent now.

    `ordered`: what we send arrives in that order or the link breaks (WebSocket, stream); such a link holds its leases
    until it breaks. Otherwise it is one parked poll: it takes up to `credit` outgoing messages of one unit of work and
    is gone. `window` bounds the unacknowledged notices on an ordered link whose peer acknowledges; None for one that
    does not. `quota` bounds the bytes that it was `given` and that are not yet `written` to its peer, where the link
    says so: who does not read is owed what it is owed in the store, not in memory. Work is bounded by seats instead.
    `vouches`: while the link stands its agent is alive (its process, or its stream, is watched).
    `stopping`: its agent was asked to end, and takes no more work.
    `awaits`: a request that waits for its own answer (`Origin.awaited`). It takes that and nothing else, so it is no
    way to reach its agent.
    `behind`: so far it was looked through what earlier links left unacknowledged, by the rank and the id of the last
    one; None when all of it was.
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
    """`name` is the field of an agent and of a route, and what a refusal calls the limit; `constraint` is by what name
    a task asks for it; `least` is the smallest limit that an agent may declare; `lacking` is the code of `task why`."""

    name: str
    constraint: str
    unit: str
    least: int
    lacking: str

    @property
    def names(self) -> tuple[str, str]:
        """By what names chiffon's callers and agents may call it; the first counts."""
        return self.constraint, self.name


#                   name         constraint       unit            least  lacking
MEMORY = Resource("memory_mb", "max_memory_mb", "MB of memory", 1, "lacks_memory")


GPU_MEMORY = Resource("gpu_vram_mb", "max_gpu_vram_mb", "MB of GPU memory", 0, "lacks_gpu_memory")


RESOURCES = (MEMORY, GPU_MEMORY)


CONSTRAINTS = frozenset(resource.constraint for resource in RESOURCES)
"""What a task's constraints call these: no matter of budgets."""
