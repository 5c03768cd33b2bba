"""The simulations of one hub, over two nodes that lead in turn: seeds that fail are printed. `make soak` runs many."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.faults.conversation import Conversation
from tests.faults.epochs import Cluster, Fault, Server, Session
from tests.faults.simulation import Simulation, trace
from tests.faults.test_simulation import promised

from dragoman.app.intake import Intake
from dragoman.core.commands import Submit
from dragoman.core.model.tasks import Task
from dragoman.core.ports import Changes
from dragoman.stores.postgres.sessions import OutcomeUnknown
from dragoman.stores.postgres.store import PostgresStore

SEEDS = int(os.environ.get("SEEDS", "20000"))
BLOCKS = 20
FAILING = (6, 2, 12, 4, 3, 2, 6, 1, 1)
"""`simulation.WEIGHTS`, with more faults of a commit."""


class OverTwoNodes(Simulation):
    def __init__(self, seed: int, faults: Sequence[Fault] = tuple(Fault)) -> None:
        super().__init__(seed)
        self.world: Cluster = Cluster(self.world.rules, seed, faults, self.late_answer)

    def late_answer(self, command: Any, answer: Any) -> None:
        """A node slept over a request and woke up: what it says counts."""
        if isinstance(command, Submit) and isinstance(answer, Task):
            self.ledger.acked.setdefault(answer.id, command.request_id)

    async def judge(self) -> None:
        await self.world.judge()
        await super().judge()


class TalkOverTwoNodes(Conversation):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world: Cluster = Cluster(self.world.rules, seed)

    async def judge(self) -> None:
        await self.world.judge()
        await super().judge()


def simulate(seed: int, faults: Sequence[Fault] = tuple(Fault), weights: Sequence[int] = FAILING) -> OverTwoNodes:
    async def run() -> OverTwoNodes:
        simulation = OverTwoNodes(seed, faults)
        await asyncio.wait_for(simulation.run(60, weights), 60)
        return simulation

    return asyncio.run(run())


def converse(seed: int) -> TalkOverTwoNodes:
    async def run() -> TalkOverTwoNodes:
        talk = TalkOverTwoNodes(seed)
        await asyncio.wait_for(talk.run(90), 60)
        return talk

    return asyncio.run(run())


def hold(seeds: range) -> list[Cluster]:
    worlds = []
    for seed in seeds:
        try:
            worlds.append(simulate(seed).world)
            if seed % 3 == 0:
                worlds.append(converse(seed).world)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    return worlds


def test_nothing_acknowledged_is_lost_whichever_of_two_nodes_leads():
    worlds = hold(range(21))
    met = Counter(fault for world in worlds for fault in world.server.met)
    assert set(met) == set(Fault), f"every fault is met in a few seeds: {met}"
    assert sum(world.server.promotions for world in worlds) >= 3


def test_the_same_seed_gives_the_same_trace_over_two_nodes():
    one, other = simulate(7), simulate(7)
    assert trace(one) == trace(other)
    assert one.world.server.state == other.world.server.state


@pytest.mark.soak
@pytest.mark.parametrize("block", range(BLOCKS))
def test_twenty_thousand_seeds_over_two_nodes(block):
    hold(range(block, SEEDS, BLOCKS))


def caught(faults: Sequence[Fault] = tuple(Fault), seeds: int = 60, run: Any = None) -> str | None:
    """What the checker says, if it notices."""
    for seed in range(seeds):
        try:
            run(seed) if run is not None else simulate(seed, faults)
        except AssertionError as error:
            return f"seed {seed}: {error}"
    return None


def test_a_store_that_does_not_check_the_epoch_is_caught(monkeypatch):
    monkeypatch.setattr(Server, "fits", lambda server, epoch: True)
    assert caught((Fault.PAUSED_BEFORE, Fault.LATE)) is not None


def test_a_node_that_acknowledges_before_it_commits_is_caught(monkeypatch):
    honest = Intake._unit

    async def hasty(self: Intake, batch: Any) -> None:
        told = []
        for command, then in batch:
            if isinstance(command, Submit) and then is not None:
                then(promised(command), None)
                then = None
            told.append((command, then))
        await honest(self, told)

    monkeypatch.setattr(Intake, "_unit", hasty)
    assert "is gone" in (caught() or "")


def test_a_node_that_believes_what_it_reads_before_its_next_epoch_is_caught(monkeypatch):
    async def believing(store: PostgresStore, unit: int) -> bool:
        """Read the lease, and take no epoch."""
        return store._writer.server.state.last_unit == unit

    monkeypatch.setattr(PostgresStore, "_was_committed", believing)
    assert caught((Fault.NOT_REPLICATED,)) is not None


def test_a_commit_of_two_statements_is_caught(monkeypatch):
    async def in_two(server: Server, epoch: int, unit: int, instant: Any, changes: Any) -> bool:
        """First the lease and the tasks, then all the rest."""
        if not server.fits(epoch):
            return False
        tasks, others = (tuple(row for row in changes.added if (type(row) is Task) is new) for new in (True, False))
        await server.rows._apply(Changes(added=tasks))
        server.touch(epoch, unit, instant, changes)
        if server.met and server.rng.random() < 0.1:
            raise OutcomeUnknown("the connection was lost")  # as it may be anywhere
        await server.rows._apply(msgspec.structs.replace(changes, added=others))
        return True

    monkeypatch.setattr(Server, "commit", in_two)
    assert caught() is not None


def test_a_message_that_leaves_at_most_once_before_the_replica_has_its_note_is_caught(monkeypatch):
    """As the store did it at first: where the primary dies, its sender repeats it, and it leaves twice."""
    honest = Session.note

    async def hasty(session: Session, given: Sequence[Any]) -> bool:
        session.server.wait_for_replica()
        session.server.fall_behind()
        return await honest_write(session, given)

    async def honest_write(session: Session, given: Sequence[Any]) -> bool:
        behind, session.server.behind = session.server.behind, None
        try:
            return await honest(session, given)
        finally:
            session.server.behind = behind

    monkeypatch.setattr(Session, "note", hasty)
    assert "promised at most once, and came twice" in (caught(run=converse) or "")
