"""Tasks between forge agents over a real WebSocket: submitted, assigned, reported, ended."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from tests.support.forge import ForgeHub, ForgePeer

from dragoman.core.commands import Cancel, Pause, Resume
from dragoman.core.ids import ADMIN, TaskId

JOB: dict[str, Any] = {
    "type": "implementation",
    "name": "Fix bug in auth",
    "description": "It lets everybody in",
    "payload": {"file": "src/auth.ts"},
    "requiredRole": "worker",
    "requiredCapabilities": ["typescript"],
    "priority": 2,
}


async def at_work(hub: ForgeHub, **more: Any) -> tuple[ForgePeer, ForgePeer, str]:
    """A planner whose job a worker has taken up."""
    worker = await hub.connect("worker-1")
    planner = await hub.connect("planner-1")
    task = (await planner.ask("submit-task", **{**JOB, **more}))["task"]
    assigned = await worker.notice("task-assigned")
    assert assigned["taskId"] == task["id"]
    return planner, worker, task["id"]


@pytest.mark.requirement("FG-SUB-2", "FG-NOT-1", "forge-all-D6", "forge-all-D8")
async def test_a_submitted_task_reaches_the_agent_with_the_role_and_the_capabilities(hub: ForgeHub) -> None:
    worker, other, planner = [await hub.connect(id) for id in ("worker-1", "worker-2", "planner-1")]
    answer = await planner.ask("submit-task", **JOB, colour="green")
    task = answer["task"]
    assert (task["status"], task["name"], task["priority"]) == ("queued", "Fix bug in auth", 2)  # as the document says
    assigned = await worker.notice("task-assigned")
    assert assigned["message"] == "Task assigned. Use TaskGet to view details."
    given = assigned["task"]
    assert (given["id"], given["payload"], given["colour"]) == (task["id"], {"file": "src/auth.ts"}, "green")
    assert (given["requiredRole"], given["requiredCapabilities"]) == ("worker", ["typescript"])
    assert (given["submittedBy"], given["assignedTo"], given["attempt"]) == ("planner-1", "worker-1", 1)
    assert other.received == []


@pytest.mark.requirement("forge-D14", "FG-NOT-1")
async def test_a_large_task_is_not_in_its_assignment_but_returned_to_the_agent_that_asks(hub: ForgeHub) -> None:
    worker, planner = [await hub.connect(id) for id in ("worker-1", "planner-1")]
    payload = {"text": "x" * 5000}
    task = (await planner.ask("submit-task", **{**JOB, "payload": payload}, colour="green"))["task"]
    assert await worker.notice("task-assigned") == {
        "taskId": task["id"],
        "message": "Task assigned. Use TaskGet to view details.",
    }
    given = (await worker.ask("get-task", taskId=task["id"]))["task"]
    assert (given["payload"], given["colour"], given["attempt"]) == (payload, "green", 1)
    assert given["requestId"]
    assert "requestId" not in (await planner.ask("get-task", taskId=task["id"]))["task"]


@pytest.mark.requirement("FG-SUB-2")
async def test_a_task_without_a_connected_agent_is_queued(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    task = (await planner.ask("submit-task", **JOB))["task"]
    assert (task["status"], task["assignedTo"]) == ("queued", None)


@pytest.mark.requirement("FG-SUB-2", "forge-D5")
async def test_a_task_that_no_other_agent_could_do_is_queued_for_agents_to_come(hub: ForgeHub) -> None:
    worker = await hub.connect("worker-1")
    mine = (await worker.ask("submit-task", **JOB))["task"]
    assert (mine["status"], mine["assignedTo"]) == ("queued", None)  # what it asks of others is not given to itself
    other = (await worker.ask("submit-task", **{**JOB, "requiredCapabilities": ["rust"]}))["task"]
    assert other["status"] == "queued"
    claimed = (await worker.ask("update-task", taskId=mine["id"], status="running", progress=0.1))["task"]
    assert (claimed["status"], claimed["progress"], claimed["assignedTo"]) == ("running", 0.1, "worker-1")
    assert (await worker.notice("task-assigned"))["taskId"] == mine["id"]
    await hub.add("worker-3", role="worker", capabilities=("rust",))
    third = await hub.connect("worker-3")
    assert (await third.notice("task-assigned"))["taskId"] == other["id"]


@pytest.mark.requirement("FG-GET-1", "FG-EVT-2", "FG-TMO-2", "forge-D6")
async def test_progress_then_completion_by_update_task(hub: ForgeHub) -> None:
    planner, worker, id = await at_work(hub)
    for part in (0.25, 0.5):
        await hub.world.advance(20)  # longer than the idle clock, all in all
        await worker.tell("progress", taskId=id, progress=part, message=f"at {part}", output="line\n")
        told = await planner.notice("task-updated")
        assert told == {
            "taskId": id, "status": "running", "final": False, "progress": part, "message": f"at {part}",
            "output": "line\n",
        }  # fmt: skip
    answer = await worker.ask("update-task", taskId=id, status="completed", result={"success": True})
    assert answer["task"]["status"] == "completed"
    told = await planner.notice("task-updated")
    assert told == {"taskId": id, "status": "completed", "final": True, "progress": 1.0, "result": {"success": True}}
    task = (await planner.ask("get-task", taskId=id))["task"]
    assert (task["status"], task["result"], task["output"]) == ("completed", {"success": True}, "line\nline\n")
    assert (task["payload"], task["progress"]) == ({"file": "src/auth.ts"}, 1.0)


@pytest.mark.requirement("forge-D6")
async def test_progress_1_with_a_result_completes_and_without_one_does_not(hub: ForgeHub) -> None:
    planner, worker, id = await at_work(hub)
    await worker.tell("progress", taskId=id, progress=1)
    assert (await planner.notice("task-updated"))["final"] is False
    await worker.tell("progress", taskId=id, progress=1, result=None)
    told = await planner.notice("task-updated")
    assert (told["final"], told["status"], told["result"]) == (True, "completed", None)


@pytest.mark.requirement("forge-D6", "FG-EVT-4")
async def test_an_error_beyond_recovery_fails_the_task_and_another_does_not(hub: ForgeHub) -> None:
    planner, worker, id = await at_work(hub)
    await worker.tell("error", taskId=id, error="hiccup", recoverable=True)
    await worker.tell("progress", taskId=id, progress=0.1)
    assert (await planner.notice("task-updated"))["status"] == "running"
    await worker.tell("error", taskId=id, error="TypeError: x of undefined", stack="at y.ts:1", recoverable=False)
    told = await planner.notice("task-updated")
    assert (told["status"], told["final"], told["error"]["code"]) == ("failed", True, "INTERNAL_ERROR")
    assert told["error"]["message"].startswith("TypeError: x of undefined")
    assert told["error"]["details"]["stack"] == "at y.ts:1"


@pytest.mark.requirement("forge-D6", "FG-EVT-4")
async def test_an_error_beyond_recovery_that_names_no_task_is_about_the_only_one(hub: ForgeHub) -> None:
    planner, worker, id = await at_work(hub)
    await worker.tell("error", error="out of memory", recoverable=False)
    told = await planner.notice("task-updated")
    assert (told["taskId"], told["status"], told["error"]["message"]) == (id, "failed", "out of memory")


@pytest.mark.requirement("forge-D6")
@pytest.mark.parametrize("result", [{}, {"result": {"tests": 3}, "output": "2 of 3 failed"}])
async def test_update_task_failed(hub: ForgeHub, result: dict[str, Any]) -> None:
    planner, worker, id = await at_work(hub)
    error = {"code": "E_TEST", "message": "tests fail"}
    answer = await worker.ask("update-task", taskId=id, status="failed", error=error, **result)
    assert answer["task"]["status"] == "failed"
    told = await planner.notice("task-updated")
    assert (told["final"], told["error"]["details"]["code"]) == (True, "E_TEST")
    assert {name: told[name] for name in result} == result


@pytest.mark.requirement("forge-all-D5")
async def test_the_same_request_again_has_the_first_outcome_and_other_content_is_refused(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    first = (await planner.ask("submit-task", id="r-1", **JOB))["task"]["id"]
    again = (await planner.ask("submit-task", id="r-1", **JOB))["task"]["id"]
    assert first == again
    refused = await planner.ask("submit-task", id="r-1", **{**JOB, "name": "another"})
    assert (refused["code"], refused["details"]["reason"]) == ("INVALID_REQUEST", "mismatch")
    assert refused["details"]["field"] == "id"
    assert "request_id" not in f"{refused}"


@pytest.mark.parametrize("receiver", ["agent", "kind"])
async def test_a_task_for_an_agent_that_is_not_there_is_not_found_and_may_be_sent_again(
    hub: ForgeHub, receiver: str
) -> None:
    planner = await hub.connect("planner-1")
    refused = await planner.ask("submit-task", type="x", **{receiver: "nobody-here"})
    assert (refused["code"], refused["details"]["field"]) == ("NOT_FOUND", f"payload.{receiver}")
    assert refused["details"]["retryable"] is True


@pytest.mark.requirement("FG-NOT-2")
async def test_the_agent_hears_of_a_cancelled_task(hub: ForgeHub) -> None:
    planner, worker, id = await at_work(hub)
    await worker.tell("progress", taskId=id, progress=0.1)
    answer = await planner.ask("cancel-task", taskId=id, reason="Dependency failed")
    assert answer["task"]["status"] == "cancelled"
    assert await worker.notice("task-cancelled") == {"taskId": id, "reason": "Dependency failed"}
    refused = await planner.ask("cancel-task", taskId=id)
    assert (refused["code"], refused["details"]["reason"]) == ("INVALID_REQUEST", "conflict")
    late = await worker.ask("update-task", taskId=id, status="completed", result=1)
    assert late["code"] == "INVALID_REQUEST"


@pytest.mark.requirement("forge-all-D5")
async def test_a_cancel_repeated_over_a_new_connection_has_its_first_outcome(hub: ForgeHub) -> None:
    planner, _, id = await at_work(hub)
    first = await planner.ask("cancel-task", id="c-1", taskId=id)
    planner = await hub.connect("planner-1")
    assert await planner.ask("cancel-task", id="c-1", taskId=id) == first
    for _ in range(2):  # a refusal is no outcome to be remembered
        assert (await planner.ask("cancel-task", id="c-2", taskId=id))["details"]["reason"] == "conflict"
    other = await planner.ask("cancel-task", id="c-1", taskId=id, reason="another")
    assert (other["code"], other["details"]["reason"]) == ("INVALID_REQUEST", "mismatch")


@pytest.mark.requirement("forge-all-D5")
async def test_a_repeated_update_changes_nothing_and_another_under_its_id_is_refused(hub: ForgeHub) -> None:
    _, worker, id = await at_work(hub)
    for _ in range(2):
        updated = await worker.ask("update-task", id="u-1", taskId=id, status="running", output="once")
        assert updated["task"]["status"] == "running"
    refused = await worker.ask("update-task", id="u-1", taskId=id, status="running", output="twice")
    assert (refused["code"], refused["details"]["reason"]) == ("INVALID_REQUEST", "mismatch")
    assert (await worker.ask("get-task", taskId=id))["task"]["output"] == "once"


async def test_a_task_is_paused_and_resumed(hub: ForgeHub) -> None:
    _, worker, id = await at_work(hub)
    await worker.ask("update-task", taskId=id, status="running")
    await hub.world.ask(Pause(principal=ADMIN, task_id=TaskId(id)))
    assert (await worker.notice("task-paused"))["taskId"] == id
    await hub.world.ask(Resume(principal=ADMIN, task_id=TaskId(id)))
    assert await worker.notice("task-resumed") == {"taskId": id}


async def test_running_on_a_queued_task_claims_it(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    worker = await hub.connect("worker-1")
    await hub.add("worker-3", role="worker", capabilities=("typescript",), max_concurrent=1)
    third = await hub.connect("worker-3")
    busy = (await planner.ask("submit-task", **JOB, agent="worker-3"))["task"]["id"]
    await third.notice("task-assigned")
    waits = (await planner.ask("submit-task", **JOB, kind=None, agent="worker-3"))["task"]
    assert waits["status"] == "queued"
    refused = await worker.ask("update-task", taskId=waits["id"], status="running")
    assert refused["code"] == "NOT_FOUND"
    refused = await third.ask("update-task", taskId=waits["id"], status="running")
    assert refused["details"]["reason"] == "conflict"  # its hands are full
    await third.ask("update-task", taskId=busy, status="completed")
    assert (await third.notice("task-assigned"))["taskId"] == waits["id"]


async def test_dependencies_hold_a_task_back_and_it_is_pending_meanwhile(hub: ForgeHub) -> None:
    planner, worker, first = await at_work(hub)
    task = (await planner.ask("submit-task", **JOB, dependencies=[first]))["task"]
    assert (task["status"], task["dependencies"], task["waitingFor"]) == ("pending", [first], "dependency")
    await worker.ask("update-task", taskId=first, status="completed")
    assert (await worker.notice("task-assigned"))["taskId"] == task["id"]


async def test_attachments_are_kept_and_fetched_in_pieces(hub: ForgeHub) -> None:
    content = bytes(range(256)) * 4
    attachment = {"filename": "../../etc/x.bin", "mimeType": "image/png", "data": base64.b64encode(content).decode()}
    _, worker, id = await at_work(hub, attachments=[attachment])
    file = (await worker.ask("get-task", taskId=id))["task"]["files"][0]
    assert (file["name"], file["mimeType"], file["size"]) == ("x.bin", "image/png", 1024)
    got = b""
    while len(got) < file["size"]:
        piece = await worker.ask("get-file", taskId=id, fileId=file["id"], offset=len(got), length=1000)
        assert (piece["offset"], piece["size"]) == (len(got), 1024)
        got += base64.b64decode(piece["data"])
    assert got == content
    refused = await worker.ask("get-file", taskId=id, fileId="../secret")
    assert refused["code"] == "NOT_FOUND"


async def test_files_of_a_repeated_or_refused_request_are_let_go_of(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    attachment = {"filename": "x", "data": "eHh4"}
    for _ in range(2):
        await planner.ask("submit-task", id="r-1", **JOB, attachments=[attachment])
    refused = await planner.ask("submit-task", **{**JOB, "agent": "nobody"}, attachments=[attachment])
    assert refused["code"] != "success"
    await planner.ask("query-agents")
    assert len(hub.files._kept) == 1
    bad = await planner.ask("submit-task", **JOB, attachments=[{"filename": "x", "data": "%%%"}])
    assert bad["details"]["field"] == "payload.attachments[0].data"


async def test_files_that_work_produces_are_kept_and_listed(hub: ForgeHub) -> None:
    planner, worker, id = await at_work(hub)
    file = {"filename": "../plot.png", "mimeType": "image/png", "data": base64.b64encode(b"plot").decode()}
    await worker.tell("progress", taskId=id, file=file)
    told = (await planner.notice("task-updated"))["file"]
    assert (told["name"], told["mimeType"], told["size"]) == ("plot.png", "image/png", 4)
    got = await planner.ask("get-file", taskId=id, fileId=told["id"])
    assert base64.b64decode(got["data"]) == b"plot"
    for _ in range(2):  # said twice, kept once
        updated = (await worker.ask("update-task", id="u-1", taskId=id, status="running", file=file))["task"]
        assert len(updated["files"]) == 2
    late = await worker.ask("update-task", taskId=id, status="completed", file=file)
    assert late["details"]["field"] == "payload.file"
    other = await hub.connect("worker-2")
    assert (await other.ask("update-task", taskId=id, status="running", file=file))["code"] == "NOT_FOUND"
    events = await hub.world.store.events(TaskId(id))
    assert not any(event.raw is not None and file["data"].encode() in event.raw for event in events)
    assert len(hub.files._kept) == 2


async def test_files_are_kept_whatever_ids_a_program_gives_its_events(hub: ForgeHub) -> None:
    """Also if the next has come before the one of the same id is committed."""
    _, worker, id = await at_work(hub)
    contents = [f"plot {number}".encode() for number in range(3)]
    hub.handler.hub.enqueue_then, enqueue_then = lambda *given: held.append(given), hub.handler.hub.enqueue_then  # type: ignore[method-assign]
    held: list[Any] = []
    for content in contents:
        file = {"filename": "plot.png", "data": base64.b64encode(content).decode()}
        await worker.say({**worker.message("event:progress", {"taskId": id, "file": file}), "id": "evt-1"})
    async with asyncio.timeout(60):
        while len(held) < len(contents):
            await asyncio.sleep(0)
    hub.handler.hub.enqueue_then = enqueue_then  # type: ignore[method-assign]
    for given in held:
        enqueue_then(*given)
    files = (await worker.ask("get-task", taskId=id))["task"]["files"]
    got = [await worker.ask("get-file", taskId=id, fileId=file["id"]) for file in files]
    assert [base64.b64decode(one["data"]) for one in got] == contents


@pytest.mark.requirement("forge-all-D7")
async def test_the_trace_goes_through(hub: ForgeHub) -> None:
    worker = await hub.connect("worker-1")
    planner = await hub.connect("planner-1")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    await planner.ask("submit-task", **JOB, meta={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    message = await worker.until(lambda message: message["type"] == "notify:task-assigned")
    assert message["_meta"]["traceparent"].split("-")[1] == trace


async def test_a_long_output_comes_in_pieces_the_last_with_the_outcome(hub: ForgeHub) -> None:
    planner, worker, id = await at_work(hub)
    output = "é" * 400_000
    await worker.ask("update-task", taskId=id, status="completed", output=output)
    got, final = "", False
    while not final:
        told = await planner.notice("task-updated")
        got, final = got + told["output"], told["final"]
    assert got == output


async def test_a_silent_agent_that_reconnects_is_assigned_its_task_again(hub: ForgeHub) -> None:
    _, worker, id = await at_work(hub)
    await worker.close()
    worker = await hub.connect("worker-1")
    await hub.world.advance(6)
    assigned = await worker.notice("task-assigned")
    assert (assigned["taskId"], assigned["task"]["attempt"]) == (id, 2)


async def test_events_count_whatever_ids_a_program_gives_them(hub: ForgeHub) -> None:
    """It may begin anew with the same ones, or have one for all."""
    _, worker, id = await at_work(hub)
    for piece in ("one ", "two"):
        await worker.say({**worker.message("event:progress", {"taskId": id, "output": piece}), "id": "evt-1"})
    assert (await worker.ask("get-task", taskId=id))["task"]["output"] == "one two"


async def test_what_is_completed_cannot_fail_any_more(hub: ForgeHub) -> None:
    _, worker, id = await at_work(hub)
    await worker.ask("update-task", taskId=id, status="completed", result=1)
    refused = await worker.ask("update-task", taskId=id, status="failed", error="after all")
    assert (refused["code"], refused["details"]["reason"]) == ("INVALID_REQUEST", "conflict")


async def test_what_the_hub_cannot_place_is_refused_with_a_forge_error(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    refused = await planner.ask("submit-task", type="x", agent="nobody")
    assert refused["code"] in ("INTERNAL_ERROR", "NOT_FOUND")
    assert "nobody" in refused["message"]
    assert refused["details"]["field"] == "payload.agent"


@pytest.mark.requirement("forge-all-D3")
@pytest.mark.parametrize(
    ("whom", "field"),
    [
        ({"kind": "typist"}, "payload.kind"),
        ({"agent": "nobody"}, "payload.agent"),
        ({"agent": "nobody", "kind": "typist"}, "payload.agent"),
        ({"agent": "typist-1", "kind": "clerk"}, "payload.agent"),
        ({"kind": "typist", "dependencies": []}, "payload.kind"),
    ],
)
async def test_the_receiver_of_a_task_has_the_senders_name_for_it(
    hub: ForgeHub, whom: dict[str, Any], field: str
) -> None:
    await hub.add("typist-1", kind="secretary")
    planner = await hub.connect("planner-1")
    refused = await planner.ask("submit-task", type="x", **whom)
    assert refused["details"]["field"] == field


async def test_another_agents_task_cannot_be_ended(hub: ForgeHub) -> None:
    planner, _, id = await at_work(hub)
    other = await hub.connect("worker-2")
    for status in ("running", "completed", "failed"):
        assert (await other.ask("update-task", taskId=id, status=status))["code"] == "NOT_FOUND"
    await other.tell("progress", taskId=id, progress=1, result="mine")
    await other.tell("error", taskId=id, error="x", recoverable=False)
    assert (await other.ask("cancel-task", taskId=id))["code"] == "NOT_FOUND"
    assert (await planner.ask("get-task", taskId=id))["task"]["status"] == "assigned"
    await hub.world.ask(Cancel(principal=ADMIN, task_id=TaskId(id)))


@pytest.mark.requirement("forge-D5", "FG-ERR-1")
async def test_an_agent_that_sees_a_task_and_may_not_cancel_it_learns_so(hub: ForgeHub) -> None:
    """NOT_FOUND is for agents that may not know of it."""
    _, worker, id = await at_work(hub)
    await hub.add("planner-2", role="planner")
    for peer in (await hub.connect("planner-2"), worker):
        refused = await peer.ask("cancel-task", id=f"cancel-{peer.id}", taskId=id)
        assert (refused["code"], refused["details"]["field"]) == ("UNAUTHORIZED", "payload.taskId")
        assert "planner-1" in refused["message"]
    stranger = await hub.connect("worker-2")
    assert (await stranger.ask("cancel-task", taskId=id))["code"] == "NOT_FOUND"
    noted = [(who, outcome) for who, action, outcome in await hub.audited() if action == "forge.cancel-task"]
    assert noted == [(who, "refused") for who in ("planner-2", "worker-1", "worker-2")]
    assert (await worker.ask("get-task", taskId=id))["task"]["status"] == "assigned"
