"""What agents were asked, and by which names they may answer it.

Both are remembered as they leave. After a restart they are found in the store (`recall`).

An answer names what it answers by its `correlation_id`. The document never says so, and shows answers without one, so
whatever can only mean one thing is understood:

    correlation_id               a response, error or progress           the answer to a proposal
    ---------------------------  --------------------------------------  ---------------------------------------
    what we wrote there          the task of that name or id             the handshake
    the id of our message        the task that it brought                the handshake that it proposed
    the caller's, or the id      the caller's task                       -
      of its request
    nothing                      the one request that is open between    `handshake_id`, or the one handshake
                                 the two, by contract and intent         that is open

Two requests that an agent works on at the same time never have the same name towards it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dragoman.core.ids import AgentId, QuestionId, TaskId
from dragoman.core.model.tasks import Asking, QuestionStatus, Task
from dragoman.core.ports import TaskFilter
from dragoman.messages.faults import Kind, refuse
from dragoman.protocols.a2acp.types import Message, MessageType
from dragoman.server.a2acp import names
from dragoman.server.a2acp.names import PROTOCOL

if TYPE_CHECKING:
    from dragoman.server.a2acp.handler import A2acpHandler

MOST_GIVEN = 100_000
MOST_PROPOSED = 256
"""Proposals to one agent that are remembered; each is open for five seconds."""
MOST_ANSWERED = 100
"""Requests, the newest first, among which an answer that comes again is looked for after a restart."""


class Given(msgspec.Struct, frozen=True):
    """Whose work which agent was given, and on which terms."""

    task: TaskId
    owner: AgentId
    principal: AgentId
    contract: str | None
    type: str


class Correlations:
    """One for all endpoints."""

    def __init__(self, handler: A2acpHandler) -> None:
        self._handler = handler
        self._hub = handler.hub
        self._store = handler.store
        self._given: dict[str, Given] = {}
        """By the task's id, and by that of the message that brought it."""
        self._called: dict[tuple[AgentId, str], Given] = {}
        """By who works on it, and what it is called there."""
        self._proposed: dict[AgentId, dict[QuestionId, str]] = {}
        """Handshakes that an agent was asked about, with the id of the message."""
        self._recalled: set[AgentId] = set()
        """Whose work and proposals of before the start are called as they were then."""

    # -- what left before the hub was started

    def remembers(self, agent: AgentId) -> bool:
        return agent in self._recalled

    async def recall(self, agent: AgentId) -> None:
        """Before an agent is told of more work, or answers anything: what it has at hand keeps its names, the oldest
        first, so that nothing else gets them. Raises `StoreFailed`."""
        if agent in self._recalled:
            return
        at_hand = await self._at_hand(agent)
        asked = await self._store.questions(status=QuestionStatus.WITH_AGENT, asked_of=agent, limit=MOST_PROPOSED)
        self._recalled.add(agent)
        for task in sorted(at_hand, key=lambda one: one.last_attempt):
            self.name(task)
        for question in asked:
            if question.about is Asking.HANDSHAKE:
                self.propose(agent, question.id, names.message_id(question.details.get("proposal", question.id)))

    async def _at_hand(self, agent: AgentId) -> list[Task]:
        return [one for id in self._hub.load_of(agent) if (one := await self._store.task(id)) is not None]

    # -- what leaves

    def give(self, task: Task, message_id: str | None = None) -> Given:
        """The owner of a task hears of it, by the message of that id."""
        assert task.owner is not None
        given = Given(task.id, task.owner, task.origin.principal, task.contract, task.type)
        for name in (task.id, message_id):
            if name is not None:
                if len(self._given) >= MOST_GIVEN:
                    del self._given[next(iter(self._given))]
                self._given[name] = given
        return given

    def name(self, task: Task) -> str:
        """What the agent that works on a task knows it by: what its caller calls it, unless it works on another one of
        that name."""
        name, me = task.origin.called, task.owner
        if name is None or me is None or task.origin.protocol != PROTOCOL:
            return task.id
        holder = self._called.get((me, name))
        if holder is None or (holder.task != task.id and not self._hub.holds(me, holder.task)):
            if len(self._called) >= MOST_GIVEN:
                del self._called[next(iter(self._called))]
            holder = self._called[me, name] = self._given.get(task.id) or self.give(task)
        return name if holder.task == task.id else task.id

    def propose(self, agent: AgentId, question: QuestionId, message_id: str) -> None:
        """An agent is asked whether it agrees, by the message of that id."""
        asked = self._proposed.setdefault(agent, {})
        if len(asked) >= MOST_PROPOSED:
            del asked[next(iter(asked))]
        asked[question] = message_id

    # -- what is answered

    async def answered(self, me: AgentId, message: Message) -> Given:
        """What an agent answers; raises `Refused`, in the same words for what is not there and what is not its own."""
        await self.recall(me)
        named = message.correlation_id
        exact = None if named is None else self._given.get(named)
        if exact is not None and exact.owner == me:
            return exact
        known = None if named is None else self._called.get((me, named))
        if known is not None and message.contract_id in (None, known.contract) and self._hub.holds(me, known.task):
            return known
        task = None if named is None else await self._store.task(TaskId(named))
        if task is not None and task.owner == me:
            return self.give(task)
        in_hand = await self._at_hand(me)
        if named is not None:
            in_hand = [one for one in in_hand if named in names_of(one)]
            if not in_hand and known is not None:
                return known  # it was answered before
            if not in_hand and (over := await self._answered_before(me, message)) is not None:
                return self.give(over)
            if not in_hand:
                raise refuse(Kind.NOT_FOUND, "no request of that correlation id, or not yours", field="correlation_id")
        meant = [one for one in in_hand if self._fits(one, message)]
        if named is None and len(meant) != 1:
            what = f"missing, and {len(meant)} requests are open that it may mean; say the request's correlation_id"
            raise refuse(Kind.INVALID, what, field="payload.correlation_id")
        return self.give((meant or in_hand)[0])

    async def _answered_before(self, me: AgentId, message: Message) -> Task | None:
        """What it answered before the hub was started, and answers again: it may not have heard that it did."""
        page, _ = await self._store.tasks(TaskFilter(agent=me), after=None, limit=MOST_ANSWERED)
        named = message.correlation_id
        return next((one for one in page if named in names_of(one) and self._fits(one, message)), None)

    def _fits(self, task: Task, message: Message) -> bool:
        """Whether a message is to whoever asked for a task, and says nothing that another was meant."""
        return (
            self._handler.party(task.origin.principal).agent_id == message.target_agent.agent_id
            and message.contract_id in (None, task.contract)
            and (message.intent in (None, task.type) or message.message_type is MessageType.EVENT)
        )

    def has_proposals(self, me: AgentId) -> bool:
        return bool(self._proposed.get(me))

    def is_proposal(self, me: AgentId, named: str) -> bool:
        """Whether an agent was asked by that message, or about that handshake."""
        asked = self._proposed.get(me, {})
        return named in asked or named in asked.values()

    async def proposal(self, me: AgentId, named: str | None) -> QuestionId:
        """The handshake that an agent answers; raises `Refused`."""
        asked = self._proposed.get(me, {})
        if named is not None:
            if asked.pop(QuestionId(named), None) is not None:  # it will be found by this name again
                return QuestionId(named)
            return next((question for question, id in asked.items() if id == named), QuestionId(named))
        for question in list(asked):
            row = await self._store.question(question)
            if row is None or row.status is not QuestionStatus.WITH_AGENT:
                asked.pop(question, None)
        if len(asked) != 1:
            what = f"missing, and {len(asked)} handshakes are open that it may mean; say the proposal's handshake_id"
            raise refuse(Kind.INVALID, what, field="payload.correlation_id")
        return next(iter(asked))


def names_of(task: Task) -> tuple[str, ...]:
    """What whoever works on a task may call it, beside its id: as its caller does, or by what brought it."""
    brought_by = () if task.order is None else (names.message_id(task.order),)
    return (names.thread_of(task), task.origin.request_id, *brought_by)
