"""A message, translated: decoded by its protocol's binding, decided by a hub in memory, encoded by the other's binding.

    the message               sent by       the hub in memory has before     arrives at
    ------------------------  ------------  -------------------------------  ----------
    a request for work        the caller    an agent that can do it          the agent
    cancel                    the caller    the agent at work                the agent
    progress, result, error,  the agent     a task of the caller's, given    the caller
    a question                              to the agent
    a request for help or to  the agent     an agent that can be asked       that agent
    take over, a direct message

What is lost on the way is what `messages/features.py` says of the features that the message really has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.app.clock import Mint, SystemClock
from dragoman.app.intake import Intake
from dragoman.app.translator.adapter import ONLY_FOR_THE_HUB, RECEIVER, Decoded, adapter_of, agent, sent_at, tree_of
from dragoman.core.commands import (
    AskHelp,
    AskPerson,
    Cancel,
    Command,
    Finish,
    HandOver,
    OpenLink,
    Reply,
    ReportFault,
    ReportProgress,
    Routing,
    Submit,
    Tell,
)
from dragoman.core.ids import HOUR, AgentId, Instant, SessionId, TaskId
from dragoman.core.model.agents import CONSTRAINTS, Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.model.tasks import Origin, Priority, Status, Task
from dragoman.core.ports import Changes
from dragoman.core.routing.routes import Route
from dragoman.core.rules import Rules
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.features import Carriage, Feature, carried_at_any_length
from dragoman.protocols.features import FEATURES
from dragoman.server.content import request_context
from dragoman.stores.memory import MemoryStore
from dragoman.wire.closing import CloseReason

F = Feature
OF_AN_AGENT = (ReportProgress, Finish, ReportFault, AskPerson)
AMONG_AGENTS = (AskHelp, HandOver, Tell)
LIMITS = CONSTRAINTS | {"quality_threshold"}
"""Constraints of a task that are no budget."""


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    feature: Feature
    how: Carriage
    why: str


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """`understood` is the message in the hub's own form; `arrives` what the other side gets; `losses` what of it does
    not arrive as it was sent."""

    source: str
    target: str
    kind: str
    towards: str
    understood: dict[str, Any]
    arrives: list[Any]
    losses: list[Lost]


class _Session:
    """Where outgoing messages arrive."""

    def __init__(self) -> None:
        self.outgoing_messages: list[Outgoing] = []

    def deliver(self, outgoing_messages: Any) -> None:
        self.outgoing_messages.extend(outgoing_messages)

    def hang_up(self, reason: CloseReason) -> None:
        pass


async def translate(source: str, target: str, data: bytes) -> Translation:
    """Raises `RemoteProtocolError` for what is no message of `source`, `Refused` for what cannot be carried."""
    clock = SystemClock()
    now = sent_at(tree_of(data), clock())
    decoded = adapter_of(source).decode(data, now)
    command = next(
        (one for one in decoded.commands if isinstance(one, (Submit, Cancel, *OF_AN_AGENT, *AMONG_AGENTS))), None
    )
    if command is None:
        raise refuse(Kind.UNSUPPORTED_WORK, f"{decoded.kind}: {ONLY_FOR_THE_HUB}")
    of_an_agent = isinstance(command, OF_AN_AGENT)
    translator = _Translator(decoded, target, now, Mint(clock))
    arrives = await (translator.to_caller(command) if of_an_agent else translator.to_agent(command))
    caller, worker = (target, source) if of_an_agent else (source, target)
    return Translation(
        source=source,
        target=target,
        kind=decoded.kind,
        towards="caller" if of_an_agent else "agent",
        understood=understood(command),
        arrives=arrives,
        losses=[
            Lost(feature=feature, how=cell.how, why=cell.note)
            for feature in features(command)
            if (cell := carried_at_any_length(feature, FEATURES[caller], FEATURES[worker])).how is not Carriage.EXACT
            and not (source == target and cell.how is Carriage.NEAR)
        ],
    )


class _Translator:
    def __init__(self, decoded: Decoded, target: str, now: Instant, mint: Mint) -> None:
        self._decoded = decoded
        self._target = target
        self._now = now
        self._store = MemoryStore()
        self._mint = mint
        # Nothing is tried again here: the caller hears of a failure at once, as it would after the last attempt.
        self._intake = Intake(self._store, rules=Rules(retry_delays=(0,)), now=lambda: now, mint=mint)

    async def to_agent(self, command: Command) -> list[Any]:
        """From a caller to an agent; from one agent to another."""
        files = self._decoded.files
        receiver = self._receiver(command)
        sender = self._decoded.sender
        rows: list[Any] = [sender, receiver, *([] if self._decoded.contract is None else [self._decoded.contract])]
        soon = Instant(self._now + HOUR)  # a deadline that has passed: here it has all the time in the world
        if isinstance(command, Submit):
            rows += [self._other(id, sender) for id in command.lineage.dependencies]
            parent = command.lineage.parent
            rows += [self._other(parent, sender, Status.RUNNING)] if parent else []
            routing = msgspec.structs.replace(command.routing, pinned=RECEIVER, kind=None, required_role=None)
            timing = command.timing
            if timing.deadline is not None and timing.deadline <= self._now:
                timing = msgspec.structs.replace(timing, deadline=soon)
            command = msgspec.structs.replace(command, routing=routing, timing=timing, seen=None)
        elif isinstance(command, AskHelp):
            command = msgspec.structs.replace(command, to=RECEIVER, task_id=None)
        elif isinstance(command, HandOver | Tell):
            command = msgspec.structs.replace(command, to=RECEIVER)
        if isinstance(command, AskHelp | HandOver) and command.deadline is not None and command.deadline <= self._now:
            command = msgspec.structs.replace(command, deadline=soon)
        await self._begin(rows)
        try:
            end = await self._open(receiver)
            if isinstance(command, Cancel):
                await self._given(sender, receiver, command.task_id)
                end.outgoing_messages.clear()
            await self._intake.execute(command)
            adapter = adapter_of(self._target)
            return [
                message
                for outgoing in end.outgoing_messages
                for message in adapter.encode(outgoing, receiver, self._now, files)
            ]
        finally:
            await self._intake.stop()

    async def to_caller(self, command: Any) -> list[Any]:
        """From the agent at work to the caller."""
        files = self._decoded.files
        worker, caller = self._decoded.sender, agent(RECEIVER, self._target, self._now)
        adapter = adapter_of(self._target)
        task = command.task_id or TaskId(self._mint())
        command = msgspec.structs.replace(command, task_id=task, seen=None)
        await self._begin([worker, caller])
        try:
            end = await self._open(caller)
            await self._open(worker)
            given = await self._given(caller, worker, task, follows=adapter.encode_event is not None)
            end.outgoing_messages.clear()
            await self._intake.execute(command)
            if adapter.encode_event is None:
                return [
                    message
                    for outgoing in end.outgoing_messages
                    for message in adapter.encode(outgoing, caller, self._now, files)
                ]
            now = await self._store.task(task)
            assert now is not None
            events = await self._store.events(task, after=given.seq)
            return [message for event in events for message in adapter.encode_event(event, now, files)]
        finally:
            await self._intake.stop()

    def _receiver(self, command: Command) -> Agent:
        """An agent that is able to do what is asked."""
        able: tuple[str, ...] = ()
        if isinstance(command, Submit):
            able = (*command.routing.required_capabilities, command.type)
        elif isinstance(command, HandOver):
            able = command.required_capabilities
        elif isinstance(command, AskHelp):
            able = (command.topic,)
        return agent(RECEIVER, self._target, self._now, capabilities=able)

    async def _begin(self, rows: list[Any]) -> None:
        async with self._store.unit() as unit:
            await unit.commit(Changes(added=rows))
        await self._intake.start()

    async def _open(self, to: Agent) -> _Session:
        end, session = _Session(), SessionId(self._mint())
        self._intake.attach(session, end)
        await self._intake.execute(OpenLink(principal=to.id, session=session, ordered=True))
        return end

    async def _given(self, caller: Agent, worker: Agent, task: TaskId, *, follows: bool = False) -> Task:
        """A task of the caller's in the worker's hands."""
        if not self._intake.reachable(worker.id):
            await self._open(worker)
        work = Submit(
            principal=caller.id, protocol=caller.protocol, request_id=self._mint(), digest="", type="work",
            content=messages.Request(input={}), task_id=task,
            routing=Routing(pinned=worker.id), reply=Reply(follows=follows),
        )  # fmt: skip
        given: Task = await self._intake.execute(work)
        return given

    def _other(self, id: TaskId, owner: Agent, status: Status = Status.COMPLETED) -> Task:
        """A task that the message only names."""
        return Task(
            id=id, type="work", status=status, owner=owner.id, created_at=self._now, updated_at=self._now,
            origin=Origin(principal=AgentId(owner.id), protocol=owner.protocol, request_id=f"named:{id}", digest=""),
            route=Route(type="work").queue, deadline=self._now, idle_limit=0, rank=0, trace_id="0" * 32,
        )  # fmt: skip


# -- what a message says -------------------------------------------------------------------------------------------


def understood(command: Command) -> dict[str, Any]:
    """The message in the hub's own words; what it does not say is left out."""
    shown: dict[str, Any] = {"means": _MEANS[type(command)]}
    tells = _TELLS.get(type(command))
    if tells is not None:
        shown |= tells(command)
    if isinstance(command, Submit | ReportProgress | Finish):
        shown |= msgspec.to_builtins(command.content)
    return {name: value for name, value in shown.items() if value not in (None, "", [], {}, ())}


