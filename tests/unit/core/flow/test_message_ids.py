"""A message id stands for one content, whatever task and kind of message it was used for."""

from __future__ import annotations

from tests.support.world import World

from dragoman.core.commands import Finish, ReportFault, ReportProgress
from dragoman.core.directory import Directory
from dragoman.core.ids import AgentId
from dragoman.core.model.tasks import Status
from dragoman.core.policy.replay import marks_of
from dragoman.core.ports import USED, Recovered
from dragoman.messages.faults import Fault, Kind


async def refusal(world: World, command: object) -> tuple[Kind, str | None]:
    fault = await world.refused(command)
    return fault.kind, fault.field


OTHER_CONTENT = (Kind.MISMATCH, "message_id")


async def two_tasks(world: World) -> list[str]:
    await world.add("i1", "infra")
    await world.connect("i1")
    return [(await world.submit()).id for _ in range(2)]


def reports(task: str, id: str, content: str) -> list[object]:
    """Every kind of report, in the same message."""
    named = {"principal": AgentId("i1"), "task_id": task, "message": marks_of("i1", id, content)}
    return [
        ReportProgress(**named),
        Finish(**named, digest=content),
        ReportFault(**named, fault=Fault(kind=Kind.WORK_FAILED, message="no")),
    ]


async def test_a_used_id_with_other_content_is_refused_about_another_task_too(world):
    first, second = await two_tasks(world)
    await world.ask(reports(first, "m1", "a")[0])
    for report in (*reports(second, "m1", "b"), *reports(first, "m1", "c")):
        assert await refusal(world, report) == OTHER_CONTENT
    assert (await world.task(second)).status is Status.ASSIGNED


async def test_two_requests_under_one_message_id_are_refused(world):
    await world.add("i1", "infra")
    task = await world.submit(message=marks_of("boss", "m1", "a"))
    request = world.request(message=marks_of("boss", "m1", "b"))
    assert await refusal(world, request) == OTHER_CONTENT
    other = await world.submit(message=marks_of("boss", "m2", "b"))
    assert other.id != task.id


async def test_the_same_message_again_is_decided_as_ever(world):
    await world.add("i1", "infra")
    request = world.request(message=marks_of("boss", "m1", "a"))
    assert (await world.ask(request)).id == (await world.ask(request)).id


async def test_two_senders_may_use_the_same_id(world):
    first, _ = await two_tasks(world)
    await world.submit(message=marks_of("boss", "m1", "a"))
    await world.ask(reports(first, "m1", "b")[1])


async def test_a_message_that_was_refused_has_not_used_its_id(world):
    first, _ = await two_tasks(world)
    assert (await world.refused(reports("nobody's", "m1", "a")[0])).kind is Kind.NOT_FOUND
    await world.ask(reports(first, "m1", "b")[0])


async def test_a_message_whose_commit_failed_has_not_used_its_id(world):
    first, second = await two_tasks(world)
    world.store.fail_next_commit()
    assert (await world.refused(reports(first, "m1", "a")[0])).kind is Kind.OVERLOADED
    await world.ask(reports(second, "m1", "b")[0])


async def test_a_restart_forgets_no_id(world):
    first, second = await two_tasks(world)
    await world.ask(reports(first, "m1", "a")[0])
    await world.restart()
    assert await refusal(world, reports(second, "m1", "b")[0]) == OTHER_CONTENT
    assert (await world.ask(reports(first, "m1", "a")[0])).id == first


def test_the_hub_remembers_a_bounded_number_of_ids_the_last_ones():
    directory = Directory(Recovered())
    step = USED // 16
    for begin in range(0, 3 * USED, step):
        directory.note_used(dict.fromkeys(range(begin, begin + step), 7))
        assert len(directory.used) <= USED + USED // 8
    assert all(id in directory.used for id in range(2 * USED, 3 * USED))
