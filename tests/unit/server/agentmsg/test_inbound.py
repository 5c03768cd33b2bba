"""What agentmsg agents say, as commands."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from tests.conformance.agentmsg import samples
from tests.unit.server.agentmsg.samples import ADA, NOW, TASK, TRACE, commands_from, message

from dragoman.core import commands
from dragoman.core.commands import Handing, HelpVerdict, Severity
from dragoman.core.ids import MINUTE, Instant
from dragoman.core.model.deliveries import Backoff
from dragoman.core.model.state import Operation, Registry
from dragoman.core.model.tasks import Priority
from dragoman.messages.faults import Kind, Refused, refuse
from dragoman.messages.tasks import Ask, Request
from dragoman.protocols.agentmsg import codec
from dragoman.server.agentmsg.ids import derived_v4, task_id
from dragoman.server.agentmsg.inbound import forward_instead
from dragoman.server.agentmsg.inbound.message import Inbound

T1 = task_id("t-1")
HOUR = 3_600_000_000


def one(*args: Any, **more: Any) -> Any:
    (command,) = commands_from(*args, **more)
    return command


def refused(*args: Any, **more: Any) -> Any:
    with pytest.raises(Refused) as caught:
        commands_from(*args, **more)
    return caught.value.fault


# -- tasks -------------------------------------------------------------------------------------------------------


def test_an_assignment_is_work_for_the_agent_it_names() -> None:
    tree = message("TaskAssignment", payload={}, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
    tree["payload"]["task"]["context"] = {
        **samples.CONTEXT,
        "metadata": {"repo": "x", "risk": 0.5, "chain": "B", "thread": "th", "parent_task_id": TASK.upper()},
    }
    command = one(tree)
    assert isinstance(command, commands.Submit)
    assert msgspec.to_builtins(command.content) == {
        "input": {"file": "a.py"},
        "context": {
            "metadata": tree["payload"]["task"]["context"]["metadata"],
            "history": [samples.EVENT],
            "dependencies": ["t-0"],
        },
    }
    digest = codec.fingerprint(tree).hex()
    assert msgspec.structs.replace(command, content=Request(), raw=None) == commands.Submit(
        principal=ADA.id,
        protocol="agentmsg",
        request_id=tree["id"],
        digest=digest,
        type="review",
        content=Request(),
        task_id=T1,
        called="t-1",
        description="look at it",
        priority=Priority.NORMAL,
        constraints={"max_tokens": 1000, "budget_usd": 1.5, "quality_threshold": 0.8, "risk": 0.5, "chain": "B"},
        routing=commands.Routing(pinned="bob", required_capabilities=("python",)),
        timing=commands.Timing(
            deadline=Instant(NOW + HOUR), firm=True, total_seconds=3600.0, expires_at=Instant(NOW + MINUTE)
        ),
        lineage=commands.Lineage(
            dependencies=(task_id("t-0"),), called_dependencies=("t-0",), trace_id=TRACE, parent=TASK, thread="th"
        ),
    )


@pytest.mark.parametrize(
    ("retries", "config", "waits"),
    [
        (3, None, None),  # as everybody says who means nothing by it
        (0, None, Backoff(attempts=1)),
        (3, {"base_delay_ms": 5}, Backoff(base=5000)),
        (1, {"base_delay_ms": 5, "max_attempts": 2}, Backoff(base=5000, attempts=2)),
    ],
)
def test_an_assignment_says_how_its_work_order_is_sent_again(retries: int, config: Any, waits: Backoff | None) -> None:
    said = {"max_retries": retries} if config is None else {"max_retries": retries, "retry_config": config}
    assert one(message("TaskAssignment", **said)).timing.retry == waits


@pytest.mark.parametrize("to", ["hub", "*"])
def test_an_assignment_without_a_receiver_is_for_any_capable_agent(to: str) -> None:
    assert one(message("TaskAssignment", to=to)).routing.pinned is None


def test_a_task_without_a_context_has_the_priority_of_its_message() -> None:
    tree = message("TaskAssignment", payload={"task": {"task_id": TASK.upper(), "task_type": "x"}}, priority="critical")
    command = one(tree)
    assert (command.priority, command.task_id, command.called) == (Priority.CRITICAL, TASK, None)
    assert msgspec.to_builtins(command.content) == {"input": {}}


@pytest.mark.requirement("agentmsg-D3")
@pytest.mark.parametrize(("own", "task"), [("critical", "critical"), ("high", "low"), ("low", "low")])
def test_a_critical_assignment_makes_its_task_critical(own: str, task: str) -> None:
    given = {"task_id": TASK, "task_type": "x", "priority": "low", "metadata": {}, "dependencies": [], "history": []}
    payload = {"task": {"task_id": TASK, "task_type": "x", "context": given}}
    assert one(message("TaskAssignment", payload=payload, priority=own)).priority is Priority(task)


def test_the_trace_of_the_transport_counts_where_the_message_has_none() -> None:
    assert one(message("TaskAssignment"), traceparent=f"00-{TRACE}-00f067aa0ba902b7-01").lineage.trace_id == TRACE
    assert one(message("TaskAssignment"), traceparent="nonsense").lineage.trace_id is None


def test_progress_with_every_field() -> None:
    asides = {
        "step": {"number": 1, "name": "read"},
        "thinking": "hm",
        "tool_use": {"id": "u", "name": "ls", "input": {}},
        "tool_result": {"id": "u", "output": "a", "is_error": False},
    }
    command = one(message("TaskUpdate", payload={"progress": 49.6, **asides}))
    assert isinstance(command, commands.ReportProgress)
    said = {"status": "running", "percent": 50, "message": "half", "output": "text", **asides}
    assert msgspec.to_builtins(command.content) == said
    assert (command.task_id, command.percent, command.step, command.output) == (T1, 50, "read", "text")
    assert not command.paused


@pytest.mark.parametrize(
    ("status", "kind", "facts"),
    [
        ("in_progress", commands.ReportProgress, {"paused": False}),
        ("pending", commands.ReportProgress, {"paused": False}),
        ("paused", commands.ReportProgress, {"paused": True}),
        ("completed", commands.Finish, {"output": "text"}),
        ("failed", commands.ReportFault, {"task_id": T1}),
        ("cancelled", commands.ReportFault, {"task_id": T1}),
    ],
)
def test_each_status_of_an_update_by_who_does_the_task(status: str, kind: type, facts: dict[str, Any]) -> None:
    command = one(message("TaskUpdate", payload={"status": status}), holds=T1.__eq__)
    assert type(command) is kind
    assert {name: getattr(command, name) for name in facts} == facts
    if status == "cancelled":
        assert command.fault.kind is Kind.CANCELLED


def test_an_update_by_another_agent_cancels_or_is_a_direct_message() -> None:
    said = message("TaskUpdate", payload={"status": "cancelled", "message": "no longer"})
    assert one(said, holds=lambda _: False) == commands.Cancel(
        principal=ADA.id,
        protocol="agentmsg",
        task_id=T1,
        reason="no longer",
        message_id=said["id"],
        digest=codec.fingerprint(said).hex(),
    )
    told = one(message("TaskUpdate", to="bob"), holds=lambda _: False)
    assert isinstance(told, commands.Tell)
    assert (told.to, told.lane, told.priority, told.direct_message.once) == ("bob", T1, Priority.NORMAL, True)


def test_a_result_with_its_text_and_what_it_took() -> None:
    usage = {"tokens_used": 5, "gpu": 1}
    command = one(message("TaskComplete", payload={"output": "fine", "usage": usage}))
    assert msgspec.to_builtins(command.content) == {"result": {"ok": [1, 2]}, "output": "fine", "usage": usage}
    assert (command.task_id, command.output, command.fault) == (T1, "fine", None)
    words = one(message("TaskComplete", payload={"result": "fine"}))
    assert msgspec.to_builtins(words.content) == {"result": "fine", "output": "fine"}


def test_the_same_result_again_has_the_same_digest() -> None:
    first, again = one(message("TaskComplete")), one(message("TaskComplete", retry_count=2))
    assert first.digest == again.digest != one(message("TaskComplete", payload={"result": 2})).digest


def test_a_failed_task_brings_its_whole_report() -> None:
    command = one(message("TaskFailed"))
    assert isinstance(command, commands.ReportFault)
    assert (command.task_id, command.fault.kind, command.fault.retryable) == (T1, Kind.TIMEOUT, True)
    assert msgspec.to_builtins(command.content)["report"] == samples.REPORT


# -- between agents ----------------------------------------------------------------------------------------------


def test_a_request_for_help() -> None:
    command = one(message("HelpRequest"))
    assert isinstance(command, commands.AskHelp)
    told = (command.question, command.topic, command.to, command.task_id, command.priority, command.deadline)
    assert told == ("stuck", "CODE_REVIEW", "bob", T1, Priority.HIGH, NOW)
    assert command.details.urgency == "medium"
    assert one(message("HelpRequest", to="*", payload={"urgency": "critical"})).priority is Priority.CRITICAL
    assert one(message("HelpRequest", to="*")).to is None


def test_a_question_that_only_a_person_can_answer() -> None:
    beside = {"ask": "person", "options": ["left", "right"], "default": "left", "deadline": "2026-03-01T12:00:30Z"}
    command = one(message("HelpRequest", to="hub", payload=beside))
    assert isinstance(command, commands.AskPerson)
    asked = Ask(question="stuck", options=("left", "right"), timeout_seconds=30.0, default="left", has_default=True)
    assert (command.request_id, command.ask, command.task_id, command.blocking) == (
        message("Ack")["id"],
        asked,
        T1,
        True,
    )
    assert isinstance(one(message("HelpRequest", to="bob", payload=beside)), commands.AskHelp)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("DIRECT_ANSWER", HelpVerdict.ANSWERED),
        ("RESOURCE_PROVISION", HelpVerdict.ANSWERED),
        ("COLLABORATIVE_SESSION", HelpVerdict.ANSWERED),
        ("ESCALATION", HelpVerdict.ESCALATED),
        ("UNABLE_TO_HELP", HelpVerdict.UNABLE),
    ],
)
def test_each_response_has_a_verdict(said: str, verdict: HelpVerdict) -> None:
    command = one(message("HelpResponse", payload={"response_type": said, "follow_up_required": True}))
    assert isinstance(command, commands.GiveHelp)
    assert (command.request_id, command.verdict, command.more) == ("r-1", verdict, True)
    resources = samples.PAYLOADS["HelpResponse"][2]["resources"]
    assert command.answer == {"content": "do this", "response_type": said, "resources": resources}


def test_a_handoff_moves_all_that_is_known() -> None:
    command = one(message("TaskHandoffRequest", payload={"error": samples.REPORT}))
    assert isinstance(command, commands.HandOver)
    told = (command.task_id, command.called, command.reason, command.to, command.type, command.required_capabilities)
    assert told == (T1, "t-1", Handing.ESCALATION, "bob", "review", ("python",))
    assert command.deadline == NOW + HOUR  # the earlier of the two (D8)
    assert msgspec.to_builtins(command.known) == {
        "metadata": {"repo": "x"},
        "history": [samples.EVENT],
        "dependencies": ["t-0"],
        "constraints": samples.CONSTRAINTS,
        "error": samples.REPORT,
        "recovery_attempts": [samples.ATTEMPT],
    }
    assert command.fault is not None
    assert command.fault.kind is Kind.TIMEOUT


def test_a_handoff_to_the_hub_may_name_whom_it_wishes_for() -> None:
    tree = message("TaskHandoffRequest")
    tree["to"] = "hub"
    assert one(tree).to == "bob"
    assert one(message("TaskHandoffRequest", to="hub")).to is None


def test_the_answer_to_a_handoff_names_its_request() -> None:
    command = one(message("TaskHandoffResponse"))
    assert isinstance(command, commands.AnswerHandover)
    assert command.request_id == "22222222-2222-4222-8222-222222222222"
    assert (command.accepted, command.terms["requirements"]) == (True, ["time"])


def test_a_direct_message_is_delivered_token_for_word() -> None:
    tree = message("Heartbeat", to="bob", max_retries=7)
    beat, told = commands_from(tree)
    assert beat == commands.Beat(principal=ADA.id, protocol="agentmsg", state="IDLE")
    assert isinstance(told, commands.Tell)
    letter = told.direct_message
    assert bytes(letter.raw) == json.dumps(tree).encode()
    digest = hashlib.sha256(
        msgspec.json.encode([tree[name] for name in ("from", "to", "type", "payload")], order="sorted")
    ).hexdigest()
    assert (letter.sender, letter.message_id, letter.kind, letter.digest) == ("ada", tree["id"], "HEARTBEAT", digest)
    assert (letter.once, letter.attempts, letter.expires_at) == (True, 8, NOW + 60_000_000)
    assert told.lane is None


@pytest.mark.parametrize(("priority", "once"), [("low", True), ("normal", True), ("high", False), ("critical", False)])
def test_the_priority_decides_the_guarantee(priority: str, once: bool) -> None:
    told = commands_from(message("StatusUpdate", to="bob", priority=priority))[1]
    assert isinstance(told, commands.Tell)
    assert (told.direct_message.once, told.priority) == (once, max("normal", priority, key=list(Priority).index))


def test_a_report_about_no_task_of_the_sender_is_a_direct_message_after_all() -> None:
    tree = message("TaskComplete", to="bob")
    data = json.dumps(tree).encode()
    missing = refuse(Kind.NOT_FOUND, "no such task, or not yours", field="task_id").fault
    told = forward_instead(Inbound(ADA, codec.interpret(tree), tree, data, NOW), missing)
    assert told is not None
    assert (told.to, told.lane, told.direct_message.once) == ("bob", T1, False)
    conflict = refuse(Kind.CONFLICT, "over").fault
    assert forward_instead(Inbound(ADA, codec.interpret(tree), tree, data, NOW), conflict) is None
    to_hub = message("TaskComplete", to="hub")
    assert forward_instead(Inbound(ADA, codec.interpret(to_hub), to_hub, data, NOW), missing) is None
    late = message("TaskHandoffResponse")
    assert forward_instead(Inbound(ADA, codec.interpret(late), late, data, NOW), missing) is None


# -- what an agent says of itself --------------------------------------------------------------------------------


def test_a_status_in_utc_with_the_fields_nobody_knows() -> None:
    status = {**samples.STATUS, "last_heartbeat": "2026-03-01T14:00:00+02:00", "mood": "good"}
    command = one(message("StatusUpdate", payload={"status": status}))
    assert command == commands.ReportStatus(
        principal=ADA.id,
        protocol="agentmsg",
        status={**samples.STATUS, "mood": "good"},
        current_tasks=("t-1",),
        usage=samples.USAGE,
        health=samples.PAYLOADS["StatusUpdate"][2]["health_metrics"],
        next_available=NOW,
    )


def test_an_error_to_the_hub_and_to_another_agent() -> None:
    command = one(message("ErrorReport"))
    assert isinstance(command, commands.ReportError)
    assert (command.severity, command.task_id, command.report) == (Severity.HIGH, T1, samples.REPORT)
    both = commands_from(message("ErrorReport", to="bob"), holds=lambda _: True)
    assert [type(each) for each in both] == [commands.ReportError, commands.Tell]
    alone = commands_from(message("ErrorReport", to="bob"), holds=lambda _: False)
    assert [type(each) for each in alone] == [commands.Tell]


def test_registering_fills_in_what_is_open() -> None:
    command = one(message("Register"))
    told = (command.name, command.capabilities, command.work_types, command.version, command.max_concurrent)
    assert told == ("Ada", ("python",), ("review",), "1", 2)


def test_what_is_not_named_when_registering_stays_as_it_is() -> None:
    ada = msgspec.structs.replace(ADA, max_concurrent=5, work_types=("review",))
    command = one(message("Register") | {"payload": {"agent_id": "ada"}}, by=ada)
    assert (command.capabilities, command.work_types, command.max_concurrent) == (None, ("review",), 5)


def test_a_change_of_shared_state() -> None:
    said = message("StateUpdate")
    assert one(said) == commands.ChangeState(
        principal=ADA.id,
        protocol="agentmsg",
        operation=Operation.UPDATE,
        entity=Registry.TASK,
        entity_id="t-1",
        changes={"status": "completed"},
        version=3,
        task=T1,
        message_id=said["id"],
        digest=codec.fingerprint(said).hex(),
    )
    assert commands_from(message("StateQuery")) == ()


# -- the connection ----------------------------------------------------------------------------------------------------


def test_an_ack_names_deliveries_messages_of_ours_and_direct_messages() -> None:
    delivery = "01a1e135-5828-73d3-96c2-ab61ababb946"
    tree = message("Ack", payload={"message_ids": [delivery, "m-1"]}, correlation_id=derived_v4(delivery).upper())
    assert one(tree).deliveries == (delivery, "m-1")


@pytest.mark.requirement("agentmsg/all-D1")
def test_no_agent_speaks_for_another() -> None:
    tree = message("HelpRequest")
    tree["from"] = tree["payload"]["requester_id"] = "eve"
    fault = refused(tree)
    assert (fault.kind, fault.field) == (Kind.FORBIDDEN, "from")
    tree["from"] = "hub"
    assert refused(tree).kind is Kind.FORBIDDEN


@pytest.mark.parametrize("name", ["Welcome", "StateAnswer"])
def test_what_only_the_hub_says_is_not_for_agents_to_say(name: str) -> None:
    tree = message(name) | {"from": "ada", "to": "hub"}
    assert refused(tree).kind is Kind.INVALID


def test_what_outlived_itself_is_refused_with_its_times() -> None:
    fault = refused(message("HelpRequest", ttl_ms=10), now=Instant(NOW + 10_000))
    assert (fault.kind, fault.facts["ttl_ms"]) == (Kind.TIMEOUT, 10)
