"""A whole fleet under a simulated clock, network and disk: same seed, same trace.

Agents (some on connections, some polling) and an orchestrator do random things; connections break, replies get lost,
the hub is killed and restarted, commits fail with and without having happened. A ledger outside of the hub writes
down what was acknowledged, delivered and done. Then everything heals, and `judge` holds the ledger against the
store. Nothing in here looks inside the hub.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from tests.support.world import World

from dragoman.core.commands import (
    Acknowledge,
    Answer,
    AskPerson,
    Cancel,
    CloseLink,
    Finish,
    OpenLink,
    Pause,
    Reply,
    ReportFault,
    ReportProgress,
    Resume,
    Submit,
)
from dragoman.core.ids import ADMIN, SECOND, AgentId, SessionId, TaskId
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, QuestionStatus, Status, Task, Waiting
from dragoman.core.ports import StoreFailed, TaskFilter
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.messages.tasks import Ask
from dragoman.stores.memory import MemoryStore
from dragoman.wire.closing import CloseReason

BOSS = AgentId("boss")

WEIGHTS = (6, 2, 12, 4, 4, 1, 1, 1, 1)
"""How often, among each other: submit, repeat, work, connection, time, crash, break the disk, steer, answer."""

BUSY_LANES = (2, 0, 24, 8, 1, 0, 0, 0, 0)
"""Few tasks with much to tell, over connections that come and go."""


class Violation(AssertionError):
    """The hub broke a promise."""


def given_while_paused(outgoing: Outgoing) -> bool:
    return outgoing.delivery.kind is MessageKind.WORK and outgoing.task.waiting is Waiting.HELD


class Ledger:
    def __init__(self) -> None:
        self.acked: dict[TaskId, str] = {}
        self.received: dict[TaskId, list[int]] = defaultdict(
            list
        )  # event numbers, in the order the boss first saw them
        self.outcomes: dict[TaskId, set[str]] = defaultdict(set)
        self.settled: set[str] = set()  # deliveries whose acknowledgment was confirmed
        self.answers: dict[str, int] = {}  # question → what the person said, and was told to have counted
        self.broken: str | None = None

    def left(self, outgoing: Outgoing, store: MemoryStore) -> None:
        """Nothing leaves before what caused it is committed: the store has the event that an outgoing message tells of.
        And nobody is given work that was paused."""
        delivery = outgoing.delivery
        if given_while_paused(outgoing):
            self.broken = f"{delivery.task} was given to {delivery.receiver} while it was paused"
        if delivery.event and (delivery.task, delivery.event) not in store._tables[Event]:
            self.broken = f"{delivery.kind} of {delivery.task} left before it was committed"

    def boss_got(self, outgoing: Outgoing) -> None:
        """Called from inside the hub's loop, so what is wrong is written down, and said at the next step."""
        delivery = outgoing.delivery
        if delivery.id in self.settled:
            self.broken = f"{delivery.id} came again after its acknowledgment was confirmed"
        seen = self.received[delivery.task]
        if delivery.event not in seen:
            if seen and delivery.event < max(seen):
                self.broken = f"inversion in the lane of {delivery.task}: {delivery.event} after {seen}"
            seen.append(delivery.event)
        if delivery.kind in (MessageKind.RESULT, MessageKind.FAILURE):
            self.outcomes[delivery.task].add(outgoing.content.kind.value)


