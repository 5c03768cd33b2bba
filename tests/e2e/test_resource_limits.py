"""What agents declare of their memory and GPU memory, against what requests need: over the wire, at a real hub."""

from __future__ import annotations

import pytest

from tests.support.chiffon import Orchestrator, task_of, work_result
from tests.support.hubproc import HubProcess


@pytest.mark.requirement("CH-REQ-5", "chiffon-D15")
@pytest.mark.parametrize("limit", ["gpu_vram_mb", "max_gpu_vram_mb"])
@pytest.mark.parametrize("hint", ["gpu_vram_mb", "max_gpu_vram_mb"])
def test_a_need_of_gpu_memory_that_no_agent_could_meet_is_5005_at_once(hub: HubProcess, limit: str, hint: str) -> None:
    kind = f"{limit}-{hint}"
    hub.worker(f"{kind}-1", kind, limits={limit: 64})
    hub.worker(f"{kind}-2", kind, limits={limit: 128, "max_memory_mb": 4096})
    boss = Orchestrator(hub.url, hub.token(f"boss-{kind}", "orchestrator"), f"boss-{kind}")
    _, answer = boss.submit(to_agent=kind, hints={hint: 512, "max_memory_mb": 1024})
    assert (answer.status, answer.code) == (503, 5005)
    assert answer.error["error_context"] == {"limit_name": "gpu_vram_mb", "available": 128, "required": 512}


def test_a_need_of_gpu_memory_that_can_be_met_later_waits(hub: HubProcess) -> None:
    agent = hub.worker("gpu-1", "gpu", limits={"gpu_vram_mb": 1000, "max_memory_mb": 4096})
    boss = Orchestrator(hub.url, hub.token("boss-gpu", "orchestrator"), "boss-gpu")
    hints = {"max_gpu_vram_mb": 600, "max_memory_mb": 100, "max_duration_seconds": 600}
    (first, _), (second, answer) = (boss.submit(to_agent="gpu", hints=hints) for _ in range(2))
    assert answer.status == 202
    work = agent.work()
    assert (task_of(work), work["payload"]["hints"]) == (task_of(first), hints)
    reasons = hub.admin.get(f"/api/v1/tasks/{task_of(second)}/why").json
    assert "400 of 1000 MB of GPU memory free" in reasons["summary"]
    agent.send(work_result(work))
    assert task_of(agent.work()) == task_of(second)


def test_a_person_may_ask_for_gpu_memory_too(hub: HubProcess) -> None:
    agent = hub.worker("person-gpu", "person-gpu", limits={"gpu_vram_mb": 100})
    task = {"type": "run", "kind": "person-gpu"}
    refused = hub.admin.post("/api/v1/tasks", task | {"hints": {"max_gpu_vram_mb": 101}})
    assert (refused.status, refused.json["kind"], refused.json["field"]) == (422, "resources", "hints.max_gpu_vram_mb")
    assert "may use 100 MB of GPU memory" in refused.json["detail"]
    made = hub.admin.post("/api/v1/tasks", task | {"hints": {"max_gpu_vram_mb": 100}})
    assert made.status == 202
    assert agent.work()["payload"]["hints"] == {"max_gpu_vram_mb": 100}
