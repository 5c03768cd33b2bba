"""What is not there and what is not yours are the same: the same answer, for the same work, on the same record.

Time is not measured, which would be a matter of luck: what takes time is counted. A decision that finds somebody else's
row asks the store for nothing that it would not ask for if there were none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.world import World

from dragoman.core.commands import (
    Acknowledge,
    Answer,
    AskPerson,
    Cancel,
    Claim,
    Command,
    Discard,
    Finish,
    Pause,
    Redrive,
    ReportFault,
    ReportProgress,
    Resume,
    Retry,
    TellAgain,
    WriteLog,
)
from dragoman.core.ids import AgentId, Instant
from dragoman.core.lookups import Lookup, TaskById
from dragoman.core.model.tasks import Task
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.messages.tasks import Ask, LogEntry
from dragoman.stores.memory import MemoryStore

EVE = AgentId("eve")
NOWHERE = "00000000-0000-4000-8000-000000000000"

Make = Callable[..., Command]

OF_A_TASK: dict[str, Make] = {
    "finish": lambda of: Finish(principal=EVE, task_id=of, digest="d"),
    "progress": lambda of: ReportProgress(principal=EVE, task_id=of, percent=1),
    "fault": lambda of: ReportFault(principal=EVE, task_id=of, fault=Fault(kind=Kind.TIMEOUT, message="no")),
    "log": lambda of: WriteLog(principal=EVE, task_id=of, lines=(LogEntry(at=Instant(0), level="info", message="x"),)),
    "cancel": lambda of: Cancel(principal=EVE, task_id=of),
    "pause": lambda of: Pause(principal=EVE, task_id=of),
    "resume": lambda of: Resume(principal=EVE, task_id=of),
    "retry": lambda of: Retry(principal=EVE, task_id=of),
    "claim": lambda of: Claim(principal=EVE, task_id=of),
    "ask": lambda of: AskPerson(principal=EVE, task_id=of, request_id="r", ask=Ask(question="?")),
}
OF_ANOTHER: dict[str, Make] = {
    "delivery": lambda of: Acknowledge(principal=EVE, deliveries=(of,)),
    "question": lambda of: Answer(principal=EVE, question=of, answer="yes"),
    "redrive": lambda of: Redrive(principal=EVE, dead_letter=of),
    "discard": lambda of: Discard(principal=EVE, dead_letter=of),
    "request": lambda of: TellAgain(principal=EVE, request_id=of),
}


class Counting(MemoryStore):
    """Keeps the kinds of what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[type[Lookup[Any]]] = []

    def _answer(self, lookup: Lookup[Any]) -> list[Any]:
        self.asked.append(type(lookup))
        return super()._answer(lookup)


@pytest.fixture
async def world():
    world = await World(Counting()).start()
    for id, kind in (("boss", "orchestrator"), ("i1", "infra"), ("eve", "code")):
        await world.add(id, kind)
    yield world
    await world.intake.stop()


async def seen_of(world: World, command: Command) -> tuple[Any, ...]:
    """All that its principal, and whoever measures, can see of a command."""
    world.store.asked.clear()
    try:
        outcome = await world.ask(command)
    except Refused as refused:
        hidden = {"task_id", "dead_letter"}  # what eve said herself
        facts = {name: value for name, value in refused.fault.facts.items() if name not in hidden}
        outcome = msgspec.structs.replace(refused.fault, facts=facts)
    newest = max(world.store._audit, default=0)
    record = world.store._audit.get(newest)
    return outcome, tuple(world.store.asked), record and (record.action, record.outcome, record.reason)


async def held_task(world: World) -> Task:
    """One that another agent has, and whose caller is somebody else."""
    await world.connect("i1")
    return await world.submit()


@pytest.mark.parametrize("name", OF_A_TASK)
async def test_a_task_of_others_is_one_that_is_not_there(world: World, name: str) -> None:
    make, theirs = OF_A_TASK[name], await held_task(world)
    seen = await seen_of(world, make(theirs.id))
    assert TaskById in seen[1]
    assert seen == await seen_of(world, make(NOWHERE))


@pytest.mark.parametrize("name", OF_A_TASK)
async def test_a_finished_task_of_others_is_one_that_is_not_there(world: World, name: str) -> None:
    make, theirs = OF_A_TASK[name], await held_task(world)
    await world.finish("i1", theirs.id)
    assert await seen_of(world, make(theirs.id)) == await seen_of(world, make(NOWHERE))


@pytest.mark.parametrize("name", ["dependencies", "parent"])
async def test_what_is_asked_for_cannot_hang_on_a_task_of_others(world: World, name: str) -> None:
    """It would tell whether there is one, and how it ended."""
    theirs = await held_task(world)
    seen = []
    for id in (theirs.id, NOWHERE):
        wish = {"dependencies": (id,), "own_dependencies": True} if name == "dependencies" else {name: id}
        outcome, asked, record = await seen_of(world, world.request(principal=EVE, **wish))
        assert outcome.kind is Kind.NOT_FOUND
        seen.append((str(outcome).replace(id, "ID"), asked, str(record).replace(id, "ID")))
    assert seen[0] == seen[1]


async def test_deliveries_questions_results_and_dead_letters_of_others_are_not_there(world: World) -> None:
    boss = await world.connect("boss", acknowledges=True)
    done, asks, lost = [await held_task(world)] + [await world.submit() for _ in range(2)]
    await world.finish("i1", done.id)
    question = await world.ask(
        AskPerson(principal=AgentId("i1"), task_id=asks.id, request_id="q", ask=Ask(question="May I?"))
    )
    for _ in range(4):
        await world.fault("i1", lost.id, Kind.TIMEOUT)
        await world.advance(5)
    (letter,) = await world.store.dead_letters()
    theirs = {
        "delivery": boss.inbox[0].delivery.id,
        "question": question.id,
        "redrive": letter.id,
        "discard": letter.id,
        "request": done.origin.request_id,
    }
    for name, id in theirs.items():
        assert await seen_of(world, OF_ANOTHER[name](id)) == await seen_of(world, OF_ANOTHER[name](NOWHERE)), name
    assert await world.store.dead_letters() == [letter]
