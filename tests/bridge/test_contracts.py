"""The hub enforces what an agent declared, whatever it speaks and for every caller: under a contract by an a2acp
caller, and as what it promised by all the others."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.bridge.conftest import PAIRS, Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.a2acp import A2acpCaller, Refusal
from tests.bridge.players.a2acp_link import BROKER
from tests.bridge.players.neutral import Order, Worker

pytestmark = pytest.mark.asyncio(loop_scope="session")

TAKES = {
    "type": "object",
    "properties": {"pier": {"type": "integer", "minimum": 1}},
    "required": ["pier"],
    "additionalProperties": False,
}
GIVES = {"type": "object", "properties": {"height": {"type": "number"}}, "required": ["height"]}
MEASURE = {"intent": "measure", "input_schema": TAKES, "output_schema": GIVES, "timeout_seconds": 600}
WRONG = "four and a half"

of_a2acp = pytest.mark.parametrize("pair", [("a2acp", name) for name in PLAYERS], ids=PLAYERS)


async def measurer(scene: Scene) -> Worker:
    """The scene's worker, with terms."""
    scene.worker = await scene.enter(type(scene.worker), offers=(MEASURE,))
    return scene.worker


async def test_what_fits_the_terms_goes_both_ways(scene: Scene) -> None:
    await measurer(scene)
    handle, job = await scene.begin(type="measure", input={"pier": 3})
    assert (job.type, job.input) == ("measure", {"pier": 3})
    await scene.worker.finish(job, result={"height": 4.5})
    end = (await scene.caller.history(handle))[-1]
    assert (end["final"], end["result"]) == ("completed", {"height": 4.5})


async def test_what_does_not_fit_is_refused_and_never_seen(scene: Scene) -> None:
    scene.messy = True
    await measurer(scene)
    with pytest.raises(AssertionError, match="input schema") as refused:
        await scene.caller.submit(Order(to=scene.worker.id, type="measure", input={"pier": WRONG}))
    assert WRONG not in str(refused.value)
    if isinstance(refused.value, Refusal):
        assert refused.value.code == "CONTRACT_VIOLATION"
        assert [fault["pointer"] for fault in refused.value.error["details"]["faults"]] == ["/pier"]
    _, job = await scene.begin(type="measure", input={"pier": 1})
    assert job.input == {"pier": 1}  # and nothing was before it


async def test_a_result_that_breaks_the_schema_is_refused_and_not_delivered(scene: Scene) -> None:
    scene.messy = True
    await measurer(scene)
    handle, job = await scene.begin(type="measure", input={"pier": 3})
    await scene.worker.finish(job, result={"height": WRONG})
    history = await scene.caller.history(handle)
    end = history[-1]
    assert (end["final"], end.get("code", "CONTRACT_VIOLATION")) == ("failed", "CONTRACT_VIOLATION")
    assert "output schema" in end["error"]
    assert WRONG not in str(history)
    task = await scene.stage.task(handle.task_id)
    assert (task["status"], task["error"]["kind"], task["result"]) == ("failed", "contract", None)

    handle, job = await scene.begin(type="measure", input={"pier": 4})
    if scene.names[1] != "coven":  # a coven agent is not told what becomes of its words
        assert any("output schema" in words for words in scene.worker.refused)
    await scene.worker.finish(job, result={"height": 4.5})
    assert (await scene.caller.history(handle))[-1]["final"] == "completed"


@of_a2acp
async def test_a_contract_has_the_terms_that_its_agent_declared(scene: Scene) -> None:
    caller, worker = a2acp_caller(scene), await measurer(scene)
    found = await ask_broker(caller, "discover_capabilities", {"intent": "measure", "agent_id": worker.id})
    [offering] = found["capabilities"]
    assert (offering["agent"]["agent_id"], offering["available"]) == (worker.id, True)
    contract = await caller.shake_hands(worker.id, "measure")
    for terms in (offering["capability"], contract):
        assert {name: terms[name] for name in MEASURE} == MEASURE
    assert (contract["source_agent"]["agent_id"], contract["target_agent"]["agent_id"]) == (caller.id, worker.id)


