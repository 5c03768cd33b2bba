"""A2acp's eight codes: what its agents say by them reaches callers of every protocol, and its callers hear them of
agents of every protocol. (The eighth, of too many messages, is in `test_limits`.)"""

from __future__ import annotations

from typing import Any

import pytest

from tests.bridge.conftest import Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.a2acp import A2acpCaller, A2acpWorker, Refusal
from tests.bridge.players.a2acp_link import agent
from tests.bridge.players.neutral import Order

pytestmark = pytest.mark.asyncio(loop_scope="session")

CODES = (
    "CAPABILITY_NOT_FOUND",
    "SCHEMA_MISMATCH",
    "AUTH_FAILED",
    "TIMEOUT",
    "INTERNAL_ERROR",
    "RATE_LIMIT_EXCEEDED",
    "CONTRACT_VIOLATION",
    "SECURITY_POLICY_VIOLATION",
)
ATTEMPTS = 4
WORDS = "the third pier is missing"
NUMBERS = {"type": "object", "properties": {"pier": {"type": "integer"}}, "required": ["pier"]}
LETTERS = {"type": "object", "properties": {"pier": {"type": "string"}}, "required": ["pier"]}
SHORT = {"intent": "hurry", "input_schema": True, "timeout_seconds": 0.1}
COUNTED = {"intent": "count", "input_schema": NUMBERS}
EXAMINED = {"intent": "examine", "input_schema": True}
PERSONAL = {"intent": "admit", "input_schema": True, "pii": True}


@pytest.mark.parametrize("pair", [(name, "a2acp") for name in PLAYERS], ids=PLAYERS)
async def test_what_an_agent_answers_reaches_every_caller(scene: Scene) -> None:
    assert isinstance(scene.worker, A2acpWorker)
    for code in CODES:
        handle, job = await scene.begin()
        again = code == "RATE_LIMIT_EXCEEDED" and scene.names[0] != "a2acp"  # the hub asks again for the others
        await scene.worker.err(job, code, WORDS, {"pier": 3})
        for _ in range(ATTEMPTS - 1 if again else 0):
            await scene.worker.err(await scene.worker.take(), code, WORDS, {"pier": 3})
        end = (await scene.caller.history(handle))[-1]
        assert end["final"] == "failed", code
        assert end["error"] == WORDS, code  # no advice beside it: the hub's is for those whom the hub itself refuses
        assert end.get("code", code) == code
        task = await scene.stage.task(handle.task_id)
        told = task["error"]["facts"]["error"]
        assert (told["code"], told["details"], task["attempts"]) == (code, {"pier": 3}, ATTEMPTS if again else 1)


@pytest.mark.parametrize("pair", [("a2acp", name) for name in PLAYERS], ids=PLAYERS)
async def test_an_a2acp_caller_gets_the_outcome_as_a_code(scene: Scene) -> None:
    caller = scene.caller
    assert isinstance(caller, A2acpCaller)
    scene.worker = worker = await scene.enter(type(scene.worker), offers=(SHORT, COUNTED, PERSONAL, EXAMINED))

    async def refused(code: str, **order: Any) -> None:
        with pytest.raises(Refusal) as refusal:
            await caller.submit(Order(**{"to": worker.id, **order}))
        assert refusal.value.code == code
        assert refusal.value.error["retry_after"] == 0

    await refused("CAPABILITY_NOT_FOUND", to="nobody")
    with pytest.raises(Refusal) as mismatch:
        await caller.shake_hands(worker.id, "count", request_schema=LETTERS)
    assert mismatch.value.code == "SCHEMA_MISMATCH"
    await refused("CONTRACT_VIOLATION", type="count", input={"pier": "third"})

    contract = await caller.contract(worker.id, "admit")
    around = {"contract_id": contract, "correlation_id": "in clear"}
    message = await caller.message("request", agent(worker.id), "admit", {"patient": "somebody"})
    for flaw, code in (({}, "SECURITY_POLICY_VIOLATION"), ({"auth_token": "e30.e30.e30"}, "AUTH_FAILED")):
        open_message = {**message, "payload": {"patient": "somebody", **around}}
        with pytest.raises(Refusal) as secrecy:
            await caller.post(open_message | {"security": {**message["security"], "encryption": "none", **flaw}})
        assert secrecy.value.code == code

    handle, job = await scene.begin()
    await worker.fail(job, WORDS)
    end = (await caller.history(handle))[-1]
    assert (end["final"], end["code"]) == ("failed", "INTERNAL_ERROR")
    assert WORDS in end["error"].lower()

    handle, _ = await scene.begin(type="hurry")
    end = (await caller.history(handle))[-1]
    assert (end["final"], end["code"]) == ("failed", "TIMEOUT")
