"""The stream of a task's events: nothing lost, nothing doubled, however often one comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from dragoman.core.model.tasks import EventKind, Status
from dragoman.core.ports import Changes, StoreFailed

replace = msgspec.structs.replace


def path(task: Any) -> str:
    return f"/api/v1/tasks/{task.id}/events"


async def test_the_stream_of_a_finished_task_has_all_events_and_ends(world: Any, make: Any) -> None:
    task = make.task(status=Status.COMPLETED, seq=2)
    await world.put(
        task,
        make.event(task, 1, EventKind.SUBMITTED, {"input": {"a": 1}}),
        make.event(task, 2, EventKind.COMPLETED, {"output": "ok"}, agent="mux-1"),
    )
    answer = await world.client.get(path(task))
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = await world.stream(path(task)).rest()
    assert [(frame.get("id"), frame["event"]) for frame in frames] == [
        ("1", "submitted"),
        ("2", "completed"),
        (None, "end"),
    ]
    assert msgspec.json.decode(frames[1]["data"]) == {
        "task_id": task.id, "seq": 2, "at": "2026-01-19T04:21:04.000002Z", "kind": "completed", "agent": "mux-1",
        "protocol": None, "body": {"output": "ok"},
    }  # fmt: skip
    assert msgspec.json.decode(frames[2]["data"]) == {"task_id": task.id, "status": "completed"}


async def test_a_head_does_not_wait_for_the_end_of_the_task(world: Any, make: Any) -> None:
    task = make.task(status=Status.RUNNING, seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED))
    answer = await world.client.head(path(task))
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_stream_that_breaks_anywhere_is_resumed_without_gap_or_double(world: Any, make: Any) -> None:
    task = make.task(status=Status.COMPLETED, seq=40)
    await world.put(task, *(make.event(task, n, EventKind.PROGRESS, {"percent": n}) for n in range(1, 41)))
    seen: list[int] = []
    for taken in (0, 1, 7, 13, 40):
        stream = world.stream(path(task), **({"last_event_id": str(seen[-1])} if seen else {}))
        while len(seen) < taken:
            frame = await stream.next()
            seen.append(int(frame["id"]))
        await stream.close()
    assert seen == list(range(1, 41))
    [end] = await world.stream(path(task), last_event_id="40").rest()
    assert end["event"] == "end"


async def test_after_in_the_address_counts_less_than_what_was_seen_since(world: Any, make: Any) -> None:
    task = make.task(status=Status.FAILED, seq=5)
    await world.put(task, *(make.event(task, n, EventKind.PROGRESS) for n in range(1, 6)))
    assert [f.get("id") for f in await world.stream(path(task), "after=3").rest()] == ["4", "5", None]
    assert [f.get("id") for f in await world.stream(path(task), "after=1", last_event_id="4").rest()] == ["5", None]


async def test_events_arrive_as_they_are_committed(world: Any, make: Any) -> None:
    task = make.task(status=Status.RUNNING, seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED))
    stream = world.stream(path(task))
    assert (await stream.next())["id"] == "1"
    for seq in range(2, 5):
        await world.change(replace(task, seq=seq), added=[make.event(task, seq, EventKind.PROGRESS)])
        frame = await stream.next()
        while "" in frame:
            frame = await stream.next()
        assert frame["id"] == str(seq)
    done = replace(task, seq=6, status=Status.COMPLETED)
    await world.change(done, added=[make.event(task, 5, EventKind.PROGRESS), make.event(task, 6, EventKind.COMPLETED)])
    rest = [frame for frame in await stream.rest() if "" not in frame]
    assert [frame["event"] for frame in rest] == ["progress", "completed", "end"]
    assert world.intake.watching == 0


async def test_a_cursor_beyond_the_end_gets_events_from_now_on(world: Any, make: Any) -> None:
    """It heard nothing until the task's numbers had come up with it."""
    task = make.task(status=Status.RUNNING, seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED))
    stream = world.stream(path(task), last_event_id="9")
    assert "" in await stream.next()  # a heartbeat: it listens
    await world.change(replace(task, seq=2, status=Status.COMPLETED), added=[make.event(task, 2, EventKind.COMPLETED)])
    told = [frame["event"] for frame in await stream.rest() if "" not in frame]
    assert told == ["completed", "end"]


