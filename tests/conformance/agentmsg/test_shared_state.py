"""The shared state over the wire: read, written by version, and watched without a gap."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.stage import Speaker, Stage, opened
from tests.support.scripted import soon

from dragoman.core.rules import Rules
from dragoman.protocols.agentmsg.records import SharedState, TaskState


@pytest.fixture
async def pair(stage: Stage) -> tuple[Speaker, Speaker]:
    """`ada` asks; `bob` can review."""
    return await stage.join("ada", work_types=()), await stage.join("bob")


# -- read


@pytest.mark.requirement("AM-SST-3")
async def test_the_state_can_be_read_whole_in_the_documents_form(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1", constraints=words.constraints(budget_usd=2, max_tokens=10))
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-2"))
    await bob.say("TASK_FAILED", "ada", {"task_id": "t-1", "error": words.error(
        "bob", "t-1", error_type="VALIDATION_ERROR")})  # fmt: skip
    await bob.say("STATUS_UPDATE", "hub", words.status("bob", stage.at, state="BUSY"))
    for token in (ada.token, bob.token):
        body = (await stage.get("/state", token)).json()
        state = msgspec.convert(body, SharedState)  # the document's interfaces, every field of them
        assert {"t-1", "t-2"} <= set(state.task_registry)
        assert state.task_registry["t-2"].status == "pending"
        assert {id: entry.state for id, entry in state.agent_registry.items()}["bob"] == "BUSY"
        assert {"bob:budget", "bob:tokens", "hub:budget"} <= set(state.resource_allocations)
        assert state.policy_state.enabled_chains == ("A", "B", "C")
        assert isinstance(body["cursor"], int)
        assert body["last_updated"] == stage.at


@pytest.mark.requirement("AM-SST-3", "AM-SST-1")
async def test_the_whole_state_has_the_results_and_the_errors_of_those_who_have_a_part_in_them(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    given = words.context("t-1", metadata={"repo": "x"})
    await bob.works(ada, "t-1", context=given)
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": {"ok": True}})
    await bob.works(ada, "t-2")
    await bob.say("TASK_UPDATE", "ada", {"task_id": "t-2", "status": "completed", "output": "words"})
    await bob.works(ada, "t-3")
    error = words.error("bob", "t-3", error_type="VALIDATION_ERROR")
    await bob.say("TASK_FAILED", "ada", {"task_id": "t-3", "error": error})
    await bob.works(ada, "t-4")
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-4", "result": "x" * 70_000})
    stranger = await stage.join("eve", work_types=())
    for token in (ada.token, bob.token):
        tasks = (await stage.get("/state", token)).json()["task_registry"]
        assert (tasks["t-1"]["context"]["metadata"], tasks["t-1"]["result"]) == ({"repo": "x"}, {"ok": True})
        assert (tasks["t-2"]["result"], tasks["t-3"]["error"]["message"]) == ("words", error["message"])
        assert "result" not in tasks["t-4"]  # it is long: by itself
        assert len((await stage.get("/state/TASK/t-4", token)).json()["value"]["result"]) == 70_000
    tasks = (await stage.get("/state", stranger.token)).json()["task_registry"]
    assert not any({"result", "error"} & tasks[name].keys() or tasks[name]["context"]["metadata"] for name in tasks)


@pytest.mark.requirement("AM-SST-3")
async def test_a_task_that_agents_keep_among_themselves_has_the_documents_form(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, _ = pair
    await stage.change("CREATE", "TASK", "ours", {"status": "in_progress", "assigned_agent": "bob"}, 0, ada.token)
    state = msgspec.convert((await stage.get("/state")).json(), SharedState)
    assert state.task_registry["ours"].status == "in_progress"
    alone = (await stage.get("/state/TASK/ours")).json()["value"]
    assert msgspec.convert(alone, TaskState) == state.task_registry["ours"]
    changed = await stage.change("UPDATE", "TASK", "ours", {"status": "completed"}, 1, ada.token)
    assert msgspec.convert(changed.json()["value"], TaskState).status == "completed"
    for changes, field in (
        ({"error": {"message": "no"}}, "changes.error.error_id"),
        ({"assigned_agent": "nobody"}, "changes.assigned_agent"),
        ({"context": {"task_id": "theirs"}}, "changes.context.task_id"),
        ({"created_at": "yesterday"}, "changes.created_at"),
    ):
        answer = await stage.change("UPDATE", "TASK", "ours", changes, 2, ada.token)
        assert (answer.status_code, answer.json()["context"]["details"]["field"]) == (422, field), answer.text


@pytest.mark.requirement("agentmsg-D13", "AM-UPD-2")
async def test_an_entity_is_what_its_name_says(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    assert (await stage.change("CREATE", "TASK", "ours", {}, 0, ada.token)).status_code == 200
    for kind, name, field, said in (
        ("TASK", "other", "id", "ours"),  # it would stand in the registry in place of theirs
        ("RESOURCE", "bob:cpu", "agent_id", "ada"),
        ("RESOURCE", "bob:cpu", "resource_type", "tokens"),
    ):
        answer = await stage.change("CREATE", kind, name, {field: said}, 0)
        details = answer.json()["context"]["details"]
        assert (answer.status_code, details["field"]) == (422, f"changes.{field}"), name
    answer = await stage.change("DELETE", "POLICY", "policy", {}, 1)
    assert (answer.status_code, "UPDATE it instead" in answer.json()["message"]) == (403, True)
    answer = await stage.change("CREATE", "RESOURCE", "bob:cpu", {"limit": 5}, 0, bob.token)
    assert answer.json()["message"].endswith("leave it to the admin, a planner")


@pytest.mark.requirement("AM-SST-3")
async def test_each_entity_can_be_read_with_its_version(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1", constraints=words.constraints(max_tokens=10))
    for kind, id in (("TASK", "t-1"), ("AGENT", "bob"), ("RESOURCE", "bob:tokens"), ("POLICY", "policy")):
        for place in (f"/state/{kind}/{id}", f"/state/{kind.lower()}/{id}"):
            answer = await stage.get(place, ada.token)
            assert answer.status_code == 200, answer.text
            body = answer.json()
            assert set(body) == {"entity_type", "entity_id", "version", "value"}
            assert (body["entity_type"], body["entity_id"]) == (kind, id)
        asked = ada.message("STATE_QUERY", "hub", {"entity_type": kind, "entity_id": id})
        reply = (await ada.send(asked)).json()["answer"]
        assert (reply["type"], reply["metadata"]["correlation_id"]) == ("STATE_QUERY", asked["id"])
        assert reply["payload"]["entities"] == [body]
    for place in ("/state/TASK/nowhere", "/state/AGENT/nobody", "/state/RESOURCE/bob:cpu", "/state/MOOD/x"):
        answer = await stage.get(place, ada.token)
        assert (answer.status_code, answer.json()["agent_id"]) == (404, "hub")


@pytest.mark.requirement("AM-SST-3")
async def test_a_task_names_those_it_depends_on_as_agents_call_them(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    await bob.works(ada, "first")
    given = words.context("second", dependencies=["first"])
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("second", context=given))
    assert await bob.hear() == []  # it waits
    for value in (
        (await stage.get("/state/TASK/second")).json()["value"],
        (await stage.get("/state")).json()["task_registry"]["second"],
    ):
        assert value["context"]["dependencies"] == ["first"]
    status, report = await ada.refused(
        "TASK_ASSIGNMENT", "bob", words.assignment("third", context=words.context("third", dependencies=["never"]))
    )
    assert (status, report["context"]["details"]["field"]) == (404, "payload.task.context.dependencies")
    assert "never" in report["message"]


@pytest.mark.requirement("AM-CTX-4")
async def test_a_task_waits_for_those_it_depends_on(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await bob.works(ada, "first")
    given = words.context("second", dependencies=["first"])
    await ada.say("TASK_ASSIGNMENT", "bob", words.assignment("second", context=given))
    assert await bob.hear() == []
    assert (await stage.get("/state/TASK/second")).json()["value"]["status"] == "pending"
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "first", "result": 1})
    order = (await bob.hears("TASK_ASSIGNMENT"))["payload"]["task"]
    assert (order["task_id"], order["context"]["dependencies"]) == ("second", ["first"])


@pytest.mark.requirement("AM-SST-3")
async def test_a_result_is_for_those_who_have_to_do_with_it(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    eve = await stage.join("eve")
    await bob.works(ada, "t-1")
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": {"secret": 1}})
    told = [(await stage.get("/state/TASK/t-1", one.token)).json()["value"] for one in (ada, bob, eve)]
    assert [value.get("result") for value in told] == [{"secret": 1}, {"secret": 1}, None]
    assert [value["status"] for value in told] == ["completed"] * 3


# -- write


@pytest.mark.requirement("AM-UPD-2", "agentmsg-D9")
@pytest.mark.parametrize("via", ["HTTP", "message"])
async def test_create_update_and_delete_by_version(stage: Stage, pair: tuple[Speaker, Speaker], via: str) -> None:
    ada, _ = pair

    async def change(operation: str, version: int, changes: dict[str, Any]) -> tuple[int, Any]:
        update = words.change(operation, "TASK", "plan", changes, version, stage.at)
        if via == "HTTP":
            answer = await stage.post("/state", update, ada.token)
            return answer.status_code, answer.json()
        answer = await ada.send(ada.message("STATE_UPDATE", "hub", update))
        body = answer.json()
        return (200 if answer.status_code == 202 else answer.status_code), body.get("answer", {}).get("payload", body)

    async def value() -> dict[str, Any]:
        return dict((await stage.get("/state/TASK/plan")).json()["value"])

    def conflict(answer: tuple[int, Any]) -> int:
        assert (answer[0], answer[1]["error_type"]) == (409, "VALIDATION_ERROR"), answer
        return int(answer[1]["context"]["details"]["version"])

    assert (await change("UPDATE", 0, {"status": "pending"}))[0] == 404
    status, made = await change("CREATE", 0, {"context": {"a": 1, "b": {"c": 2, "d": 3}}, "assigned_agent": "bob"})
    assert (status, made["version"]) == (200, 1)
    assert conflict(await change("CREATE", 0, {})) == 1
    assert conflict(await change("UPDATE", 2, {})) == 1
    assert conflict(await change("UPDATE", 0, {})) == 1
    # a merge patch: null removes, objects merge, everything else is replaced
    status, done = await change("UPDATE", 1, {"assigned_agent": None, "context": {"a": [1], "b": {"c": None, "e": 4}}})
    assert (status, done["version"]) == (200, 2)
    now = await value()
    assert "assigned_agent" not in now
    assert (now["context"]["a"], now["context"]["b"]) == ([1], {"d": 3, "e": 4})
    assert conflict(await change("DELETE", 1, {})) == 2
    assert (await change("DELETE", 2, {}))[0] == 200
    assert (await stage.get("/state/TASK/plan")).status_code == 404
    status, again = await change("CREATE", 0, {"status": "failed"})
    assert (status, again["version"]) == (200, 4)
    assert conflict(await change("UPDATE", 1, {})) == 4  # who read the first plan does not change the second


@pytest.mark.requirement("AM-UPD-2")
async def test_each_entity_has_its_writers(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    pam = await stage.join("pam", role="planner")
    cases: list[tuple[str, str, str, dict[str, Any], dict[Speaker, int]]] = [
        ("CREATE", "RESOURCE", "bob:tokens", {"limit": 10}, {bob: 403, ada: 403, pam: 200}),
        ("CREATE", "AGENT", "bob", {"state": "MAINTENANCE"}, {ada: 403, pam: 403, bob: 200}),
        ("UPDATE", "POLICY", "policy", {"enabled_chains": ["A"]}, {ada: 403, bob: 403, pam: 200}),
        ("DELETE", "POLICY", "policy", {}, {ada: 403, bob: 403, pam: 403}),
    ]
    for operation, kind, id, changes, allowed in cases:
        for speaker, status in allowed.items():
            known = await stage.get(f"/state/{kind}/{id}")
            version = known.json()["version"] if known.status_code == 200 else 0
            answer = await stage.change(operation, kind, id, changes, version, speaker.token)
            assert answer.status_code == status, (operation, kind, speaker.id, answer.text)


@pytest.mark.requirement("agentmsg-D9")
async def test_of_two_writers_who_read_the_same_one_must_read_again(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    await stage.change("CREATE", "TASK", "plan", {"assigned_agent": "bob", "context": {"n": 0}}, 0, ada.token)

    async def add_one(speaker: Speaker) -> int:
        tries = 0
        while True:
            tries += 1
            now = (await stage.get("/state/TASK/plan")).json()
            changes = {"context": {"n": now["value"]["context"]["n"] + 1}}
            answer = await stage.change("UPDATE", "TASK", "plan", changes, now["version"], speaker.token)
            if answer.status_code == 200:
                return tries
            assert answer.status_code == 409
            assert answer.json()["context"]["details"]["version"] > now["version"]

    await soon(asyncio.gather(*(add_one(one) for one in (ada, bob) for _ in range(5))))
    now = (await stage.get("/state/TASK/plan")).json()
    assert (now["value"]["context"]["n"], now["version"]) == (10, 11)


@pytest.mark.requirement("agentmsg-D9")
async def test_an_allocation_is_named_by_its_agent_and_its_kind(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    for name in ("bob", "bob:gold", "nobody:tokens", ":tokens", "tokens:bob"):
        answer = await stage.change("CREATE", "RESOURCE", name, {"limit": 1}, 0)
        assert answer.status_code in (404, 422), (name, answer.text)
    answer = await stage.change("CREATE", "RESOURCE", "bob:memory", {"limit": 50}, 0)
    assert answer.json()["value"].items() >= {"agent_id": "bob", "resource_type": "memory", "limit": 50}.items()


@pytest.mark.requirement("AM-UPD-2")
async def test_a_change_that_does_not_fit_is_refused_with_its_field(stage: Stage) -> None:
    for kind, id, changes, field in (
        ("TASK", "x", {"status": "done"}, "changes.status"),
        ("POLICY", "policy", {"risk_thresholds": {"low": 2}}, "changes.risk_thresholds.low"),
        ("POLICY", "policy", {"circuit_breaker_config": {"error_threshold": 0}}, "changes.circuit_breaker_config"),
    ):
        answer = await stage.change("CREATE" if kind == "TASK" else "UPDATE", kind, id, changes, int(kind != "TASK"))
        assert answer.status_code == 422, answer.text
        assert answer.json()["context"]["details"]["field"].startswith(field)


# -- watch


@pytest.mark.requirement("AM-SST-4")
async def test_who_watches_sees_every_change_also_after_a_break(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, _ = pair
    start = (await stage.get("/state")).json()["cursor"]
    seen: list[tuple[int, int]] = []

    async def watch(count: int, cursor: int) -> None:
        async with stage.watching("entity_type=TASK", **{"Last-Event-ID": str(cursor)}) as events:
            async for number, change in events:
                seen.append((number, change["version"]))
                if len(seen) >= count:
                    return

    await stage.change("CREATE", "TASK", "plan", {}, 0, ada.token)
    watching = asyncio.ensure_future(watch(3, start))
    for version in (1, 2):
        await stage.change("UPDATE", "TASK", "plan", {"context": {"n": version}}, version, ada.token)
    await soon(watching)
    for version in (3, 4):  # nobody looks
        await stage.change("UPDATE", "TASK", "plan", {"context": {"n": version}}, version, ada.token)
    await soon(watch(5, seen[-1][0]))
    assert [version for _, version in seen] == [1, 2, 3, 4, 5]
    assert [cursor for cursor, _ in seen] == sorted({cursor for cursor, _ in seen})


@pytest.mark.requirement("AM-SST-4", "AM-UPD-2")
async def test_who_watches_one_task_by_its_name_sees_it_go(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, _ = pair
    start = (await stage.get("/state")).json()["cursor"]
    for operation, version in (("CREATE", 0), ("UPDATE", 1), ("DELETE", 2)):
        assert (await stage.change(operation, "TASK", "plan", {}, version, ada.token)).status_code == 200
    seen: list[tuple[str, str, int]] = []

    async def follow() -> None:
        async with stage.watching(f"cursor={start}&entity_type=TASK&entity_id=plan") as events:
            async for _, change in events:
                seen.append((change["operation"], change["entity_id"], change["version"]))
                if change["operation"] == "DELETE":
                    return

    await soon(follow())
    assert seen == [("CREATE", "plan", 1), ("UPDATE", "plan", 2), ("DELETE", "plan", 3)]


@pytest.mark.requirement("AM-SST-1", "AM-ERR-4")
async def test_the_error_of_a_task_is_its_agents_own_report(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    await bob.works(ada, "t-1")
    report = words.error("bob", task_id="t-1", error_type="VALIDATION_ERROR", suggested_actions=["sleep"])
    await bob.say("TASK_FAILED", "ada", {"task_id": "t-1", "error": report})
    assert (await stage.get("/state/TASK/t-1", ada.token)).json()["value"]["error"] == report


@pytest.mark.requirement("AM-SST-4")
async def test_a_watch_follows_tasks_agents_resources_and_the_policy(
    stage: Stage, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    start = (await stage.get("/state")).json()["cursor"]
    await bob.works(ada, "t-1", constraints=words.constraints(max_tokens=5))
    await bob.say("STATUS_UPDATE", "hub", words.status("bob", stage.at, state="BUSY"))
    await stage.policy(enabled_chains=["A"])
    await bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1, "usage": {"tokens_used": 9}})
    end = (await stage.get("/state")).json()["cursor"]
    state: dict[tuple[str, str], dict[str, Any]] = {}

    async def follow() -> None:
        async with stage.watching(f"cursor={start}") as events:
            async for cursor, change in events:
                known = state.setdefault((change["entity_type"], change["entity_id"]), {})
                known.update(change["changes"])
                if cursor >= end:
                    return

    await soon(follow())
    assert state["TASK", "t-1"]["status"] == "completed"
    assert state["AGENT", "bob"]["state"] == "BUSY"
    assert state["RESOURCE", "bob:tokens"].items() >= {"allocated": 0, "consumed": 9}.items()
    assert state["POLICY", "policy"]["enabled_chains"] == ["A"]


@pytest.mark.requirement("AM-SST-4")
async def test_a_watcher_that_stayed_away_too_long_is_asked_to_read_the_state_again() -> None:
    async with opened(Rules(state_log=3)) as stage:
        for n in range(40):
            await stage.change("CREATE", "TASK", f"t{n}", {}, 0)
        answer = await stage.get("/state/watch?cursor=1")
        assert (answer.status_code, answer.json()["context"]["details"]["field"]) == (409, "cursor")


@pytest.mark.requirement("AM-SST-4")
async def test_a_watch_over_a_connection_goes_on_from_its_cursor(stage: Stage, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    query = {"entity_type": "TASK", "entity_id": "plan", "watch": True}
    async with bob.link() as link:
        await link.say("STATE_QUERY", "hub", query)
        assert (await link.hears("STATE_QUERY"))["payload"]["entities"] == []
        await stage.change("CREATE", "TASK", "plan", {}, 0, ada.token)
        first = await link.hears("STATE_UPDATE")
        assert (first["payload"]["operation"], first["payload"]["version"]) == ("CREATE", 1)
    await stage.change("UPDATE", "TASK", "plan", {"context": {"n": 1}}, 1, ada.token)
    async with bob.link() as link:
        asked = await link.say("STATE_QUERY", "hub", {**query, "cursor": first["payload"]["cursor"]})
        second = await link.hears("STATE_UPDATE")
        assert (second["payload"]["version"], second["metadata"]["correlation_id"]) == (2, asked["id"])
