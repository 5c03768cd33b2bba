"""Agents that talk with each other, under a simulated clock, network and disk: same seed, same trace.

They write direct messages in lanes, ask for help, hand tasks over; they forget to acknowledge, vanish, come back by
another endpoint; some of them speak another protocol, and help by doing a task. Tasks depend on others, are parts of
others, and must be done in time; people cancel, pause and retry them, and remove agents and add others under their
names. The hub is killed, its disk fails. What they saw is written down outside of the hub, and held against its
promises: at most once is never twice, at least once is never lost, no lane is inverted, a task has one owner and one
end, its history has no gap, and in the end everybody is done.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from tests.faults.simulation import Violation, given_while_paused
from tests.support.world import World

from dragoman.core.commands import (
    Acknowledge,
    Answer,
    AnswerHandover,
    AskHelp,
    Cancel,
    CloseLink,
    Finish,
    GiveHelp,
    Handing,
    HandOver,
    HelpVerdict,
    OpenLink,
    Pause,
    RemoveAgent,
    ReportStatus,
    Resume,
    Retry,
    Tell,
)
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, SessionId, TaskId
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Priority, QuestionStatus, Task, Waiting
from dragoman.core.ports import StoreFailed, TaskFilter
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.stores.memory import MemoryStore
from dragoman.wire.closing import CloseReason

WEIGHTS = (20, 3, 26, 7, 4, 1, 1, 1, 2, 1)
"""How often, among each other: write, submit, act, connection, time, crash, break the disk, answer, govern, replace."""


ENDS = (EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED)


class Witness:
    """What was promised and what was seen, outside of the hub."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, str, int]] = {}  # message id → receiver, lane, number: accepted, to arrive
        self.once: set[str] = set()
        self.seen: dict[str, int] = defaultdict(int)
        self.arrived: set[str] = set()  # of these, whatever was not lost on its way
        self.lanes: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.finished: dict[TaskId, set[str]] = defaultdict(set)
        self.broken: str | None = None

    def saw(self, receiver: str, outgoing: Outgoing) -> None:
        """Called from inside the hub's loop: what is wrong is said at the next step."""
        letter = outgoing.content
        said = msgspec.json.decode(letter.raw)
        if "lane" not in said:
            return
        self.seen[letter.message_id] += 1
        if letter.message_id in self.once and self.seen[letter.message_id] > 1:
            self.broken = f"{letter.message_id} was promised at most once, and came twice"
        line = self.lanes[receiver, said["lane"]]
        if said["n"] not in line:
            if line and said["n"] < max(line):
                self.broken = f"inversion in lane {said['lane']} of {receiver}: {said['n']} after {line}"
            line.append(said["n"])


