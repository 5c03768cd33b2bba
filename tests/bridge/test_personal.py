"""Personal data stays between those who speak of it, whatever the agent speaks (a2acp-D13): encrypted towards a2acp
agents, encrypted at rest, hidden from whoever looks on."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dragoman.app.settings import StoreSettings
from tests.bridge.conftest import Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.a2acp import A2acpCaller, A2acpWorker, Refusal
from tests.bridge.players.a2acp_link import agent
from tests.bridge.players.agentmsg import AgentmsgWorker
from tests.bridge.players.chiffon import ChiffonCaller
from tests.bridge.players.neutral import File, Handle, Order, heard
from tests.bridge.players.stage import Stage, playing

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIT = {"intent": "admit", "input_schema": {"type": "object", "required": ["patient"]}, "pii": True}
ASKED = "Erika Mustermann of Heidestrasse 17"
TOLD = "she sleeps badly since March"
FOUND = "chronic lumbago, second degree"
SECRETS = (ASKED, TOLD, FOUND)
REASON = "her blood is not what it was"
REMARK = "she never says what troubles her"
FAILING = [("a2acp", name) for name in PLAYERS]

of_a2acp = pytest.mark.parametrize("pair", [("a2acp", name) for name in PLAYERS], ids=PLAYERS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("personal")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(data: Path) -> AsyncIterator[Stage]:
    async with playing(data, StoreSettings(kind="sqlite")) as running:
        yield running


def betrayed(words: str, *secrets: str) -> list[str]:
    return [secret for secret in secrets or SECRETS if secret in words]


def written(data: Path) -> str:
    """All that the hub has on disk."""
    files = [file for file in data.rglob("*") if file.is_file()]
    return "".join(file.read_bytes().decode("utf-8", "replace") for file in files)


async def everything_people_see(scene: Scene, task: str) -> str:
    """All that the management API says of a task."""
    seen: list[Any] = [await scene.stage.task(task, history=1, raw=1)]
    for party in (scene.caller, scene.worker):
        seen.append(await scene.stage.get("audit", principal=party.id))
        seen.append(await scene.stage.get(f"agents/{party.id}/logs"))
    seen.append(await scene.stage.get("tasks", principal=scene.caller.id))
    async with scene.stage.admin.stream("GET", f"/api/v1/tasks/{task}/events?raw=1") as events:
        seen.append("".join([part async for part in events.aiter_text()]))
    return json.dumps(seen, ensure_ascii=False)


@of_a2acp
async def test_nobody_but_the_two_ever_sees_it(scene: Scene, data: Path) -> None:
    caller, worker = scene.caller, await scene.enter(type(scene.worker), offers=(ADMIT,))
    assert isinstance(caller, A2acpCaller)
    scene.worker = worker
    handle, job = await scene.begin(type="admit", input={"patient": ASKED})
    assert job.input == {"patient": ASKED}
    await worker.say(job, percent=50, message=TOLD)
    await worker.finish(job, result={"finding": FOUND})
    history = await caller.history(handle)
    assert (heard(history, "message"), history[-1]["result"]) == ([TOLD], {"finding": FOUND})

    assert handle.native["security"]["encryption"] == "aes256"
    wires = [party for party in (caller, worker) if isinstance(party, A2acpCaller | A2acpWorker)]
    for party in wires:
        assert betrayed(json.dumps(party.wire, ensure_ascii=False)) == []
        sealed = [m for m in party.wire if m["message_type"] != "error" and m["payload"].get("contract_id")]
        assert {m["security"]["encryption"] for m in sealed if m["intent"] in ("admit", "progress")} == {"aes256"}
    seen = await everything_people_see(scene, handle.task_id)
    assert betrayed(seen) == []
    assert "[personal]" in seen
    assert betrayed(written(data)) == []


@pytest.mark.parametrize("pair", [("a2acp", "chiffon"), ("a2acp", "coven"), ("forge", "forge")], ids="-to-".join)
async def test_neither_do_its_steps_and_files(scene: Scene, data: Path) -> None:
    scene.worker = worker = await scene.enter(type(scene.worker), offers=(ADMIT,))
    handle, job = await scene.begin(type="admit", input={"patient": ASKED})
    await worker.say(job, step={"number": 1, "name": TOLD})
    await worker.say(job, file=File(f"{REMARK}.txt", FOUND.encode()))
    assert (await scene.caller.piece(handle))["step"]["name"] == TOLD
    assert (await scene.caller.piece(handle))["file"] == File(f"{REMARK}.txt", FOUND.encode())
    seen = await everything_people_see_of_unfinished(scene, handle.task_id)
    assert betrayed(seen, *SECRETS, REMARK) == []
    [file] = (await scene.stage.task(handle.task_id))["files"]
    for place in (f"/api/v1/tasks/{handle.task_id}/files", "/api/agent/files"):
        assert (await scene.stage.admin.get(f"{place}/{file['id']}")).status_code in (401, 403, 404)
    assert betrayed(written(data), *SECRETS, REMARK) == []
    await worker.finish(job, result={})


async def everything_people_see_of_unfinished(scene: Scene, task: str) -> str:
    return json.dumps([await scene.stage.task(task, history=1, raw=1), await scene.stage.get(f"tasks/{task}/files")])


@pytest.mark.parametrize("pair", FAILING, ids=PLAYERS)
async def test_a_failure_does_not_give_it_away_either(scene: Scene, data: Path) -> None:
    scene.worker = worker = await scene.enter(type(scene.worker), offers=(ADMIT,))
    handle, job = await scene.begin(type="admit", input={"patient": ASKED})
    await worker.fail(job, REASON)
    end = (await scene.caller.history(handle))[-1]
    assert (end["final"], betrayed(str(end), REASON)) == ("failed", [])
    assert betrayed(await everything_people_see(scene, handle.task_id), REASON) == []
    assert betrayed(written(data), REASON) == []


@pytest.mark.parametrize("pair", [("a2acp", name) for name in ("agentmsg", "coven", "forge")], ids="-to-".join)
async def test_a_question_about_it_is_shown_to_the_person_who_answers_only(scene: Scene, data: Path) -> None:
    scene.worker = worker = await scene.enter(type(scene.worker), offers=(ADMIT,))
    handle, job = await scene.begin(type="admit", input={"patient": ASKED})
    await worker.ask(job, REMARK)
    question = await scene.question(handle)
    assert question["question"] == REMARK
    assert await scene.stage.answer(question["id"], {"advice": REASON}) == 200
    job = await worker.answered(job)
    assert job.answer == {"advice": REASON}
    await worker.finish(job, result={"finding": FOUND})
    assert (await scene.caller.history(handle))[-1]["result"] == {"finding": FOUND}
    assert betrayed(written(data), REMARK, REASON) == []
    assert betrayed(await everything_people_see(scene, handle.task_id), REMARK, REASON) == []


@of_a2acp
async def test_in_clear_it_is_refused_and_the_attempt_is_on_record(scene: Scene) -> None:
    caller, worker = scene.caller, await scene.enter(type(scene.worker), offers=(ADMIT,))
    assert isinstance(caller, A2acpCaller)
    message = await caller.message("request", agent(worker.id), "admit", {"patient": ASKED})
    with pytest.raises(Refusal) as refused:
        await caller.post(message)
    assert refused.value.code == "SECURITY_POLICY_VIOLATION"
    assert worker.jobs.empty()
    records = (await scene.stage.get("audit", principal=caller.id, outcome="refused"))["records"]
    assert [(one["action"], betrayed(str(one))) for one in records] == [("pii.refused", [])]


@pytest.mark.parametrize("pair", [("a2acp", "a2acp"), ("agentmsg", "a2acp")], ids="-to-".join)
async def test_an_agent_without_a_key_to_it_is_not_given_it(scene: Scene) -> None:
    """An a2acp agent that is no party to what others agreed on, or to no contract at all, would be sent personal work
    in clear: the owner keeps the task."""
    assert isinstance(scene.worker, A2acpWorker)
    owner: AgentmsgWorker = await scene.enter(AgentmsgWorker, offers=(ADMIT,))
    handle = await scene.caller.submit(Order(to=owner.id, type="admit", input={"patient": ASKED}))
    scene.worker.able = ("admit",)
    await scene.worker.register()
    job = await owner.take()
    request = await owner.hand_over(job, scene.worker.id, {"looked": True}, "LOAD_BALANCING")
    answer = (await owner.answer(request))["payload"]
    assert (answer["accepted"], "stays yours" in answer["error"]) == (False, True)
    await owner.finish(job, text="did it myself")
    assert (await scene.caller.history(handle))[-1]["final"] == "completed"
    assert betrayed(json.dumps(scene.worker.wire, ensure_ascii=False)) == []


@pytest.mark.parametrize("pair", [("a2acp", "chiffon"), ("chiffon", "forge")], ids="-to-".join)
async def test_what_is_asked_of_a_helper_about_it_is_shut_and_so_is_the_help(scene: Scene, data: Path) -> None:
    owner: AgentmsgWorker = await scene.enter(AgentmsgWorker, offers=(ADMIT,))
    handle = await scene.caller.submit(Order(to=owner.id, type="admit", input={"patient": ASKED}))
    job = await owner.take()
    request = await owner.ask_for_help(job, REMARK, scene.worker.id)
    assert await scene.worker.help(REASON) == REMARK
    assert (await owner.answer(request))["payload"]["content"] == REASON
    await owner.finish(job, result={"finding": FOUND})
    assert (await scene.caller.history(handle))[-1]["result"] == {"finding": FOUND}
    assert betrayed(await everything_people_see(scene, handle.task_id), REMARK, REASON) == []
    assert betrayed(written(data), REMARK, REASON) == []


@pytest.mark.parametrize("pair", [("a2acp", "agentmsg")], ids="-to-".join)
async def test_the_history_of_a_handed_over_personal_task_is_sealed_as_well(scene: Scene, data: Path) -> None:
    owner: AgentmsgWorker = await scene.enter(AgentmsgWorker, offers=(ADMIT,))
    handle = await scene.caller.submit(Order(to=owner.id, type="admit", input={"patient": ASKED}))
    await owner.hand_over(await owner.take(), scene.worker.id, {"found": REMARK})
    taken = await scene.worker.take_over()
    assert (taken.handover or {})["metadata"] == {"found": REMARK}
    await scene.worker.finish(taken, result={"finding": FOUND})
    assert (await scene.caller.history(handle))[-1]["result"] == {"finding": FOUND}
    assert betrayed(await everything_people_see(scene, handle.task_id), REMARK) == []
    assert betrayed(written(data), REMARK) == []


@pytest.mark.parametrize("pair", [(name, name) for name in PLAYERS if name != "a2acp"], ids=lambda pair: pair[0])
async def test_an_intent_declared_as_personal_is_personal_also_without_a_contract(scene: Scene, data: Path) -> None:
    scene.worker = worker = await scene.enter(type(scene.worker), offers=(ADMIT,))
    handle, job = await scene.begin(type="admit", input={"patient": ASKED})
    assert job.input == {"patient": ASKED}
    await worker.finish(job, result={"finding": FOUND})
    assert (await scene.caller.history(handle))[-1]["result"] == {"finding": FOUND}
    assert betrayed(await everything_people_see(scene, handle.task_id)) == []
    assert betrayed(written(data)) == []


@pytest.mark.parametrize("pair", [("chiffon", name) for name in ("chiffon", "forge", "coven")], ids="-to-".join)
async def test_also_where_its_kind_is_asked_and_nobody_by_name(scene: Scene, data: Path) -> None:
    scene.worker = worker = await scene.enter(type(scene.worker), offers=(ADMIT,))
    handle = await submit_to_kind(scene, worker.id)
    job = await worker.take()
    assert job.input == {"patient": ASKED}
    await worker.finish(job, result={"finding": FOUND})
    assert (await scene.caller.history(handle))[-1]["result"] == {"finding": FOUND}
    assert betrayed(await everything_people_see(scene, handle.task_id)) == []
    assert betrayed(written(data)) == []


async def submit_to_kind(scene: Scene, kind: str) -> Handle:
    """As chiffon has it: `to_agent` alone."""
    assert isinstance(scene.caller, ChiffonCaller)
    task_id = str(uuid.uuid4())
    payload = {"task_id": task_id, "work_type": "admit", "parameters": {"patient": ASKED}}
    message = scene.caller.envelope("work_request", payload, request_id=str(uuid.uuid4()), to_agent=kind)
    answer = await scene.stage.http.post("/api/agent/message", json=message, headers=scene.caller.bearer)
    assert answer.status_code == 202, answer.text
    return Handle(task_id=task_id, native=message)


@pytest.mark.parametrize("pair", [("chiffon", "a2acp")], ids="-to-".join)
async def test_an_a2acp_agent_does_not_get_it_in_clear_as_one_of_its_kind_either(scene: Scene) -> None:
    scene.messy = True
    worker = await scene.enter(A2acpWorker, offers=(ADMIT,))
    with pytest.raises(AssertionError, match="encrypted only"):
        await submit_to_kind(scene, worker.id)
    assert betrayed(json.dumps(worker.wire, ensure_ascii=False)) == []


@pytest.mark.parametrize("pair", [(name, "a2acp") for name in PLAYERS if name != "a2acp"], ids="-to-".join)
async def test_an_a2acp_agent_never_gets_it_in_clear(scene: Scene) -> None:
    """Who cannot agree on a key cannot ask for it."""
    scene.messy = True
    worker = await scene.enter(A2acpWorker, offers=(ADMIT,))
    with pytest.raises(AssertionError):
        await scene.caller.submit(Order(to=worker.id, type="admit", input={"patient": ASKED}))
    assert betrayed(json.dumps(worker.wire, ensure_ascii=False)) == []
