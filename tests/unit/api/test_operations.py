"""Operations: health, metrics, documentation that cannot drift, and a page that trusts nothing."""

from __future__ import annotations

import re
import shutil
from html import escape
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema_rs
import pytest
from starlette.responses import Response

from dragoman.api import dashboard
from dragoman.api.protocol_routes import A2ACP, AGENTMSG, CHIFFON, FORGE
from dragoman.api.routes import ROUTES, SERVED
from dragoman.app.metrics import Counters
from dragoman.app.translator.examples import EXAMPLES
from dragoman.core.commands import AddAgent, Submit
from dragoman.core.ids import ADMIN
from dragoman.core.model.agents import Breaker, BreakerState
from dragoman.core.model.tasks import EventKind
from dragoman.core.ports import Changes, StoreFailed
from dragoman.messages.tasks import Request
from dragoman.protocols.coven import coven_pb2

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="runs the page's script in node, which is not here"
)


async def test_a_hub_is_alive_even_when_it_is_not_ready(world: Any) -> None:
    assert (await world.stranger.get("/readyz")).json() == {"status": "ok", "detail": ""}
    world.readiness = (False, "draining")
    answer = await world.stranger.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "unready", "detail": "draining"})
    assert (await world.stranger.get("/livez")).status_code == 200


async def test_metrics_count_without_naming_anybody(world: Any, make: Any) -> None:
    counters: Counters = world.counters
    task, agent = make.task(), make.agent("canary-agent")
    submit = Submit(principal=ADMIN, request_id="r", digest="d", type="canary-type", content=Request())
    counters.decided(submit, "ok")
    counters.decided(submit, "ok")
    counters.decided(AddAgent(principal=ADMIN, agent=agent), "conflict")
    tripped = make.agent("canary-agent", breaker=Breaker(state=BreakerState.OPEN, failures=5))
    events = [make.event(task, 1, EventKind.SUBMITTED), make.event(task, 2, EventKind.ATTEMPT_FAILED)]
    counters.committed(Changes(added=[task, *events], changed=[tripped]), 2, 0.0004)
    counters.committed(
        Changes(changed=[tripped], removed=[make.task(2), make.task(3), make.event(task, 3, EventKind.LOG)]), 1, 0.0004
    )
    counters.files_removed(2)
    counters.failed(1)
    counters.sent(3, "chiffon")
    world.coven = {"ignored.unknown_request": 2}
    world.links, world.depth = 4, 5
    await world.put(task)
    answer = await world.stranger.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    for line in (
        'dragoman_commands_total{command="Submit",outcome="ok"} 2.0',
        'dragoman_commands_total{command="AddAgent",outcome="conflict"} 1.0',
        'dragoman_commit_seconds_bucket{le="0.0005"} 2.0',
        'dragoman_commit_size_bucket{le="1.0"} 1.0',
        "dragoman_commit_failures_total 1.0",
        'dragoman_events_total{kind="submitted"} 1.0',
        "dragoman_retries_total 1.0",
        "dragoman_tasks_forgotten_total 2.0",
        "dragoman_files_dropped_total 2.0",
        'dragoman_breaker_transitions_total{state="open"} 1.0',
        'dragoman_deliveries_sent_total{protocol="chiffon"} 3.0',
        'dragoman_coven_total{what="ignored.unknown_request"} 2.0',
        "dragoman_links_open 4.0",
        "dragoman_intake_depth 5.0",
        'dragoman_tasks{status="queued"} 1.0',
        'dragoman_deliveries{state="waiting"} 0.0',
        "dragoman_dead_letters 0.0",
        "dragoman_questions_open 0.0",
    ):
        assert f"\n{line}\n" in answer.text, line
    assert "canary" not in answer.text
    assert task.id not in answer.text
    names = re.findall(r"^# TYPE (\S+)", answer.text, re.MULTILINE)
    assert len(names) == len(set(names))


async def test_a_store_that_cannot_be_read_does_not_fail_the_scrape(world: Any) -> None:
    async def broken() -> Any:
        raise StoreFailed("gone")

    world.store.counts = broken
    assert "dragoman_intake_depth 0.0" in (await world.stranger.get("/metrics")).text


