"""What is set aside for a task that names no budget, and how a report above what it may use ends its spending."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.commands import ReportFault, ReportStatus, Retry
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import EventKind, Status
from dragoman.core.queries.why import why
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import read_failure

pytestmark = pytest.mark.requirement("agentmsg-D10")

RESULT = b'{"result":{}}'


@pytest.fixture
async def paid(world):
    """One agent with many seats; a task may use 5 USD, all together 12."""
    await world.add("i1", "infra", concurrent=100)
    world.i1 = await world.connect("i1")
    await world.policy(budget_limits={"per_task": 5, "total": 12})
    return world


def usage(cost: float) -> bytes:
    return msgspec.json.encode({"usage": {"cost_usd": cost}})


def used(task, cost: float) -> ReportFault:
    fault = Fault(kind=Kind.RESOURCES, message="no room just now")
    return ReportFault(principal=AgentId("i1"), task_id=task.id, fault=fault, content=read_failure(usage(cost)))


async def allocated(world, name: str = "hub:budget") -> float:
    return (await world.account(name)).get("allocated", 0)


async def test_tasks_that_name_no_budget_run_side_by_side_as_far_as_the_total_allows(paid):
    tasks = [await paid.submit() for _ in range(4)]
    assert [task.status for task in tasks] == [Status.ASSIGNED, Status.ASSIGNED, Status.QUEUED, Status.QUEUED]
    assert (await allocated(paid), await allocated(paid, "i1:budget")) == (10, 10)
    await paid.finish("i1", tasks[0].id, body=b'{"result":{},"usage":{"cost_usd":1}}')
    assert (await paid.task(tasks[2].id)).status is Status.ASSIGNED
    assert await allocated(paid) == 10


async def test_one_that_names_less_has_room_beside_others_that_name_nothing(paid):
    for _ in range(2):
        await paid.submit()
    assert (await paid.submit(constraints={"budget_usd": 2})).status is Status.ASSIGNED
    assert (await paid.submit(constraints={"budget_usd": 0})).status is Status.ASSIGNED  # it says that it costs nothing
    assert await allocated(paid) == 12


async def test_one_for_which_that_can_never_be_set_aside_is_refused_and_no_field_is_named(paid):
    await paid.allot("i1:budget", limit=4)
    fault = await paid.refused(paid.request())
    assert (fault.kind, fault.retryable, fault.field) == (Kind.RESOURCES, False, None)
    assert fault.message == (
        "it names no budget, so 5 USD would be set aside for it (`per_task`), and i1 may use 4 USD: 0 are used, 0 set "
        "aside for tasks under way (`allocated`), 4 remain; name a smaller budget, or raise the limit"
    )
    assert (await paid.submit(constraints={"budget_usd": 4})).status is Status.ASSIGNED


async def test_why_names_the_numbers_of_a_task_that_waits_for_budget(paid):
    from dragoman.core.budgets.budget import account_in

    for _ in range(2):
        await paid.submit()
    waiting = await paid.submit()
    hub = AgentId("hub")
    total = account_in(await paid.account("hub:budget"), hub, "budget", paid.intake.policy, paid.time)
    told = why(waiting, now=paid.time, agents=(), totals=(total,), per_task=paid.intake.policy.per_task)
    assert "2 of 12 USD free (0 used, 10 set aside), and the task asks for 5" in told.summary


async def test_what_was_queued_before_there_was_a_policy_is_held_to_it(world):
    await world.add("i1", "infra", concurrent=100)
    tasks = [await world.submit() for _ in range(3)]
    await world.policy(budget_limits={"per_task": 5, "total": 12})
    await world.connect("i1")
    stands = [(await world.task(task.id)).status for task in tasks]
    assert stands == [Status.ASSIGNED, Status.ASSIGNED, Status.QUEUED]


async def test_progress_that_reports_more_than_the_task_may_use_ends_it_and_the_agent_gets_a_cancel(paid):
    task = await paid.submit()
    await paid.progress("i1", task.id, body=usage(5))
    assert (await paid.task(task.id)).status is Status.RUNNING
    paid.i1.take()
    await paid.progress("i1", task.id, body=usage(5.5))
    ended = await paid.task(task.id)
    assert (ended.status, ended.outcome.fault.kind) == (Status.FAILED, Kind.RESOURCES)
    assert ended.outcome.fault.message == "it has used 5.5 USD, and may use 5; give it more, or let it do less"
    assert [outgoing.delivery.kind for outgoing in paid.i1.take()] == [MessageKind.CANCEL]
    account = await paid.account("i1:budget")
    assert (account["consumed"], account["allocated"]) == (5.5, 0)  # what was used stays on the books
    events = [event.kind for event in await paid.store.events(task.id)]
    assert EventKind.ATTEMPT_FAILED not in events


async def test_a_failed_attempt_leaves_the_next_one_what_it_did_not_use(paid):
    task = await paid.submit()
    await paid.ask(used(task, 3))
    await paid.advance(1)
    assert (await paid.task(task.id)).status is Status.ASSIGNED
    assert (await allocated(paid), (await paid.account("i1:budget"))["consumed"]) == (2, 3)
    await paid.ask(used(task, 2.5))
    ended = await paid.task(task.id)
    assert (ended.status, ended.outcome.fault.facts["consumed"], ended.attempt.count) == (Status.FAILED, 5.5, 2)
    await paid.ask(Retry(principal=ADMIN, task_id=task.id))
    again = await paid.task(task.id)
    assert (again.status, again.spending.spent) == (Status.ASSIGNED, None)


async def test_a_result_above_it_is_the_callers_all_the_same_and_counts(paid):
    task = await paid.submit()
    await paid.finish("i1", task.id, body=b'{"result":{},"usage":{"cost_usd":9}}')
    assert (await paid.task(task.id)).status is Status.COMPLETED
    fault = await paid.refused(paid.request())
    assert (fault.facts["remaining"], fault.facts["whose"]) == (3, "all tasks together")


async def test_an_agents_own_sum_ends_the_only_task_that_it_was_used_for(paid):
    async def report(cost: float) -> None:
        await paid.ask(ReportStatus(principal=AgentId("ann"), status={"state": "BUSY"}, usage={"cost_usd": cost}))

    await paid.join("ann")
    await paid.connect("ann", acknowledges=True)
    task = await paid.submit(None, pinned="ann")
    await report(6)  # that may be of something before
    assert (await paid.task(task.id)).status is Status.ASSIGNED
    await report(10)
    assert (await paid.task(task.id)).status is Status.ASSIGNED
    await report(11.5)
    assert (await paid.task(task.id)).outcome.fault.facts["consumed"] == 5.5


async def test_a_health_check_of_the_hubs_own_costs_nothing(paid):
    from dragoman.core.ids import HUB

    await paid.allot("i1:budget", limit=4)
    checked = await paid.submit("infra", principal=HUB, type="health_check")
    assert (checked.status, checked.spending.reserved) == (Status.ASSIGNED, None)
