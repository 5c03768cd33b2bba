"""Questions, dead letters, the audit record, backups: what people do through the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.core.commands import Answer, Discard, Redrive
from dragoman.core.ids import ADMIN, SECOND, Instant, uuid7
from dragoman.core.model.audit import GENESIS, AuditRecord, Newest, seal
from dragoman.core.model.deliveries import DeadLetter, DirectMessage, MessageKind
from dragoman.core.model.tasks import EventKind, Question, QuestionDetails, QuestionStatus
from dragoman.messages.faults import Fault, Kind

replace = msgspec.structs.replace


def question(make: Any, n: int, **changes: Any) -> Question:
    base = {"id": uuid7(Instant(make.now + n * 1000 * SECOND), n), "task": "t-1", "agent": "mux-1",
            "question": "Restart prod?", "options": ("yes", "no"), "created_at": make.now,
            "wake_at": Instant(make.now + 60 * SECOND)}  # fmt: skip
    return Question(**{**base, **changes})


async def test_open_questions_are_listed_with_options_and_deadline(world: Any, make: Any) -> None:
    asked = question(make, 1, details=QuestionDetails(context={"files": 15}))
    await world.put(asked, question(make, 2, status=QuestionStatus.ANSWERED, answer="no"))
    told = (await world.client.get("/api/v1/questions?status=open")).json()
    assert told == {
        "questions": [
            {
                "id": asked.id, "task_id": "t-1", "agent": "mux-1", "question": "Restart prod?",
                "context": {"files": 15}, "options": ["yes", "no"], "status": "open", "about": "answer",
                "asked_of": None, "asked_before": [], "escalations": [], "deadline": "2026-01-19T04:22:04Z",
                "default": None, "has_default": False, "answer": None, "answered_at": None, "answered_by": None,
                "note": None, "created_at": "2026-01-19T04:21:04Z",
            }
        ],
        "next": None,
        "tasks": {},
    }  # fmt: skip
    assert len((await world.client.get("/api/v1/questions")).json()["questions"]) == 2
    first = (await world.client.get("/api/v1/questions?limit=1")).json()
    second = (await world.client.get(f"/api/v1/questions?limit=1&cursor={first['next']}")).json()
    assert [one["status"] for page in (first, second) for one in page["questions"]] == ["open", "answered"]
    assert second["next"] is None
    assert (await world.client.get("/api/v1/questions?status=maybe")).status_code == 422
    assert (await world.client.get("/api/v1/questions?task=beefbeef")).status_code == 404
    assert (await world.client.get(f"/api/v1/questions/{asked.id}")).json() == told["questions"][0]


async def test_a_question_is_answered_once(world: Any, make: Any) -> None:
    asked = question(make, 1)
    await world.put(asked)
    world.intake.script[Answer] = replace(asked, status=QuestionStatus.ANSWERED, answer="no")
    path = f"/api/v1/questions/{asked.id[:13]}/answer"
    first = await world.client.post(path, json={"answer": "no"})
    assert (first.status_code, first.json()["status"], first.json()["answer"]) == (200, "answered", "no")
    assert world.intake.asked == [Answer(principal=ADMIN, protocol="api", question=asked.id, answer="no")]
    world.intake.script[Answer] = Fault(kind=Kind.CONFLICT, message="the question was answered already")
    second = await world.client.post(path, json={"answer": "yes"})
    assert second.status_code == 409


async def test_a_note_goes_with_the_answer_and_the_question_names_the_person(world: Any, make: Any) -> None:
    asked = question(make, 1)
    await world.put(asked)
    world.intake.script[Answer] = lambda command: replace(
        asked, status=QuestionStatus.ANSWERED, answered_by=ADMIN, person="ann", note=command.note
    )
    path = f"/api/v1/questions/{asked.id}/answer"
    answered = (await world.client.post(path, json={"answer": "no", "note": "it is Friday"})).json()
    assert (answered["answered_by"], answered["note"]) == ("ann", "it is Friday")
    too_long = await world.client.post(path, json={"answer": "no", "note": "x" * 2001})
    assert (too_long.status_code, too_long.json()["field"]) == (422, "note")
    assert (await world.client.post(path, json={"answer": "no", "note": ""})).json()["note"] is None


async def test_an_answer_needs_an_answer_and_a_question(world: Any, make: Any) -> None:
    one, two = question(make, 1), question(make, 1, id=question(make, 1).id[:-1] + "f")
    await world.put(one, two)
    assert (await world.client.post(f"/api/v1/questions/{one.id}/answer", json={})).json()["field"] == "answer"
    assert (await world.client.post(f"/api/v1/questions/{one.id[:8]}/answer", json={"answer": 1})).status_code == 422
    assert (await world.client.post("/api/v1/questions/beefbeef/answer", json={"answer": 1})).status_code == 404
    assert (await world.client.get("/api/v1/questions/x")).status_code == 404


def letter(make: Any, n: int, task: Any, **changes: Any) -> DeadLetter:
    reason = Fault(kind=Kind.TIMEOUT, message="silent for 30 s", facts={"attempted_retries": 3})
    base = {"id": uuid7(Instant(make.now + n * 1000 * SECOND), n), "task": task.id, "receiver": "mux-1",
            "kind": MessageKind.WORK, "event": 1, "attempts": 4, "at": make.now, "reason": reason}  # fmt: skip
    return DeadLetter(**{**base, **changes})


async def test_dead_letters_are_paged_newest_first(world: Any, make: Any) -> None:
    task, other = make.task(1), make.task(2)
    letters = [letter(make, n, task) for n in range(5)]
    await world.put(task, other, *letters, letter(make, 9, other))
    seen, cursor = [], None
    while True:
        query = {"limit": 2, "task": task.id} | ({"cursor": cursor} if cursor else {})
        page = (await world.client.get("/api/v1/deadletters", params=query)).json()
        seen += [one["id"] for one in page["deadletters"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [one.id for one in reversed(letters)]
    assert len((await world.client.get("/api/v1/deadletters")).json()["deadletters"]) == 6


async def test_a_dead_letter_can_be_looked_into_by_its_id_or_the_beginning_of_it(world: Any, make: Any) -> None:
    task = make.task(1)
    dead = [letter(make, n, task) for n in range(3)]
    await world.put(task, make.event(task, 1, EventKind.SUBMITTED, {"input": {"a": 1}}), *dead)
    for id in (dead[1].id, dead[1].id[:13]):
        told = (await world.client.get(f"/api/v1/deadletters/{id}")).json()
        assert told == {
            "id": dead[1].id, "task_id": task.id, "receiver": "mux-1", "cargo": "work", "attempts": 4,
            "at": "2026-01-19T04:21:04Z", "body": {"input": {"a": 1}},
            "error": {"kind": "timeout", "message": "silent for 30 s", "facts": {"attempted_retries": 3},
                      "field": None, "retryable": False},
        }  # fmt: skip
    assert (await world.client.get(f"/api/v1/deadletters/{dead[1].id[:5]}")).status_code == 422
    assert (await world.client.get("/api/v1/deadletters/beefbeef")).status_code == 404


async def test_a_dead_letter_of_a_direct_message_names_a_task_only_if_the_hub_has_it(world: Any, make: Any) -> None:
    """It named the message itself, or the agents' own name for their work: no task of the hub has that id."""
    task = make.task()
    raw = msgspec.Raw(b"{}")
    note = DirectMessage(sender="a", message_id="m", kind="NOTE", digest="d", raw=raw, protocol="agentmsg")
    about_work = letter(make, 1, task, kind=MessageKind.DIRECT_MESSAGE, direct_message=note)
    alone = replace(about_work, id=letter(make, 2, task).id, task=letter(make, 2, task).id)
    theirs = replace(about_work, id=letter(make, 3, task).id, task="~t-1")
    await world.put(task, about_work, alone, theirs)
    listed = (await world.client.get("/api/v1/deadletters")).json()["deadletters"]
    assert [one["task_id"] for one in listed] == [None, None, task.id]
    assert (await world.client.get(f"/api/v1/deadletters/{alone.id}")).json()["task_id"] is None


