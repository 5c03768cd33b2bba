"""People: names, roles, tokens and login links, and under whose name the audit record has what they do."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.world import World

from dragoman.core.commands import AddAgent, Answer, Cancel, NoteRefusal
from dragoman.core.commands.people import (
    AddPerson,
    EndSessions,
    LogIn,
    OfferLogin,
    RecordLogin,
    RemovePerson,
    SetPersonRole,
    SetPersonToken,
)
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.people import LONGEST_NAME, Person, Role
from dragoman.core.model.tasks import QuestionStatus
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Ask

LINK = 900 * SECOND


@pytest.fixture
async def world() -> World:
    return await World().start()


def new(name: str = "ann", role: Role = Role.OPERATOR) -> AddPerson:
    return AddPerson(principal=ADMIN, new=Person(id=name, role=role, created_at=Instant(0)))


def offer(world: World, name: str = "ann", code: str = "hash") -> OfferLogin:
    return OfferLogin(principal=ADMIN, name=name, login_hash=code, until=Instant(world.time + LINK))


def log_in(code: str = "hash", person: str = "ann") -> LogIn:
    return LogIn(principal=ADMIN, person=person, login_hash=code)


async def records(world: World) -> list[tuple[str, str, str | None, str]]:
    return [
        (record.principal, record.action, record.subject, record.outcome)
        for record in await world.store.audit(after=0, limit=1000)
    ]


def people(world: World) -> dict[str, Person]:
    return dict(world.intake.people)


# -- coming and going ------------------------------------------------------------------------------------------------


async def test_a_person_is_there_with_their_role_also_after_a_restart(world: World) -> None:
    ann = await world.ask(new())
    assert ann == Person(id="ann", role=Role.OPERATOR, created_at=world.time)
    await world.restart()
    assert people(world) == {"ann": ann}


@pytest.mark.parametrize(
    "name", ["", " ann", "ann ", "an\nn", "an\u202en", "a" * (LONGEST_NAME + 1), "\x1b[31m", "a/b", "..", "."]
)
async def test_a_name_is_short_and_printable(world: World, name: str) -> None:
    fault = await world.refused(new(name))
    assert (fault.kind, fault.field, people(world)) == (Kind.INVALID, "name", {})


@pytest.mark.parametrize("name", ["ann", "i1", "admin", "hub", "anonymous", "*"])
async def test_a_name_that_a_person_an_agent_or_the_hub_has_is_taken(world: World, name: str) -> None:
    await world.ask(new("ann"))
    await world.add("i1", "infra")
    fault = await world.refused(new(name))
    assert (fault.kind, fault.field) == (Kind.CONFLICT, "name")


async def test_an_agent_cannot_take_the_name_of_a_person(world: World) -> None:
    await world.ask(new("ann"))
    agent = Agent(id=AgentId("ann"), protocol="chiffon", created_at=Instant(0), token_hash="h")
    fault = await world.refused(AddAgent(principal=ADMIN, agent=agent))
    assert (fault.kind, fault.field) == (Kind.CONFLICT, "agent_id")


async def test_a_removed_person_is_gone_and_the_name_is_free(world: World) -> None:
    await world.ask(new())
    await world.ask(RemovePerson(principal=ADMIN, name="ann"))
    assert people(world) == {}
    await world.restart()
    assert people(world) == {}
    again = await world.ask(new(role=Role.VIEWER))
    assert (again.role, again.token_hash) == (Role.VIEWER, None)


@pytest.mark.parametrize(
    "command",
    [
        RemovePerson(principal=ADMIN, name="bob"),
        SetPersonToken(principal=ADMIN, name="bob", token_hash="t"),
        SetPersonRole(principal=ADMIN, name="bob", role=Role.ADMIN),
        OfferLogin(principal=ADMIN, name="bob", login_hash="h", until=Instant(1)),
        EndSessions(principal=ADMIN, name="bob"),
        RecordLogin(principal=ADMIN, person="bob"),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_a_person_that_is_not_there_is_not_found(world: World, command: Any) -> None:
    fault = await world.refused(command)
    assert (fault.kind, fault.field) == (Kind.NOT_FOUND, "name")


@pytest.mark.parametrize(
    "command",
    [
        new(),
        RemovePerson(principal=ADMIN, name="ann"),
        SetPersonToken(principal=ADMIN, name="ann", token_hash="t"),
        SetPersonRole(principal=ADMIN, name="ann", role=Role.ADMIN),
        OfferLogin(principal=ADMIN, name="ann", login_hash="h", until=Instant(1)),
        LogIn(principal=ADMIN, login_hash="h"),
        RecordLogin(principal=ADMIN),
        EndSessions(principal=ADMIN, name="ann"),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_an_agent_does_nothing_with_people(world: World, command: Any) -> None:
    await world.add("i1", "infra")
    fault = await world.refused(msgspec.structs.replace(command, principal=AgentId("i1")))
    assert (fault.kind, people(world)) == (Kind.FORBIDDEN, {})


# -- what ends sessions ----------------------------------------------------------------------------------------------


async def test_a_new_token_and_a_logout_everywhere_end_all_sessions(world: World) -> None:
    await world.ask(new())
    first = await world.ask(SetPersonToken(principal=ADMIN, name="ann", token_hash="one"))
    second = await world.ask(SetPersonToken(principal=ADMIN, name="ann", token_hash="two"))
    third = await world.ask(EndSessions(principal=ADMIN, name="ann"))
    assert [(one.token_hash, one.sessions) for one in (first, second, third)] == [("one", 1), ("two", 2), ("two", 3)]


async def test_another_role_ends_no_session(world: World) -> None:
    await world.ask(new())
    changed = await world.ask(SetPersonRole(principal=ADMIN, name="ann", role=Role.VIEWER))
    assert (changed.role, changed.sessions) == (Role.VIEWER, 0)


# -- login links -----------------------------------------------------------------------------------------------------


async def test_a_login_link_counts_once(world: World) -> None:
    await world.ask(new())
    await world.ask(offer(world))
    ann = await world.ask(log_in())
    assert (ann.id, ann.login_hash, ann.login_until, ann.last_login) == ("ann", None, None, world.time)
    assert (await world.refused(log_in())).kind is Kind.UNAUTHENTICATED


@pytest.mark.parametrize("used", [False, True], ids=["not used yet", "used"])
async def test_a_login_link_counts_once_also_over_a_restart(world: World, used: bool) -> None:
    await world.ask(new())
    await world.ask(offer(world))
    if used:
        await world.ask(log_in())
    await world.restart()
    if used:
        assert (await world.refused(log_in())).kind is Kind.UNAUTHENTICATED
    else:
        assert (await world.ask(log_in())).id == "ann"


async def test_two_browsers_with_one_link_one_of_which_is_let_in(world: World) -> None:
    await world.ask(new())
    await world.ask(offer(world))
    first, second = await asyncio.gather(world.ask(log_in()), world.ask(log_in()), return_exceptions=True)
    assert sum(isinstance(one, Person) for one in (first, second)) == 1


@pytest.mark.parametrize(("late", "let_in"), [(-1, True), (0, False), (1, False)])
async def test_a_login_link_is_not_for_long(world: World, late: int, let_in: bool) -> None:
    await world.ask(new())
    await world.ask(offer(world))
    world.time = Instant(world.time + LINK + late)
    if let_in:
        assert (await world.ask(log_in())).id == "ann"
    else:
        fault = await world.refused(log_in())
        assert (fault.kind, "dragoman user login" in fault.message) == (Kind.UNAUTHENTICATED, True)


async def test_a_new_link_replaces_the_one_before_and_removal_ends_it(world: World) -> None:
    await world.ask(new())
    await world.ask(offer(world, code="one"))
    await world.ask(offer(world, code="two"))
    assert (await world.refused(log_in("one"))).kind is Kind.UNAUTHENTICATED
    await world.ask(RemovePerson(principal=ADMIN, name="ann"))
    assert (await world.refused(log_in("two"))).kind is Kind.UNAUTHENTICATED


async def test_a_link_logs_in_the_person_that_it_was_made_for(world: World) -> None:
    for name in ("ann", "bob"):
        await world.ask(new(name))
        await world.ask(offer(world, name, f"of {name}"))
    assert (await world.ask(log_in("of bob", "bob"))).id == "bob"
    assert (await world.ask(log_in("of ann"))).id == "ann"


# -- the audit record ------------------------------------------------------------------------------------------------


async def test_the_audit_record_names_the_person(world: World) -> None:
    await world.ask(new())
    await world.ask(msgspec.structs.replace(new("bob"), person="ann"))
    await world.ask(offer(world))
    await world.ask(log_in())
    await world.ask(RecordLogin(principal=ADMIN))
    await world.ask(SetPersonRole(principal=ADMIN, person="ann", name="bob", role=Role.VIEWER))
    await world.ask(EndSessions(principal=ADMIN, person="ann", name="ann"))
    await world.refused(RemovePerson(principal=ADMIN, person="ann", name="zoe"))
    assert await records(world) == [
        ("admin", "user.add", "ann", "accepted"),
        ("ann", "user.add", "bob", "accepted"),
        ("admin", "user.offer_login", "ann", "accepted"),
        ("ann", "user.login", "ann", "accepted"),
        ("admin", "user.login", None, "accepted"),
        ("ann", "user.role", "bob", "accepted"),
        ("ann", "user.logout", "ann", "accepted"),
        ("ann", "user.remove", "zoe", "refused"),
    ]


async def test_what_the_api_refuses_a_person_is_recorded_under_their_name(world: World) -> None:
    await world.ask(new())
    fault = Fault(kind=Kind.FORBIDDEN, message="this needs the role admin")
    await world.ask(NoteRefusal(principal=ADMIN, person="ann", what="POST /api/v1/agents", fault=fault))
    assert (await records(world))[-1] == ("ann", "POST /api/v1/agents", None, "refused")


async def test_a_persons_commands_about_work_are_recorded_under_their_name(world: World) -> None:
    await world.ask(new())
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    task = await world.submit()
    await world.ask(Cancel(principal=ADMIN, person="ann", task_id=task.id))
    principal, action, subject, outcome = (await records(world))[-1]
    assert (principal, action, subject, outcome) == ("ann", "task.cancel", task.id, "accepted")


async def test_an_answer_keeps_the_person_and_the_note_and_the_agent_gets_neither(world: World) -> None:
    await world.ask(new())
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    worker = await world.connect("i1")
    task = await world.submit()
    worker.take()
    await world.progress("i1", task.id, paused=True, ask=Ask(question="Restart?"))
    [question] = await world.store.questions(status=QuestionStatus.OPEN)
    note = "it is Friday"
    answered = await world.ask(Answer(principal=ADMIN, person="ann", question=question.id, answer="no", note=note))
    assert (answered.answered_by, answered.person, answered.note) == (ADMIN, "ann", note)
    assert await world.store.question(question.id) == answered
    assert (await records(world))[-1][:2] == ("ann", "question.answer")
    [order] = worker.take()
    told = {"input": {"n": 1}, "answer": "no", "asked_by": "i1", "question": "Restart?"}
    assert msgspec.json.decode(order.content.body) == told
