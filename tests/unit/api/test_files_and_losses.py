"""Files of tasks and the loss matrix over the API, with a whole hub behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from tests.support.chiffon import work_request

from dragoman.app.settings import Server, Settings, StoreSettings
from dragoman.app.wiring import hub


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    settings = Settings(data=str(tmp_path), server=Server(port=0, grpc_port=0), store=StoreSettings(kind="memory"))
    async with hub(settings) as running:
        headers = {"authorization": f"Bearer {running.admin_token}"}
        async with httpx2.AsyncClient(
            base_url=running.serving.url, headers=headers, verify=False, trust_env=False, timeout=60
        ) as client:
            yield client


async def test_a_file_is_kept_attached_and_fetched(api: httpx2.AsyncClient) -> None:
    data = bytes(range(256)) * 10
    kept = await api.post("/api/v1/files?name=../../plan%20A.bin", content=data, headers={"content-type": "image/png"})
    assert (kept.status_code, kept.json()["name"], kept.json()["size"]) == (201, "plan A.bin", len(data))
    await api.post("/api/v1/agents", json={"agent_id": "a1", "protocol": "chiffon", "kind": "infra"})
    task = {"type": "look", "kind": "infra", "input": {}, "attachments": [kept.json()["id"]]}
    made = (await api.post("/api/v1/tasks", json=task)).json()
    assert made["files"] == [kept.json()]
    listed = await api.get(f"/api/v1/tasks/{made['id']}/files")
    assert listed.json() == {"files": [kept.json()]}
    fetched = await api.get(f"/api/v1/tasks/{made['id']}/files/{kept.json()['id']}")
    assert (fetched.content, fetched.headers["content-type"]) == (data, "image/png")
    assert fetched.headers["content-disposition"] == "attachment; filename*=UTF-8''plan%20A.bin"
    assert fetched.headers["x-content-type-options"] == "nosniff"


async def test_a_file_of_nobody_and_a_file_of_another_task_are_not_found(api: httpx2.AsyncClient) -> None:
    await api.post("/api/v1/agents", json={"agent_id": "a1", "protocol": "chiffon", "kind": "infra"})
    wrong = await api.post("/api/v1/tasks", json={"type": "look", "kind": "infra", "attachments": ["nothing"]})
    assert (wrong.status_code, wrong.json()["field"]) == (404, "attachments")
    kept = (await api.post("/api/v1/files", content=b"x")).json()
    task = (await api.post("/api/v1/tasks", json={"type": "look", "kind": "infra"})).json()
    assert (await api.get(f"/api/v1/tasks/{task['id']}/files/{kept['id']}")).status_code == 404


async def test_an_agent_keeps_a_file_and_nobody_else_may_name_or_read_it(api: httpx2.AsyncClient) -> None:
    tokens = {}
    for id, kind in (("a1", "infra"), ("a2", "orchestrator")):
        made = await api.post("/api/v1/agents", json={"agent_id": id, "protocol": "chiffon", "kind": kind})
        tokens[id] = {"authorization": f"Bearer {made.json()['token']}"}
    kept = (await api.post("/api/agent/files?name=a.txt", content=b"mine", headers=tokens["a1"])).json()
    assert (await api.get(f"/api/agent/files/{kept['id']}", headers=tokens["a1"])).content == b"mine"
    stolen = await api.get(f"/api/agent/files/{kept['id']}", headers=tokens["a2"])
    assert (stolen.status_code, stolen.json()["type"]) == (404, "error")
    for id in (kept["id"], "nothing"):
        named = work_request(x_custom_fields={"files": [id]})
        answer = await api.post("/api/agent/message", json=named, headers=tokens["a2"])
        assert (answer.status_code, f"{id!r} of yours" in answer.json()["payload"]["error_message"]) == (404, True)
        assert answer.json()["payload"]["error_context"]["field_name"] == "x_custom_fields.files"
    assert (await api.post("/api/agent/files", content=b"x", headers={"authorization": "no"})).status_code == 401
    large = await api.post("/api/agent/files", content=b"x" * (16 * 1024 * 1024 + 1), headers=tokens["a1"])
    assert large.status_code == 413


RANGES = {
    "bytes=0-3": (206, b"0123", "bytes 0-3/10"),
    "bytes=4-": (206, b"456789", "bytes 4-9/10"),
    "bytes=-3": (206, b"789", "bytes 7-9/10"),
    "bytes=-30": (206, b"0123456789", "bytes 0-9/10"),
    "bytes=8-99": (206, b"89", "bytes 8-9/10"),
    "Bytes = 9-9": (206, b"9", "bytes 9-9/10"),
    "bytes=10-": (416, b"", "bytes */10"),
    "bytes=99-100": (416, b"", "bytes */10"),
    "bytes=-0": (416, b"", "bytes */10"),
    "bytes=3-1": (200, b"0123456789", None),
    "bytes=0-1,4-5": (200, b"0123456789", None),
    "bytes=-": (200, b"0123456789", None),
    "lines=0-1": (200, b"0123456789", None),
}


async def test_a_client_gets_the_part_of_a_file_that_it_asks_for(api: httpx2.AsyncClient) -> None:
    made = await api.post("/api/v1/agents", json={"agent_id": "a1", "protocol": "forge", "kind": "infra"})
    agent = {"authorization": f"Bearer {made.json()['token']}"}
    own = (await api.post("/api/agent/files?name=a.txt", content=b"0123456789", headers=agent)).json()
    kept = (await api.post("/api/v1/files?name=a.txt", content=b"0123456789")).json()
    task = {"type": "look", "kind": "infra", "attachments": [kept["id"]]}
    id = (await api.post("/api/v1/tasks", json=task)).json()["id"]
    places = ((f"/api/agent/files/{own['id']}", agent), (f"/api/v1/tasks/{id}/files/{kept['id']}", {}))
    for place, headers in places:
        for wanted, (status, content, told) in RANGES.items():
            got = await api.get(place, headers={**headers, "range": wanted})
            assert (got.status_code, got.content, got.headers.get("content-range")) == (status, content, told), wanted
            assert (got.headers["accept-ranges"], got.headers["etag"]) == ("bytes", f'"{kept["sha256"]}"')
        for unless, status in ((got.headers["etag"], 206), ('"other"', 200), ("Wed, 21 Oct 2015 07:28:00 GMT", 200)):
            got = await api.get(place, headers={**headers, "range": "bytes=0-1", "if-range": unless})
            assert got.status_code == status
    empty = (await api.post("/api/agent/files", content=b"", headers=agent)).json()
    got = await api.get(f"/api/agent/files/{empty['id']}", headers={**agent, "range": "bytes=0-"})
    assert (got.status_code, got.headers["content-range"]) == (416, "bytes */0")


async def test_files_are_removed_by_their_owner_while_they_belong_to_no_task_and_by_people(
    api: httpx2.AsyncClient,
) -> None:
    tokens = {}
    for id, protocol in (("a1", "agentmsg"), ("a2", "coven")):
        made = await api.post("/api/v1/agents", json={"agent_id": id, "protocol": protocol})
        tokens[id] = {"authorization": f"Bearer {made.json()['token']}"}
    kept = [(await api.post(f"/api/agent/files?name={n}", content=b"x", headers=tokens["a1"])).json() for n in "12"]
    place = f"/api/agent/files/{kept[0]['id']}"
    assert (await api.delete(place, headers=tokens["a2"])).status_code == 404
    assert (await api.delete(place, headers=tokens["a1"])).status_code == 204
    assert (await api.delete(place, headers=tokens["a1"])).status_code == 404
    assert (await api.put(place, headers=tokens["a1"])).headers["allow"] == "GET, DELETE"

    mine = (await api.post("/api/v1/files?name=plan.md", content=b"xyz")).json()
    spare = (await api.post("/api/v1/files?name=spare", content=b"xyz")).json()
    wish = {"type": "t", "agent": "a1", "attachments": [mine["id"]]}
    task = (await api.post("/api/v1/tasks", json=wish)).json()
    listed = (await api.get("/api/v1/files")).json()
    assert [(one["id"], one["owner"], one["name"], one["attached"]) for one in listed["files"]] == [
        (kept[1]["id"], "a1", None, False), (mine["id"], "admin", None, True), (spare["id"], "admin", "spare", False),
    ]  # fmt: skip
    assert listed["next"] is None
    page = (await api.get("/api/v1/files?limit=1&owner=admin")).json()
    assert ([one["id"] for one in page["files"]], page["next"]) == ([mine["id"]], mine["id"])
    on = (await api.get(f"/api/v1/files?limit=1&owner=admin&cursor={page['next']}")).json()
    assert [one["id"] for one in on["files"]] == [spare["id"]]
    assert [one["id"] for one in (await api.get("/api/v1/files?attached=1")).json()["files"]] == [mine["id"]]

    no = await api.delete(f"/api/v1/files/{mine['id']}")
    assert (no.status_code, no.json()["kind"]) == (409, "conflict")
    wrong = {"type": "t", "agent": "nobody", "attachments": [spare["id"]]}
    assert (await api.post("/api/v1/tasks", json=wrong)).status_code >= 400
    claimed = await api.delete(f"/api/v1/files/{spare['id']}")  # a moment ago a task was to be made with it
    assert (claimed.status_code, claimed.json()["facts"]["retry_after"]) == (409, 30)
    spare = (await api.post("/api/v1/files?name=spare", content=b"xyz")).json()
    assert (await api.delete(f"/api/v1/files/{mine['id']}?attached=1")).status_code == 204
    gone = await api.get(f"/api/v1/tasks/{task['id']}/files/{mine['id']}")
    assert gone.status_code == 404
    for id in (kept[1]["id"], spare["id"]):
        assert (await api.delete(f"/api/v1/files/{id}")).status_code == 204
    assert (await api.delete(f"/api/v1/files/{spare['id']}")).status_code == 404
    found = (await api.get("/api/v1/audit?limit=500")).json()["records"]
    removed = [(one["principal"], one["subject"]) for one in found if one["action"] == "file.remove"]
    assert sorted(removed) == sorted([("a1", kept[0]["id"]), *(("admin", one["id"]) for one in (mine, kept[1], spare))])


async def test_the_loss_matrix_names_every_pair(api: httpx2.AsyncClient) -> None:
    told = (await api.get("/api/v1/losses")).json()
    pairs = {(pair["caller"], pair["agent"]) for pair in told["pairs"]}
    assert pairs == {(one, other) for one in told["protocols"] for other in told["protocols"]}
    one = (await api.get("/api/v1/losses?caller=chiffon&agent=forge")).json()["pairs"]
    assert [(pair["caller"], pair["agent"]) for pair in one] == [("chiffon", "forge")]
    assert {"feature", "towards", "how", "why", "cut_above"} == set(one[0]["losses"][0])
    assert (await api.get("/api/v1/losses?caller=morse")).status_code == 404