async def test_every_route_is_documented_and_everything_documented_is_served(world: Any) -> None:
    document = (await world.stranger.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    documented = {(path, verb) for path, verbs in document["paths"].items() for verb in verbs}
    routed = {(route.path, verb.lower()) for route in world.app.routes for verb in route.methods - {"HEAD"}}
    elsewhere = {(one.path, one.method.lower()) for one in (*CHIFFON, *FORGE, *AGENTMSG, *A2ACP)}
    assert documented == routed | elsewhere
    assert not routed & elsewhere
    assert len(documented) == len(ROUTES)
    assert all(one.handler is not None for one in SERVED)


@pytest.mark.parametrize("route", SERVED, ids=lambda route: f"{route.method} {route.path}")
def test_a_handler_takes_and_gives_what_its_route_declares(route: Any) -> None:
    hints = get_type_hints(route.handler)
    query, body = get_args(hints["call"])
    assert (query, body) == (route.query or type(None), route.body or type(None))
    if hints["return"] is not Response:
        status, answer = next(iter(route.answers.items()))
        assert hints["return"] == (answer or type(None)) or answer in get_args(hints["return"])
        assert (status == 204) == (answer is None)


async def test_the_documentation_is_whole(world: Any) -> None:
    document = (await world.stranger.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', (await world.stranger.get("/openapi.json")).text))
    assert references <= set(schemas)
    operations = [one for verbs in document["paths"].values() for one in verbs.values()]
    ids = [one["operationId"] for one in operations]
    assert len(ids) == len(set(ids))
    for path, verbs in document["paths"].items():
        for one in verbs.values():
            declared = {parameter["name"] for parameter in one["parameters"] if parameter["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            assert one["responses"]
            if path.startswith("/api/v1") and path != "/api/v1/login":
                assert one["security"] == [{"admin": []}]
                assert "401" in one["responses"]
    listed = {parameter["name"] for parameter in document["paths"]["/api/v1/tasks"]["get"]["parameters"]}
    assert listed == {
        "limit",
        "cursor",
        "status",
        "type",
        "agent",
        "principal",
        "parent",
        "full",
        "protocol",
        "since",
        "until",
        "q",
    }


async def test_answers_are_as_documented(world: Any, make: Any) -> None:
    document = (await world.stranger.get("/openapi.json")).json()
    task = make.task(seq=1)
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED, {"input": {"a": 1}}))
    world.know(make.agent())
    for path, schema in (
        (f"/api/v1/tasks/{task.id}?history=1&raw=1", "TaskOut"),
        ("/api/v1/tasks", "TaskList"),
        (f"/api/v1/tasks/{task.id}/why", "WhyOut"),
        ("/api/v1/agents/mux-1", "AgentDetails"),
        ("/api/v1/tasks/nothing", "ProblemOut"),
    ):
        whole = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
        jsonschema_rs.validator_for(whole).validate((await world.client.get(path)).json())


ENVELOPE: dict[str, Any] = {
    "protocol_version": "1.0", "message_id": "550e8400-e29b-41d4-a716-446655440001", "from_agent": "orchestrator",
    "to_agent": "infra", "timestamp": "2026-01-19T04:21:04Z", "trace_id": "550e8400-e29b-41d4-a716-446655440002",
    "request_id": "550e8400-e29b-41d4-a716-446655440003", "type": "work_request",
    "payload": {"task_id": "550e8400-e29b-41d4-a716-446655440004", "work_type": "run_playbook",
                "parameters": {"playbook": "deploy_kuma.yml"}, "hints": {"max_duration_seconds": 300}},
    "x_custom_fields": {},
}  # fmt: skip


async def test_the_schema_of_chiffon_takes_its_messages_and_no_others(world: Any) -> None:
    schema = (await world.stranger.get("/schemas/chiffon.json")).json()
    assert schema["$schema"].endswith("2020-12/schema")
    valid = jsonschema_rs.validator_for(schema)
    assert valid.is_valid(ENVELOPE)
    assert valid.is_valid({**ENVELOPE, "surprise": 1})
    error = {"error_code": 5005, "error_message": "no room", "error_context": {}}
    assert valid.is_valid({**ENVELOPE, "type": "error", "payload": error})
    assert not valid.is_valid({**ENVELOPE, "type": "work_status"})
    assert not valid.is_valid({**ENVELOPE, "message_id": "x"})
    assert not valid.is_valid({key: value for key, value in ENVELOPE.items() if key != "trace_id"})
    answer = await world.stranger.get("/schemas/smtp.json")
    assert (answer.status_code, answer.json()["kind"]) == (404, "not_found")


@pytest.mark.parametrize("protocol", EXAMPLES)
async def test_every_protocol_has_a_schema_that_takes_its_messages(world: Any, protocol: str) -> None:
    schema = (await world.stranger.get(f"/schemas/{protocol}.json")).json()
    valid = jsonschema_rs.validator_for(schema)
    for kind, message in EXAMPLES[protocol].items():
        if protocol == "coven":  # what travels on a stream
            message = {"send_message" if kind == "request" else "response": message}
        assert valid.is_valid(message), kind
    assert not valid.is_valid({"type": "nonsense"})


@pytest.mark.parametrize("path", [path.replace("{id}", "x") for path in dashboard.VIEWS])
async def test_every_view_of_the_dashboard_is_the_same_page_that_allows_itself_nothing_else(
    world: Any, path: str
) -> None:
    answer = await world.stranger.get(path)
    assert answer.headers["content-type"].startswith("text/html")
    policy = dict(part.partition(" ")[::2] for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[rule] for rule in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert (policy["frame-ancestors"], answer.headers["x-frame-options"]) == ("'none'", "DENY")
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"""(src|href)=["'](https?:)?//""", answer.text)
    assert not re.search(r"\son\w+=|style=|javascript:|<script>", answer.text)
    assert answer.content == (await world.stranger.get("/")).content


async def test_assets_are_served_from_the_package_and_known_by_their_tag(world: Any) -> None:
    page = (await world.stranger.get("/")).text
    for path in re.findall(r"""(?:src|href)="(/[^"]+)""", page):
        answer = await world.stranger.get(path)
        assert answer.status_code == 200, path
        again = await world.stranger.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert (await world.stranger.get("/assets/..%2f..%2fsessions.py")).status_code == 404


async def test_names_are_never_served_as_a_page(world: Any, make: Any) -> None:
    evil = "<img src=x onerror=alert(1)>"
    await world.put(make.task(name=evil))
    assert evil not in (await world.stranger.get("/")).text
    listed = await world.client.get("/api/v1/tasks")
    assert listed.json()["tasks"][0]["name"] == evil
    assert listed.headers["content-type"] == "application/json"
    assert listed.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/livez", "/openapi.json"])
async def test_head_is_answered_like_get(world: Any, path: str) -> None:
    assert (await world.stranger.head(path)).status_code == 200


def test_the_guide_names_every_route() -> None:
    root = next(parent for parent in Path(__file__).parents if (parent / "pyproject.toml").is_file())
    text = (root / "docs" / "api.md").read_text("utf-8")
    assert [one for one in SERVED if f"`{one.method} {one.path}`" not in text] == []


async def test_the_proto_file_of_coven_is_served_as_the_hub_speaks_it(world: Any) -> None:
    """A stranger can make a client of it: it has the messages that the hub's own are generated from."""
    answer = await world.stranger.get("/schemas/coven.proto")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    described = coven_pb2.DESCRIPTOR
    assert f"package {described.package};" in answer.text
    for name in (*described.message_types_by_name, *described.services_by_name):
        assert re.search(rf"^\s*(message|service) {name} {{", answer.text, re.MULTILINE), name
    paths = (await world.stranger.get("/openapi.json")).json()["paths"]
    assert "text/plain" in paths["/schemas/coven.proto"]["get"]["responses"]["200"]["content"]


async def test_the_reference_page_names_every_route_and_has_no_script(world: Any) -> None:
    answer = await world.stranger.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    for route in SERVED:
        assert f"<strong>{route.method}</strong> <code>{escape(route.path)}</code>" in answer.text, route.path
    assert "<script" not in answer.text
