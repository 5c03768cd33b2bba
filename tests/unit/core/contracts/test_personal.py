"""Personal data: shut at rest, on record, and in nobody else's words."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.contracts import PATIENT, SECRET, agreed
from tests.support.world import World

from dragoman.core.commands import Answer, AskPerson, Cancel, ReportError, ReportFault, Severity
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.lookups import TaskById
from dragoman.core.model.state import Registry
from dragoman.core.ports import TaskFilter
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Ask
from dragoman.security.masterkey import MasterKeys
from dragoman.stores.sqlite.store import SqliteStore


async def test_what_is_personal_is_shut_in_the_file(tmp_path):
    store = SqliteStore(tmp_path / "hub.db", vault=MasterKeys([b"k" * 32]))
    world = await World(store).start()
    await world.add("boss", "orchestrator")
    await world.add("data", protocol="coven", offers=(PATIENT,))
    await world.connect("data")
    words = {"name": "Lovelace's leeches", "description": "Lovelace bled", "thread": "Lovelace-7"}
    scan = FileRef(id="f1", name="Lovelace.png", mime_type="image/png", size=1, sha256="0")
    given = {
        "pinned": "data",
        "type": "patient",
        "input": {"name": "Ada Lovelace"},
        "raw": b"Ada raw",
        "files": (scan,),
    }
    task = await world.submit(None, **given, **words)
    await world.finish("data", task.id, body=b'{"result":{"diagnosis":"consumption"}}')
    told = await store.events(task.id)
    assert msgspec.json.decode(told[0].body)["input"] == {"name": "Ada Lovelace"}
    assert told[0].raw == b"Ada raw"
    before = await world.task(task.id)
    await world.intake.stop()
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    again = SqliteStore(tmp_path / "hub.db", vault=MasterKeys([b"k" * 32]))
    await again.open()
    [listed], _ = await again.tasks(TaskFilter(), after=None, limit=9)
    assert [listed, await again.task(task.id), *await again.find_tasks(task.id[:8], 9)] == [before] * 3
    assert {name: getattr(listed.lineage if name == "thread" else listed, name) for name in words} == words
    assert ([file.name for file in listed.output.files], listed.shut) == (["personal"], None)
    async with again.unit() as unit:
        assert (await unit.load([TaskById(task.id)]))[TaskById(task.id)] == [before]
    await again.close()
    assert b"Lovelace" not in kept
    assert b"consumption" not in kept
    assert b"Ada raw" not in kept


@pytest.mark.parametrize("kind", [Kind.UNAVAILABLE, Kind.TIMEOUT, Kind.CONTRACT, Kind.WORK_FAILED, Kind.CANCELLED])
async def test_no_text_about_personal_work_is_in_its_row(world, kind):
    await world.connect("data")
    contract = await agreed(world, intent="patient", secret=SECRET)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "patient", "contract": contract.id, "sealed": True}
    task = await world.submit(None, **ask)
    if kind is Kind.CANCELLED:
        await world.ask(Cancel(principal=AgentId("lab"), task_id=task.id, reason="Lovelace is well"))
    else:
        fault = Fault(kind=kind, message="Lovelace is well", facts={"who": "Lovelace"})
        await world.ask(ReportFault(principal=AgentId("data"), protocol="chiffon", task_id=task.id, fault=fault))
    row = await world.task(task.id)
    assert (row.outcome.fault.kind, b"Lovelace" in msgspec.json.encode(row)) == (kind, False)


async def test_personal_work_is_on_record_when_it_is_taken_and_only_then(world):
    contract = await agreed(world, intent="patient", secret=SECRET)
    ask = {"principal": "lab", "protocol": "a2acp", "type": "patient", "contract": contract.id}
    await world.refused(world.request(None, **(ask | {"type": "provision"})))
    await world.submit(None, **ask)
    records = [r for r in await world.store.audit(limit=1000) if r.action == "pii.request"]
    assert [(r.principal, r.outcome, r.subject) for r in records] == [("lab", "accepted", contract.id)]


@pytest.mark.parametrize("severity", ["low", "critical"])
async def test_an_error_report_about_personal_work_shows_nothing_of_its_content(world, severity):
    await world.connect("data")
    contract = await agreed(world, intent="patient", secret=SECRET)
    task = await world.submit(None, principal="lab", protocol="a2acp", type="patient", contract=contract.id)
    for named in (task.id, None):
        fault = Fault(kind=Kind.TIMEOUT, message="Lovelace is well")
        report = {"error_id": f"about {named}", "error_type": "TIMEOUT"}
        said = {"severity": Severity(severity), "report": report, "fault": fault, "task_id": named}
        await world.ask(ReportError(principal=AgentId("data"), **said))
    entity = await world.store.entity(f"{Registry.AGENT.value}/data")
    assert [error["message"] for error in entity.value["errors"]] == ["[personal]"] * 2
    assert b"Lovelace" not in msgspec.json.encode(await world.task(task.id))


async def test_options_of_a_personal_question_are_not_repeated(world):
    await world.connect("data")
    contract = await agreed(world, intent="patient", secret=SECRET)
    task = await world.submit(None, principal="lab", protocol="a2acp", type="patient", contract=contract.id)
    ask = Ask(question="who?", options=("Lovelace", "Byron"))
    asked = await world.ask(AskPerson(principal=AgentId("data"), request_id="q", ask=ask, task_id=task.id))
    refused = await world.refused(Answer(principal=ADMIN, question=asked.id, answer="Babbage"))
    assert refused.message == "the answer must be one of its options"
