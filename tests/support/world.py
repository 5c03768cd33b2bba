"""A hub in memory under a clock that only moves when told: real intake, real decisions, no socket, no sleep."""

from __future__ import annotations

import itertools
import random
import uuid
from typing import Any

import msgspec

from dragoman.app.intake import Intake
from dragoman.core.commands import (
    Acknowledge,
    AddAgent,
    CloseLink,
    Finish,
    OpenLink,
    RegisterAgent,
    ReportFault,
    ReportProgress,
    Submit,
    Tell,
)
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, SessionId, TaskId, uuid7
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import DirectMessage
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Task
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.messages.tasks import Request, read_progress, read_request, read_result
from dragoman.stores.memory import MemoryStore
from dragoman.wire.closing import CloseReason
from tests.support.submits import submit_of

START = Instant(1_800_000_000 * SECOND)


class Peer:
    """The far end of a connection: collects what it is sent."""

    def __init__(self, world: World, agent: AgentId, session: SessionId) -> None:
        self.world = world
        self.agent = agent
        self.session = session
        self.inbox: list[Outgoing] = []
        self.hung_up: str | None = None

    def deliver(self, outgoing_messages: Any) -> None:
        self.inbox.extend(outgoing_messages)

    def hang_up(self, reason: CloseReason) -> None:
        self.hung_up = reason

    def take(self) -> list[Outgoing]:
        taken, self.inbox = self.inbox, []
        return taken

    @property
    def work(self) -> list[TaskId]:
        return [p.delivery.task for p in self.inbox if p.delivery.kind == "work"]

    async def ack(self, *outgoing_messages: Outgoing) -> int:
        ids = tuple(p.delivery.id for p in outgoing_messages)
        return await self.world.ask(Acknowledge(principal=self.agent, deliveries=ids, session=self.session))

    async def close(self, *, lost: bool = True, fault: Fault | None = None) -> None:
        await self.world.ask(CloseLink(principal=self.agent, session=self.session, lost=lost, fault=fault))
        self.world.intake.detach(self.session)


