"""What agents behind gateways (streams, child processes) ask of the hub: guests, links that vouch, agents that are
gone, claims, files, logs."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.commands import AddAgent, AdmitGuest, Answer, Claim, NoteRead, RegisterAgent, WriteLog
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.agents import Agent, BreakerState
from dragoman.core.model.tasks import Status, Waiting
from dragoman.core.protocol_capabilities import RESERVED
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import FileRef, shown_name
from dragoman.messages.tasks import Ask, LogEntry

GONE = Fault(kind=Kind.UNAVAILABLE, message="the stream ended", retryable=True)


def guest(id: str, **fields) -> AdmitGuest:
    return AdmitGuest(principal=AgentId(id), protocol="coven", **fields)


async def test_a_guest_is_let_in_again_and_cannot_take_the_place_of_an_agent_with_a_token(world):
    agent = await world.ask(guest("mux-1", name="Mux"))
    assert (agent.guest, agent.name, agent.protocol) == (True, "Mux", "coven")
    assert await world.ask(guest("mux-1")) == agent
    assert (await world.refused(guest("boss"))).kind is Kind.UNAUTHENTICATED
    other = AdmitGuest(principal=AgentId("mux-1"), protocol="forge")
    assert (await world.refused(other)).kind is Kind.FORBIDDEN
    for id in RESERVED:
        assert (await world.refused(guest(id))).kind is Kind.FORBIDDEN


async def test_an_agent_may_withdraw_capabilities_that_it_declared_and_none_that_it_was_granted(world):
    await world.add("i1", "infra", capabilities=("shell",))

    async def registered(*capabilities):
        agent = await world.ask(msgspec.structs.replace(world.registration("i1"), capabilities=capabilities))
        return agent.capabilities

    assert await registered("code", "chat", "code") == ("shell", "code", "chat")
    assert await registered("chat", "shell") == ("shell", "chat")
    assert (await world.ask(world.registration("i1"))).capabilities == ("shell", "chat")
    assert await registered() == ("shell",)


@pytest.mark.parametrize("added", [8, 3], ids=["as everybody", "as a person said"])
async def test_an_agent_that_registers_without_its_number_of_tasks_takes_as_many_as_it_was_added_with(world, added):
    given = Agent(
        id=AgentId("i1"), protocol="chiffon", created_at=world.time, token_hash="hash-i1", max_concurrent=added
    )
    await world.ask(AddAgent(principal=ADMIN, agent=given))
    for said, takes in ((None, added), (1, 1), (5, 5), (None, added), (added, added), (None, added)):
        agent = await world.ask(RegisterAgent(principal=given.id, max_concurrent=said))
        assert agent.max_concurrent == takes


async def test_a_task_keeps_the_level_it_was_given_at_whatever_its_agent_runs_in_later(world):
    await world.add("i1", "infra")

    async def held_by(level):
        child = {} if level is None else {"sandbox": level}
        await world.ask(msgspec.structs.replace(world.registration("i1"), details={"child": child}))

    await held_by("bubblewrap")
    i1 = await world.connect("i1")
    first, second = await world.submit(), await world.submit()
    await world.finish("i1", first.id)
    await held_by("landlock+seccomp")
    assert (await world.task(first.id)).attempt.sandbox == (await world.task(second.id)).attempt.sandbox == "bubblewrap"
    await i1.close(fault=GONE)
    await world.connect("i1")
    await world.advance(1)
    again = await world.task(second.id)
    assert (again.attempt.count, again.attempt.sandbox) == (2, "landlock+seccomp")
    await held_by(None)
    assert (await world.submit()).attempt.sandbox is None


async def test_a_connection_that_vouches_keeps_a_silent_agent_its_work_until_the_deadline(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1", vouches=True)
    task = await world.submit(total_seconds=600)
    await world.advance(599)
    assert (await world.task(task.id)).status is Status.ASSIGNED
    assert len(i1.work) == 1
    await world.advance(2)
    assert (await world.task(task.id)).status is Status.FAILED


async def test_what_a_gone_agent_held_fails_at_once_and_is_one_failure(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    tasks = []
    for _ in range(3):
        tasks.append(await world.submit())
        await world.advance(0.1)
    await i1.close(fault=GONE)
    assert {(await world.task(t.id)).status for t in tasks} == {Status.QUEUED}
    assert (await world.history(tasks[0].id))[-1] == "attempt_failed"
    assert world.intake.agent(AgentId("i1")).breaker.failures == 1
    i1 = await world.connect("i1")
    await world.advance(1)
    assert i1.work == [tasks[1].id, tasks[2].id, tasks[0].id]  # it was at the first, whose attempt is spent


async def test_an_agent_that_starts_with_an_empty_head_is_not_waited_for(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    begun = await world.submit()
    await world.progress("i1", begun.id)
    ordered = await world.submit()
    await world.restart()
    i1 = await world.connect("i1", fresh=True)
    assert i1.work == [ordered.id]  # this order may never have arrived: sent again, no attempt lost
    assert (await world.task(begun.id)).status is Status.QUEUED
    await world.advance(1)
    assert i1.work == [ordered.id, begun.id]
    assert world.intake.agent(AgentId("i1")).breaker.state is BreakerState.CLOSED


async def test_a_question_that_ended_a_turn_survives_the_agent(world):
    await world.add("i1", "infra")
    i1 = await world.connect("i1")
    task = await world.submit()
    await world.progress("i1", task.id, paused=True, ask=Ask(question="Restart?"))
    await i1.close(fault=GONE)
    i1 = await world.connect("i1", fresh=True)
    assert (await world.task(task.id)).waiting is Waiting.PERSON
    assert i1.work == []


async def test_an_agent_claims_a_queued_task_it_could_do_and_no_other(world):
    await world.add("w1", concurrent=1, role="worker")
    w1 = await world.connect("w1")
    first = await world.submit(None, required_role="worker")
    assert w1.work == [first.id]
    queued = await world.submit(None, required_role="worker")
    claim = Claim(principal=AgentId("w1"), task_id=queued.id)
    assert (await world.refused(claim)).kind is Kind.CONFLICT
    await world.add("r1", role="reviewer")
    await world.connect("r1")
    assert (await world.refused(Claim(principal=AgentId("r1"), task_id=queued.id))).kind is Kind.NOT_FOUND
    await world.add("w2", role="worker", concurrent=1)
    await world.connect("w2")
    assert (await world.task(queued.id)).owner == "w2"
    assert (await world.refused(claim)).kind is Kind.NOT_FOUND


def a_file(size: int = 10, name: str = "a.txt") -> FileRef:
    return FileRef(id="f", name=name, mime_type="text/plain", size=size, sha256="0")


async def test_files_belong_to_a_task_and_have_a_quota(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit(files=(a_file(),))
    task = await world.progress("i1", task.id, files=(a_file(),))
    assert len(task.output.files) == 2
    large = a_file(Rules().file_quota)
    refused = await world.refused(world.request(files=(large, a_file())))
    assert refused.kind is Kind.TOO_LARGE


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("/abs/x.txt", "x.txt"),
        ("c:\\temp\\y", "y"),
        ("..", "file"),
        ("", "file"),
        ("a\0b\n", "ab"),
        ("\u202etxt.exe", "txt.exe"),
    ],
)
def test_a_file_name_is_never_more_than_a_name(said, shown):
    assert shown_name(said) == shown


async def test_log_lines_are_kept_with_the_task_and_are_a_sign_of_life(world):
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit()
    await world.advance(20)
    lines = (LogEntry(at=world.time, level="info", message="a"), LogEntry(at=world.time, level="warn", message="b"))
    await world.ask(WriteLog(principal=AgentId("i1"), task_id=task.id, lines=lines))
    await world.advance(20)
    assert (await world.task(task.id)).attempt.count == 1
    event = (await world.store.events(task.id))[-1]
    assert event.kind == "log"
    assert [line["message"] for line in msgspec.json.decode(event.body)["lines"]] == ["a", "b"]
    assert (
        await world.refused(WriteLog(principal=AgentId("boss"), task_id=task.id, lines=lines))
    ).kind is Kind.NOT_FOUND


async def test_a_caller_that_follows_by_itself_is_sent_nothing(world):
    boss = await world.connect("boss")
    await world.add("i1", "infra")
    await world.connect("i1")
    task = await world.submit(follows=True)
    await world.progress("i1", task.id)
    await world.finish("i1", task.id)
    assert boss.inbox == []


async def test_a_look_is_in_the_audit_record(world):
    await world.ask(NoteRead(principal=AgentId("boss"), protocol="forge", what="forge.query-tasks"))
    assert (await world.store.audit())[-1].action == "forge.query-tasks"


async def test_idle_agents_of_a_kind_take_turns(world):
    peers = []
    for name in ("i1", "i2", "i3"):
        await world.add(name, "infra", concurrent=1)
        peers.append(await world.connect(name))
    owners = []
    for _ in range(6):
        task = await world.submit()
        owners.append((await world.task(task.id)).owner)
        await world.finish(owners[-1], task.id)
    assert owners == ["i1", "i2", "i3"] * 2


async def test_an_agent_whose_turn_ended_with_a_question_is_free_for_other_work(world):
    await world.add("i1", "infra", concurrent=1)
    i1 = await world.connect("i1")
    task = await world.submit()
    other = await world.submit()
    i1.take()
    await world.progress("i1", task.id, paused=True, ask=Ask(question="Restart?"))
    assert i1.work == [other.id]
    await world.restart()
    assert world.intake.load_of(AgentId("i1")) == [other.id]
    i1 = await world.connect("i1")
    [question] = await world.store.questions()
    await world.ask(Answer(principal=ADMIN, question=question.id, answer="yes"))
    await world.finish("i1", other.id)
    await world.settle()
    assert i1.work[-1] == task.id


async def test_an_agent_that_was_lost_is_asked_first_when_it_is_back(world):
    for name in ("i1", "i2"):
        await world.add(name, "infra", concurrent=1)
    i1 = await world.connect("i1")
    task = await world.submit()
    await i1.close(fault=GONE)
    i2, i1 = await world.connect("i2"), await world.connect("i1", fresh=True)
    await world.advance(1)
    assert (i1.work, i2.work) == ([task.id], [])
    await i1.close(fault=GONE)
    await world.advance(2)
    assert i2.work == [task.id]


async def test_attachments_that_no_message_to_an_agent_could_carry_are_refused_at_once(world):
    """Coven's work orders hold their attachments (coven-D9); agents of other protocols fetch them."""
    large = tuple(
        FileRef(id=f"f{number}", name="a", mime_type="a/b", size=6 * 1024 * 1024, sha256="0") for number in range(3)
    )
    await world.add("c1", "artist", protocol="coven")
    asked = {"kind": "artist", "type": "draw"}
    fault = await world.refused(world.request(files=large, **asked))
    assert (fault.kind, fault.field, fault.facts["limit"]) == (Kind.TOO_LARGE, "attachments", 16 * 1024 * 1024)
    assert fault.message.startswith("3 attachments and the work take 18")
    await world.ask(world.request(files=large[:2], **asked))
    await world.add("f1", "artist", protocol="forge")
    await world.ask(world.request(files=large, **asked))
