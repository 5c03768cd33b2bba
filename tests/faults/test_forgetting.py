"""Forgetting under crashes, lost messages and failing disks: what is gone was over and told, and is gone whole."""

from __future__ import annotations

from tests.faults.simulation import Simulation, Violation
from tests.support.world import World

from dragoman.core.commands import Forget
from dragoman.core.delivery.model import DeadLetter, Delivery
from dragoman.core.ids import MINUTE
from dragoman.core.rules import Rules
from dragoman.core.tasks.model import Event, Question, Task
from dragoman.stores.memory import MemoryStore


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


async def test_what_is_forgotten_was_over_and_told_and_leaves_nothing() -> None:
    gone = 0
    for seed in range(40):
        simulation = Forgetful(seed)
        await simulation.run()
        gone += simulation.gone
    assert gone > 100
