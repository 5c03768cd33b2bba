"""The document's own examples, sent by clients that are not ours, over HTTP and over WebSocket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chiffon import Orchestrator, Worker, envelope, kinds, work_request, work_result, work_status
from tests.support.hubproc import HubProcess

TASK = "550e8400-e29b-41d4-a716-446655440004"
REQUEST: dict[str, Any] = {
    "protocol_version": "1.0",
    "message_id": "550e8400-e29b-41d4-a716-446655440001",
    "from_agent": "orchestrator",
    "to_agent": "infra",
    "timestamp": "2026-01-19T04:21:04Z",
    "trace_id": "550e8400-e29b-41d4-a716-446655440002",
    "request_id": "550e8400-e29b-41d4-a716-446655440003",
    "type": "work_request",
    "payload": {
        "task_id": TASK,
        "work_type": "run_playbook",
        "parameters": {"playbook": "deploy_kuma.yml", "extra_vars": {"version": "1.4.0"}},
        "hints": {"max_duration_seconds": 300, "max_memory_mb": 512},
    },
    "x_custom_fields": {},
}
STATUS = {
    "task_id": TASK,
    "status": "running",
    "progress_percent": 50,
    "step": {
        "number": 2,
        "name": "Configure Kuma settings",
        "output": "Updating config.yaml...\nAdded uptime monitors: 3\n",
    },
}
SUCCESS = {
    "task_id": TASK,
    "status": "success",
    "exit_code": 0,
    "output": (
        "Deployment completed successfully.\nKuma instance running at https://kuma.homelab:3000\nMonitored services: 5"
    ),
    "resources_used": {"duration_seconds": 87, "gpu_vram_mb": 0, "cpu_time_ms": 12450},
}
FAILURE = {
    "task_id": TASK,
    "status": "failed",
    "exit_code": 1,
    "output": (
        "Deployment failed.\nReason: Docker image pull timeout for ghcr.io/louislam/uptime-kuma:latest after 300s."
    ),
    "resources_used": {"duration_seconds": 305, "gpu_vram_mb": 0, "cpu_time_ms": 8920},
}
ERROR = {
    "error_code": 5005,
    "error_message": "Resource limit exceeded",
    "error_context": {"limit_name": "gpu_vram_mb", "available": 128, "required": 512},
}


def as_task(number: int, message: dict[str, Any]) -> dict[str, Any]:
    """The example under other ids, so that each test has a task of its own."""
    text = repr(message).replace("4466554400", f"44665544{number:02d}")
    return dict(eval(text))


def cast(hub: HubProcess, number: int) -> tuple[Orchestrator, Worker]:
    kind = f"infra{number}"
    return hub.orchestrator(), hub.worker(kind, kind, work_types=["run_playbook"])


def request_of(number: int) -> dict[str, Any]:
    return as_task(number, REQUEST) | {"to_agent": f"infra{number}"}


def test_over_http(hub: HubProcess) -> None:
    boss, agent = hub.orchestrator(), hub.worker("infra-1", "infra", supported_versions=["1.0", "2.0"])
    accepted = boss.send(REQUEST)
    assert accepted.status == 202
    assert accepted.json == {"status": "accepted", "message_id": REQUEST["message_id"]}
    (delivery,) = agent.poll(wait=60)
    work = delivery["message"]
    assert work["x_custom_fields"].pop("agent_id") == "infra-1"
    assert work["x_custom_fields"].pop("delivery_id") == delivery["delivery_id"]
    assert work == REQUEST  # it arrives as it was sent
    assert agent.ack(delivery).json == {"acknowledged": 1}

    status = envelope("work_status", STATUS, work)
    result = envelope("work_result", SUCCESS, work)
    for message in (status, result):
        assert agent.send(message).json == {"status": "accepted", "message_id": message["message_id"]}
    for message in (status, result):
        told = boss.next()
        assert told["payload"] == message["payload"]
        assert [told[field] for field in ("type", "request_id", "trace_id", "message_id", "from_agent")] == [
            message["type"], REQUEST["request_id"], REQUEST["trace_id"], message["message_id"], "infra",
        ]  # fmt: skip
    task = hub.task(TASK)
    assert (task["status"], task["progress"], task["agent"], task["output"]) == (
        "completed", 100, "infra-1", SUCCESS["output"],
    )  # fmt: skip
    assert (task["protocol_in"], task["protocol_out"], task["type"]) == ("chiffon", "chiffon", "run_playbook")


@pytest.mark.requirement("chiffon-D10")
def test_over_websocket(hub: HubProcess) -> None:
    boss, agent = cast(hub, 11)
    request = request_of(11)
    with boss.websocket(receipts=True) as asker, agent.websocket() as doer:
        assert asker.raw.subprotocol == doer.raw.subprotocol == "chiffon.v1"
        asker.send(request)
        assert asker.recv() == {"accepted": [request["message_id"]]}
        work = doer.recv()
        del work["x_custom_fields"]
        assert work == {k: v for k, v in request.items() if k != "x_custom_fields"}
        doer.send(envelope("work_status", as_task(11, STATUS), work))
        doer.send(envelope("work_result", as_task(11, SUCCESS), work))
        told = [asker.recv(), asker.recv()]
        assert [message["payload"] for message in told] == [as_task(11, STATUS), as_task(11, SUCCESS)]
        asker.ack(*told)


def test_the_failed_result(hub: HubProcess) -> None:
    boss, agent = cast(hub, 12)
    boss.send(request_of(12))
    work = agent.work()
    agent.send(envelope("work_result", as_task(12, FAILURE), work))
    told = boss.next()
    assert told["payload"] == as_task(12, FAILURE)
    task = hub.task(work["payload"]["task_id"])
    assert (task["status"], task["attempts"]) == ("failed", 1)  # the work failed: that is no reason to try again


@pytest.mark.requirement("chiffon-D11")
def test_the_error_is_retryable_so_the_work_comes_again_and_then_succeeds(hub: HubProcess) -> None:
    boss, agent = cast(hub, 13)
    boss.send(request_of(13))
    work = agent.work()
    assert agent.send(envelope("error", ERROR, work)).status == 202
    again = agent.work()
    assert again["request_id"] == work["request_id"]
    agent.send(envelope("work_result", as_task(13, SUCCESS), again))
    assert kinds(boss.take()) == ["work_result"]


def test_an_error_that_is_not_retryable_reaches_the_orchestrator_at_once(hub: HubProcess) -> None:
    boss, agent = cast(hub, 14)
    request = request_of(14)
    boss.send(request)
    work = agent.work()
    said = {
        "error_code": 5006,
        "error_message": "no",
        "error_context": {"work_type_requested": "run_playbook", "supported_types": []},
    }
    agent.send(envelope("error", said, work))
    told = boss.next()
    assert (told["type"], told["payload"]["error_code"]) == ("error", 5006)
    assert (told["request_id"], told["trace_id"]) == (request["request_id"], request["trace_id"])
    assert hub.status(work["payload"]["task_id"]) == "failed"


@pytest.mark.requirement("all-D8")
def test_the_whole_workflow_of_five_steps(hub: HubProcess) -> None:
    boss, agent = cast(hub, 15)
    request = request_of(15)
    boss.send(request)
    work = agent.work()
    for number in range(1, 6):
        agent.send(work_status(work, number * 20, number=number, status="step_completed"))
    agent.send(work_result(work))
    heard = []
    while len(heard) < 6:
        heard += boss.take()
    assert [m["payload"].get("progress_percent") for m in heard] == [20, 40, 60, 80, 100, None]
    assert hub.status(work["payload"]["task_id"]) == "completed"


@pytest.mark.requirement("all-D6")
def test_fields_nobody_knows_travel_on(hub: HubProcess) -> None:
    boss, agent = cast(hub, 16)
    boss.send(request_of(16) | {"x_future": {"a": [1]}, "x_custom_fields": {"team": "blue"}})
    work = agent.work()
    assert work["x_future"] == {"a": [1]}
    assert work["x_custom_fields"]["team"] == "blue"
    agent.send(work_result(work, x_other=1, payload={"x_more": 2}))
    told = boss.next()
    assert (told["x_other"], told["payload"]["x_more"]) == (1, 2)


@pytest.mark.requirement("chiffon-D9")
@pytest.mark.parametrize(
    ("spoken", "chosen"),
    [(["1.0"], "1.0"), (["1.0", "2.0"], "1.0"), (["2.0", "1.0"], "1.0"), (["2.0"], None), ([], None)],
)
def test_versions_are_negotiated(hub: HubProcess, spoken: list[str], chosen: str | None) -> None:
    id = f"v-{'-'.join(spoken)}"
    agent = Worker(hub.url, hub.token(id, "versions"), id, "versions")
    answer = agent.register(supported_versions=spoken)
    if chosen is not None:
        assert (answer.status, answer.json["protocol_version"]) == (200, chosen)
        newer = agent.send(work_result(work_request(), protocol_version="2.0") | {"from_agent": "versions"})
        assert (newer.status, newer.code) == (422, 5006)
    elif spoken:
        assert (answer.status, answer.code) == (422, 5006)
        assert answer.error["error_context"]["supported_versions"] == ["1.0"]
    else:
        assert (answer.status, answer.code) == (400, 5003)


@pytest.mark.requirement("chiffon-D8")
def test_a_kind_is_anybody_and_a_pinned_agent_is_that_one(hub: HubProcess) -> None:
    boss = hub.orchestrator()
    agents = {id: hub.worker(id, "pool") for id in ("pool-1", "pool-2", "pool-3")}
    for id, agent in agents.items():
        boss.submit(to_agent="pool", x_custom_fields={"agent_id": id})
        work = agent.work()
        assert work["x_custom_fields"]["agent_id"] == id
        agent.send(work_result(work))
        assert boss.next()["x_custom_fields"]["agent_id"] == id
    answer = boss.send(work_request(to_agent="pool", x_custom_fields={"agent_id": "pool-9"}))
    assert (answer.status, answer.code) == (404, 5002)
    nobody = boss.send(work_request(to_agent="nobody"))
    assert (nobody.status, nobody.code) == (404, 5002)
    hub.worker("cook", "kitchen", work_types=["run_playbook"])
    cannot = boss.send(work_request(to_agent="kitchen", work_type="make_coffee"))
    assert (cannot.status, cannot.code) == (422, 5006)
    assert cannot.error["error_context"] == {"work_type_requested": "make_coffee", "supported_types": ["run_playbook"]}
