"""The requests that agents were sent, and the names by which they may answer them.

The hub remembers both when a request leaves. After a restart it reads them from the store (`recall`).

An answer names its request by its `correlation_id`. The document never says so, and shows answers without one, so the
hub understands every answer that can only mean one request:

    correlation_id               a response, error or progress           the answer to a proposal
    ---------------------------  --------------------------------------  ---------------------------------------
    what the hub wrote there     the task of that name or id             the handshake
    the id of the hub's message  the task that it brought                the handshake that it proposed
    the caller's, or the id      the caller's task                       -
      of its request
    nothing                      the one request that is open between    `handshake_id`, or the one handshake
                                 the two, by contract and intent         that is open

Two requests that an agent works on at the same time never have the same name.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dragoman.core.ids import AgentId, QuestionId, TaskId
from dragoman.core.model.tasks import Asking, QuestionStatus, Task
from dragoman.core.ports import Intake, Store, TaskFilter
from dragoman.messages.faults import Kind, refuse
from dragoman.protocols.a2acp.types import PROTOCOL, Agent, Message, MessageType
from dragoman.server.a2acp.frames import message_id, thread_of

MOST_GIVEN = 100_000
MOST_PROPOSED = 256
"""Proposals to one agent that the hub remembers; each is open for five seconds."""
MOST_ANSWERED = 100
"""Requests, the newest first, among which the hub looks after a restart for one that an agent answers again."""


class Given(msgspec.Struct, frozen=True):
    """A task that an agent was given: its caller, and its contract."""

    task: TaskId
    owner: AgentId
    principal: AgentId
    contract: str | None
    type: str


class Correlations:
    """One for all endpoints."""

    def __init__(self, hub: Intake, store: Store, party: Callable[[AgentId], Agent]) -> None:
        self._hub = hub
        self._store = store
        self._party = party
        self._given: dict[str, Given] = {}
        """By the task's id, and by that of the message that brought it."""
        self._called: dict[tuple[AgentId, str], Given] = {}
        """By its owner and its name there."""
        self._proposed: dict[AgentId, dict[QuestionId, str]] = {}
        """The handshakes proposed to an agent, with the id of the message."""
        self._recalled: set[AgentId] = set()
        """Agents whose tasks and proposals of before the start have their names again."""

    # -- requests of before the start

    def remembers(self, agent: AgentId) -> bool:
        return agent in self._recalled

    async def recall(self, agent: AgentId) -> None:
        """Before an agent gets more work, or answers: the tasks that it works on keep their names, the oldest first, so
        that no other gets them. Raises `StoreFailed`."""
        if agent in self._recalled:
            return
        at_hand = await self._at_hand(agent)
        asked = await self._store.questions(status=QuestionStatus.WITH_AGENT, asked_of=agent, limit=MOST_PROPOSED)
        self._recalled.add(agent)
        for task in sorted(at_hand, key=lambda one: one.last_attempt):
            self.name(task)
        for question in asked:
            if question.about is Asking.HANDSHAKE:
                self.propose(agent, question.id, message_id(question.details.proposal or question.id))

    async def _at_hand(self, agent: AgentId) -> list[Task]:
        return [one for id in self._hub.load_of(agent) if (one := await self._store.task(id)) is not None]

    # -- out

    def give(self, task: Task, message_id: str | None = None) -> Given:
        """The owner of a task gets it, by the message of that id."""
        assert task.owner is not None
        given = Given(task.id, task.owner, task.origin.principal, task.agreement.contract, task.type)
        for name in (task.id, message_id):
            if name is not None:
                if len(self._given) >= MOST_GIVEN:
                    del self._given[next(iter(self._given))]
                self._given[name] = given
        return given

    def name(self, task: Task) -> str:
        """The correlation id by which a task's owner knows it: the caller's, unless the owner works on another task of
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
        """An agent gets a proposal, by the message of that id."""
        asked = self._proposed.setdefault(agent, {})
        if len(asked) >= MOST_PROPOSED:
            del asked[next(iter(asked))]
        asked[question] = message_id

    # -- in

    async def answered(self, me: AgentId, message: Message) -> Given:
        """The task that an agent answers; raises `Refused`, with the same text for an unknown task and another's."""
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
                return known  # the agent answered it before
            if not in_hand and (over := await self._answered_before(me, message)) is not None:
                return self.give(over)
            if not in_hand:
                raise refuse(Kind.NOT_FOUND, "no request of that correlation id, or not yours", field="correlation_id")
        meant = [one for one in in_hand if self._fits(one, message)]
        if named is None and len(meant) != 1:
            raise refuse(
                Kind.INVALID,
                f"missing, and {len(meant)} requests are open that it may mean",
                next="say the request's correlation_id",
                field="payload.correlation_id",
            )
        return self.give((meant or in_hand)[0])

    async def _answered_before(self, me: AgentId, message: Message) -> Task | None:
        """The task that an agent answered before the hub started, and answers again: its receipt may be lost."""
        page, _ = await self._store.tasks(TaskFilter(agent=me), after=None, limit=MOST_ANSWERED)
        named = message.correlation_id
        return next((one for one in page if named in names_of(one) and self._fits(one, message)), None)

    def _fits(self, task: Task, message: Message) -> bool:
        """Whether a message is to the task's caller, and neither its contract nor its intent is another's."""
        return (
            self._party(task.origin.principal).agent_id == message.target_agent.agent_id
            and message.contract_id in (None, task.agreement.contract)
            and (message.intent in (None, task.type) or message.message_type is MessageType.EVENT)
        )

    def has_proposals(self, me: AgentId) -> bool:
        return bool(self._proposed.get(me))

    def is_proposal(self, me: AgentId, named: str) -> bool:
        """Whether it names a proposal to the agent, by its message or its handshake."""
        asked = self._proposed.get(me, {})
        return named in asked or named in asked.values()

    async def proposal(self, me: AgentId, named: str | None) -> QuestionId:
        """The handshake that an agent answers; raises `Refused`."""
        asked = self._proposed.get(me, {})
        if named is not None:
            if asked.pop(QuestionId(named), None) is not None:  # its own id always finds it
                return QuestionId(named)
            return next((question for question, id in asked.items() if id == named), QuestionId(named))
        for question in list(asked):
            row = await self._store.question(question)
            if row is None or row.status is not QuestionStatus.WITH_AGENT:
                asked.pop(question, None)
        if len(asked) != 1:
            raise refuse(
                Kind.INVALID,
                f"missing, and {len(asked)} handshakes are open that it may mean",
                next="say the proposal's handshake_id",
                field="payload.correlation_id",
            )
        return next(iter(asked))


def names_of(task: Task) -> tuple[str, ...]:
    """The names that a task's owner may use for it, beside its id: the caller's, and the id of the message."""
    brought_by = () if task.attempt.order is None else (message_id(task.attempt.order),)
    return (thread_of(task), task.origin.request_id, *brought_by)
