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
    assert (await api.post("/api/agent/files", content=b"x", headers={"authorization": "no"})).status_code == 401
    large = await api.post("/api/agent/files", content=b"x" * (16 * 1024 * 1024 + 1), headers=tokens["a1"])
    assert large.status_code == 413


async def test_the_loss_matrix_names_every_pair(api: httpx2.AsyncClient) -> None:
    told = (await api.get("/api/v1/losses")).json()
    pairs = {(pair["caller"], pair["agent"]) for pair in told["pairs"]}
    assert pairs == {(one, other) for one in told["protocols"] for other in told["protocols"]}
    one = (await api.get("/api/v1/losses?caller=chiffon&agent=forge")).json()["pairs"]
    assert [(pair["caller"], pair["agent"]) for pair in one] == [("chiffon", "forge")]
    assert {"feature", "towards", "how", "why", "cut_above"} == set(one[0]["losses"][0])
    assert (await api.get("/api/v1/losses?caller=morse")).status_code == 404
