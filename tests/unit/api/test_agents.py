"""Agents over the API."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.api.bodies import AgentIn
from dragoman.core.commands import AddAgent, RemoveAgent, RotateToken
from dragoman.core.ids import ADMIN, SECOND, Instant
from dragoman.core.model.agents import Breaker, BreakerState
from dragoman.core.model.holdings import Holding
from dragoman.core.model.tasks import EventKind, Status
from dragoman.messages.faults import Fault, Kind
from dragoman.security.tokens import token_hash

API = "/api/v1/agents"


async def test_an_added_agent_gets_its_token_once_and_the_hub_keeps_the_hash(world: Any, make: Any) -> None:
    world.intake.script[AddAgent] = lambda command: command.agent
    answer = await world.client.post(
        API,
        json={
            "agent_id": "mux-1", "protocol": "chiffon", "kind": "infra", "role": "ops", "capabilities": ["k8s"],
            "work_types": ["run_playbook"], "domain": "d", "version": "1.2.3", "untrusted": True,
            "max_concurrent": 3,
        },
    )  # fmt: skip
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{API}/mux-1"
    token = answer.json()["token"]
    assert len(token) == 32
    assert answer.json() == {"agent_id": "mux-1", "token": token}
    expected = make.agent(
        "mux-1", token_hash=token_hash(token), role="ops", capabilities=("k8s",), work_types=("run_playbook",),
        domain="d", version="1.2.3", untrusted=True, max_concurrent=3,
    )  # fmt: skip
    assert world.intake.asked == [AddAgent(principal=ADMIN, protocol="api", agent=expected)]


async def test_an_agent_may_leave_out_what_is_optional_by_null(world: Any) -> None:
    world.intake.script[AddAgent] = None
    optional = [name for name in AgentIn.__struct_fields__ if name not in ("agent_id", "protocol")]
    body = {"agent_id": "a", "protocol": "chiffon", **dict.fromkeys(optional)}
    assert (await world.client.post(API, json=body)).status_code == 201


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"protocol": "chiffon"}, "agent_id"),
        ({"agent_id": "a"}, "protocol"),
        ({"agent_id": "a b", "protocol": "chiffon"}, "agent_id"),
        ({"agent_id": "../x", "protocol": "chiffon"}, "agent_id"),
        ({"agent_id": "a\n", "protocol": "chiffon"}, "agent_id"),
        ({"agent_id": "hub", "protocol": "chiffon"}, "agent_id"),
        ({"agent_id": "admin", "protocol": "chiffon"}, "agent_id"),
        ({"agent_id": "a", "protocol": "smtp"}, "protocol"),
        ({"agent_id": "a", "protocol": "chiffon", "capabilites": []}, "capabilites"),
        ({"agent_id": "a", "protocol": "chiffon", "capabilities": [1]}, "capabilities[0]"),
        ({"agent_id": "a", "protocol": "chiffon", "command": ["sh"]}, "command"),
        ({"agent_id": "a", "protocol": "chiffon", "env": {"A": "b"}}, "env"),
        ({"agent_id": "a", "protocol": "chiffon", "max_concurrent": 0}, "max_concurrent"),
    ],
)
async def test_a_wrong_agent_is_refused_and_the_refusal_kept(world: Any, body: Any, field: str) -> None:
    answer = await world.client.post(API, json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    [note] = world.intake.noted
    assert (note.what, note.principal, note.fault.field) == ("POST /api/v1/agents", ADMIN, field)
    assert world.intake.asked == []


async def test_a_taken_id_is_a_conflict(world: Any) -> None:
    world.intake.script[AddAgent] = Fault(kind=Kind.CONFLICT, message="an agent mux-1 exists already")
    answer = await world.client.post(API, json={"agent_id": "mux-1", "protocol": "chiffon"})
    assert answer.status_code == 409


async def test_an_agent_is_shown_without_its_credential(world: Any, make: Any) -> None:
    until = Instant(make.now + 60 * SECOND)
    agent = make.agent(
        capabilities=("k8s",), work_types=("a",), last_seen_at=make.now, registered_at=make.now,
        breaker=Breaker(state=BreakerState.OPEN, failures=5, until=until),
    )  # fmt: skip
    world.know(agent)
    world.intake.loads[agent.id] = ["t-1"]
    answer = await world.client.get(f"{API}/mux-1")
    assert answer.json() == {
        "id": "mux-1", "protocol": "chiffon", "status": "busy", "kind": "infra", "role": None, "name": None,
        "domain": None, "version": None, "capabilities": ["k8s"], "work_types": ["a"], "current_tasks": ["t-1"],
        "max_concurrent": 8,
        "breaker": {"state": "open", "failures": 5, "until": "2026-01-19T04:22:04Z"},
        "paused": False, "untrusted": False, "sandbox": None, "protocol_version": None, "callback_url": None,
        "created_at": "2026-01-19T04:21:04Z", "registered_at": "2026-01-19T04:21:04Z",
        "last_seen": "2026-01-19T04:21:04Z", "details": {},
    }  # fmt: skip
    assert agent.token_hash not in answer.text
    assert (await world.client.get(f"{API}/nobody")).status_code == 404


async def test_what_an_agent_has_pending_is_shown_for_that_agent_alone(world: Any, make: Any) -> None:
    agent = make.agent()
    world.know(agent)
    world.intake.holdings[agent.id] = Holding(bytes=5, direct_messages=2, entities=1)
    assert (await world.client.get(f"{API}/mux-1")).json()["pending"] == {"bytes": 5, "letters": 2, "state_entities": 1}
    assert "pending" not in (await world.client.get(API)).json()["agents"][0]


async def test_agents_are_listed_by_name_and_filtered(world: Any, make: Any) -> None:
    world.know(make.agent("c", registered_at=make.now), make.agent("a", kind="code"))
    world.know(make.agent("b"), linked=False)

    async def ids(query: str) -> list[tuple[str, str]]:
        listed = (await world.client.get(f"{API}{query}")).json()["agents"]
        return [(agent["id"], agent["status"]) for agent in listed]

    assert await ids("") == [("a", "connecting"), ("b", "offline"), ("c", "idle")]
    assert await ids("?kind=code") == [("a", "connecting")]
    assert await ids("?status=offline&protocol=chiffon") == [("b", "offline")]
    assert await ids("?protocol=coven") == []


async def test_a_rotated_token_is_shown_once(world: Any, make: Any) -> None:
    world.know(make.agent())
    world.intake.script[RotateToken] = make.agent()
    answer = await world.client.post(f"{API}/mux-1/token", json={})
    assert answer.status_code == 200
    [command] = world.intake.asked
    assert command.token_hash == token_hash(answer.json()["token"])
    assert (await world.client.post(f"{API}/nobody/token")).status_code == 404


async def test_an_agent_is_sent_away(world: Any, make: Any) -> None:
    world.know(make.agent())
    world.intake.script[RemoveAgent] = make.agent()
    answer = await world.client.delete(f"{API}/mux-1")
    assert (answer.status_code, answer.content) == (204, b"")
    assert world.intake.asked == [RemoveAgent(principal=ADMIN, protocol="api", agent="mux-1")]
    assert (await world.client.delete(f"{API}/nobody")).status_code == 404


async def test_the_logs_of_an_agent_are_the_events_of_its_tasks_as_sentences(world: Any, make: Any) -> None:
    world.know(make.agent())
    task = make.task(1, status=Status.RUNNING, owner="mux-1", seq=3)
    await world.put(
        task,
        make.task(2, owner="other"),
        make.event(task, 1, EventKind.SUBMITTED, {"input": {}}),
        make.event(task, 2, EventKind.ASSIGNED, {"agent": "mux-1", "attempt": 2}),
        make.event(
            task, 3, EventKind.PROGRESS,
            {"percent": 50, "step": {"number": 2, "name": "configure"}, "output": "3 monitors\n"},
        ),
    )  # fmt: skip
    told = (await world.client.get(f"{API}/mux-1/logs")).json()
    assert [(line["kind"], line["text"]) for line in told["logs"]] == [
        ("submitted", ""),
        ("assigned", "to mux-1 · attempt 2"),
        ("progress", "50 % · configure\n3 monitors"),
    ]
    assert told["next"] is None
    assert (await world.client.get(f"{API}/mux-1/logs?tail=1")).json()["logs"] == told["logs"][-1:]
    assert (await world.client.get(f"{API}/mux-1/logs?cursor=x")).status_code == 422
    assert (await world.client.get(f"{API}/nobody/logs")).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/api/v1/agents", {"agent_id": "a b", "protocol": "chiffon"}, "letters, digits and . _ : @ + -"),
        ("/api/v1/tasks", {"type": "t", "priority": "urgent"}, "use one of: low, normal, high, critical"),
    ],
)
async def test_what_does_not_fit_is_refused_with_what_would(world: Any, path: str, body: Any, said: str) -> None:
    detail = (await world.client.post(path, json=body)).json()["detail"]
    assert said in detail
    assert "regex" not in detail


async def test_a_filter_by_a_protocol_that_does_not_exist_is_refused(world: Any, make: Any) -> None:
    """It listed nothing, as if there were no such agent."""
    answer = await world.client.get("/api/v1/agents", params={"protocol": "zz"})
    assert (answer.status_code, answer.json()["field"]) == (422, "protocol")
    assert "use one of: " in answer.json()["next"]["text"]
    assert (await world.client.get("/api/v1/agents", params={"protocol": "chiffon"})).status_code == 200
