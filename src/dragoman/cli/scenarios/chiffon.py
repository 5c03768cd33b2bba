"""Chiffon over HTTP: `caller` asks, `worker` works."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from dragoman.cli.scenarios.fake_agents import Answer, FakeAgent, FakeAgents, now, without
from dragoman.cli.scenarios.steps import Checks, expect

BASE = "/api/agent"
checks: Checks[Scenario] = Checks()


class Scenario:
    def __init__(self, fakes: FakeAgents) -> None:
        self.caller = fakes.admit("chiffon", "caller")
        self.worker = fakes.admit("chiffon", "worker")
        self.done: dict[str, Any] = {}

    def envelope(self, by: FakeAgent, to: FakeAgent, kind: str, payload: Any, **replaced: Any) -> dict[str, Any]:
        envelope = {
            "protocol_version": "1.0", "message_id": str(uuid.uuid4()), "from_agent": by.id, "to_agent": to.id,
            "timestamp": now(), "trace_id": str(uuid.uuid4()), "request_id": str(uuid.uuid4()), "type": kind,
            "payload": payload,
        }  # fmt: skip
        return {**envelope, **replaced}

    def request(self, **replaced: Any) -> dict[str, Any]:
        work = {"task_id": str(uuid.uuid4()), "work_type": "conformance", "parameters": {"n": 1}, "hints": {}}
        return self.envelope(self.caller, self.worker, "work_request", work, **replaced)


def send(agent: FakeAgent, message: Any) -> Answer:
    return agent.post(f"{BASE}/message", message)


def of_kind(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda one: one["type"] == kind


def refused(answer: Answer, code: int) -> dict[str, Any]:
    """The payload of an `error` envelope with that code."""
    envelope: dict[str, Any] = answer.json
    expect(answer.status >= 400, f"it was accepted with {answer.status}")
    expect(envelope.get("type") == "error", f"the refusal is no error envelope: {str(envelope)[:200]}")
    got = envelope["payload"]["error_code"]
    expect(got == code, f"the code is {got}, not {code}")
    payload: dict[str, Any] = envelope["payload"]
    return payload


@checks("CH-VER-1", "An agent says which versions it speaks when it registers.")
def registers(scenario: Scenario) -> None:
    for agent in (scenario.caller, scenario.worker):
        request = {"agent_id": agent.id, "agent_type": agent.id, "supported_versions": ["1.0"], "work_types": []}
        answer = agent.post(f"{BASE}/register", request)
        expect(answer.status == 200, f"status {answer.status}: {answer.body[:200]!r}")
        expect(answer.json["protocol_version"] == "1.0", "another version than 1.0 was chosen")


@checks("CH-AUT-4", "A bad token is answered with 5004, which is not retried.")
def bad_token(scenario: Scenario) -> None:
    stranger = FakeAgent(scenario.caller.hub, scenario.caller.id, "0" * 32)
    refused(send(stranger, scenario.request()), 5004)


@checks("CH-ENV-1", "A message without a required field is refused, and the field is named.")
def missing_field(scenario: Scenario) -> None:
    for field in ("message_id", "trace_id", "request_id", "type", "payload"):
        payload = refused(send(scenario.caller, without(scenario.request(), field)), 5003)
        expect(field in str(payload), f"the refusal does not name {field}")


@checks("all-D3", "What is no JSON is refused as a message, and the hub goes on.")
def no_json(scenario: Scenario) -> None:
    for data in (b"{", b"[]", b'{"a":1,"a":2}', b"\xff"):
        refused(send(scenario.caller, data), 5003)


@checks("CH-VER-3", "A message of a version that is not spoken is answered with 5006.")
def other_version(scenario: Scenario) -> None:
    refused(send(scenario.caller, scenario.request(protocol_version="9.0")), 5006)


@checks("all-D1", "What a message says about its sender agrees with the credential.")
def spoofed(scenario: Scenario) -> None:
    refused(send(scenario.caller, scenario.request(from_agent=scenario.worker.id)), 5004)


@checks("CH-FLW-1", "A request, statuses and a result pass between two ends.")
def whole_flow(scenario: Scenario) -> None:
    caller, worker = scenario.caller, scenario.worker
    request = scenario.request(x_custom_fields={"unheard_of": [1]})
    answer = send(caller, request)
    expect(answer.status == 202, f"the request was answered with {answer.status}: {answer.body[:200]!r}")
    task = request["payload"]["task_id"]
    work = worker.inbox.next(lambda one: one["type"] == "work_request", "the work_request")
    scenario.done = {"request": request, "work": work}
    expect(work["payload"]["task_id"] == task, "the task has another id for its agent")
    expect(work["payload"]["parameters"] == {"n": 1}, "the parameters are others")
    status = {"task_id": task, "status": "running", "progress_percent": 50}
    result = {"task_id": task, "status": "success", "exit_code": 0, "output": "done"}
    around = {"request_id": work["request_id"], "trace_id": work["trace_id"]}
    for kind, payload in (("work_status", status), ("work_result", result)):
        envelope = scenario.envelope(worker, caller, kind, payload, **around)
        scenario.done[kind] = envelope
        answer = send(worker, envelope)
        expect(answer.status == 202, f"{kind} was answered with {answer.status}: {answer.body[:200]!r}")
        scenario.done[f"received {kind}"] = caller.inbox.next(of_kind(kind), kind)
    expect(scenario.done["received work_result"]["payload"]["output"] == "done", "the output is another")


@checks("CH-ENV-8", "Every answer carries the trace_id of the request.")
def one_trace(scenario: Scenario) -> None:
    wanted = scenario.done["request"]["trace_id"]
    for name in ("work", "received work_status", "received work_result"):
        expect(scenario.done[name]["trace_id"] == wanted, f"{name} has another trace_id")


@checks("all-D6", "Unknown fields are accepted and passed on.")
def unknown_fields(scenario: Scenario) -> None:
    expect(scenario.done["work"]["x_custom_fields"].get("unheard_of") == [1], "a custom field did not arrive")


@checks("CH-IDM-2", "A request seen before gets the first result, without a second run.")
def repeated(scenario: Scenario) -> None:
    request = {**scenario.done["request"], "message_id": str(uuid.uuid4())}
    answer = send(scenario.caller, request)
    expect(answer.status == 202, f"the repetition was answered with {answer.status}")
    again = scenario.caller.inbox.next(lambda one: one["type"] == "work_result", "the first result")
    expect(again["payload"]["task_id"] == request["payload"]["task_id"], "it is another task's")
    scenario.worker.inbox.quiet(lambda one: one["type"] == "work_request", "a second work_request")


@checks("all-D5", "Same id and other content is refused.")
def repeated_otherwise(scenario: Scenario) -> None:
    request = scenario.done["request"]
    other = {**request, "payload": {**request["payload"], "parameters": {"n": 2}}}
    answer = send(scenario.caller, other)
    expect(answer.status == 409, f"it was answered with {answer.status}")


@checks("CH-RES-2", "One result ends an exchange: another one is refused.")
def second_result(scenario: Scenario) -> None:
    envelope = scenario.done["work_result"]
    other = {
        **envelope,
        "message_id": str(uuid.uuid4()),
        "payload": {**envelope["payload"], "output": "something else"},
    }
    answer = send(scenario.worker, other)
    expect(answer.status >= 400, f"it was accepted with {answer.status}")


@checks("B4", "Cancelling reaches the agent at work.")
def cancelled(scenario: Scenario) -> None:
    request = scenario.request()
    send(scenario.caller, request)
    task = request["payload"]["task_id"]
    inbox = scenario.worker.inbox
    inbox.next(lambda one: one["payload"].get("task_id") == task, "the work_request")
    answer = scenario.caller.post(f"/api/tasks/{task}/cancel", {})
    expect(answer.status in (200, 202), f"cancelling was answered with {answer.status}")
    notice = inbox.next(lambda one: one["type"] == "error", "the notice that it is cancelled")
    expect(task in str(notice), "it is about another task")
