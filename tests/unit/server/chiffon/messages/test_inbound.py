"""What an agent says becomes the command it means."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dragoman.core.commands import Finish, Lineage, Reply, ReportFault, ReportProgress, Routing, Span, Submit, Timing
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Priority
from dragoman.core.policy.replay import marks_of
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.messages.tasks import Ask, Failure, Progress, Request, Result, Step

TASK = "550e8400-e29b-41d4-a716-446655440004"
OTHER = "550e8400-e29b-41d4-a716-44665544000a"
Make = Callable[..., Any]


def test_a_request_is_submitted_whole(envelope: Make, command_from: Make, orchestrator: Agent) -> None:
    custom = {"agent_id": "infra-7", "priority": "high", "dependencies": [OTHER], "parent_task_id": OTHER}
    message = envelope(custom=custom, hints={"max_duration_seconds": 600, "x": 1})
    submit = command_from(orchestrator, message)
    assert submit == Submit(
        principal=orchestrator.id,
        protocol="chiffon",
        protocol_version="1.0",
        request_id=message["request_id"],
        digest=submit.digest,
        message=marks_of(orchestrator.id, message["message_id"], message["request_id"], submit.digest),
        type="run_playbook",
        task_id=TASK,
        content=Request(input={"playbook": "deploy.yml"}, hints={"max_duration_seconds": 600, "x": 1}),
        raw=json.dumps(message).encode(),
        priority=Priority.HIGH,
        routing=Routing(kind="infra", pinned="infra-7"),
        timing=Timing(idle_seconds=600, total_seconds=600),
        lineage=Lineage(
            dependencies=(OTHER,), own_dependencies=True, parent=OTHER, trace_id=message["trace_id"].replace("-", "")
        ),
        reply=Reply(forgets_errors=True),
    )


@pytest.mark.parametrize(
    ("hints", "constraints"),
    [
        ({"max_memory_mb": 512, "max_gpu_vram_mb": 128}, {"max_memory_mb": 512, "max_gpu_vram_mb": 128}),
        ({"memory_mb": 512, "gpu_vram_mb": 128}, {"max_memory_mb": 512, "max_gpu_vram_mb": 128}),
        ({"max_gpu_vram_mb": 64, "gpu_vram_mb": 128}, {"max_gpu_vram_mb": 64}),
        ({"max_memory_mb": None, "max_gpu_vram_mb": 0, "gpu_vram_mb": 128}, {}),
        ({}, {}),
        (None, {}),
    ],
)
def test_what_a_request_may_need_is_a_constraint(
    hints: dict[str, Any] | None, constraints: dict[str, int], envelope: Make, command_from: Make, orchestrator: Agent
) -> None:
    assert command_from(orchestrator, envelope(hints=hints)).constraints == constraints


@pytest.mark.requirement("all-D5")
def test_the_same_content_has_the_same_digest_whatever_its_envelope(
    envelope: Make, command_from: Make, orchestrator: Agent
) -> None:
    first, again = envelope(), envelope()
    again |= {"message_id": OTHER, "timestamp": "2026-01-20T00:00:00Z", "trace_id": OTHER}
    again["payload"] = dict(reversed(again["payload"].items()))
    again["payload"]["hints"] = None  # the same as leaving it out
    assert command_from(orchestrator, again).digest == command_from(orchestrator, first).digest


@pytest.mark.requirement("all-D5")
@pytest.mark.parametrize(
    "change",
    [
        {"to_agent": "code"},
        {"x_custom_fields": {"agent_id": "infra-2"}},
        {"payload": {"task_id": TASK, "work_type": "other", "parameters": {"playbook": "deploy.yml"}}},
        {"payload": {"task_id": TASK, "work_type": "run_playbook", "parameters": {"playbook": "deploy.yml"}, "x": 1}},
    ],
)
def test_other_content_has_another_digest(
    change: dict[str, Any], envelope: Make, command_from: Make, orchestrator: Agent
) -> None:
    assert command_from(orchestrator, envelope() | change).digest != command_from(orchestrator, envelope()).digest


@pytest.mark.requirement("all-D1")
@pytest.mark.parametrize("kind", ["work_request", "work_status", "work_result", "error"])
def test_a_sender_that_is_not_who_it_says_is_refused(
    kind: str, envelope: Make, command_from: Make, infra: Agent
) -> None:
    with pytest.raises(Refused) as refused:
        command_from(infra, envelope(kind) | {"from_agent": "research"})
    assert (refused.value.fault.kind, refused.value.fault.field) == (Kind.FORBIDDEN, "from_agent")


@pytest.mark.requirement("all-D1")
def test_an_agent_cannot_report_for_another_of_its_kind(envelope: Make, command_from: Make, infra: Agent) -> None:
    with pytest.raises(Refused) as refused:
        command_from(infra, envelope("work_status", custom={"agent_id": "infra-2"}))
    assert (refused.value.fault.kind, refused.value.fault.field) == (Kind.FORBIDDEN, "x_custom_fields.agent_id")


def test_an_agent_without_a_kind_speaks_under_its_id(envelope: Make, command_from: Make, orchestrator: Agent) -> None:
    nameless = msgspec.structs.replace(orchestrator, kind=None)
    assert isinstance(command_from(nameless, envelope() | {"from_agent": "orch-1"}), Submit)
    with pytest.raises(Refused):
        command_from(nameless, envelope())


@pytest.mark.requirement("all-D4")
@pytest.mark.parametrize("kind", ["work_request", "work_status", "work_result", "error"])
def test_a_credential_in_the_body_is_not_kept(
    kind: str, envelope: Make, command_from: Make, infra: Agent, orchestrator: Agent
) -> None:
    sender = orchestrator if kind == "work_request" else infra
    command = command_from(sender, envelope(kind, custom={"token": "s3cret-canary", "keep": 1}))
    assert b"s3cret-canary" not in msgspec.msgpack.encode(command)
    assert json.loads(command.raw)["x_custom_fields"] == {"keep": 1}


@pytest.mark.requirement("chiffon-D9")
def test_a_version_other_than_the_registered_one_is_refused(envelope: Make, command_from: Make, infra: Agent) -> None:
    older = msgspec.structs.replace(infra, protocol_version="0.9")
    with pytest.raises(Refused) as refused:
        command_from(older, envelope("work_status"))
    fault = refused.value.fault
    assert (fault.kind, fault.facts["supported_versions"]) == (Kind.UNSUPPORTED_VERSION, ["0.9"])


@pytest.mark.parametrize(
    ("custom", "field"),
    [
        ({"agent_id": 7}, "agent_id"),
        ({"dependencies": "no"}, "dependencies"),
        ({"dependencies": ["no"]}, "dependencies"),
        ({"parent_task_id": 5}, "parent_task_id"),
        ({"priority": "whenever"}, "priority"),
        ({"priority": "High"}, "priority"),
        ({"priority": 1}, "priority"),
        ({"priority": ["high"]}, "priority"),
    ],
)
def test_custom_fields_of_ours_must_make_sense(
    custom: dict[str, Any], field: str, envelope: Make, command_from: Make, orchestrator: Agent
) -> None:
    with pytest.raises(Refused) as refused:
        command_from(orchestrator, envelope(custom=custom))
    assert (refused.value.fault.kind, refused.value.fault.field) == (Kind.INVALID, f"x_custom_fields.{field}")


def test_no_priority_is_the_normal_one(envelope: Make, command_from: Make, orchestrator: Agent) -> None:
    for custom in ({}, {"priority": None}):
        assert command_from(orchestrator, envelope(custom=custom)).priority is Priority.NORMAL


@pytest.mark.requirement("all-D7")
def test_the_transports_trace_context_goes_on_in_the_body(
    envelope: Make, command_from: Make, orchestrator: Agent
) -> None:
    traceparent = "00-550e8400e29b41d4a716446655440002-00f067aa0ba902b7-01"
    submit = command_from(orchestrator, envelope(), traceparent=traceparent)
    assert json.loads(submit.raw)["x_custom_fields"] == {"traceparent": traceparent}
    kept = command_from(orchestrator, envelope(custom={"traceparent": "theirs"}), traceparent=traceparent)
    assert json.loads(kept.raw)["x_custom_fields"] == {"traceparent": "theirs"}
    assert command_from(orchestrator, envelope(), traceparent='00-"-x').raw == json.dumps(envelope()).encode()


def test_a_status_is_progress(envelope: Make, command_from: Make, infra: Agent) -> None:
    step = {"number": 2, "name": "configure", "output": "3 hosts", "total": 5}
    message = envelope("work_status", step=step)
    report = command_from(infra, message)
    assert len(report.digest) == 16
    assert report == ReportProgress(
        principal=infra.id,
        protocol="chiffon",
        task_id=TASK,
        message_id=message["message_id"],
        request_id=message["request_id"],
        digest=report.digest,
        message=marks_of(infra.id, message["message_id"], report.digest),
        content=Progress(
            status="running", percent=50, step=Step(number=2, name="configure", total=5), output="3 hosts"
        ),
        raw=json.dumps(message).encode(),
        percent=50,
        step="configure",
        output="3 hosts",
    )


@pytest.mark.requirement("all-D5")
def test_what_a_status_says_is_its_content_and_when_or_on_which_trace_is_not(
    envelope: Make, command_from: Make, infra: Agent
) -> None:
    said = envelope("work_status", custom={"thinking": "hm"})
    again = {**said, "timestamp": "2027-01-19T04:21:04Z", "x_custom_fields": {"traceparent": "x", "thinking": "hm"}}
    others = (
        {**said, "payload": {**said["payload"], "progress_percent": 51}},
        {**said, "x_custom_fields": {"thinking": "ah"}},
    )
    assert command_from(infra, again).digest == command_from(infra, said).digest
    assert len({command_from(infra, one).digest for one in (said, *others)}) == 3


@pytest.mark.requirement("all-D5")
@pytest.mark.parametrize(
    "custom", [{"priority": "high"}, {"dependencies": [str(TASK)]}, {"parent_task_id": str(TASK)}, {"files": ["f-1"]}]
)
def test_the_same_request_with_other_terms_is_other_content(
    custom: dict[str, Any], envelope: Make, command_from: Make, orchestrator: Agent
) -> None:
    plain, other = envelope(), envelope(custom=custom)
    assert (
        command_from(orchestrator, plain).digest
        == command_from(orchestrator, envelope(custom={"note": "hello"})).digest
    )
    assert command_from(orchestrator, plain).digest != command_from(orchestrator, other).digest
    assert command_from(orchestrator, other).digest == command_from(orchestrator, envelope(custom=custom)).digest


@pytest.mark.requirement("chiffon-D3")
def test_a_piece_of_output_knows_its_place(envelope: Make, command_from: Make, infra: Agent) -> None:
    step = {"number": 5, "name": "logs", "output": "abcd", "output_chunk": "bytes 4-8 of 12"}
    report = command_from(infra, envelope("work_status", step=step))
    assert (report.stream, report.span) == ("step-5", Span(4, 8, 12))
    body = msgspec.to_builtins(report.content)
    assert (body["chunk"], body["stream"]) == ((4, 8, 12), "step-5")


@pytest.mark.requirement("chiffon-D13", "chiffon/B3")
@pytest.mark.parametrize(
    ("step", "question"),
    [
        (None, "infra-1 has paused and waits for an answer"),
        ({"number": 2, "name": "Which region?"}, "Which region?"),
        ({"number": 2, "name": "Deploy", "output": "Restart prod?\n"}, "Restart prod?"),
    ],
)
def test_paused_means_that_the_agent_waits_for_an_answer(
    step: dict[str, Any] | None, question: str, envelope: Make, command_from: Make, infra: Agent
) -> None:
    report = command_from(infra, envelope("work_status", status="paused", **({} if step is None else {"step": step})))
    assert (report.paused, report.ask) == (True, Ask(question=question, implied=True))


@pytest.mark.parametrize(
    ("said", "ask"),
    [
        ("Restart?", Ask(question="Restart?")),
        (
            {"question": "Restart?", "options": ["yes", "no"], "timeout_seconds": 300, "default": "no"},
            Ask(question="Restart?", options=("yes", "no"), timeout_seconds=300.0, default="no", has_default=True),
        ),
        ({"question": "Why?", "default": None}, Ask(question="Why?", default=None, has_default=True)),
    ],
)
def test_a_question_comes_with_a_pause(said: Any, ask: Ask, envelope: Make, command_from: Make, infra: Agent) -> None:
    assert command_from(infra, envelope("work_status", status="paused", custom={"question": said})).ask == ask
    assert command_from(infra, envelope("work_status", status="running", custom={"question": said})).ask is None


@pytest.mark.parametrize("said", [7, {}, {"question": ""}, {"question": "?", "timeout_seconds": -1}])
def test_a_question_that_makes_no_sense_is_refused(said: Any, envelope: Make, command_from: Make, infra: Agent) -> None:
    with pytest.raises(Refused) as refused:
        command_from(infra, envelope("work_status", status="paused", custom={"question": said}))
    assert refused.value.fault.field == "x_custom_fields.question"


def test_a_result_finishes_the_task(envelope: Make, command_from: Make, infra: Agent) -> None:
    message = envelope("work_result", custom={"result": {"url": "x"}}, resources_used={"cpu_time_ms": 5, "x": 1})
    finish = command_from(infra, message)
    assert finish == Finish(
        principal=infra.id,
        protocol="chiffon",
        task_id=TASK,
        digest=finish.digest,
        message=marks_of(infra.id, message["message_id"], finish.digest),
        message_id=message["message_id"],
        request_id=message["request_id"],
        content=Result(output="done", exit_code=0, result={"url": "x"}, usage={"cpu_time_ms": 5, "x": 1}),
        raw=json.dumps(message).encode(),
        output="done",
    )


@pytest.mark.requirement("chiffon-D12")
def test_an_exit_code_is_a_failure_of_the_work(envelope: Make, command_from: Make, infra: Agent) -> None:
    finish = command_from(
        infra, envelope("work_result", status="failed", exit_code=3, output="Deploying\nno such host\n")
    )
    assert finish.fault == Fault(kind=Kind.WORK_FAILED, message="no such host", facts={"exit_code": 3})
    finish = command_from(infra, envelope("work_result", status="failed", exit_code=3, output=" "))
    assert finish.fault is not None
    assert finish.fault.message == "the work failed with exit code 3"


@pytest.mark.requirement("chiffon-D4")
def test_only_the_last_piece_of_a_result_finishes_the_task(envelope: Make, command_from: Make, infra: Agent) -> None:
    first = command_from(infra, envelope("work_result", output="abcd", output_chunk="bytes 0-4 of 8"))
    assert isinstance(first, ReportProgress)
    assert (first.stream, first.span, first.output) == ("result", Span(0, 4, 8), "abcd")
    last = command_from(infra, envelope("work_result", output="efgh", output_chunk="bytes 4-8 of 8"))
    assert isinstance(last, Finish)
    assert (last.span, last.output) == (Span(4, 8, 8), "efgh")


@pytest.mark.requirement("CH-RTY-3")
@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (5001, Kind.TIMEOUT, True),
        (5002, Kind.UNAVAILABLE, True),
        (5003, Kind.INVALID, False),
        (5004, Kind.UNAUTHENTICATED, False),
        (5005, Kind.RESOURCES, True),
        (5006, Kind.UNSUPPORTED_WORK, False),
        (5777, Kind.WORK_FAILED, False),
    ],
)
def test_an_error_is_a_fault_of_the_request_it_names(
    code: int, kind: Kind, retryable: bool, envelope: Make, command_from: Make, infra: Agent
) -> None:
    message = envelope("error", error_code=code)
    fault = Fault(kind=kind, message="no GPU", retryable=retryable, facts={"limit_name": "gpu_vram_mb", "code": code})
    command = command_from(infra, message)
    assert command == ReportFault(
        principal=infra.id,
        protocol="chiffon",
        fault=fault,
        request_id=message["request_id"],
        message_id=message["message_id"],
        digest=command.digest,
        message=marks_of(infra.id, message["message_id"], command.digest),
        content=Failure(fault=fault),
        raw=json.dumps(message).encode(),
    )
    other = {**message, "payload": {**message["payload"], "error_message": "no disk"}}
    assert len({command.digest, command_from(infra, message).digest, command_from(infra, other).digest}) == 2
