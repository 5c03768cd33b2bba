"""Links over which each outgoing message is a request of its own, taken or not: callbacks, and queues of a broker.

Outgoing messages of one task go one after the other, those of different tasks side by side, so this is no wire of the
connection loop, which has one order for all.

    what is not taken     then
    --------------------  ---------------------------------------------------------------------------
    work                  this attempt failed: the hub retries, and counts it against the agent
    a notice              the link is broken: its owner closes the session and opens another later,
                          over which the hub offers what was not acknowledged again, in order
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import structlog

from dragoman.core.commands import Acknowledge, CloseLink, OpenLink, ReportFault
from dragoman.core.ids import AgentId, SessionId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.security.redaction import disclosed
from dragoman.server.connection import close_link
from dragoman.server.handler import HttpHandler
from dragoman.wire.closing import CloseReason

log = structlog.get_logger("dragoman.server")


class LaneLink(ABC):
    """One agent's link: `core.ports.LinkEnd`."""

    not_taken: ClassVar[str]
    """Why an attempt failed whose work was not taken."""
    taking_acknowledges_work: ClassVar[bool] = True
    """Whether the agent itself took the work, so that it has it."""

    def __init__(self, handler: HttpHandler, agent: AgentId, *, side_by_side: int) -> None:
        self._handler = handler
        self._hub = handler.hub
        self._agent = agent
        self._turns = asyncio.Semaphore(side_by_side)
        self._lanes: dict[TaskId, deque[Outgoing]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._session = SessionId("")

    async def open(self, instance: str | None = None) -> None:
        """Open the session; raises `Refused`."""
        self._session = SessionId(self._hub.mint())
        self._hub.attach(self._session, self)
        await self._hub.execute(
            OpenLink(
                principal=self._agent,
                protocol=self._handler.protocol,
                session=self._session,
                ordered=True,
                acknowledges=True,
                instance=instance,
            )
        )

    def close(self) -> None:
        """Close the session; what was not taken stays in the store."""
        for sending in self._sending:
            sending.cancel()
        self._lanes.clear()
        close_link(self._hub, CloseLink(principal=self._agent, session=self._session))

    def abort(self) -> None:
        """Send nothing more, and say nothing of it to the hub: it decides nothing any more."""
        for sending in self._sending:
            sending.cancel()
        self._lanes.clear()
        self._hub.detach(self._session)

    # -- what a transport implements

    @abstractmethod
    async def _send(self, outgoing: Outgoing, agent: Agent) -> bool:
        """Whether the message was taken."""

    @abstractmethod
    def _broken(self) -> None:
        """A notice was not taken."""

    def _took(self) -> None:  # noqa: B027 - only callbacks count them
        """A message was taken."""

    # -- the hub calls

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        for outgoing in outgoing_messages:
            task = outgoing.delivery.task
            if task in self._lanes:
                self._lanes[task].append(outgoing)
                continue
            self._lanes[task] = deque((outgoing,))
            sending = asyncio.ensure_future(self._send_lane(task, self._lanes[task]))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    @abstractmethod
    def hang_up(self, reason: CloseReason) -> None: ...

    # -- the work

    async def _send_lane(self, task: TaskId, lane: deque[Outgoing]) -> None:
        while lane:
            outgoing = lane[0]
            agent = self._hub.agent(self._agent)
            try:
                async with self._turns:
                    taken = agent is not None and await self._send(outgoing, agent)
            except Exception as error:  # else nothing would send this lane again
                why = disclosed(error, personal=outgoing.personal)
                log.error("not sent", task=task, kind=outgoing.delivery.kind.value, exc_info=why)
                taken = False
            if not taken and outgoing.delivery.kind is not MessageKind.WORK:
                self._broken()
                return
            try:
                await self._report(outgoing, taken)
            except Refused as refused:
                log.info("not recorded", agent=self._agent, why=refused.fault.kind.value)
            lane.popleft()
        if self._lanes.get(task) is lane:
            del self._lanes[task]

    async def _acknowledge(self, acknowledge: Acknowledge) -> None:
        await self._hub.execute(acknowledge)

    async def _report(self, outgoing: Outgoing, taken: bool) -> None:
        if taken:
            self._took()
            if self.taking_acknowledges_work or outgoing.delivery.kind is not MessageKind.WORK:
                await self._acknowledge(
                    Acknowledge(principal=self._agent, deliveries=(outgoing.delivery.id,), session=self._session)
                )
            return
        fault = Fault(
            kind=Kind.UNAVAILABLE,
            message=self.not_taken,
            retryable=True,
            facts={"agent_id": self._agent, "last_heartbeat": None},
        )
        await self._hub.execute(
            ReportFault(
                principal=self._agent, protocol=self._handler.protocol, fault=fault, task_id=outgoing.delivery.task
            )
        )
