"""A message, translated: decoded with one protocol, decided by a hub in memory, encoded with another.

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

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dragoman.app.clock import Mint, SystemClock
from dragoman.app.intake import Intake
from dragoman.app.translator.adapters import ADAPTERS, ONLY_FOR_THE_HUB, RECEIVER, Decoded, agent, tree_of
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
from dragoman.core.ids import HOUR, Instant, SessionId, TaskId, instant
from dragoman.core.model.agents import CONSTRAINTS, Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Origin, Priority, Status, Task, TaskLineage, TaskRouting, TaskTiming
from dragoman.core.ports import Changes
from dragoman.core.routing.routes import Route
from dragoman.core.rules import Rules
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.features import Carriage, Feature, carried_at_any_length
from dragoman.messages.tasks import Request
from dragoman.protocols.features import FEATURES
from dragoman.server.content import request_context
from dragoman.stores.memory import MemoryStore
from dragoman.wire.closing import CloseReason

F = Feature
FROM_CALLERS = (Submit, Cancel, AskHelp, HandOver, Tell)
FROM_AGENTS = (ReportProgress, Finish, ReportFault, AskPerson)
"""What an agent sends about its task, towards the caller."""
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


class _Inbox:
    """A session of the receiver: keeps what the hub sends."""

    def __init__(self) -> None:
        self.outgoing: list[Outgoing] = []

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        self.outgoing.extend(outgoing_messages)

    def hang_up(self, reason: CloseReason) -> None:
        pass


async def translate(source: str, target: str, data: bytes) -> Translation:
    """Raises `RemoteProtocolError` for what is no message of `source`, `Refused` for what cannot be carried."""
    clock = SystemClock()
    now = _sent_at(tree_of(data), clock())
    decoded = ADAPTERS[source].decode(data, now)
    command = next((one for one in decoded.commands if isinstance(one, (*FROM_CALLERS, *FROM_AGENTS))), None)
    if command is None:
        raise refuse(Kind.UNSUPPORTED_WORK, f"{decoded.kind}: {ONLY_FOR_THE_HUB}")
    to_caller = isinstance(command, FROM_AGENTS)
    caller, worker = (target, source) if to_caller else (source, target)
    return Translation(
        source=source,
        target=target,
        kind=decoded.kind,
        towards="caller" if to_caller else "agent",
        understood=understood(command),
        arrives=await _delivered(decoded, command, target, now, Mint(clock)),
        losses=[
            Lost(feature=feature, how=cell.how, why=cell.note)
            for feature in features(command)
            if (cell := carried_at_any_length(feature, FEATURES[caller], FEATURES[worker])).how is not Carriage.EXACT
            and not (source == target and cell.how is Carriage.NEAR)
        ],
    )


def _sent_at(tree: Mapping[str, Any], now: Instant) -> Instant:
    """When the message was sent, as it says itself: its deadlines count from there."""
    text = tree.get("timestamp")
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
        return now if at is None or at.tzinfo is None else instant(at)
    except (ValueError, OverflowError):
        return now


async def _delivered(decoded: Decoded, command: Any, target: str, now: Instant, mint: Mint) -> list[Any]:
    """What a hub in memory sends to the receiver when it has decided the command."""
    adapter, sender, files = ADAPTERS[target], decoded.sender, decoded.files
    to_caller = isinstance(command, FROM_AGENTS)
    reads_events = to_caller and adapter.encode_event is not None
    if to_caller:
        receiver = agent(RECEIVER, target, now)
        command = replace(command, task_id=command.task_id or TaskId(mint()), seen=None)
    else:
        receiver = agent(RECEIVER, target, now, capabilities=_capabilities(command))
        command = _addressed(command, now)
    store = MemoryStore()
    # Nothing is tried again here: the caller receives a failure at once, as it would after the last attempt.
    intake = Intake(store, rules=Rules(retry_delays=(0,)), now=lambda: now, mint=mint)

    async def connect(who: Agent) -> _Inbox:
        inbox, session = _Inbox(), SessionId(mint())
        intake.attach(session, inbox)
        await intake.execute(OpenLink(principal=who.id, session=session, ordered=True))
        return inbox

    async with store.unit() as unit:
        contracts = () if decoded.contract is None else (decoded.contract,)
        await unit.commit(Changes(added=[sender, receiver, *contracts, *_named_tasks(command, sender, now)]))
    await intake.start()
    try:
        inbox, seen = await connect(receiver), 0
        if to_caller or isinstance(command, Cancel):  # it is about a task that the worker has
            caller, worker = (receiver, sender) if to_caller else (sender, receiver)
            if to_caller:
                await connect(worker)
            work = Submit(
                principal=caller.id, protocol=caller.protocol, request_id=mint(), digest="", type="work",
                content=Request(input={}), task_id=command.task_id,
                routing=Routing(pinned=worker.id), reply=Reply(follows=reads_events),
            )  # fmt: skip
            seen = (await intake.execute(work)).seq
            inbox.outgoing.clear()
        await intake.execute(command)
        if adapter.encode_event is None or not to_caller:
            return [one for outgoing in inbox.outgoing for one in adapter.encode(outgoing, receiver, now, files)]
        task = await store.task(command.task_id)
        assert task is not None
        events = await store.events(task.id, after=seen)
        return [one for event in events for one in adapter.encode_event(event, task, files)]
    finally:
        await intake.stop()


def _addressed(command: Any, now: Instant) -> Any:
    """The command for the receiver, and with an hour of time where its deadline has passed."""
    later = Instant(now + HOUR)
    if isinstance(command, Submit):
        routing = replace(command.routing, pinned=RECEIVER, kind=None, required_role=None)
        timing = command.timing
        if timing.deadline is not None and timing.deadline <= now:
            timing = replace(timing, deadline=later)
        return replace(command, routing=routing, timing=timing, seen=None)
    if isinstance(command, AskHelp):
        command = replace(command, to=RECEIVER, task_id=None)
    elif isinstance(command, HandOver | Tell):
        command = replace(command, to=RECEIVER)
    if isinstance(command, AskHelp | HandOver) and command.deadline is not None and command.deadline <= now:
        command = replace(command, deadline=later)
    return command


def _capabilities(command: Command) -> tuple[str, ...]:
    """What an agent must be able to do to get this."""
    match command:
        case Submit():
            return (*command.routing.required_capabilities, command.type)
        case HandOver():
            return command.required_capabilities
        case AskHelp():
            return (command.topic,)
    return ()


def _named_tasks(command: Command, owner: Agent, now: Instant) -> list[Task]:
    """The tasks that a request names: what it depends on is done, what it is part of runs."""
    if not isinstance(command, Submit):
        return []
    named = [(id, Status.COMPLETED) for id in command.lineage.dependencies]
    named += [(command.lineage.parent, Status.RUNNING)] if command.lineage.parent else []
    return [
        Task(
            id=id, type="work", status=status, owner=owner.id, created_at=now, updated_at=now,
            origin=Origin(principal=owner.id, protocol=owner.protocol, request_id=f"named:{id}", digest=""),
            rank=0, routing=TaskRouting(route=Route(type="work").queue),
        timing=TaskTiming(deadline=now, idle_limit=0), lineage=TaskLineage(trace_id="0" * 32),
        )
        for id, status in named
    ]  # fmt: skip


# -- what a message says


def understood(command: Command) -> dict[str, Any]:
    """The message in the hub's own form, without empty fields."""
    kind = KINDS[type(command)]
    shown = {"means": kind.means, **kind.fields(command)}
    if isinstance(command, Submit | ReportProgress | Finish):
        shown |= msgspec.to_builtins(command.content)
    return {name: value for name, value in shown.items() if value not in (None, "", [], {}, ())}


