"""What agents said of themselves and of their tasks, for people."""

from __future__ import annotations

from typing import Any

from dragoman.core.ids import AgentId
from dragoman.core.model.state import Entity, Registry
from dragoman.core.model.tasks import EventKind


async def test_an_agents_report_has_a_history_and_errors(world: Any, make: Any) -> None:
    world.know(make.agent())
    assert "reported" not in (await world.client.get("/api/v1/agents/mux-1")).json()
    world.intake.shared["AGENT/mux-1"] = Entity(
        registry=Registry.AGENT,
        name="mux-1",
        version=3,
        value={"state": "BUSY", "error_rate": 0.1, "errors": [{"error_id": "e-1", "severity": "high"}]},
        created_at=make.now,
        updated_at=make.now,
        created_by=AgentId("mux-1"),
        updated_by=AgentId("mux-1"),
        past=({"at": "2026-01-19T04:00:00Z", "state": "IDLE"},),
    )
    told = (await world.client.get("/api/v1/agents/mux-1")).json()["reported"]
    assert told == {
        "version": 3,
        "at": "2026-01-19T04:21:04Z",
        "status": {"state": "BUSY", "error_rate": 0.1},
        "history": [{"at": "2026-01-19T04:00:00Z", "state": "IDLE"}],
        "errors": [{"error_id": "e-1", "severity": "high"}],
    }
    assert "reported" not in (await world.client.get("/api/v1/agents")).json()["agents"][0]
    assert (await world.client.get("/api/v1/agents/mux-1/history")).json() == {
        "agent": "mux-1",
        "history": [*told["history"], {"at": told["at"], **told["status"]}],
        "errors": told["errors"],
    }
    world.know(make.agent("mute"))
    mute = {"agent": "mute", "history": [], "errors": []}
    assert (await world.client.get("/api/v1/agents/mute/history")).json() == mute
    assert (await world.client.get("/api/v1/agents/nobody/history")).status_code == 404


async def test_a_tasks_errors_are_listed_in_order(world: Any, make: Any) -> None:
    task = make.task(seq=4)
    report = {"error_id": "e-1", "error_type": "TIMEOUT"}
    await world.put(
        task,
        make.event(task, 1, EventKind.SUBMITTED, {"input": {}}),
        make.event(task, 2, EventKind.ERROR_REPORTED, {"report": report, "severity": "high"}),
        make.event(task, 3, EventKind.PROGRESS, {}),
        make.event(task, 4, EventKind.ATTEMPT_FAILED, {"fault": {"kind": "timeout", "message": "too slow"}}),
    )
    errors = (await world.client.get(f"/api/v1/tasks/{task.id}/errors")).json()["errors"]
    assert [(one["seq"], one["kind"], one.get("severity")) for one in errors] == [
        (2, "error_reported", "high"),
        (4, "attempt_failed", None),
    ]
    assert errors[0]["report"] == report
    assert errors[1]["error"]["message"] == "too slow"
    assert (await world.client.get("/api/v1/tasks/nothing/errors")).status_code == 404


async def test_an_agent_that_says_it_takes_no_work_is_not_shown_as_idle(world: Any, make: Any) -> None:
    agent = make.agent(last_seen_at=make.now)
    world.know(agent)
    world.intake.linked.add(agent.id)
    for state, status in (("IDLE", "idle"), ("MAINTENANCE", "maintenance"), ("OFFLINE", "offline")):
        world.intake.shared["AGENT/mux-1"] = Entity(
            registry=Registry.AGENT, name="mux-1", version=1, value={"state": state}, created_at=make.now,
            updated_at=make.now, created_by=agent.id, updated_by=agent.id,
        )  # fmt: skip
        assert (await world.client.get("/api/v1/agents/mux-1")).json()["status"] == status