class Talker:
    protocol = "agentmsg"

    def __init__(self, talk: Conversation, id: str) -> None:
        self.talk = talk
        self.id = AgentId(id)
        self.session: SessionId | None = None
        self.tray: list[Outgoing] = []
        self.mine: dict[TaskId, None] = {}
        self.handing: set[TaskId] = set()

    def deliver(self, outgoing_messages: list[Outgoing]) -> None:
        lossy = self.talk.lossy and self.talk.rng.random() < 0.15
        for outgoing in outgoing_messages:
            if outgoing.delivery.kind is MessageKind.DIRECT_MESSAGE:
                self.talk.witness.saw(self.id, outgoing)
            elif given_while_paused(outgoing):
                self.talk.witness.broken = f"{outgoing.delivery.task} was given to {self.id} while it was paused"
            if not lossy:
                self.tray.append(outgoing)
                if outgoing.delivery.kind is MessageKind.DIRECT_MESSAGE:
                    self.talk.witness.arrived.add(outgoing.direct_message.message_id)

    def hang_up(self, reason: CloseReason) -> None:
        self.session = None

    async def connect(self, *, polls: bool) -> None:
        world, session = self.talk.world, SessionId(self.talk.world.mint())
        world.intake.attach(session, self)
        opened = OpenLink(principal=self.id, session=session, ordered=not polls, credit=4, acknowledges=True)
        if await self.talk.try_ask(opened) is not None and not polls:
            self.session = session
        if polls:
            await self.talk.try_ask(CloseLink(principal=self.id, session=session, lost=False))
            world.intake.detach(session)

    async def disconnect(self) -> None:
        if self.session is not None:
            session, self.session = self.session, None
            self.talk.world.intake.detach(session)
            await self.talk.try_ask(CloseLink(principal=self.id, session=session))

    async def act(self, *, healthy: bool) -> None:
        rng = self.talk.rng
        if self.tray:
            outgoing = self.tray.pop(0)
            if healthy or rng.random() < 0.85:
                await self.hear(outgoing)
        elif self.mine:
            await self.work(rng.choice(list(self.mine)), healthy=healthy)

    async def hear(self, outgoing: Outgoing) -> None:
        ask, delivery = self.talk.try_ask, outgoing.delivery
        ack = Acknowledge(principal=self.id, deliveries=(delivery.id,), session=self.session)
        if delivery.kind in (MessageKind.WORK, MessageKind.HANDOFF):
            self.mine[delivery.task] = None
        elif delivery.kind is MessageKind.CANCEL:
            self.mine.pop(delivery.task, None)
        elif delivery.kind is MessageKind.ANSWER and outgoing.about_task is not None:
            self.handing.discard(outgoing.task.id)
        elif delivery.kind is MessageKind.DIRECT_MESSAGE:
            await self.reply(outgoing)
        await ask(ack)

    async def reply(self, outgoing: Outgoing) -> None:
        world, rng, letter = self.talk.world, self.talk.rng, outgoing.content
        if letter.kind == "HELP_REQUEST":
            verdict = rng.choice(list(HelpVerdict))
            words = world.direct_message(self.id, "help", kind="HELP_RESPONSE")
            await self.talk.try_ask(
                GiveHelp(principal=self.id, request_id=letter.message_id, direct_message=words, verdict=verdict)
            )
        elif letter.kind == "TASK_HANDOFF" and letter.asks is not None:
            words = world.direct_message(self.id, "answer", kind="TASK_HANDOFF")
            answer = AnswerHandover(
                principal=self.id, request_id=letter.message_id, direct_message=words, accepted=rng.random() < 0.6
            )
            await self.talk.try_ask(answer)

    async def work(self, task: TaskId, *, healthy: bool) -> None:
        world, rng, ask = self.talk.world, self.talk.rng, self.talk.try_ask
        dice = 0.0 if healthy else rng.random()
        if dice < 0.5:
            done = await ask(Finish(principal=self.id, task_id=task, digest=f"{self.id}/{task}"))
            if done is not None:
                self.talk.witness.finished[task].add(self.id)
            self.mine.pop(task, None)
        elif dice < 0.75:
            to = rng.choice([None, *(t.id for t in self.talk.talkers if t is not self)])
            letter = world.direct_message(self.id, "take it", kind="TASK_HANDOFF")
            deadline = Instant(world.time + rng.choice([2, 20]) * SECOND)
            reason = rng.choice(list(Handing))
            wish = HandOver(
                principal=self.id, task_id=task, direct_message=letter, reason=reason, deadline=deadline, to=to
            )
            if await ask(wish) is not None and rng.random() < 0.5:
                self.mine.pop(task, None)  # it counts on somebody else
        elif dice < 0.9:
            letter = world.direct_message(self.id, "help!", kind="HELP_REQUEST")
            await ask(AskHelp(principal=self.id, direct_message=letter, question="how?", topic="review", task_id=task))
        else:
            self.mine.pop(task, None)  # it forgets: only the clocks can save it


class Child(Talker):
    """One that has no word for direct messages: it does tasks, asks for help and hands over. Its connection vouches for
    it, and when that ends its head is empty."""

    protocol = "forge"

    async def connect(self, *, polls: bool) -> None:
        world, session = self.talk.world, SessionId(self.talk.world.mint())
        self.tray, self.mine = [], {}
        world.intake.attach(session, self)
        opened = OpenLink(principal=self.id, session=session, ordered=True, fresh=True, vouches=True)
        if await self.talk.try_ask(opened) is not None:
            self.session = session

    async def disconnect(self) -> None:
        if self.session is not None:
            session, self.session = self.session, None
            self.talk.world.intake.detach(session)
            gone = Fault(kind=Kind.UNAVAILABLE, message="its process ended", retryable=True)
            await self.talk.try_ask(CloseLink(principal=self.id, session=session, fault=gone))


