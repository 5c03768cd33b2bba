"""Writing shared state: versions, patches, who may, and what is told of it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from dragoman.core.commands import Cancel, Forget, RemoveAgent, Sweep
from dragoman.core.ids import ADMIN, DAY, AgentId, Instant
from dragoman.core.model.deliveries import SeenMessage
from dragoman.core.model.shared_tasks import in_full
from dragoman.core.model.state import Operation, Registry, difference, merged
from dragoman.core.model.tasks import Priority, Status
from dragoman.core.rules import Rules
from dragoman.core.state.changes import MAY, What
from dragoman.messages.faults import Kind, Refused

TASK, AGENT, RESOURCE, POLICY = Registry.TASK, Registry.AGENT, Registry.RESOURCE, Registry.POLICY


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # the examples of RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_the_rfc_says(target, patch, result):
    assert merged(target, patch) == result


def test_a_difference_is_the_patch_that_makes_it():
    old, new = {"a": 1, "b": {"c": 1, "d": 2}, "e": []}, {"b": {"d": 3, "f": 1}, "e": [1], "g": {}}
    assert merged(old, difference(old, new)) == new


def test_the_table_says_something_of_everything():
    assert set(MAY) == {(what, operation) for what in What for operation in Operation}


@pytest.mark.requirement("agentmsg-D9")
async def test_an_entity_is_created_changed_and_deleted_by_version(world):
    await world.join("a")
    made = await world.write("a", TASK, "plan", {"status": "pending", "context": {"metadata": {"k": 1, "l": 2}}}, 0)
    assert (made.version, made.value["id"]) == (1, "plan")
    changed = await world.write("a", TASK, "plan", {"context": {"metadata": {"k": None}}}, 1)
    assert (changed.version, changed.value["context"]["metadata"]) == (2, {"l": 2})
    assert await world.view.one(TASK, "plan") == in_full(changed)
    gone = await world.ask(world.change("a", TASK, "plan", {}, 2, "DELETE"))
    assert gone.version == 3
    assert await world.view.one(TASK, "plan") is None
    assert (await world.refused(world.change("a", TASK, "plan", {}, 3))).kind is Kind.NOT_FOUND


@pytest.mark.requirement("agentmsg-D9")
async def test_a_writer_of_an_old_version_is_refused_with_the_current_one(world):
    await world.join("a")
    await world.write("a", TASK, "plan", {}, 0)
    await world.write("a", TASK, "plan", {"n": 1}, 1)
    for operation, version in (("UPDATE", 1), ("UPDATE", 3), ("DELETE", 1), ("CREATE", 0)):
        fault = await world.refused(world.change("a", TASK, "plan", {"n": 2}, version, operation))
        assert (fault.kind, fault.facts["version"]) == (Kind.CONFLICT, 2)
    fault = await world.refused(world.change("a", TASK, "other", {}, 4, "CREATE"))
    assert (fault.kind, fault.facts["version"]) == (Kind.CONFLICT, 0)


@pytest.mark.requirement("agentmsg-D9")
async def test_versions_never_go_back_also_not_over_a_deletion(world):
    await world.join("a")
    await world.write("a", TASK, "plan", {"n": 1}, 0)
    stale = world.change("a", TASK, "plan", {"n": 2}, 1)
    await world.ask(world.change("a", TASK, "plan", {}, 1, "DELETE"))
    await world.restart()
    again = await world.write("a", TASK, "plan", {"n": 3}, 0)
    assert (again.version, again.value) == (3, {"id": "plan", "status": "pending", "n": 3})
    assert (await world.refused(stale)).facts["version"] == 3  # it read another plan
    assert world.store.rows(SeenMessage) == []
    await world.ask(world.change("a", TASK, "plan", {}, 3, "DELETE"))
    log = await world.view.changes(0, 100)
    assert [entry.version for row in log for entry in row.entries if entry.name == "plan"] == [1, 2, 3, 4]
    assert (await world.write("a", TASK, "other", {}, 0)).version == 1


async def test_a_task_of_agents_has_all_that_a_task_state_requires_as_soon_as_it_is_read(world):
    await world.join("a")
    await world.write("a", TASK, "plan", {"updated_at": "2027-01-01T00:00:00Z"}, 0)
    await world.advance(60)
    await world.write("a", TASK, "plan", {"context": {"task_type": "draw"}}, 1)
    assert (await world.view.one(TASK, "plan")).value == {
        "id": "plan",
        "status": "pending",
        "created_at": "2027-01-15T08:00:00Z",
        "updated_at": "2027-01-15T08:01:00Z",
        "context": {
            "task_id": "plan", "task_type": "draw", "priority": "normal", "metadata": {}, "dependencies": [],
            "history": [],
        },
    }  # fmt: skip


@pytest.mark.requirement("agentmsg-D9")
async def test_the_version_of_an_agents_entry_does_not_go_back_when_it_is_deleted(world):
    await world.join("a")
    await world.write("a", AGENT, "a", {"state": "BUSY"}, 0)
    await world.write("a", AGENT, "a", {"state": "ERROR"}, 1)
    stale = world.change("a", AGENT, "a", {"state": "IDLE"}, 2)
    assert (await world.ask(world.change(ADMIN, AGENT, "a", {}, 2, "DELETE"))).version == 3
    await world.restart()
    entry = await world.view.one(AGENT, "a")
    assert (entry.version, entry.value["state"]) == (3, "OFFLINE")  # what the hub sees: it is not there
    assert world.view.status_history(AgentId("a")) == []
    assert (await world.refused(stale)).facts["version"] == 3
    assert (await world.write("a", AGENT, "a", {"state": "BUSY"}, 0)).version == 4
    await world.ask(world.change(ADMIN, AGENT, "a", {}, 4, "DELETE"))
    assert (await world.write("a", AGENT, "a", {"state": "BUSY"}, 5)).version == 6
    log = await world.view.changes(0, 100)
    told = [(entry.operation.value, entry.version) for row in log for entry in row.entries if entry.name == "a"]
    assert told == [("CREATE", 1), ("UPDATE", 2), ("DELETE", 3), ("CREATE", 4), ("DELETE", 5), ("CREATE", 6)]


async def test_the_entry_and_the_accounts_of_an_agent_that_comes_again_go_on_counting(world):
    await world.join("a")
    await world.write("a", AGENT, "a", {"state": "BUSY"}, 0)
    await world.allot("a:tokens", limit=5)
    await world.ask(RemoveAgent(principal=ADMIN, agent=AgentId("a")))
    await world.join("a")
    assert (await world.view.one(AGENT, "a")).version == 2
    assert (await world.write("a", AGENT, "a", {"state": "IDLE"}, 0)).version == 3
    assert (await world.allot("a:tokens", limit=6)).version == 3


@pytest.mark.parametrize(("days", "version"), [(29, 3), (31, 1)])
async def test_the_version_of_what_is_gone_is_kept_as_long_as_finished_tasks(world, days, version):
    await world.join("a")
    await world.write("a", TASK, "plan", {}, 0)
    await world.ask(world.change("a", TASK, "plan", {}, 1, "DELETE"))
    world.time = Instant(world.time + days * DAY)
    await world.ask(Sweep())
    assert (await world.write("a", TASK, "plan", {}, 0)).version == version


async def test_of_many_writers_at_once_one_wins_each_version(world):
    for n in range(20):
        await world.join(f"w{n}")
    await world.write("w0", TASK, "count", {"assigned_agent": "w1", "n": 0}, 0)

    async def add(who: str) -> int:
        tries = 0
        while True:
            tries += 1
            now = await world.view.one(TASK, "count")
            try:
                await world.write(who, TASK, "count", {"n": now.value["n"] + 1}, now.version)
            except Refused as refusal:
                assert refusal.fault.kind is Kind.CONFLICT  # noqa: PT017
            else:
                return tries

    for n in range(20):
        await world.ask(world.change(ADMIN, TASK, "count", {f"by_{n}": 1}, n + 1))
    start = (await world.view.one(TASK, "count")).version
    async with asyncio.timeout(60):
        await asyncio.gather(*(add("w0") for _ in range(20)))
    now = await world.view.one(TASK, "count")
    assert (now.value["n"], now.version) == (20, start + 20)


REPORT = {
    "error_id": "e-1", "agent_id": "maker", "error_type": "TIMEOUT", "severity": "low", "message": "slow",
    "context": {}, "recovery_attempts": [], "suggested_actions": [],
}  # fmt: skip

WRITES = [
    # who, registry, name, changes, version, refused
    ("stranger", TASK, "plan", {"n": 1}, 1, Kind.FORBIDDEN),
    ("maker", TASK, "plan", {"n": 1}, 1, None),
    ("doer", TASK, "plan", {"n": 1}, 1, None),
    ("chief", TASK, "plan", {"n": 1}, 1, None),
    (ADMIN, TASK, "plan", {"n": 1}, 1, None),
    ("maker", TASK, "plan", {"id": "else"}, 1, Kind.INVALID),
    ("maker", TASK, "plan", {"created_at": "2027-02-01T00:00:00"}, 1, Kind.INVALID),
    ("maker", TASK, "plan", {"context": {"priority": "urgent"}}, 1, Kind.INVALID),
    ("maker", TASK, "plan", {"context": {"history": [{"event_type": "x"}]}}, 1, Kind.INVALID),
    ("maker", TASK, "plan", {"error": {"error_type": "timeout"}}, 1, Kind.INVALID),
    ("maker", TASK, "plan", {"error": REPORT}, 1, None),
    ("maker", TASK, "plan", {"error": {**REPORT, "suggested_actions": None}}, 1, Kind.INVALID),
    ("maker", TASK, "plan", {"assigned_agent": "nobody"}, 1, Kind.INVALID),
    ("maker", TASK, "plan", {"assigned_agent": None}, 1, None),
    ("maker", TASK, "plan", {"context": {"task_id": "else"}}, 1, Kind.INVALID),
    ("maker", TASK, "plan", {"context": {"task_id": "plan"}}, 1, None),
    ("maker", AGENT, "maker", {"state": "BUSY"}, 0, None),
    ("doer", AGENT, "maker", {"state": "BUSY"}, 0, Kind.FORBIDDEN),
    ("chief", AGENT, "maker", {"state": "BUSY"}, 0, Kind.FORBIDDEN),
    (ADMIN, AGENT, "maker", {"state": "MAINTENANCE"}, 0, None),
    ("maker", AGENT, "maker", {"errors": []}, 0, Kind.FORBIDDEN),
    ("maker", AGENT, "maker", {"state": "TIRED"}, 0, Kind.INVALID),
    ("maker", AGENT, "maker", {"error_rate": 2}, 0, Kind.INVALID),
    ("maker", AGENT, "nobody", {}, 0, Kind.NOT_FOUND),
    ("chief", RESOURCE, "maker:tokens", {"limit": 5, "allocated": 1, "expires_at": "2027-02-01T00:00:00Z"}, 0, None),
    ("maker", RESOURCE, "maker:tokens", {"consumed": 5}, 0, None),
    ("maker", RESOURCE, "maker:tokens", {"limit": 5}, 0, Kind.FORBIDDEN),
    ("doer", RESOURCE, "maker:tokens", {"consumed": 5}, 0, Kind.FORBIDDEN),
    ("chief", RESOURCE, "maker:tokens", {"limit": -5}, 0, Kind.INVALID),
    ("chief", RESOURCE, "maker:tokens", {"limit": None}, 0, Kind.INVALID),
    ("chief", RESOURCE, "maker:tokens", {"reserved": 5}, 0, Kind.FORBIDDEN),
    ("chief", RESOURCE, "maker:tokens", {"expires_at": "tomorrow"}, 0, Kind.INVALID),
    ("chief", RESOURCE, "maker:tokens", {"expires_at": "2027-02-01T00:00:00"}, 0, Kind.INVALID),
    ("chief", RESOURCE, "maker:gold", {"limit": 5}, 0, Kind.INVALID),
    ("chief", RESOURCE, "nobody:tokens", {"limit": 5}, 0, Kind.NOT_FOUND),
    ("chief", POLICY, "whatever it is called", {"enabled_chains": ["A"]}, 1, None),
    (ADMIN, POLICY, "policy", {"enabled_chains": ["A"]}, 1, None),
    ("maker", POLICY, "policy", {"enabled_chains": ["A"]}, 1, Kind.FORBIDDEN),
    ("chief", POLICY, "policy", {"risk_thresholds": {"low": 0.9}}, 1, Kind.INVALID),
    ("chief", POLICY, "policy", {"circuit_breaker_config": {"error_threshold": 0}}, 1, Kind.INVALID),
    ("chief", POLICY, "policy", {"budget_limits": {"total": "much"}}, 1, Kind.INVALID),
    (ADMIN, POLICY, "policy", {"domains": [{"source": "a", "target": "b"}]}, 1, None),
    ("chief", POLICY, "policy", {"domains": [{"source": "a", "target": "b"}]}, 1, Kind.FORBIDDEN),
    ("chief", POLICY, "policy", {"domains": [], "enabled_chains": ["A"]}, 1, None),
    ("maker", TASK, "big", {"text": "x" * 70_000}, 0, Kind.TOO_LARGE),
]


@pytest.mark.parametrize(("who", "registry", "name", "changes", "version", "refused"), WRITES)
async def test_who_may_write_what(make_world, who, registry, name, changes, version, refused):
    world = await make_world()
    for id in ("maker", "doer", "stranger"):
        await world.join(id)
    await world.join("chief", role="planner")
    await world.write("maker", TASK, "plan", {"assigned_agent": "doer"}, 0)
    if refused is None:
        entity = await world.write(who, registry, name, changes, version)
        assert (entity.version, entity.updated_by) == (version + 1, who)
        assert await world.view.one(registry, "policy" if registry is POLICY else name) is not None
    else:
        operation = "UPDATE" if version else "CREATE"
        fault = await world.refused(world.change(who, registry, name, changes, version, operation))
        assert fault.kind is refused
    records = await world.store.audit(limit=1000)
    assert (records[-1].action, records[-1].outcome) == ("state.change", "accepted" if refused is None else "refused")


async def test_an_agent_that_takes_its_state_back_is_shown_as_the_hub_sees_it(world):
    await world.join("maker")
    await world.write("maker", AGENT, "maker", {"state": "BUSY"}, 0)
    await world.write("maker", AGENT, "maker", {"state": None}, 1)
    assert (await world.view.one(AGENT, "maker")).value["state"] in ("IDLE", "OFFLINE")


async def test_a_refusal_names_the_field(world):
    fault = await world.refused(world.change(ADMIN, POLICY, "policy", {"risk_thresholds": {"high": "much"}}, 1))
    assert fault.field == "changes.risk_thresholds.high"
    fault = await world.refused(world.change("boss", RESOURCE, "boss:tokens", {"limit": 1}, 0, "CREATE"))
    assert fault.field == "changes.limit"


async def test_no_agent_makes_itself_a_planner(world):
    from dragoman.core.commands import RegisterAgent

    await world.join("a")
    fault = await world.refused(RegisterAgent(principal=AgentId("a"), role="planner"))
    assert fault.kind is Kind.FORBIDDEN


# -- tasks of the hub ----------------------------------------------------------------------------------------------


@pytest.fixture
async def busy(world):
    await world.join("i1")
    world.i1 = await world.connect("i1")
    return world


async def test_every_visible_step_of_a_task_raises_its_version_and_stands_in_the_log(busy):
    world = busy
    before = world.intake.state_cursor
    task = await world.submit(None, pinned=AgentId("i1"))
    await world.progress("i1", task.id, 50)
    await world.progress("i1", task.id, 50)  # nothing that others can see
    await world.finish("i1", task.id)
    log = [
        (number, change.operation.value, change.version, change.changes)
        for row in await world.view.changes(before)
        for number, change in enumerate(row.entries, row.first)
        if change.name == task.id
    ]
    assert [(operation, version) for _, operation, version, _ in log] == [("CREATE", 1), ("UPDATE", 2), ("UPDATE", 3)]
    assert [changes.get("status") for *_, changes in log] == ["in_progress", None, "completed"]
    assert (await world.task(task.id)).version == 3
    entity = await world.view.one(TASK, task.id)
    assert (entity.version, entity.value["status"], entity.value["assigned_agent"]) == (3, "completed", "i1")


async def test_owner_and_caller_change_a_tasks_context_and_the_caller_may_cancel_it(busy):
    world = busy
    task = await world.submit(None, pinned=AgentId("i1"))
    changes = {"context": {"metadata": {"k": 1}, "priority": "high"}}
    entity = await world.write("i1", TASK, task.id, changes, 1)
    assert (entity.version, entity.value["context"]["metadata"]) == (2, {"k": 1})
    assert (await world.task(task.id)).priority is Priority.HIGH
    assert (await world.task(task.id)).rank < task.rank
    assert (await world.refused(world.change("i1", TASK, task.id, {"status": "cancelled"}, 2))).kind is Kind.FORBIDDEN
    assert (await world.refused(world.change("i1", TASK, task.id, {"status": "cancelled"}, 1))).kind is Kind.FORBIDDEN
    assert (await world.refused(world.change("boss", TASK, task.id, {"status": "done"}, 2))).kind is Kind.INVALID
    assert (await world.refused(world.change("boss", TASK, task.id, {"result": 1}, 2))).kind is Kind.FORBIDDEN
    fault = await world.refused(world.change("boss", TASK, task.id, {"status": "cancelled"}, 1))
    assert (fault.kind, fault.facts["version"]) == (Kind.CONFLICT, 2)
    entity = await world.write("boss", TASK, task.id, {"status": "cancelled"}, 2)
    assert (entity.version, entity.value["status"]) == (3, "cancelled")
    stored = await world.task(task.id)
    assert (stored.status, stored.version) == (Status.CANCELLED, 3)
    assert world.i1.inbox[-1].delivery.kind == "cancel"
    assert (await world.refused(world.change("boss", TASK, task.id, {}, 3))).kind is Kind.CONFLICT
    assert (await world.refused(world.change("boss", TASK, task.id, {}, 0, "CREATE"))).facts["version"] == 3


async def test_a_version_means_one_state_also_within_one_unit_of_work(busy):
    world = busy
    task = await world.submit(None, pinned=AgentId("i1"))
    write = world.change("boss", TASK, task.id, {"context": {"metadata": {"n": 1}}}, 1)
    first = world.intake.enqueue(write)
    gone = world.intake.enqueue(Cancel(principal=AgentId("boss"), task_id=task.id))
    late = world.intake.enqueue(msgspec.structs.replace(write, version=2))
    assert (await first).version == 2
    await gone
    with pytest.raises(Refused):
        await late
    assert (await world.task(task.id)).version == 3

    other = await world.submit(None, pinned=AgentId("i1"))
    told = world.intake.enqueue(
        world.change("boss", TASK, other.id, {"context": {"priority": "low"}}, 1),
    )
    beaten = world.intake.enqueue(world.change("boss", TASK, other.id, {"context": {"priority": "high"}}, 1))
    assert (await told).version == 2
    with pytest.raises(Refused) as refusal:
        await beaten
    assert refusal.value.fault.facts["version"] == 2


# -- watching ------------------------------------------------------------------------------------------------------


async def collect(watch, count):
    found = []
    async with asyncio.timeout(60):
        async for item in watch:
            found.append(item)
            if len(found) == count:
                break
    return found


@pytest.mark.requirement("agentmsg-D9")
async def test_a_watcher_hears_everything_once_and_goes_on_from_any_place(busy):
    world = busy
    start = world.intake.state_cursor
    live = asyncio.create_task(collect(world.view.watch(start, TASK), 6))
    for n in range(3):
        task = await world.submit(None, pinned=AgentId("i1"))
        await world.finish("i1", task.id, digest=f"r{n}")
    heard = await live
    assert [change.version for _, change, _ in heard] == [1, 2] * 3
    numbers = [number for number, _, _ in heard]
    assert numbers == sorted(set(numbers))
    everything = await collect(world.view.watch(start, TASK), 6)
    assert everything == heard
    for place, (number, _, _) in enumerate(heard[:-1]):
        assert await collect(world.view.watch(number, TASK), 5 - place) == heard[place + 1 :]


async def test_a_watcher_may_ask_for_one_thing_and_sees_only_what_is_for_it(busy):
    world = busy
    await world.join("c1")
    await world.add("old", "infra")
    await world.connect("old")
    hidden = await world.submit("infra")
    seen = await world.submit(None, pinned=AgentId("i1"), body=b'{"input":{},"context":{"metadata":{"secret":1}}}')
    start = 0
    heard = await collect(world.view.watch(start, TASK, None, AgentId("c1")), 1)
    assert [change.name for _, change, _ in heard] == [seen.id]
    assert await world.view.one(TASK, hidden.id, AgentId("c1")) is None
    assert await world.view.one(TASK, hidden.id, AgentId("boss")) is not None
    head = await world.view.one(TASK, seen.id, AgentId("c1"))
    assert head.value["context"]["metadata"] == {}
    assert (await world.view.one(TASK, seen.id, AgentId("boss"))).value["context"]["metadata"] == {"secret": 1}
    whole = await world.view.whole(AgentId("c1"))
    assert set(whole["task_registry"]) == {seen.id}
    assert set((await world.view.whole())["task_registry"]) == {seen.id, hidden.id}
    await world.write("c1", AGENT, "c1", {"state": "BUSY"}, 0)
    heard = await collect(world.view.watch(start, AGENT, "c1"), 1)
    assert heard[0][1].changes["state"] == "BUSY"


async def test_of_a_task_that_was_forgotten_nobody_hears_any_more(busy):
    world = busy
    await world.join("c1")
    await world.add("old", "infra")
    await world.connect("old")
    hidden = await world.submit("infra")
    await world.finish("old", hidden.id)
    world.time += world.rules.keep_finished + 1
    await world.ask_ack("boss", await world.poll("boss"))
    assert await world.ask(Forget()) == 1
    await world.write("c1", TASK, "theirs", {}, 0)
    await world.ask(world.change("c1", TASK, "theirs", {}, 1, "DELETE"))
    heard = await collect(world.view.watch(0, TASK, None, AgentId("c1")), 2)
    assert [(change.operation, change.name) for _, change, _ in heard] == [("CREATE", "theirs"), ("DELETE", "theirs")]
    assert await world.view.one(TASK, hidden.id, AgentId("boss")) is None


async def test_a_watcher_that_stayed_away_too_long_must_read_the_state_again(make_world):
    world = await make_world(Rules(state_log=5))
    await world.join("a")
    for n in range(10):
        await world.write("a", TASK, f"t{n}", {}, 0)
    with pytest.raises(Refused) as refusal:
        await world.view.changes(2)
    assert (refusal.value.fault.kind, refusal.value.fault.facts["cursor"]) == (Kind.CONFLICT, 10)
    with pytest.raises(Refused):
        await collect(world.view.watch(2), 1)
    with pytest.raises(Refused):
        await world.view.changes(11)
    assert [row.cursor for row in await world.view.changes(5)] == [6, 7, 8, 9, 10]


async def test_shared_state_survives_a_restart(world):
    await world.join("a")
    await world.write("a", AGENT, "a", {"state": "MAINTENANCE"}, 0)
    await world.policy(enabled_chains=["A"])
    await world.allot("a:tokens", limit=5)
    before = await world.view.whole()
    await world.restart()
    after = await world.view.whole()
    assert {**after, "last_updated": None} == {**before, "last_updated": None}
    assert world.intake._directory.policy.chains == ("A",)


async def test_the_whole_state_has_the_documents_shape(busy):
    world = busy
    task = await world.submit(None, pinned=AgentId("i1"))
    whole = await world.view.whole()
    assert set(whole) == {
        "task_registry", "agent_registry", "resource_allocations", "policy_state", "last_updated", "cursor",
    }  # fmt: skip
    assert whole["policy_state"]["enabled_chains"] == ["A", "B", "C"]
    assert whole["policy_state"]["risk_thresholds"] == {"low": 0.25, "high": 0.6}
    assert whole["policy_state"]["circuit_breaker_config"] == {
        "error_threshold": 3, "timeout_ms": 30000, "reset_timeout_ms": 300000,
    }  # fmt: skip
    assert whole["agent_registry"]["i1"]["state"] == "BUSY"
    assert whole["task_registry"][task.id]["status"] == "in_progress"
    assert whole["cursor"] == world.intake.state_cursor
