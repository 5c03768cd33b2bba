"""kill -9 at every named step of the road: exactly what survives, and that asking again is always right.

step                   what was asked    the client      asked again after the restart
---------------------  ----------------  --------------  -----------------------------------------
before_commit          never happened    no answer       is accepted, and happens once
writer:before_commit   never happened    no answer       is accepted, and happens once
writer:after_commit    happened          no answer       is accepted, and nothing happens again
after_commit           happened          no answer       is accepted, and nothing happens again
before_ack             happened          no answer       is accepted, and nothing happens again
after_ack              happened          no answer       is accepted, and nothing happens again
before_send            happened          nothing came    the work is given out again
after_send             happened          perhaps         the work is given out again, or its result is welcome
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.faults import killing
from tests.support.chiffon import task_of, work_request, work_result
from tests.support.fleet import BROKEN
from tests.support.hubproc import HubProcess, until
from websockets.exceptions import ConnectionClosed

HAPPENED = {**killing.HAPPENED, "before_ack": True, "after_ack": True}


@pytest.fixture
def hub(tmp_path: Path):
    # Clocks are slow here: what they commit would meet the crash point first.
    hub = HubProcess(tmp_path, DRAGOMAN_RULES__IDLE_SECONDS="600", DRAGOMAN_RULES__POLL_LEASE_SECONDS="600")
    yield hub
    hub.kill()


@pytest.mark.parametrize("step", HAPPENED)
def test_a_request_a_result_and_an_acknowledgment_survive_a_kill_at(step: str, hub: HubProcess) -> None:
    happened = HAPPENED[step]
    hub.start()
    boss, worker = hub.orchestrator(), hub.worker()
    request = work_request()

    # The request: nobody is told of it.
    hub.restart(DRAGOMAN_CRASH_AT=step)
    boss.url = worker.url = hub.url
    with pytest.raises(BROKEN):
        boss.send(request)
    assert hub.died() == -signal.SIGKILL
    hub.start()
    boss.url = worker.url = hub.url
    there = hub.admin.get(f"/api/v1/tasks/{task_of(request)}").status
    assert there == (200 if happened else 404)
    assert boss.send(request).status == 202
    assert [task["id"] for task in hub.tasks()] == [task_of(request)]
    work = worker.work()
    assert worker.poll() == []

    # The result.
    result = work_result(work)
    hub.restart(DRAGOMAN_CRASH_AT=step)
    worker.url = hub.url
    with pytest.raises(BROKEN):
        worker.send(result)
    assert hub.died() == -signal.SIGKILL
    hub.start()
    boss.url = worker.url = hub.url
    assert hub.status(task_of(request)) == ("completed" if happened else "assigned")
    assert worker.send(result).status == 202
    (told,) = boss.poll(wait=60)
    assert told["message"]["message_id"] == result["message_id"]
    assert hub.task(task_of(request))["attempts"] == 1
    if step not in ("before_commit", "after_commit"):
        return

    # The acknowledgment.
    hub.restart(DRAGOMAN_CRASH_AT=step)
    boss.url = hub.url
    with pytest.raises(BROKEN):
        boss.ack(told)
    assert hub.died() == -signal.SIGKILL
    hub.start()
    boss.url = worker.url = hub.url
    owed = int(not happened)
    assert hub.gauge("dragoman_deliveries") == owed
    assert boss.ack(told).json == {"acknowledged": owed}
    assert boss.poll() == []
    assert hub.pending == 0
    assert hub.task(task_of(request))["attempts"] == 1


@pytest.mark.parametrize("step", ["before_send", "after_send"])
def test_work_that_was_on_its_way_survives_a_kill_at(step: str, hub: HubProcess) -> None:
    hub.start()
    boss, worker = hub.orchestrator(), hub.worker()
    request, answer = boss.submit()
    assert answer.status == 202

    hub.restart(DRAGOMAN_CRASH_AT=step)
    worker.url = hub.url
    got = []
    with pytest.raises(ConnectionClosed), worker.websocket() as socket:  # noqa: PT012
        got.append(socket.recv())
        socket.recv()
    assert hub.died() == -signal.SIGKILL
    if step == "before_send":
        assert got == []

    hub.start()
    boss.url = worker.url = hub.url
    with worker.websocket() as socket:
        work = got[0] if got else socket.recv()
        assert work["request_id"] == request["request_id"]
        socket.send(work_result(work))
        (told,) = boss.poll(wait=60)
    boss.ack(told)
    assert told["message"]["type"] == "work_result"
    assert hub.pending == 0
    assert hub.task(task_of(request))["attempts"] == 1  # the hub's death is no failure of the agent


def test_a_submitter_killed_by_before_ack_finds_the_work_already_under_way(hub: HubProcess) -> None:
    """The work leaves before the 202 does: the agent has it, the submitter knows nothing, and repeats."""
    hub.settings["DRAGOMAN_RULES__IDLE_SECONDS"] = "3"
    hub.start()
    boss, worker = hub.orchestrator(), hub.worker()
    hub.restart(DRAGOMAN_CRASH_AT="before_ack:3")  # the connection, its registration by the alarm, then the request
    boss.url = worker.url = hub.url
    request = work_request()
    socket = worker.websocket()
    with pytest.raises(BROKEN):  # noqa: PT012
        while True:
            boss.send(request)
    assert hub.died() == -signal.SIGKILL
    socket.cut()
    hub.start()
    boss.url = worker.url = hub.url
    assert boss.send(request).status == 202
    with worker.websocket() as socket:
        work = socket.recv()
        socket.send(work_result(work))
        (told,) = boss.poll(wait=60)
    boss.ack(told)
    assert [task["id"] for task in hub.tasks()] == [task_of(request)]
    until(lambda: hub.pending == 0, "nothing left")


def test_a_writer_that_dies_before_it_answers_again_and_again_holds_nobody_up(hub: HubProcess) -> None:
    """What it had written counts, though it never said so: nobody is refused, and nothing is in the hub's way later."""
    hub.start(DRAGOMAN_CRASH_AT="writer:before_answer:5")
    boss, worker = hub.orchestrator(), hub.worker()
    asked = [boss.submit() for _ in range(4)]
    assert [answer.status for _, answer in asked] == [202] * len(asked)
    for request, _ in asked:
        work = worker.work()
        assert work["request_id"] == request["request_id"]
        assert worker.send(work_result(work)).status == 202
        assert [told["payload"]["task_id"] for told in boss.take()] == [task_of(request)]
    assert hub.pending == 0
    audit = hub.admin.get("/api/v1/audit/verify")
    assert (audit.status, audit.json["broken"]) == (200, None)
    assert "nothing was committed" not in hub.log.read_text()