async def test_a_commit_between_the_events_and_the_head_is_not_missed(world: Any, make: Any) -> None:
    """The end is only told when the head's last event was told."""
    task = make.task(status=Status.RUNNING, seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED))
    read = world.store.task
    raced = False

    async def racing(id: Any) -> Any:
        nonlocal raced
        if world.intake.watching and not raced:
            raced = True
            final = replace(task, seq=2, status=Status.COMPLETED)
            await world.change(final, added=[make.event(task, 2, EventKind.COMPLETED)])
        return await read(id)

    world.store.task = racing
    frames = [frame for frame in await world.stream(path(task)).rest() if "" not in frame]
    assert [frame["event"] for frame in frames] == ["submitted", "completed", "end"]


async def test_a_quiet_stream_beats_and_ends_when_the_hub_drains(world: Any, make: Any) -> None:
    task = make.task(status=Status.RUNNING, seq=0)
    await world.put(task)
    stream = world.stream(path(task))
    assert await stream.next() == {"": "heartbeat"}
    async with asyncio.timeout(60):
        await world.intake.parked.wait()
    world.context.waiters.close()
    assert all("" in frame for frame in await stream.rest())


async def test_a_client_that_leaves_stops_being_watched_for(world: Any, make: Any) -> None:
    task = make.task(status=Status.RUNNING)
    await world.put(task)
    stream = world.stream(path(task))
    await stream.next()
    assert world.intake.watching == 1
    await stream.close()
    assert world.intake.watching == 0


async def test_line_ends_in_a_body_do_not_end_a_frame(world: Any, make: Any) -> None:
    task = make.task(status=Status.COMPLETED, seq=1)
    body = msgspec.Raw(b'{\r\n "output":\r"event: end"\n\n}')
    await world.put(task, replace(make.event(task, 1, EventKind.COMPLETED), body=body))
    [completed, end] = await world.stream(path(task)).rest()
    assert msgspec.json.decode(completed["data"])["body"] == {"output": "event: end"}
    assert end["event"] == "end"


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 30, "²"])
async def test_a_last_event_id_that_is_no_number_is_refused(world: Any, make: Any, value: str) -> None:
    task = make.task()
    await world.put(task)
    answer = await world.client.get(path(task), headers={"Last-Event-ID": value.encode("utf-8")})
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")
    assert (await world.client.get(f"{path(task)}?after=-1")).status_code == 422


async def test_a_task_that_is_forgotten_meanwhile_ends_the_stream_and_who_comes_back_hears_so(
    world: Any, make: Any
) -> None:
    task = make.task(status=Status.COMPLETED, seq=600)
    await world.put(task, *(make.event(task, n, EventKind.PROGRESS) for n in range(1, 601)))
    read = world.store.events

    async def forgetting(*args: Any, **kwargs: Any) -> Any:
        page = await read(*args, **kwargs)
        async with world.store.unit() as unit:
            await unit.commit(Changes(removed=[task]))
        return page

    world.store.events = forgetting
    frames = await world.stream(path(task)).rest()
    assert (len([f for f in frames if "id" in f]), [f["event"] for f in frames if f.get("event") == "end"]) == (500, [])
    world.store.events = read
    for query in ("", "?after=500"):
        answer = await world.client.get(path(task) + query, headers={"Last-Event-ID": "500"})
        assert (answer.status_code, "forgotten after" in answer.json()["detail"]) == (404, True)
    assert (await world.client.get(f"/api/v1/tasks/{task.id}")).status_code == 404


async def test_no_stream_of_what_is_not_there(world: Any, make: Any) -> None:
    assert (await world.client.get(path(make.task()))).status_code == 404


async def test_a_store_that_fails_in_the_middle_ends_the_stream_without_an_end(world: Any, make: Any) -> None:
    task = make.task(status=Status.RUNNING, seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED))
    read = world.store.events

    async def failing(*args: Any, **kwargs: Any) -> Any:
        if kwargs["after"]:
            raise StoreFailed("gone")
        return await read(*args, **kwargs)

    world.store.events = failing
    frames = [frame for frame in await world.stream(path(task)).rest() if "" not in frame]
    assert [frame["event"] for frame in frames] == ["submitted"]
    assert world.intake.watching == 0