class Conversation:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(MemoryStore(immediate=bool(seed % 2)), seed=seed)
        self.witness = Witness()
        self.writers = [Talker(self, f"t{n}") for n in range(3)]
        self.talkers = [*self.writers, *(Child(self, f"c{n}") for n in range(2))]
        self.tasks: list[TaskId] = []
        self.lanes = [TaskId(self.world.uuid()) for _ in range(3)]
        self.count = 0
        self.passed: list[Tell] = []
        self.lossy = True

    async def try_ask(self, command: object) -> object | None:
        if self.witness.broken:
            raise Violation(self.witness.broken)
        try:
            return await asyncio.ensure_future(self.world.ask(command)) or True
        except (Refused, asyncio.CancelledError):
            return None

    async def run(self, steps: int, script: Sequence[int] | None = None) -> None:
        await self.world.start()
        await self.world.add("boss", "orchestrator", work_types=())
        for talker in self.talkers:
            await self.admit(talker)
        doings = [
            self.write, self.submit, self.act, self.link, self.time, self.crash, self.break_disk, self.answer,
            self.govern, self.replace,
        ]  # fmt: skip
        for doing in self.rng.choices(doings, WEIGHTS, k=steps) if script is None else map(doings.__getitem__, script):
            await doing()
        await self.heal()
        await self.judge()
        await self.world.intake.stop()

    async def write(self) -> None:
        """A direct message; where the hub died over it, its sender says it again before it says anything else."""
        sender, receiver = self.rng.sample(self.writers, 2)
        lane = self.rng.choice([None, *self.lanes])
        once = self.rng.random() < 0.4
        self.count += 1
        said = {"lane": lane or f"own {self.count}", "n": self.count}
        letter = self.world.direct_message(
            sender.id,
            f"{self.count}",
            raw=msgspec.Raw(msgspec.json.encode(said)),
            once=once,
            expires_at=None if self.rng.random() < 0.9 else Instant(self.world.time + 5 * SECOND),
        )
        if once:
            self.witness.once.add(letter.message_id)
        priority = self.rng.choice(list(Priority))
        told = Tell(principal=sender.id, to=receiver.id, direct_message=letter, lane=lane, priority=priority)
        for _ in range(5):
            if await self.try_ask(told) is not None:
                if once:
                    self.passed.append(told)
                else:
                    self.witness.kept[letter.message_id] = (receiver.id, said["lane"], self.count)
                break
        if self.rng.random() < 0.2:
            await self.try_ask(told)

    async def admit(self, talker: Talker) -> None:
        how = {"protocol": talker.protocol, "capabilities": ("review",), "concurrent": self.rng.choice([1, 4])}
        await self.world.add(talker.id, "talker", **how)

    async def submit(self) -> None:
        rng, more = self.rng, {}
        if rng.random() < 0.2:
            more = {"deadline": Instant(self.world.time + rng.choice([5, 60]) * SECOND), "firm": True}
        if self.tasks and rng.random() < 0.3:
            more["dependencies"] = tuple({rng.choice(self.tasks) for _ in range(2)})
        if self.tasks and rng.random() < 0.3:
            more["parent"] = rng.choice(self.tasks)
        request = self.world.request("talker", principal="boss", follows=True, **more)
        for _ in range(3):
            if await self.try_ask(request) is not None:
                self.tasks.append(request.task_id)
                return

    async def govern(self) -> None:
        """A person does something to a task."""
        if self.tasks:
            task, how = self.rng.choice(self.tasks), self.rng.choice([Cancel, Pause, Resume, Retry])
            await self.try_ask(how(principal=ADMIN, task_id=task))

    async def replace(self) -> None:
        """An agent is removed, and another has its name, at once or a little later."""
        talker = self.rng.choice(self.talkers)
        await talker.disconnect()
        talker.tray, talker.mine = [], {}
        if await self.try_ask(RemoveAgent(principal=ADMIN, agent=talker.id)) is None:
            return
        await self.world.advance(self.rng.choice([0.001, 5]))
        await self.admit(talker)

    async def act(self) -> None:
        await self.rng.choice(self.talkers).act(healthy=False)

    async def link(self) -> None:
        talker = self.rng.choice(self.talkers)
        if talker.session is not None and self.rng.random() < 0.5:
            await talker.disconnect()
        else:
            await talker.connect(polls=self.rng.random() < 0.4)

    async def time(self) -> None:
        await self.world.advance(self.rng.choice([0.3, 1, 4, 12, 40]))

    async def answer(self) -> None:
        for question in await self.world.store.questions(status=QuestionStatus.OPEN):
            await self.try_ask(Answer(principal=ADMIN, question=question.id, answer="yes"))

    async def crash(self) -> None:
        """The hub is killed, or stopped: then it lets go of everybody first."""
        if self.rng.random() < 0.3:
            self.world.intake.part()
            for talker in self.talkers:
                await talker.disconnect()
        await self.kill()

    async def kill(self) -> None:
        for talker in self.talkers:
            talker.session = None
            if self.rng.random() < 0.3:
                talker.tray.clear()
                talker.mine.clear()
        await self.world.restart()
        for told in self.passed[-3:]:  # whose senders did not hear that they were taken
            await self.try_ask(told)

    async def break_disk(self) -> None:
        """A commit of unknown outcome: the node starts from what the store says."""
        self.world.store.fail_next_commit(StoreFailed("injected"), after=self.rng.random() < 0.5)
        await self.try_ask(self.world.request("talker", principal="boss", follows=True))
        await self.kill()

    async def heal(self) -> None:
        self.lossy = False
        for talker in self.talkers:
            talker.tray.clear()
            talker.mine.clear()
            await talker.disconnect()
        for _ in range(80):
            for talker in self.talkers:
                if talker.session is None:
                    await talker.connect(polls=False)
                told = ReportStatus(principal=talker.id, status={"state": "IDLE"}, current_tasks=tuple(talker.mine))
                await self.try_ask(told)
                while talker.tray or talker.mine:
                    await talker.act(healthy=True)
            await self.answer()
            for task in self.world.store.rows(Task):
                if task.waiting is Waiting.HELD:
                    await self.try_ask(Resume(principal=ADMIN, task_id=task.id))
            await self.world.advance(7)
            if not await self.pending():
                return
        raise Violation(f"still pending after everything healed: {await self.pending()}")

    async def pending(self) -> list[str]:
        rows, _ = await self.world.store.tasks(TaskFilter(), after=None, limit=10_000)
        tasks = [f"task {t.id} {t.status} {t.waiting} {t.owner}" for t in rows if not t.final]
        return tasks + [f"delivery {d.kind} {d.state} to {d.receiver}" for d in await self.world.store.deliveries()]

    async def judge(self) -> None:
        if self.witness.broken:
            raise Violation(self.witness.broken)
        dead = {
            letter.direct_message.message_id
            for letter in await self.world.store.dead_letters(limit=10_000)
            if letter.direct_message
        }
        expired = {
            r.subject for r in await self.world.store.audit(after=0, limit=100_000) if r.action == "letter.expire"
        }
        for id, (receiver, lane, number) in self.witness.kept.items():
            if id not in self.witness.arrived and id not in dead and id not in expired:
                raise Violation(f"letter {number} in lane {lane} to {receiver} was accepted and never arrived")
        for task, by in self.witness.finished.items():
            if len(by) > 1:
                raise Violation(f"{task} was finished by {sorted(by)}")
        histories: dict[TaskId, list[Event]] = defaultdict(list)
        for event in self.world.store.rows(Event):
            histories[event.task].append(event)
        for task in self.world.store.rows(Task):
            history = sorted(histories[task.id], key=lambda event: event.seq)
            if [event.seq for event in history] != list(range(1, task.seq + 1)):
                raise Violation(f"the history of {task.id} has gaps: {[event.seq for event in history]}")
            kinds = [event.kind for event in history]
            *earlier, last = rounds(kinds)
            if sum(map(last.count, ENDS)) != 1 or not all(map(ended_or_taken, earlier)):
                raise Violation(f"{task.id} did not end once: {kinds}")
            if len(task.lineage.handed) > 8:
                raise Violation(f"{task.id} went through {len(task.lineage.handed)} hands")


def rounds(history: Sequence[EventKind]) -> list[list[EventKind]]:
    """What happened to a task, from one retry by a person to the next."""
    found: list[list[EventKind]] = [[]]
    for kind in history:
        if kind is EventKind.RETRIED:
            found.append([])
        else:
            found[-1].append(kind)
    return found


def ended_or_taken(history: Sequence[EventKind]) -> bool:
    """Whether a task had ended once when a person retried it, or was taken from its agent then."""
    ends = sum(map(history.count, ENDS))
    return ends == 1 or (ends == 0 and history[-1] is EventKind.ATTEMPT_FAILED)


def converse(seed: int, steps: int = 90, script: Sequence[int] | None = None) -> Conversation:
    """`script` says what is done, by its place among WEIGHTS, where the seed is not to."""
    conversation = Conversation(seed)
    asyncio.run(asyncio.wait_for(conversation.run(steps, script), 60))
    return conversation
