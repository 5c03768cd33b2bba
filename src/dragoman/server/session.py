"""One protocol's words on an ordered link: what the connection loop (`connection`) asks of a protocol, and is told by
it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from dragoman.core.commands import Command
from dragoman.core.ids import DeliveryId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.messages.faults import Fault

LATER: Sequence[bytes] = []
"""What a session says of an outgoing message whose frames follow. It counts as arrived only after they did."""


class Heard(msgspec.Struct, frozen=True):
    """What a frame meant: a command, or deliveries to acknowledge, or something to look up, or a fault.

    `look` is awaited and gives the frames to answer with, or a command to go on with (its file had to be kept first).
    It may raise `Refused`. Frames that come after it do not overtake a command that comes out of it. `reads`: it reads
    what earlier messages of the link may change, so it begins only when those are committed (forge-D14).
    `parts` are the messages of a frame that had several; each is heard in its turn. `answers` are written at once, for
    what is answered without the hub. `about` is the session's own.

    `also` are commands that the same message becomes, behind the first: it is accepted when all of them are, and its
    outcome is the first one's. `otherwise` says what it means after all if that was refused with this fault, if
    anything. `receipt`: whether the peer is told that it was accepted, where receipts are given.

    `lane` is the task that it is about, where messages about one keep their order also when one of them is refused for
    now (`core.pipelining`).
    """

    command: Command | None = None
    also: tuple[Command, ...] = ()
    otherwise: Callable[[Fault], Command | None] | None = None
    receipt: bool = True
    message_id: str | None = None
    acks: tuple[DeliveryId, ...] = ()
    fault: Fault | None = None
    look: Callable[[], Awaitable[Sequence[bytes] | Command]] | None = None
    reads: bool = False
    parts: tuple[bytes, ...] = ()
    answers: tuple[bytes, ...] = ()
    about: Any = None
    lane: str | None = None


class Session(Protocol):
    """One protocol's words on a link."""

    protocol: str

    def hear(self, agent: Agent, frame: bytes) -> Heard:
        """Never raises: what cannot be understood is a fault."""
        ...

    def say(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        """The frames of an outgoing message; `LATER`, where something must be read first and `tell` brings them."""
        ...

    def answer(self, heard: Heard, outcome: Any, agent: Agent) -> Sequence[bytes]:
        """What a request is answered with once its command is committed; nothing, in a protocol without responses."""
        ...

    def refuse(self, fault: Fault, about: Any, agent: Agent, now: Instant, message_id: str) -> bytes:
        """Empty for what is not answered, such as an event."""
        ...

    def receipt(self, message_ids: Sequence[str]) -> bytes: ...


@runtime_checkable
class Talkative(Protocol):
    """A tongue that also says things which the hub did not give it, such as what others published."""

    def meet(self, tell: Callable[[Sequence[bytes]], bool]) -> None:
        """The link begins. `tell` writes frames, or says that there is no room for them now."""
        ...

    def part(self) -> None:
        """The link ends."""
        ...


@runtime_checkable
class Streaming(Talkative, Protocol):
    """A talkative tongue that goes on as fast as its peer reads."""

    def room(self) -> None:
        """There may be room again for what `tell` had none for."""
        ...
