"""Forgetting under crashes, lost messages and failing disks: what is gone was over and told, and is gone whole."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path

import pytest
from tests.faults.simulation import Simulation, Violation
from tests.support.world import World

from dragoman.app.background import remove_unused
from dragoman.core.commands import Forget
from dragoman.core.ids import MINUTE
from dragoman.core.model.deliveries import DeadLetter, Delivery
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.rules import Rules
from dragoman.stores.files import DirectoryFiles
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite.store import SqliteStore


class Forgetful(Simulation):
    """The same fleet on a hub that keeps finished tasks for a minute."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world = World(MemoryStore(immediate=bool(seed % 2)), Rules(keep_finished=MINUTE), seed=seed)
        self.gone = 0

    async def break_disk(self) -> None:
        """In the middle of forgetting, if there is anything to forget."""
        self.world.store.fail_next_commit(after=self.rng.random() < 0.5)
        await self.try_ask(Forget())
        await self.submit()
        await self.crash()

    async def judge(self) -> None:
        await self.world.advance(90)
        await self.world.ask(Forget())
        store = self.world.store
        there = {task.id for task in store.rows(Task)}
        for id in self.ledger.acked:
            if id in there:
                continue
            self.gone += 1
            if not self.ledger.outcomes[id]:
                raise Violation(f"{id} is gone, and nobody heard how it ended")
        hanging = [*store.rows(Event), *store.rows(Delivery), *store.rows(Question), *store.rows(DeadLetter)]
        if lost := [row for row in hanging if row.task is not None and row.task not in there]:
            raise Violation(f"left of a task that is gone: {lost}")
        self.ledger.acked = {id: request for id, request in self.ledger.acked.items() if id in there}
        await super().judge()


async def test_a_forgotten_task_was_over_and_delivered_and_leaves_nothing() -> None:
    gone = 0
    for seed in range(40):
        simulation = Forgetful(seed)
        await simulation.run()
        gone += simulation.gone
    assert gone > 100


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[World]:
    """The whole way on a disk."""
    world = World(SqliteStore(tmp_path / "hub.db"), Rules(keep_finished=MINUTE))
    await world.start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    await world.connect("i1")
    yield world
    await world.intake.stop()


async def test_a_file_goes_after_its_last_task_and_not_before(stored: World, tmp_path: Path) -> None:
    world = stored
    files = DirectoryFiles(tmp_path / "files", world.mint, now=lambda: world.time)
    files.prepare()
    ref, loose = [await files.keep(b"x", name="x", mime_type="") for _ in range(2)]
    world.time += MINUTE  # kept and never named: what a crash leaves
    tasks = []
    for _ in range(2):
        assert await files.describe(ref.id)  # as an endpoint does, before it hands the request in
        tasks.append(await world.submit(files=(ref,)))
        await world.finish("i1", tasks[-1].id)
        await world.ask_ack("boss", await world.poll("boss"))
        world.time += MINUTE
    assert await remove_unused(world.store, files, world.time) == 1
    assert (await files.fetch(ref.id), await files.fetch(loose.id)) == (b"x", None)
    for left in (1, 0):
        assert await world.ask(Forget()) == 1
        assert await remove_unused(world.store, files, world.time) == 1 - left
        world.time += MINUTE
    assert os.listdir(tmp_path / "files") == []
    assert [await world.store.task(task.id) for task in tasks] == [None, None]


async def test_a_file_that_is_named_while_it_is_looked_at_stays(tmp_path: Path) -> None:
    """The file is old and belongs to no task; then a client asks for it, to name it in one."""
    world = World()
    files = DirectoryFiles(tmp_path / "files", world.mint, now=lambda: world.time)
    files.prepare()
    ref = await files.keep(b"x", name="x", mime_type="")
    world.time += MINUTE

    class Late(MemoryStore):
        async def attached(self, files_: Sequence[str]) -> Collection[str]:
            await files.describe(ref.id)
            return ()

    assert await remove_unused(Late(), files, world.time) == 0
    assert await files.fetch(ref.id) == b"x"
    world.time += MINUTE
    assert await remove_unused(MemoryStore(), files, world.time) == 1