@of_a2acp
async def test_an_agent_without_offers_takes_any_intent_unless_its_protocol_has_terms(scene: Scene) -> None:
    caller = a2acp_caller(scene)
    if scene.names[1] == "a2acp":
        with pytest.raises(Refusal) as refused:
            await caller.shake_hands(scene.worker.id, "paint")
        assert refused.value.code == "CAPABILITY_NOT_FOUND"
        return
    contract = await caller.shake_hands(scene.worker.id, "paint")
    assert (contract["input_schema"], contract["output_schema"]) == (True, True)
    handle, job = await scene.begin(type="paint", input={"colours": [None, {"deep": "red"}]})
    assert job.input == {"colours": [None, {"deep": "red"}]}
    await scene.worker.finish(job, result={"painted": ["twice"]})
    assert (await caller.history(handle))[-1]["result"] == {"painted": ["twice"]}


@pytest.mark.parametrize("pair", [("a2acp", "chiffon"), ("a2acp", "coven"), ("forge", "coven")], ids="-to-".join)
async def test_text_that_is_json_keeps_a_schema_too(scene: Scene) -> None:
    scene.messy = True
    await measurer(scene)
    handle, job = await scene.begin(type="measure", input={"pier": 3})
    await scene.worker.finish(job, text='{"height": 4.5}')
    assert (await scene.caller.history(handle))[-1]["result"] == {"height": 4.5}
    assert (await scene.stage.task(handle.task_id))["result"] == {"height": 4.5}

    handle, job = await scene.begin(type="measure", input={"pier": 3})
    await scene.worker.finish(job, text='{"height": "four and a half"}')
    end = (await scene.caller.history(handle))[-1]
    assert (end["final"], end.get("code", "CONTRACT_VIOLATION")) == ("failed", "CONTRACT_VIOLATION")


@pytest.mark.parametrize("pair", [("a2acp", name) for name in PLAYERS if name != "a2acp"], ids="-to-".join)
async def test_an_agent_that_cannot_decrypt_agrees_to_no_end_to_end_contract(scene: Scene) -> None:
    caller, worker = a2acp_caller(scene), await measurer(scene)
    with pytest.raises(Refusal, match="cannot decrypt") as refused:
        await caller.shake_hands(worker.id, "measure", mode="end-to-end")
    assert refused.value.code == "SECURITY_POLICY_VIOLATION"


@of_a2acp
async def test_a_contract_that_is_over_lets_nothing_pass_but_answers(scene: Scene) -> None:
    caller, worker = a2acp_caller(scene), await measurer(scene)
    contract = await caller.shake_hands(worker.id, "measure")
    caller.contracts[worker.id, "measure"] = contract["contract_id"]
    handle, job = await scene.begin(type="measure", input={"pier": 3})
    about = {"collaboration_id": contract["collaboration_id"], "reason": "enough"}
    assert (await ask_broker(caller, "terminate_collaboration", about))["by"] == caller.id

    with pytest.raises(Refusal, match="terminated") as refused:
        await caller.submit(Order(to=worker.id, type="measure", input={"pier": 4}))
    assert refused.value.code == "CONTRACT_VIOLATION"
    await worker.finish(job, result={"height": 4.5})
    assert (await caller.history(handle))[-1]["result"] == {"height": 4.5}


@pytest.mark.parametrize("pair", [(one, two) for one, two in PAIRS if "a2acp" not in (one, two)], ids="-to-".join)
async def test_a_border_between_domains_is_one_in_every_protocol(scene: Scene) -> None:
    """Who may ask a domain is set once (a2acp-D19); an agent without a domain is of the default one."""
    scene.messy = True
    ward = f"ward-{uuid.uuid4().hex[:8]}"
    scene.worker = worker = await scene.enter(type(scene.worker), offers=(MEASURE,), domain=ward)
    await scene.stage.allow("default", ward, allow=False)
    with pytest.raises(AssertionError, match="o domain policy lets default ask"):
        await scene.caller.submit(Order(to=worker.id, type="measure", input={"pier": 3}))
    await scene.stage.allow("default", ward)
    _, job = await scene.begin(type="measure", input={"pier": 4})
    assert job.input == {"pier": 4}  # and nothing was before it


def a2acp_caller(scene: Scene) -> A2acpCaller:
    assert isinstance(scene.caller, A2acpCaller)
    return scene.caller


async def ask_broker(caller: A2acpCaller, intent: str, payload: dict[str, Any]) -> dict[str, Any]:
    told = await caller.post(await caller.message("request", BROKER, intent, payload))
    return dict(told["payload"])