async def test_what_a_dead_letter_about_personal_work_says_is_not_shown(world: Any, make: Any) -> None:
    task = make.task(1, personal=True, name="Ada's", thread="Ada's")
    told = msgspec.structs.replace(make.event(task, 1, EventKind.SUBMITTED, {"input": {"a": 1}}), personal=True)
    dead = letter(make, 1, task)
    await world.put(task, told, dead)
    assert (await world.client.get(f"/api/v1/deadletters/{dead.id}")).json()["body"] == {"personal": True}
    shown = (await world.client.get(f"/api/v1/tasks/{task.id}")).json()
    assert (shown["name"], shown["thread"]) == ("[personal]", "[personal]")


async def test_a_dead_letter_is_redriven_edited_or_not_or_discarded(world: Any, make: Any) -> None:
    task = make.task(1)
    dead = letter(make, 1, task)
    await world.put(task, dead)
    world.intake.script.update({Redrive: task, Discard: dead})
    path = f"/api/v1/deadletters/{dead.id}"
    assert (await world.client.post(f"{path}/redrive")).status_code == 202
    assert (await world.client.post(f"{path}/redrive", json={"input": {"b": 2}})).json()["id"] == task.id
    assert (await world.client.post(f"{path}/discard")).json()["id"] == dead.id
    assert world.intake.asked == [
        Redrive(principal=ADMIN, protocol="api", dead_letter=dead.id),
        Redrive(principal=ADMIN, protocol="api", dead_letter=dead.id, input=b'{"b":2}'),
        Discard(principal=ADMIN, protocol="api", dead_letter=dead.id),
    ]
    assert (await world.client.post(f"{path}/redrive", json={"inptu": {}})).status_code == 422
    for verb in ("redrive", "discard"):
        assert (await world.client.post(f"/api/v1/deadletters/beefbeef/{verb}")).status_code == 404


