"""Budgets: set aside before anybody works, settled from what was used, given back, and never overspent."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.core.state.conftest import SharedWorld

from dragoman.core.budgets import budget
from dragoman.core.commands import Cancel, ReportStatus
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.state import Registry
from dragoman.core.model.tasks import Status
from dragoman.core.rules import Rules
from dragoman.messages.faults import Kind

pytestmark = pytest.mark.requirement("agentmsg-D10")


def done(cost: float = 0, tokens: int = 0) -> bytes:
    return msgspec.json.encode({"result": {}, "usage": {"cost_usd": cost, "tokens_used": tokens}})


@pytest.fixture
async def paid(world):
    await world.add("i1", "infra", concurrent=100)
    world.i1 = await world.connect("i1")
    return world


async def cost(world, name: str) -> tuple[float, float]:
    account = await world.account(name)
    return account.get("allocated", 0), account.get("consumed", 0)


async def test_a_budget_is_set_aside_and_settled_from_what_was_used(paid):
    task = await paid.submit(constraints={"budget_usd": 2.5, "max_tokens": 1000})
    assert await cost(paid, "i1:budget") == (2.5, 0)
    assert await cost(paid, "hub:tokens") == (1000, 0)
    await paid.finish("i1", task.id, body=done(1.5, 700))
    assert await cost(paid, "i1:budget") == (0, 1.5)
    assert await cost(paid, "hub:budget") == (0, 1.5)
    assert await cost(paid, "i1:tokens") == (0, 700)
    assert (await paid.task(task.id)).spending.reserved is None


async def test_it_is_given_back_when_an_attempt_fails_and_when_it_is_cancelled(paid):
    task = await paid.submit(constraints={"budget_usd": 2})
    await paid.fault("i1", task.id, Kind.RESOURCES)
    assert await cost(paid, "i1:budget") == (0, 0)
    await paid.advance(1)
    assert await cost(paid, "i1:budget") == (2, 0)
    await paid.ask(Cancel(principal=AgentId("boss"), task_id=task.id))
    assert await cost(paid, "i1:budget") == (0, 0)
    assert await cost(paid, "hub:budget") == (0, 0)


async def test_usage_counts_without_a_declared_budget(paid):
    task = await paid.submit()
    await paid.finish("i1", task.id, body=done(3))
    assert await cost(paid, "i1:budget") == (0, 3)
    assert await cost(paid, "hub:budget") == (0, 3)


async def test_a_task_above_the_limit_per_task_is_refused_before_anybody_sees_it(paid):
    await paid.policy(budget_limits={"per_task": 5})
    fault = await paid.refused(paid.request(constraints={"budget_usd": 6}))
    assert (fault.kind, fault.retryable) == (Kind.RESOURCES, False)
    assert {name: fault.facts[name] for name in ("asked", "limit", "consumed", "reserved", "remaining")} == {
        "asked": 6, "limit": 5, "consumed": 0, "reserved": 0, "remaining": 5,
    }  # fmt: skip
    assert "6" in fault.message
    assert "5" in fault.message
    assert paid.i1.inbox == []


async def test_a_task_above_what_remains_in_total_is_refused_and_one_that_must_only_wait_is_queued(paid):
    await paid.policy(budget_limits={"total": 10})
    first = await paid.submit(constraints={"budget_usd": 6})
    second = await paid.submit(constraints={"budget_usd": 6})
    assert (first.status, second.status) == (Status.ASSIGNED, Status.QUEUED)
    third = await paid.submit(constraints={"budget_usd": 1})
    assert third.status is Status.QUEUED  # nobody overtakes who waits for what all share
    free = await paid.submit()
    assert free.status is Status.ASSIGNED  # but who asks for nothing does not wait
    await paid.finish("i1", first.id, body=done(2))
    await paid.settle()
    assert [(await paid.task(task.id)).status for task in (second, third)] == [Status.ASSIGNED] * 2
    fault = await paid.refused(paid.request(constraints={"budget_usd": 9}))
    assert (fault.facts["consumed"], fault.facts["remaining"]) == (2, 8)


async def test_a_waiting_task_that_can_never_fit_any_more_has_failed(paid):
    await paid.policy(budget_limits={"total": 10})
    first = await paid.submit(constraints={"budget_usd": 8})
    second = await paid.submit(constraints={"budget_usd": 7})
    await paid.finish("i1", first.id, body=done(8))
    failed = await paid.task(second.id)
    assert (failed.status, failed.outcome.fault.kind, failed.outcome.fault.facts["remaining"]) == (
        Status.FAILED,
        Kind.RESOURCES,
        2,
    )


async def test_when_all_is_spent_even_a_task_that_asks_for_nothing_is_refused(paid):
    await paid.policy(budget_limits={"total": 1})
    task = await paid.submit()
    await paid.finish("i1", task.id, body=done(1))
    assert (await paid.refused(paid.request())).kind is Kind.RESOURCES
    await paid.policy(budget_limits={"total": 2})
    assert (await paid.submit()).status is Status.ASSIGNED


async def test_an_agent_without_room_is_passed_over(paid):
    await paid.add("i2", "infra")
    await paid.connect("i2")
    await paid.allot("i1:budget", limit=3)
    tasks = [await paid.submit(constraints={"budget_usd": 2}) for _ in range(4)]
    owners = [task.owner for task in tasks]
    assert owners.count("i1") == 1
    assert owners.count("i2") == 3
    fault = await paid.refused(paid.request(None, pinned=AgentId("i1"), constraints={"budget_usd": 4}))
    assert (fault.facts["whose"], fault.facts["limit"]) == ("i1", 3)


async def test_a_waiting_task_is_placed_when_its_agent_has_room_again(paid):
    await paid.allot("i1:tokens", limit=100)
    first = await paid.submit(constraints={"max_tokens": 60})
    second = await paid.submit(constraints={"max_tokens": 60})
    third = await paid.submit(constraints={"max_tokens": 30})
    assert [first.status, second.status] == [Status.ASSIGNED, Status.QUEUED]
    assert (await paid.task(third.id)).status in (Status.QUEUED, Status.ASSIGNED)
    await paid.finish("i1", first.id, body=done(tokens=10))
    await paid.settle()
    assert (await paid.task(second.id)).status is Status.ASSIGNED


async def test_a_limit_per_agent_is_the_policys_unless_it_has_its_own(paid):
    await paid.policy(budget_limits={"per_agent": 5})
    assert (await paid.refused(paid.request(constraints={"budget_usd": 6}))).facts["limit"] == 5
    await paid.allot("i1:budget", limit=8)
    assert (await paid.submit(constraints={"budget_usd": 6})).status is Status.ASSIGNED


async def test_the_last_cent_can_be_spent_and_what_is_just_above_it_is_named(paid):
    """0.3 less 0.2 is not 0.1 for a machine."""
    await paid.allot("i1:budget", limit=0.3)
    tasks = [await paid.submit(constraints={"budget_usd": 0.1}) for _ in range(3)]
    assert [task.status for task in tasks] == [Status.ASSIGNED] * 3
    for task in tasks[:2]:
        await paid.finish("i1", task.id, body=done(0.1))
    await paid.ask(Cancel(principal=AgentId("boss"), task_id=tasks[2].id))
    fault = await paid.refused(paid.request(constraints={"budget_usd": 0.10000001}))
    assert "asks for 0.10000001 USD" in fault.message
    assert "0.1 remain" in fault.message
    assert (await paid.submit(constraints={"budget_usd": 0.1})).status is Status.ASSIGNED


async def test_an_allocation_expires(paid):
    from dragoman.core.ids import SECOND, Instant, rfc3339

    end = rfc3339(Instant(paid.time + 60 * SECOND))
    await paid.allot("i1:tokens", limit=100, allocated=40, expires_at=end)
    assert (await paid.refused(paid.request(constraints={"max_tokens": 70}))).facts["remaining"] == 60
    await paid.advance(61)
    account = await paid.account("i1:tokens")
    assert (account["allocated"], account["limit"], "expires_at" in account) == (0, 100, False)
    assert (await paid.submit(constraints={"max_tokens": 70})).status is Status.ASSIGNED


async def test_a_spent_allocation_stays_spent_when_it_expires(paid):
    from dragoman.core.ids import SECOND, Instant, rfc3339

    end = rfc3339(Instant(paid.time + 60 * SECOND))
    await paid.allot("i1:tokens", limit=100, consumed=100, expires_at=end)
    for _ in range(2):
        fault = await paid.refused(paid.request(constraints={"max_tokens": 1}))
        assert (fault.facts["remaining"], fault.facts["limit"], fault.field) == (0, 100, "constraints.max_tokens")
        fault = await paid.refused(paid.request())
        assert (fault.facts["remaining"], fault.field) == (0, None)  # it names no amount, so none is at fault
        await paid.advance(61)


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_waits_for_all_together_goes_on_when_their_allocation_expires(paid, restarts):
    from dragoman.core.ids import SECOND, Instant, rfc3339

    end = Instant(paid.time + 10 * SECOND)
    await paid.allot("hub:tokens", limit=120, allocated=40, expires_at=rfc3339(end))
    first, second = [await paid.submit(constraints={"max_tokens": 60}) for _ in range(2)]
    assert (first.status, second.status) == (Status.ASSIGNED, Status.QUEUED)
    if restarts:
        await paid.restart()
        await paid.connect("i1")
    await paid.intake.wake_due()
    assert paid.intake.next_wake == end
    await paid.advance(10)
    assert (await paid.task(second.id)).status is Status.ASSIGNED
    account = await paid.account("hub:tokens")
    assert (account["allocated"], account["limit"], "expires_at" in account) == (120, 120, False)


async def test_an_agents_own_figure_never_lowers_nor_doubles_what_its_tasks_used(paid):
    async def report(tokens: int) -> float:
        await paid.ask(ReportStatus(principal=AgentId("i1"), status={"state": "IDLE"}, usage={"tokens_used": tokens}))
        return (await paid.account("i1:tokens"))["consumed"]

    await paid.allot("i1:tokens", limit=1000)
    task = await paid.submit(constraints={"max_tokens": 100})
    await paid.finish("i1", task.id, body=done(tokens=80))
    assert await report(80) == 80  # the same tokens
    assert await report(200) == 200  # and some that no task knows of
    assert await report(5) == 200  # it started anew
    task = await paid.submit(constraints={"max_tokens": 100})
    await paid.finish("i1", task.id, body=done(tokens=50))
    assert (await paid.account("i1:tokens"))["consumed"] == 200
    assert (await paid.account("hub:tokens"))["consumed"] == 200


async def report(world, cost: float) -> None:
    status, usage = {"state": "IDLE"}, {"cost_usd": cost, "cpu_usage": 50}
    await world.ask(ReportStatus(principal=AgentId("i1"), status=status, usage=usage))


async def test_what_an_agent_says_it_used_counts_without_an_allocation_and_once(paid):
    await paid.policy(budget_limits={"per_agent": 5, "total": 7})
    task = await paid.submit()
    await report(paid, 3)
    assert await cost(paid, "i1:budget") == await cost(paid, "hub:budget") == (0, 3)
    await paid.finish("i1", task.id, body=done(2))  # of the three
    assert await cost(paid, "i1:budget") == await cost(paid, "hub:budget") == (0, 3)
    assert (await paid.refused(paid.request(constraints={"budget_usd": 3}))).facts["remaining"] == 2
    await report(paid, 5)
    assert (await paid.refused(paid.request())).facts["whose"] == "i1"
    assert await paid.account("i1:cpu") == {}  # what is in use now is no matter of budgets


async def test_what_waits_and_finds_no_room_any_more_after_a_report_has_failed(paid):
    await paid.policy(budget_limits={"total": 10})
    await paid.submit(constraints={"budget_usd": 6})
    waiting = await paid.submit(constraints={"budget_usd": 6})
    await report(paid, 5)
    failed = await paid.task(waiting.id)
    assert (failed.status, failed.outcome.fault.facts["remaining"]) == (Status.FAILED, 5)


async def test_what_a_person_corrected_counts_from_there(paid):
    await report(paid, 500)
    await paid.allot("i1:budget", consumed=1)
    await report(paid, 500)
    assert await cost(paid, "i1:budget") == (0, 1)
    await report(paid, 502)
    assert await cost(paid, "i1:budget") == (0, 3)


async def test_what_was_counted_in_a_deleted_account_is_not_counted_in_total_again(paid):
    await report(paid, 4)
    version = (await paid.view.one(Registry.RESOURCE, "i1:budget")).version
    await paid.ask(paid.change(ADMIN, Registry.RESOURCE, "i1:budget", {}, version, "DELETE"))
    await report(paid, 4)
    await report(paid, 6)
    assert [await cost(paid, name) for name in ("i1:budget", "hub:budget")] == [(0, 2), (0, 6)]


async def test_an_agent_that_writes_its_own_entry_says_as_much_as_by_a_report(paid):
    await paid.join("ann")
    usage = {"state": "IDLE", "resource_usage": {"cost_usd": 4}}
    await paid.write("ann", Registry.AGENT, "ann", usage, 0)
    assert await cost(paid, "ann:budget") == await cost(paid, "hub:budget") == (0, 4)
    await paid.write(ADMIN, Registry.AGENT, "ann", {"resource_usage": {"cost_usd": 9}}, 1)
    assert await cost(paid, "ann:budget") == (0, 4)  # nobody else says what it used


async def test_cpu_and_memory_are_in_use_only_while_an_agent_works(paid):
    await paid.allot("i1:cpu", limit=100)
    tasks = [await paid.submit(constraints={"cpu": 60}) for _ in range(2)]
    assert [task.status for task in tasks] == [Status.ASSIGNED, Status.QUEUED]
    await paid.finish("i1", tasks[0].id, body=done())
    await paid.settle()
    assert (await paid.task(tasks[1].id)).status is Status.ASSIGNED
    assert (await paid.refused(paid.request(constraints={"cpu": 101}))).facts["remaining"] == 100


async def test_a_deletion_waits_for_what_is_set_aside(paid):
    account = await paid.allot("i1:tokens", limit=100)
    task = await paid.submit(constraints={"max_tokens": 60})
    fault = await paid.refused(paid.change(ADMIN, Registry.RESOURCE, "i1:tokens", {}, account.version + 1, "DELETE"))
    assert fault.kind is Kind.CONFLICT
    await paid.finish("i1", task.id)
    await paid.ask(paid.change(ADMIN, Registry.RESOURCE, "i1:tokens", {}, account.version + 2, "DELETE"))
    assert await paid.account("i1:tokens") == {}


async def test_what_is_set_aside_survives_a_restart(paid):
    task = await paid.submit(constraints={"budget_usd": 2})
    await paid.restart()
    assert await cost(paid, "hub:budget") == (2, 0)
    await paid.finish("i1", task.id, body=done(1))
    assert await cost(paid, "hub:budget") == (0, 1)


@pytest.mark.parametrize("amount", [-1, "much", True, [1]])
async def test_an_amount_that_is_none_is_refused(paid, amount):
    fault = await paid.refused(paid.request(constraints={"budget_usd": amount}))
    assert (fault.kind, fault.field) == (Kind.INVALID, "constraints.budget_usd")


def test_the_management_apis_fields_for_a_budget_mean_the_same():
    assert budget.needs({"budget": 3}) == {"budget": 3}
    assert budget.needs({"budget": {"usd": 1, "tokens": 5}}) == {"budget": 1, "tokens": 5}
    assert budget.needs({"required_role": "ops"}) == {}


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_hundred_parallel_dispatches_never_overspend(data):
    draw = data.draw
    total = draw(st.integers(5, 60))
    limits = {"i0": draw(st.integers(1, 30)), "i1": draw(st.integers(1, 30)), "i2": None}
    asked = draw(st.lists(st.integers(1, 12), min_size=100, max_size=100))

    async def history() -> None:
        world = SharedWorld(rules=Rules(budget_total=float(total)), seed=draw(st.integers(0, 99)))
        await world.start()
        await world.add("boss", "orchestrator")
        peers = {}
        for id, limit in limits.items():
            await world.add(id, "infra", concurrent=draw(st.integers(1, 50)))
            peers[id] = await world.connect(id)
            if limit is not None:
                await world.allot(f"{id}:budget", limit=limit)

        async def check() -> None:
            for whose, limit in ({**limits, "hub": total}).items():
                value = await world.account(f"{whose}:budget")
                if limit is not None and value:
                    assert value["consumed"] + value["allocated"] <= limit

        requests = [world.request(constraints={"budget_usd": amount}) for amount in asked]
        answers = await asyncio.gather(*(world.ask(request) for request in requests), return_exceptions=True)
        taken = [answer for answer in answers if not isinstance(answer, BaseException)]
        await check()
        for _ in range(200):
            await world.settle()
            await check()
            held = [task for task in [await world.task(task.id) for task in taken] if task.status is Status.ASSIGNED]
            if not held:
                break
            for task in held:
                await check()
                used = draw(st.integers(0, int(task.agreement.constraints["budget_usd"])))
                match draw(st.sampled_from(["done", "done", "done", "cancel", "fault"])):
                    case "done":
                        await world.finish(task.owner, task.id, body=done(used))
                    case "cancel":
                        await world.ask(Cancel(principal=AgentId("boss"), task_id=task.id))
                    case _:
                        await world.fault(task.owner, task.id, Kind.WORK_FAILED)
        ended = [await world.task(task.id) for task in taken]
        assert all(task.final for task in ended), [task.status for task in ended]
        for whose in (*limits, "hub"):
            assert (await world.account(f"{whose}:budget")).get("allocated", 0) == 0
        await world.intake.stop()

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await history()

    asyncio.run(bounded())