_MEANS: Mapping[type[Any], str] = {
    Submit: "have this done",
    Cancel: "stop this",
    ReportProgress: "how far it is",
    Finish: "it is done",
    ReportFault: "it failed",
    AskPerson: "a person is asked",
    AskHelp: "another agent is asked for help",
    HandOver: "another agent is asked to go on",
    Tell: "a message that is no task",
}

_TELLS: Mapping[type[Any], Callable[[Any], dict[str, Any]]] = {
    Submit: lambda asked: {
        "type": asked.type, "name": asked.name, "description": asked.description, "priority": asked.priority.value,
        "for": asked.routing.pinned or asked.routing.kind, "thread": asked.lineage.thread,
        "capabilities": list(asked.routing.required_capabilities),
        "dependencies": list(asked.lineage.dependencies), "limits": asked.constraints,
        "seconds": asked.timing.total_seconds,
    },
    Cancel: lambda asked: {"reason": asked.reason},
    AskPerson: lambda asked: {"question": asked.ask.question, "options": list(asked.ask.options)},
    AskHelp: lambda asked: {"question": asked.question, "topic": asked.topic, "priority": asked.priority.value},
    HandOver: lambda asked: {"reason": asked.reason.value, "type": asked.type},
    Tell: lambda shown: {"letter": shown.direct_message.kind},
    ReportFault: lambda shown: {"fault": msgspec.to_builtins(shown.fault)},
}  # fmt: skip