def chain(n: int) -> list[AuditRecord]:
    records, prev = [], GENESIS
    for seq in range(1, n + 1):
        who, outcome = ("planner", "accepted") if seq % 2 else ("admin", "refused")
        record = seal(AuditRecord(seq=seq, at=Instant(seq), principal=who, action="task.submit", outcome=outcome,
                                  prev=prev, subject=f"t-{seq}"))  # fmt: skip
        records.append(record)
        prev = record.hash
    return records


async def test_the_audit_record_is_read_with_filters_and_a_cursor(world: Any) -> None:
    await world.put(audit=chain(7))

    async def seqs(query: str) -> tuple[list[int], str | None]:
        page = (await world.client.get(f"/api/v1/audit?{query}")).json()
        return [record["seq"] for record in page["records"]], page["next"]

    assert await seqs("limit=3") == ([1, 2, 3], "3")
    assert await seqs("limit=3&cursor=3") == ([4, 5, 6], "6")
    assert await seqs("limit=3&cursor=6") == ([7], None)
    assert await seqs("principal=admin") == ([2, 4, 6], None)
    assert await seqs("outcome=refused&subject=t-4") == ([4], None)
    world.intake.newest_audit = Newest(7, "")
    assert (await world.client.get("/api/v1/audit?cursor=999")).json() == {"records": [], "next": None, "newest": 7}
    assert (await world.client.get("/api/v1/audit?cursor=x")).status_code == 422


@pytest.mark.parametrize("n", [0, 1, 2500])
async def test_a_whole_chain_verifies(world: Any, n: int) -> None:
    records = chain(n)
    await world.put(audit=records)
    told = (await world.client.get("/api/v1/audit/verify")).json()
    last = records[-1].hash if records else GENESIS
    assert told == {"ok": True, "verified": n, "last_hash": last, "broken": None}


async def test_an_end_that_is_missing_or_rewritten_is_noticed(world: Any) -> None:
    records = chain(5)
    world.intake.newest_audit = Newest(5, records[-1].hash)
    await world.put(audit=records[:3])
    told = (await world.client.get("/api/v1/audit/verify")).json()
    assert (told["ok"], told["verified"], told["broken"]["seq"]) == (False, 3, 4)
    forged = seal(replace(records[4], prev=records[3].hash, principal="nobody"))
    await world.put(audit=[records[3], forged])
    told = (await world.client.get("/api/v1/audit/verify")).json()
    assert told["broken"] == {"seq": 5, "why": "record 5 is not the one that was written"}


@pytest.mark.parametrize("how", ["changed", "deleted"])
async def test_the_first_broken_record_is_named(world: Any, how: str) -> None:
    records = chain(1200)
    if how == "changed":
        records[1100] = replace(records[1100], outcome="accepted", principal="nobody")
    else:
        del records[1100]
    await world.put(audit=records)
    told = (await world.client.get("/api/v1/audit/verify")).json()
    assert (told["ok"], told["verified"], told["broken"]["seq"]) == (False, 1100, 1101)


async def test_a_backup_is_written_where_nothing_is(world: Any, tmp_path: Path) -> None:
    target = tmp_path / "copy.sqlite"
    answer = await world.client.post("/api/v1/backup", json={"target": str(target)})
    assert (answer.status_code, answer.json()) == (200, {"target": str(target)})
    assert target.exists()
    assert (await world.client.post("/api/v1/backup", json={"target": str(target)})).status_code == 409
    away = await world.client.post("/api/v1/backup", json={"target": str(tmp_path / "no" / "x")})
    assert (away.status_code, away.json()["field"]) == (422, "target")
    assert (await world.client.post("/api/v1/backup", json={"target": "relative"})).status_code == 422


async def test_a_backup_is_not_asked_for_from_another_machine(world: Any, tmp_path: Path) -> None:
    import httpx2

    transport = httpx2.ASGITransport(app=world.app, client=("192.0.2.7", 5))
    async with httpx2.AsyncClient(transport=transport, base_url="http://hub", headers=world.client.headers) as far:
        answer = await far.post("/api/v1/backup", json={"target": str(tmp_path / "x")})
    assert answer.status_code == 403
    assert not (tmp_path / "x").exists()


async def test_the_task_around_a_question_is_listed_with_it(world: Any, make: Any) -> None:
    task = make.task()
    await world.put(task, question(make, 1, task=task.id))
    told = (await world.client.get("/api/v1/questions")).json()
    about = told["tasks"][task.id]
    assert (about["type"], about["requested_by"], about["status"]) == (task.type, task.origin.principal, task.status)