class World:
    def __init__(self, store: MemoryStore | None = None, rules: Rules | None = None, seed: int = 1) -> None:
        self.store = store or MemoryStore()
        self.time = START
        self.rules = rules or Rules()
        self._random = random.Random(seed)
        self._count = itertools.count()
        self.intake = self._new_intake()

    def _new_intake(self) -> Intake:
        return Intake(self.store, rules=self.rules, now=lambda: self.time, mint=self.mint)

    def mint(self) -> str:
        count = next(self._count)
        return uuid7(Instant(self.time), ((count >> 62) & 0xFFF) | (count << 12))

    async def start(self) -> World:
        await self.intake.start()
        return self

    async def restart(self) -> None:
        """The hub dies and comes back: nothing but the store survives."""
        assert self.intake._loop is not None
        self.intake._loop.cancel()
        self.intake = self._new_intake()
        await self.intake.start()

    async def stop(self) -> None:
        await self.intake.stop()

    async def ask(self, command: Any) -> Any:
        return await self.intake.execute(command)

    async def refused(self, command: Any) -> Fault:
        try:
            await self.ask(command)
        except Refused as refusal:
            return refusal.fault
        raise AssertionError(f"{type(command).__name__} was not refused")

    async def settle(self) -> None:
        """Until the hub has nothing left to do at this instant."""
        for _ in range(1000):
            if not self.intake.depth and not await self.intake.wake_due():
                return
            await self.intake.execute(Acknowledge(principal=ADMIN, deliveries=()))
        raise AssertionError("the hub never comes to rest")

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking whatever is due on the way, at its own time."""
        end = Instant(self.time + int(seconds * SECOND))
        while True:
            await self.settle()
            due = await self.store.due(self.time, 1)
            if due.next_at is None or due.next_at > end:
                break
            self.time = max(self.time, due.next_at)
        self.time = end
        await self.settle()

    # -- the cast ---------------------------------------------------------------------------------------------

    async def add(
        self,
        id: str,
        kind: str | None = None,
        *,
        concurrent: int = 8,
        work_types: Any = None,
        protocol: str = "chiffon",
        **fields: Any,
    ) -> Agent:
        await self.ask(
            AddAgent(
                principal=ADMIN,
                agent=Agent(
                    id=AgentId(id),
                    protocol=protocol,
                    created_at=self.time,
                    token_hash=f"hash-{id}",
                    kind=kind,
                    **fields,
                ),
            )
        )
        return await self.ask(
            RegisterAgent(principal=AgentId(id), kind=kind, max_concurrent=concurrent, work_types=work_types)
        )

    async def connect(self, id: str, *, acknowledges: bool = False, **how: bool) -> Peer:
        peer = Peer(self, AgentId(id), SessionId(self.mint()))
        self.intake.attach(peer.session, peer)
        await self.ask(
            OpenLink(principal=peer.agent, session=peer.session, ordered=True, acknowledges=acknowledges, **how)
        )
        await self.settle()
        return peer

    async def poll(self, id: str, most: int = 10) -> list[Outgoing]:
        peer = Peer(self, AgentId(id), SessionId(self.mint()))
        self.intake.attach(peer.session, peer)
        await self.ask(OpenLink(principal=peer.agent, session=peer.session, ordered=False, credit=most))
        await peer.close(lost=False)
        return peer.inbox

    async def park(self, id: str, most: int = 10) -> Peer:
        """A poll that waits."""
        peer = Peer(self, AgentId(id), SessionId(self.mint()))
        self.intake.attach(peer.session, peer)
        await self.ask(OpenLink(principal=peer.agent, session=peer.session, ordered=False, credit=most))
        return peer

    async def ask_ack(self, id: str, outgoing_messages: Any) -> int:
        """Acknowledge what came by a poll."""
        return await self.ask(
            Acknowledge(principal=AgentId(id), deliveries=tuple(p.delivery.id for p in outgoing_messages))
        )

    def request(self, kind: str | None = "infra", **fields: Any) -> Submit:
        body = fields.pop("body", None)
        content = Request(input=fields.pop("input", {"n": 1})) if body is None else read_request(body)
        given: dict[str, Any] = {
            "principal": AgentId("boss"),
            "protocol": "chiffon",
            "request_id": self.uuid(),
            "task_id": TaskId(self.uuid()),
            "digest": "d1",
            "type": "run_playbook",
            "kind": kind,
            "content": content,
        }
        return submit_of(**(given | fields))

    async def submit(self, kind: str | None = "infra", **fields: Any) -> Task:
        return await self.ask(self.request(kind, **fields))

    def uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    async def finish(
        self, agent: str, task: TaskId, *, fault: Fault | None = None, body: bytes = b"{}", **fields: Any
    ) -> Task:
        fields.setdefault("content", read_result(body))
        return await self.ask(
            Finish(principal=AgentId(agent), task_id=task, digest=fields.pop("digest", "r1"), fault=fault, **fields)
        )

    async def refused_finish(self, agent: str, task: TaskId) -> Fault:
        return await self.refused(Finish(principal=AgentId(agent), task_id=task, digest="r1"))

    async def refused_with(self, agent: str, task: TaskId, body: bytes) -> Fault:
        return await self.refused(
            Finish(principal=AgentId(agent), task_id=task, digest="r1", content=read_result(body))
        )

    def registration(self, agent: str) -> RegisterAgent:
        return RegisterAgent(principal=AgentId(agent))

    async def progress(
        self, agent: str, task: TaskId, percent: int = 50, *, body: bytes = b"{}", **fields: Any
    ) -> Task:
        fields.setdefault("content", read_progress(body))
        return await self.ask(ReportProgress(principal=AgentId(agent), task_id=task, percent=percent, **fields))

    async def fault(self, agent: str, task: TaskId, kind: Kind, **fields: Any) -> Task:
        return await self.ask(
            ReportFault(principal=AgentId(agent), task_id=task, fault=Fault(kind=kind, message=kind.value, **fields))
        )

    def direct_message(self, sender: str, text: str = "hello", **fields: Any) -> DirectMessage:
        """A message of one agent to another, as the hub carries it."""
        given: dict[str, Any] = {
            "sender": AgentId(sender),
            "message_id": self.uuid(),
            "kind": "NOTE",
            "digest": text,
            "raw": msgspec.Raw(msgspec.json.encode({"text": text})),
            "protocol": "agentmsg",
        }
        return DirectMessage(**(given | fields))

    def tell(self, sender: str, to: str, text: str = "hello", **fields: Any) -> Tell:
        how = {name: fields.pop(name) for name in ("priority", "lane") if name in fields}
        return Tell(
            principal=AgentId(sender), to=AgentId(to), direct_message=self.direct_message(sender, text, **fields), **how
        )

    async def task(self, id: TaskId) -> Task:
        task = await self.store.task(id)
        assert task is not None
        return task

    async def history(self, id: TaskId) -> list[str]:
        return [event.kind.value for event in await self.store.events(id)]