class Actor:
    """An agent of the simulated fleet; its connection is the far end."""

    def __init__(self, simulation: Simulation, id: str, *, polls: bool) -> None:
        self.simulation = simulation
        self.id = AgentId(id)
        self.polls = polls
        self.session: SessionId | None = None
        self.tray: list[Outgoing] = []
        self.done: dict[str, str] = {}  # request id → digest of the result: the agent's own memory

    def deliver(self, outgoing_messages: list[Outgoing]) -> None:
        for outgoing in outgoing_messages:
            self.simulation.ledger.left(outgoing, self.simulation.world.store)
        if self.polls and self.simulation.lossy and self.simulation.rng.random() < 0.4:
            return  # the answer to the poll got lost
        for outgoing in outgoing_messages:
            if self.id == BOSS:
                self.simulation.ledger.boss_got(outgoing)
            self.tray.append(outgoing)

    def hang_up(self, reason: CloseReason) -> None:
        self.session = None

    async def connect(self) -> None:
        world = self.simulation.world
        if self.session is None and self.simulation.rng.random() < 0.3:
            self.polls = not self.polls  # the same agent comes back by another endpoint
        session = SessionId(world.mint())
        world.intake.attach(session, self)
        command = OpenLink(
            principal=self.id, session=session, ordered=not self.polls, credit=5, acknowledges=self.id == BOSS
        )
        if await self.simulation.try_ask(command) is not None and not self.polls:
            self.session = session
        if self.polls:
            await self.simulation.try_ask(CloseLink(principal=self.id, session=session, lost=False))
            world.intake.detach(session)

    async def disconnect(self) -> None:
        if self.session is not None:
            session, self.session = self.session, None
            self.simulation.world.intake.detach(session)
            await self.simulation.try_ask(CloseLink(principal=self.id, session=session))

    async def act(self, rng: random.Random, *, healthy: bool) -> None:
        if not self.tray:
            return
        outgoing = self.tray.pop(0)
        delivery = outgoing.delivery
        simulation = self.simulation
        if self.id == BOSS:
            if healthy or rng.random() < 0.7:
                ack = Acknowledge(principal=self.id, deliveries=(delivery.id,), session=self.session)
                if await simulation.try_ask(ack):
                    simulation.ledger.settled.add(delivery.id)
            return
        if delivery.kind is not MessageKind.WORK:
            await simulation.try_ask(Acknowledge(principal=self.id, deliveries=(delivery.id,), session=self.session))
            return
        request, task = outgoing.task.request_id, delivery.task
        dice = 1.0 if healthy else rng.random()
        if request in self.done or dice > 0.45:
            digest = self.done.setdefault(request, f"{self.id}/{request}")
            await simulation.try_ask(Finish(principal=self.id, task_id=task, digest=digest))
        elif dice > 0.25:
            await simulation.try_ask(
                ReportProgress(principal=self.id, task_id=task, percent=1, message_id=simulation.world.uuid())
            )
            self.tray.append(outgoing)
        elif dice > 0.15:
            kind = rng.choice([Kind.RESOURCES, Kind.UNAVAILABLE, Kind.UNSUPPORTED_WORK])
            await simulation.try_ask(ReportFault(principal=self.id, task_id=task, fault=Fault(kind=kind, message="no")))
        # else: it forgets the work: only the clocks can save it


