"""A chiffon message id stands for one content: over HTTP and WebSocket, about any task, also after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.chiffon import (
    Orchestrator,
    Party,
    Worker,
    error,
    new_id,
    task_of,
    work_request,
    work_result,
    work_status,
)
from tests.support.hubproc import HubProcess, running

Send = Callable[[Party, Mapping[str, Any]], int | None]
"""Sends a message; the error code that it is refused with, if it is."""

pytestmark = pytest.mark.requirement("all-D5")


def by_http(party: Party, message: Mapping[str, Any]) -> int | None:
    answer = party.send(message)
    if answer.status == 202:
        return None
    assert (answer.status, answer.error["error_context"]["field_name"]) == (409, "message_id")
    return answer.code


@pytest.fixture(params=["http", "websocket"])
def send(request: pytest.FixtureRequest) -> Iterator[Send]:
    if request.param == "http":
        yield by_http
        return
    with ExitStack() as stack:
        sockets: dict[str, Any] = {}

        def by_websocket(party: Party, message: Mapping[str, Any]) -> int | None:
            if party.id not in sockets:
                sockets[party.id] = stack.enter_context(party.websocket(receipts=True))
            socket = sockets[party.id]
            socket.send(message)
            while True:
                heard = socket.recv()
                if message["message_id"] in heard.get("accepted", ()):
                    return None
                refused = heard.get("x_custom_fields", {}).get("refused_message_id")
                if heard.get("type") == "error" and refused == message["message_id"]:
                    assert heard["payload"]["error_context"]["field_name"] == "message_id"
                    return int(heard["payload"]["error_code"])

        yield by_websocket


@pytest.fixture
def parties(hub: HubProcess) -> tuple[Orchestrator, Worker, str]:
    kind = f"kind-{new_id()}"
    boss = f"boss-{new_id()}"
    return Orchestrator(hub.url, hub.token(boss, "orchestrator"), boss), hub.worker(f"agent-{kind}", kind), kind


def test_two_requests_under_one_message_id(send: Send, parties: tuple[Orchestrator, Worker, str]) -> None:
    boss, _, kind = parties
    first = work_request(to_agent=kind)
    second = work_request(to_agent=kind, message_id=first["message_id"])
    assert send(boss, first) is None
    assert send(boss, second) == 5003
    assert send(boss, first) is None  # the same one again
    assert send(boss, second | {"message_id": new_id()}) is None


def test_reports_about_two_tasks_under_one_message_id(send: Send, parties: tuple[Orchestrator, Worker, str]) -> None:
    boss, agent, kind = parties
    for _ in range(2):
        boss.submit(to_agent=kind)
    first, second = agent.work(), agent.work()
    status = work_status(first)
    assert send(agent, status) is None
    for other in (work_status(second), work_result(second), error(second, 5003), work_status(first, 51)):
        assert send(agent, other | {"message_id": status["message_id"]}) == 5003
    assert send(agent, status) is None
    assert send(agent, work_result(second)) is None
    assert send(agent, work_result(first)) is None


def test_a_restart_of_the_hub_forgets_no_message_id(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        boss, worker = hub.orchestrator(), hub.worker()
        request, _ = boss.submit()
        status = work_status(worker.work())
        assert worker.send(status).status == 202
        for end in (hub.kill, hub.stop):
            end()
            hub.start()
            boss.url = worker.url = hub.url
            again = work_request(message_id=request["message_id"])
            assert (by_http(boss, again), by_http(boss, request)) == (5003, None)
            result = work_result(request, message_id=status["message_id"])
            assert (by_http(worker, result), by_http(worker, status)) == (5003, None)
        assert hub.task(task_of(request))["status"] == "running"
