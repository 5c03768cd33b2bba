"""What the core offers to transports: an intake for commands, and what they may know of the directory; and what it asks
of them: an end of each link. `app.intake` and `app.cluster.link` are the adapters.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from dragoman.core.commands import Command
from dragoman.core.ids import AgentId, Instant, SessionId, TaskId
from dragoman.core.memory import MemoryBudget
from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import Newest
from dragoman.core.model.contracts import Contract
from dragoman.core.model.holdings import Holding
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.people import Person
from dragoman.core.model.policy import Policy
from dragoman.core.model.silence import Watched
from dragoman.core.model.state import Entity
from dragoman.core.model.tasks import Task
from dragoman.core.streams import Streams
from dragoman.messages.faults import Refused
from dragoman.wire.closing import CloseReason

T = TypeVar("T", covariant=True)


class Future(Awaitable[T], Protocol[T]):
    """What `Intake.enqueue` returns: a future outcome (`asyncio.Future` is one)."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


class LinkEnd(Protocol):
    """The transport's end of a link: it sends outgoing messages."""

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        """Send these, in this order. Called on the event loop, only after their commit; must not block or raise. A link
        that cannot send enqueues `CloseLink`."""
        ...

    def hang_up(self, reason: CloseReason) -> None:
        """The hub has closed this link (replaced, agent removed, hub stopping)."""
        ...


class Intake(Protocol):
    """The hub as transports see it: every change enters here.

    The intake collects the commands of all connections. As soon as the last commit has ended, it decides everything
    that waits, in the order of arrival, and commits it together.
    """

    async def execute(self, command: Command) -> Any:
        """The command's outcome, after it is durably committed. Raises `Refused` (audited, if the command has an
        action). Raises `Refused` OVERLOADED or INTERNAL when the hub cannot commit; then nothing happened."""
        ...

    def enqueue(self, command: Command) -> Future[Any]:
        """`execute` without waiting. Commands are decided in the order in which they are enqueued."""
        ...

    def enqueue_then(self, command: Command, then: Callable[[Any, Refused | None], None]) -> None:
        """`enqueue` without a future: the intake calls `then` with the outcome or the refusal, in the turn of the loop
        in which it publishes the commit. `then` must not block or raise."""
        ...

    def enqueue_and_forget(self, command: Command) -> None:
        """Enqueue a command that no caller waits for and that may get lost, such as an acknowledgment: the hub asks for
        it again. It goes along with the next unit of work, or alone after a moment, so that it costs no commit of its
        own."""
        ...

    @property
    def memory(self) -> MemoryBudget:
        """Counts the bytes of messages that wait for their decision. Endpoints take from it before they read."""
        ...

    @property
    def streams(self) -> Streams:
        """The open streams of events."""
        ...

    def attach(self, session: SessionId, end: LinkEnd) -> None:
        """Set where the outgoing messages of this session go. Called before `OpenLink`."""
        ...

    def detach(self, session: SessionId) -> None:
        """Called after `CloseLink`."""
        ...

    def agent_of(self, token_hash: str) -> Agent | None:
        """The agent with this token. In memory: authentication costs no read."""
        ...

    def agent(self, id: AgentId) -> Agent | None: ...

    def agents(self) -> Sequence[Agent]: ...

    @property
    def people(self) -> Mapping[str, Person]:
        """All people by name, as of the last commit."""
        ...

    def load_of(self, id: AgentId) -> Sequence[TaskId]:
        """The unfinished tasks that an agent holds."""
        ...

    def holds(self, id: AgentId, task: TaskId) -> bool: ...

    async def contract(self, id: str) -> Contract | None:
        """A contract as of the last commit. Those in use are cached."""
        ...

    def watched(self, task: Task) -> Watched:
        """What the hub knows of the agent that has a task; it determines how long the agent may be silent."""
        ...

    def holding(self, id: AgentId) -> Holding:
        """What a principal has in the store that is unfinished, as of the last commit."""
        ...

    def reachable(self, id: AgentId) -> bool:
        """Whether a link to the agent is open now."""
        ...

    def watch(self, task: TaskId) -> AbstractAsyncContextManager[Watch]:
        """Wakes its user when something was committed about a task, or about a question, by its id. The events are in
        the store then."""
        ...

    def watch_state(self) -> AbstractAsyncContextManager[Watch]:
        """Wakes its user when a change of the shared state was committed. The log in the store has it then."""
        ...

    def watch_callbacks(self, changed: Callable[[AgentId], None] | None) -> None:
        """From now on call this one, after the commit, with each agent whose callback URL is another or that was
        removed; None: none. Only the hub that decides calls it."""
        ...

    def entity(self, id: str) -> Entity | None:
        """An entity of the shared state, except for tasks that agents keep among themselves. In memory."""
        ...

    def entities(self) -> Sequence[Entity]: ...

    @property
    def newest_audit(self) -> Newest:
        """The newest audit record as of the last commit, even if it was deleted from the store since."""
        ...

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        ...

    def seen_at(self, id: AgentId) -> Instant | None:
        """When the hub last saw a sign of life of an agent that converses, since this hub runs."""
        ...

    @property
    def state_cursor(self) -> int:
        """The number of the last change of the shared state."""
        ...

    def now(self) -> Instant: ...

    def mint(self) -> str:
        """A fresh version 7 UUID."""
        ...


class Watch(Protocol):
    async def changed(self, timeout: float) -> bool:
        """True as soon as something changed since the last call; False after the timeout."""
        ...