class Waiter:
    """A request of the boss that waits for its own answer, which may get lost on its way to it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.session = SessionId(simulation.world.mint())
        simulation.world.intake.attach(self.session, self)

    def deliver(self, outgoing_messages: list[Outgoing]) -> None:
        self.simulation.waiters.remove(self)
        self.simulation.boss.deliver(outgoing_messages)

    def hang_up(self, reason: CloseReason) -> None: ...

    async def leave(self) -> None:
        self.simulation.world.intake.detach(self.session)
        await self.simulation.try_ask(CloseLink(principal=BOSS, session=self.session, lost=False))


class Gateway(Actor):
    """An agent on a stream or a pipe: its connection vouches for it, and when that ends its head is empty. It asks
    people in the course of its work, and stands still until it is told the answer."""

    def __init__(self, simulation: Simulation, id: str) -> None:
        super().__init__(simulation, id, polls=False)
        self.standing: dict[str, Outgoing] = {}

    async def connect(self) -> None:
        world = self.simulation.world
        session = SessionId(world.mint())
        self.tray, self.standing = [], {}
        world.intake.attach(session, self)
        command = OpenLink(
            principal=self.id, session=session, ordered=True, acknowledges=True, fresh=True, vouches=True
        )
        if await self.simulation.try_ask(command) is not None:
            self.session = session

    async def disconnect(self) -> None:
        if self.session is not None:
            session, self.session = self.session, None
            self.simulation.world.intake.detach(session)
            gone = Fault(kind=Kind.UNAVAILABLE, message="the stream ended", retryable=True)
            await self.simulation.try_ask(CloseLink(principal=self.id, session=session, fault=gone))

    async def act(self, rng: random.Random, *, healthy: bool) -> None:
        outgoing = self.tray[0] if self.tray else None
        if outgoing is None:
            return
        if outgoing.delivery.kind is MessageKind.ANSWER:
            self.tray.pop(0)
            await self.told(outgoing)
        elif outgoing.delivery.kind is MessageKind.WORK and rng.random() < (0.2 if healthy else 0.4):
            self.tray.pop(0)
            request = self.simulation.world.uuid()
            ask = AskPerson(
                principal=self.id, request_id=request, task_id=outgoing.delivery.task, ask=Ask(question="Go on?")
            )
            if await self.simulation.try_ask(ask) is not None:
                self.standing[request] = outgoing
        else:
            await super().act(rng, healthy=healthy)

    async def told(self, outgoing: Outgoing) -> None:
        """The answer it stood still for, or one to a question of an earlier life."""
        simulation, question = self.simulation, outgoing.question
        await simulation.try_ask(
            Acknowledge(principal=self.id, deliveries=(outgoing.delivery.id,), session=self.session)
        )
        said = simulation.ledger.answers.get(question.id)
        if said is not None and said != question.answer:
            raise Violation(f"{question.id} was answered {said}, and told as {question.answer}")
        work = self.standing.pop(question.request_id, None)
        if work is not None:
            digest = self.done.setdefault(work.task.request_id, f"{self.id}/{work.task.request_id}")
            await simulation.try_ask(Finish(principal=self.id, task_id=work.delivery.task, digest=digest))


class Simulation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rules = Rules() if seed % 4 == 0 else Rules(unreachable_delays=(0, 30 * SECOND, 30 * SECOND, 30 * SECOND))
        self.world = World(MemoryStore(immediate=bool(seed % 2)), rules, seed=seed)
        self.ledger = Ledger()
        self.boss = Actor(self, BOSS, polls=self.rng.random() < 0.4)
        self.agents = [Actor(self, f"i{n}", polls=self.rng.random() < 0.4) for n in range(3)]
        self.agents.append(Gateway(self, "g1"))
        self.requests: list[Submit] = []
        self.waiters: list[Waiter] = []
        self.lossy = True

    async def try_ask(self, command: object) -> object | None:
        """The answer, or None if it was refused or the hub died before it could say anything."""
        if self.ledger.broken:
            raise Violation(self.ledger.broken)
        future = asyncio.ensure_future(self.world.ask(command))
        try:
            return await future or True
        except (Refused, asyncio.CancelledError):
            return None

    async def run(self, steps: int = 60, weights: Sequence[int] = WEIGHTS) -> None:
        world, rng = self.world, self.rng
        await world.start()
        await world.add(BOSS, "orchestrator")
        for agent in self.agents:
            await world.add(agent.id, "infra", concurrent=rng.choice([1, 2, 8]))
        for _ in range(steps):
            await rng.choices(
                [
                    self.submit, self.repeat, self.work, self.link, self.time, self.crash, self.break_disk,
                    self.steer, self.answer,
                ],
                weights,
            )[0]()  # fmt: skip
            self.look()
        await self.heal()
        await self.judge()
        await world.intake.stop()

    def look(self) -> None:
        """No task is with an agent, or in a queue, without a time at which the hub looks at it again."""
        for task in self.world.store.rows(Task):
            if task.status in (Status.QUEUED, Status.ASSIGNED, Status.RUNNING) and task.wake_at is None:
                raise Violation(f"{task.id} is {task.status} and nothing would ever end that")

    async def submit(self) -> None:
        request = self.world.request(principal=BOSS)
        if self.rng.random() < 0.3:
            self.waiters.append(waiter := Waiter(self))
            request = msgspec.structs.replace(request, reply=Reply(awaited=waiter.session))
        self.requests.append(request)
        await self.send(request)

    async def repeat(self) -> None:
        if self.requests:
            await self.send(self.rng.choice(self.requests))

    async def send(self, request: Submit) -> None:
        answer = await self.try_ask(request)
        if isinstance(answer, Task):
            known = self.ledger.acked.setdefault(answer.id, request.request_id)
            if known != request.request_id:
                raise Violation("two requests got the same task")

    async def work(self) -> None:
        await self.rng.choice([self.boss, *self.agents]).act(self.rng, healthy=False)

    async def link(self) -> None:
        if self.waiters and self.rng.random() < 0.2:
            await self.waiters.pop(0).leave()
            return
        actor = self.rng.choice([self.boss, *self.agents])
        if actor.session is not None and self.rng.random() < 0.5:
            await actor.disconnect()
        else:
            await actor.connect()

    async def time(self) -> None:
        await self.world.advance(self.rng.choice([0.5, 3, 12, 35, 70]))

    async def steer(self) -> None:
        """Whoever asked for a task has second thoughts."""
        if self.ledger.acked:
            how, task = self.rng.choice([Cancel, Pause, Pause, Resume]), self.rng.choice(list(self.ledger.acked)[-3:])
            more = {"has_answer": True, "answer": 1} if how is Resume and self.rng.random() < 0.3 else {}
            await self.try_ask(how(principal=BOSS, task_id=task, **more))

    async def answer(self) -> None:
        """A person answers whatever is open, sometimes twice: only what was accepted counts."""
        for question in await self.world.store.questions(status=QuestionStatus.OPEN):
            for _ in range(self.rng.choice([1, 2])):
                said = self.rng.randrange(1000)
                done = await self.try_ask(Answer(principal=ADMIN, question=question.id, answer=said))
                if done is not None and self.ledger.answers.setdefault(question.id, said) != said:
                    raise Violation(f"{question.id} was answered twice")

    async def crash(self) -> None:
        """The hub goes away and comes back, one way or the other."""
        if self.rng.random() < 0.3:
            await self.stop()
        await self.kill()

    async def stop(self) -> None:
        """SIGTERM: it lets go of everybody, and hears some of them out."""
        self.world.intake.part()
        while self.waiters:
            await self.waiters.pop().leave()
        for actor in [self.boss, *self.agents]:
            if self.rng.random() < 0.5:
                await actor.act(self.rng, healthy=False)
            await actor.disconnect()

    async def kill(self) -> None:
        """kill -9: connections, intake and everything in memory are gone."""
        if self.rng.random() < 0.5:  # in the middle of a command, before or after its commit
            request = self.world.request(principal=BOSS)
            self.requests.append(request)
            future = asyncio.ensure_future(self.world.ask(request))
            for _ in range(self.rng.randrange(6)):
                await asyncio.sleep(0)
            future.cancel()
        for actor in [self.boss, *self.agents]:
            actor.session = None
            if self.rng.random() < 0.3:
                actor.tray.clear()
        self.waiters.clear()
        await self.world.restart()

    async def break_disk(self) -> None:
        self.world.store.fail_next_commit(StoreFailed("injected"), after=self.rng.random() < 0.5)
        await self.submit()
        await self.kill()  # after a commit of unknown outcome the node starts from what the store says

    async def heal(self) -> None:
        world = self.world
        self.lossy = False
        while self.waiters:
            await self.waiters.pop().leave()
        for actor in [self.boss, *self.agents]:
            actor.tray.clear()
            await actor.disconnect()  # whatever it forgot on a live connection, it hears again over the next one
        for _ in range(60):
            for actor in [self.boss, *self.agents]:
                if actor.session is None:
                    await actor.connect()
                while actor.tray:
                    await actor.act(self.rng, healthy=True)
            await self.answer()
            for task in world.store.rows(Task):
                if task.waiting is Waiting.HELD:
                    await self.try_ask(Resume(principal=BOSS, task_id=task.id))
            await world.advance(7)
            if not await self.pending():
                return
        raise Violation(f"still pending after everything healed: {await self.pending()}")

    async def pending(self) -> list[str]:
        rows, _ = await self.world.store.tasks(TaskFilter(), after=None, limit=10_000)
        open_tasks = [f"{t.id} {t.status}" for t in rows if not t.final]
        return open_tasks + [f"delivery {d.kind} {d.task}" for d in await self.world.store.deliveries()]

    async def judge(self) -> None:
        """acked ⊆ delivered ∪ dead-lettered; one effect per request; at most one outcome told."""
        if self.ledger.broken:
            raise Violation(self.ledger.broken)
        letters = {letter.task for letter in await self.world.store.dead_letters(limit=10_000)}
        for id in self.ledger.acked:
            task = await self.world.store.task(id)
            if task is None:
                raise Violation(f"acknowledged task {id} is gone")
            if not task.final:
                raise Violation(f"acknowledged task {id} is still {task.status}")
            if not self.ledger.outcomes[id] and id not in letters:
                raise Violation(f"nobody heard how {id} ended, and there is no dead letter")
            if len(self.ledger.outcomes[id]) > 1:
                raise Violation(f"{id} ended in two ways: {self.ledger.outcomes[id]}")
        ends = defaultdict(int)
        for event in self.world.store.rows(Event):
            if event.kind.value in ("completed", "failed", "cancelled"):
                ends[event.task] += 1
        doubled = [id for id, n in ends.items() if n > 1]
        if doubled:
            raise Violation(f"ended more than once: {doubled}")
        by_request = defaultdict(set)
        for task in self.world.store.rows(Task):
            by_request[task.origin.request_id].add(task.id)
        if any(len(ids) > 1 for ids in by_request.values()):
            raise Violation("one request id, two tasks")


def trace(simulation: Simulation) -> list[tuple[object, ...]]:
    """What happened, for comparing two runs."""
    events = sorted(simulation.world.store.rows(Event), key=lambda e: (e.task, e.seq))
    return [(e.task, e.seq, e.at, e.kind, e.agent, bytes(e.body)) for e in events]


def simulate(seed: int, steps: int = 60, weights: Sequence[int] = WEIGHTS) -> Simulation:
    simulation = Simulation(seed)
    asyncio.run(asyncio.wait_for(simulation.run(steps, weights), 60))
    return simulation


__all__ = ["SECOND", "Simulation", "Violation", "simulate", "trace"]