_IN_BODY: Mapping[str, Feature] = {
    "percent": F.PERCENT, "message": F.MESSAGE, "step": F.STEP, "thinking": F.THINKING, "tool_use": F.TOOL_USE,
    "tool_result": F.TOOL_RESULT, "file": F.FILE, "exit_code": F.EXIT_CODE, "usage": F.USAGE, "result": F.RESULT,
    "attachments": F.ATTACHMENT,
}  # fmt: skip


def features(command: Command) -> list[Feature]:
    """What of the loss matrix concerns this message."""
    found: list[Feature] = []
    content: dict[str, Any] = {}
    if isinstance(command, Submit | ReportProgress | Finish | ReportFault):
        content = msgspec.to_builtins(command.content)
    if isinstance(command, Submit):
        found = [F.WORK_TYPE, F.INPUT]
        timing, lineage = command.timing, command.lineage
        for feature, there in (
            (F.PRIORITY, command.priority is not Priority.NORMAL),
            (F.DEADLINE, command.agreement.contract is None and (timing.total_seconds or timing.deadline)),
            (F.DEPENDENCIES, lineage.dependencies),
            (F.DESCRIPTION, command.name or command.description),
            (F.THREAD, lineage.thread),
            (F.BUDGET, command.constraints.keys() - LIMITS),
            (F.LIMITS, command.constraints.keys() & LIMITS),
            (F.CONTEXT, request_context(command.content)),
        ):
            found += [feature] if there else []
    elif isinstance(command, ReportProgress):
        found = [F.OUTPUT] if content.get("output") else []
        found += [F.QUESTION] if command.ask is not None else []
    elif isinstance(command, Finish):
        found = [F.TEXT] if content.get("output") else []
        found += [F.FAILURE] if command.fault is not None else []
    else:
        found = [_ALONE[type(command)]]
    found += [feature for name, feature in _IN_BODY.items() if content.get(name) is not None and name != "fault"]
    return sorted(dict.fromkeys(found), key=list(Feature).index)


_ALONE: Mapping[type[Any], Feature] = {
    Cancel: F.CANCEL,
    ReportFault: F.FAILURE,
    AskPerson: F.QUESTION,
    AskHelp: F.HELP,
    HandOver: F.HANDOVER,
    Tell: F.DIRECT_MESSAGE,
}

__all__ = ["Lost", "Translation", "features", "translate", "understood"]