def features(command: Command) -> list[Feature]:
    """The features that the message has."""
    found = [feature for feature, is_there in KINDS[type(command)].features(command) if is_there]
    if isinstance(command, Submit | ReportProgress | Finish | ReportFault):
        content = msgspec.to_builtins(command.content)
        found += [feature for name, feature in IN_CONTENT.items() if content.get(name) is not None]
    return sorted(set(found), key=list(Feature).index)


IN_CONTENT: Mapping[str, Feature] = {
    "percent": F.PERCENT, "message": F.MESSAGE, "step": F.STEP, "thinking": F.THINKING, "tool_use": F.TOOL_USE,
    "tool_result": F.TOOL_RESULT, "file": F.FILE, "exit_code": F.EXIT_CODE, "usage": F.USAGE, "result": F.RESULT,
    "attachments": F.ATTACHMENT,
}  # fmt: skip


class _Kind(NamedTuple):
    """What the translator shows of one kind of command; a feature counts where its value is true."""

    means: str
    fields: Callable[[Any], dict[str, Any]]
    features: Callable[[Any], Sequence[tuple[Feature, Any]]]


KINDS: Mapping[type[Any], _Kind] = {
    Submit: _Kind(
        "have this done",
        lambda work: {
            "type": work.type, "name": work.name, "description": work.description, "priority": work.priority.value,
            "for": work.routing.pinned or work.routing.kind, "thread": work.lineage.thread,
            "capabilities": list(work.routing.required_capabilities),
            "dependencies": list(work.lineage.dependencies), "limits": work.constraints,
            "seconds": work.timing.total_seconds,
        },
        lambda work: (
            (F.WORK_TYPE, True),
            (F.INPUT, True),
            (F.PRIORITY, work.priority is not Priority.NORMAL),
            (F.DEADLINE, work.agreement.contract is None and (work.timing.total_seconds or work.timing.deadline)),
            (F.DEPENDENCIES, work.lineage.dependencies),
            (F.DESCRIPTION, work.name or work.description),
            (F.THREAD, work.lineage.thread),
            (F.BUDGET, work.constraints.keys() - LIMITS),
            (F.LIMITS, work.constraints.keys() & LIMITS),
            (F.CONTEXT, request_context(work.content)),
        ),
    ),
    Cancel: _Kind("stop this", lambda cancel: {"reason": cancel.reason}, lambda _: [(F.CANCEL, True)]),
    ReportProgress: _Kind(
        "how far it is",
        lambda _: {},
        lambda report: ((F.OUTPUT, report.content.output), (F.QUESTION, report.ask is not None)),
    ),
    Finish: _Kind(
        "it is done",
        lambda _: {},
        lambda end: ((F.TEXT, end.content.output), (F.FAILURE, end.fault is not None)),
    ),
    ReportFault: _Kind(
        "it failed", lambda report: {"fault": msgspec.to_builtins(report.fault)}, lambda _: [(F.FAILURE, True)]
    ),
    AskPerson: _Kind(
        "a person is asked",
        lambda asked: {"question": asked.ask.question, "options": list(asked.ask.options)},
        lambda _: [(F.QUESTION, True)],
    ),
    AskHelp: _Kind(
        "another agent is asked for help",
        lambda asked: {"question": asked.question, "topic": asked.topic, "priority": asked.priority.value},
        lambda _: [(F.HELP, True)],
    ),
    HandOver: _Kind(
        "another agent is asked to go on",
        lambda handover: {"reason": handover.reason.value, "type": handover.type},
        lambda _: [(F.HANDOVER, True)],
    ),
    Tell: _Kind(
        "a message that is no task",
        lambda tell: {"direct_message": tell.direct_message.kind},
        lambda _: [(F.DIRECT_MESSAGE, True)],
    ),
}  # fmt: skip
