"""Where the stream of all events goes on after an id: a known one, a forgotten one, one from the future, nonsense."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.unit.api.test_refusals import assert_problem

from dragoman.api.events import AHEAD, PAGE
from dragoman.core.ids import DAY
from dragoman.core.model.tasks import EventKind

PATH = "/api/v1/events"
PATIENCE = 20.0


async def frames(stream: Any, count: int) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return [await stream.next() for _ in range(count)]


def numbers(found: list[Any]) -> list[int]:
    return [msgspec.json.decode(frame["data"])["seq"] for frame in found]


@pytest.mark.parametrize("last", ["0", "1"])
async def test_an_id_older_than_all_that_is_kept_gets_what_is_kept(world: Any, make: Any, last: str) -> None:
    task = make.task(seq=3)
    await world.put(task, *(make.event(task, n, EventKind.PROGRESS) for n in range(1, 4)))
    assert numbers(await frames(world.stream(PATH, last_event_id=last), 3)) == [1, 2, 3]


async def test_a_reader_that_is_many_pages_behind_gets_each_event_once(world: Any, make: Any) -> None:
    many = 4 * PAGE + 7
    task = make.task(seq=many)
    events = [make.event(task, n, EventKind.PROGRESS) for n in range(1, many + 1)]
    await world.put(task, *events)
    first = await frames(world.stream(PATH, last_event_id=str(make.now)), PAGE + 3)
    last = next(frame["id"] for frame in reversed(first) if "id" in frame)
    rest = await frames(world.stream(PATH, last_event_id=last), many - PAGE - 3)
    assert numbers(first + rest) == list(range(1, many + 1))


async def test_an_id_from_the_future_is_answered_with_a_reset_and_what_happens_next(world: Any, make: Any) -> None:
    """The reader has it from another hub, or from before a backup was restored: silence would be the worst answer."""
    task = make.task(seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED))
    [reset] = await frames(world.stream(PATH, last_event_id=str(make.now + 365 * DAY)), 1)
    assert (reset["event"], reset["data"]) == ("reset", "{}")


async def test_the_clock_of_another_node_may_be_a_little_ahead(world: Any, make: Any) -> None:
    task = make.task(seq=1)
    late = make.event(task, 1, EventKind.SUBMITTED, at=make.now + AHEAD)
    await world.put(task, late)
    assert numbers(await frames(world.stream(PATH, last_event_id=str(make.now + AHEAD - 1)), 1)) == [1]


async def test_a_filtered_stream_has_an_id_for_each_commit_that_it_shows(world: Any, make: Any) -> None:
    """The last event of a commit may be about another task: a reader that comes back gets none of it again."""
    one, other = make.task(1, seq=2), make.task(2, seq=2)
    commits = [make.event(task, n, EventKind.PROGRESS, at=make.now + n) for n in (1, 2) for task in (one, other)]
    await world.put(one, other, *commits)
    for task in (one, other):
        found = await frames(world.stream(PATH, f"task={task.id}", last_event_id="1"), 2)
        assert [frame.get("id") for frame in found] == [str(make.now + 1), str(make.now + 2)]
        again = await frames(world.stream(PATH, f"task={task.id}", last_event_id=found[0]["id"]), 1)
        assert numbers(again) == [2]


@pytest.mark.parametrize("value", ["-5", "abc", "9" * 30, "1.5", "٣"])
async def test_what_is_no_id_is_refused(world: Any, value: str) -> None:
    answer = await world.client.get(PATH, headers={"Last-Event-ID": value.encode("utf-8")})
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_type_of_event_that_does_not_exist_is_refused_with_those_that_do(world: Any, method: str) -> None:
    """The stream was silent for ever."""
    answer = await world.client.request(method, PATH, params={"type": "progress,zz"})
    assert answer.status_code == 422
    if method == "GET":
        told = assert_problem(answer, 422, "invalid")
        assert (told["field"], "submitted, assigned" in told["message"]) == ("type", True)
        assert told["message"].startswith("'zz' is no type of event")
