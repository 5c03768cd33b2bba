"""Agents as the broker in memory knows them, and the channels by which they speak with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.protocols.a2acp import types
from dragoman.protocols.a2acp.contracts import Capability, Contract, Held
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.sdk.links import Frame, LinkDown
from dragoman.security.collaboration import CollaborationKey

if TYPE_CHECKING:
    from tests.unit.sdk.a2acp.harness import MemoryBroker


class Member:
    """One agent, as the broker knows it."""

    def __init__(self, party: Party, allowed: tuple[str, ...]) -> None:
        self.party = party
        self.allowed = allowed
        self.capabilities: dict[str, Capability] = {}
        self.receiver: MemoryReceiver | None = None
        self.owed: list[bytes] = []


class Bond:
    """A contract in force, with its keys, the newest first."""

    def __init__(self, contract: Contract, now: Any) -> None:
        self.held = Held(contract=contract, since=now)
        self.keys: list[CollaborationKey] = []
        self.public: dict[str, str] = {}


class MemoryReceiver:
    def __init__(self, broker: MemoryBroker, member: Member) -> None:
        self._broker, self._member = broker, member
        self.frames: asyncio.Queue[Frame | None] = asyncio.Queue()

    async def open(self) -> None:
        if self._broker.is_down:
            raise LinkDown("nobody there")
        self._member.receiver = self
        for frame in self._member.owed:
            self.frames.put_nowait(Frame(frame, "again"))
        self._member.owed.clear()

    async def receive(self) -> Sequence[Frame]:
        frame = await self.frames.get()
        if frame is None:
            self.frames.put_nowait(None)
            raise LinkDown("the line went dead")
        return (frame,)

    async def acknowledge(self, receipts: Sequence[str]) -> None:
        self._broker.acked.extend(receipts)

    async def close(self) -> None:
        if self._member.receiver is self:
            self._member.receiver = None


class MemoryPost:
    def __init__(self, broker: MemoryBroker, member: Member) -> None:
        self._broker, self._member = broker, member

    async def token(self, request: types.TokenRequest) -> types.TokenGrant:
        return self._broker.token(self._member, request)

    async def register(self, registration: bytes) -> None:
        said = msgspec.json.decode(registration)
        self._broker.registrations.append(said)
        self._member.capabilities = {one["intent"]: msgspec.convert(one, Capability) for one in said["capabilities"]}

    async def send(self, frame: bytes) -> tuple[bool, bytes]:
        return self._broker.heard(self._member, frame)

    async def close(self) -> None: ...
