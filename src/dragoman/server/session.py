"""A session: one protocol's side of one connection. The connection loop (`connection`) asks it what a frame means and
how to encode what the hub has for the agent.

`decode` gives one of a closed union, which the loop takes apart:

    CommandFrame   a command for the hub
    LookUp         something must be read or kept first; then it is a command, or the session answers it
    Invalid        a fault to answer with
    Acknowledged   deliveries that the agent acknowledges
    Answered       frames that answer it without a command
    Batch          several messages; each is decoded in its turn
    Piece          a piece of text; pieces that come during a commit are joined to one command
    Ignored        nothing to do

Some outgoing messages need something read before they can be encoded: a contract, an output that came in pieces. Until
their frames are written, the messages after them wait behind, so that no lane is overtaken.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
import structlog

from dragoman.core.commands import Command, ReportFault
from dragoman.core.ids import AgentId, DeliveryId, Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.ports import Intake, Store, StoreFailed
from dragoman.core.queries.transcript import MOST_OUTPUT, Account, Transcript
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.security.redaction import disclosed

log = structlog.get_logger("dragoman.server")

LATER: Sequence[bytes] = []
"""The session writes the frames of the outgoing message later; it has not arrived before that."""


class Request(msgspec.Struct, frozen=True):
    """What the session knows of a message that becomes a command. `context` is the session's own: what an answer needs.

    `also`: further commands of the same message, behind the first. The hub accepts the message when it accepts all of
    them; its outcome is the first one's. `otherwise`: given the fault of a refusal, the command to try instead, if any.
    `receipt`: whether the sender gets a receipt, where the connection has receipts.

    `lane` is the task of the message, where messages about one task keep their order even when the hub refuses one of
    them for now (`core.pipelining`).
    """

    message_id: str | None = None
    context: Any = None
    also: tuple[Command, ...] = ()
    otherwise: Callable[[Fault], Command | None] | None = None
    receipt: bool = True
    lane: str | None = None


class CommandFrame(msgspec.Struct, frozen=True):
    command: Command
    request: Request


class LookUp(msgspec.Struct, frozen=True):
    """`find` gives the frames of the answer, or the command to enqueue; it may raise `Refused`. Later frames do not
    overtake it. `after_commits`: it reads what earlier messages of the connection may change, so it begins only when
    those are committed (forge-D14)."""

    find: Callable[[], Awaitable[Sequence[bytes] | Command]]
    request: Request
    after_commits: bool = False


class Invalid(msgspec.Struct, frozen=True):
    fault: Fault
    message_id: str | None = None
    context: Any = None


class Acknowledged(msgspec.Struct, frozen=True):
    deliveries: tuple[DeliveryId, ...]
    message_id: str | None = None


class Answered(msgspec.Struct, frozen=True):
    frames: tuple[bytes, ...]
    message_id: str | None = None


class Batch(msgspec.Struct, frozen=True):
    frames: tuple[bytes, ...]


class Piece(msgspec.Struct, frozen=True):
    """Only pieces `about` the same are joined; `command` makes the command of the joined text, which has the `request`
    of its first piece."""

    about: str
    text: str
    command: Callable[[str], Command]
    request: Request


class Ignored(msgspec.Struct, frozen=True):
    message_id: str | None = None


Decoded = CommandFrame | LookUp | Invalid | Acknowledged | Answered | Batch | Piece | Ignored

NOTHING = Ignored()


class Connection(Protocol):
    """What a session may do with its connection of its own accord (`connection.ConnectionLoop`)."""

    def write_if_room(self, frames: Sequence[bytes], outgoing: Outgoing | None = None) -> bool:
        """Write frames that answer no request, or those of an outgoing message that was encoded `LATER`; False if there
        is no room for them now."""
        ...

    def write(self, frames: Sequence[bytes]) -> None:
        """Write the frames, behind those that wait for room."""
        ...

    def enqueue(self, command: Command, request: Request, size: int = 0) -> None:
        """Enqueue a command of the session's own. `size`: bytes of the frame that brought it."""
        ...


class Session(ABC):
    """One for each connection."""

    protocol: str

    def __init__(self, hub: Intake, agent: AgentId, connection: Connection) -> None:
        self._hub = hub
        self._agent = agent
        self._connection = connection
        self._is_closed = False
        self._room = asyncio.Event()
        self._waiting: deque[tuple[Outgoing, Agent]] = deque()
        self._writing: asyncio.Task[None] | None = None

    # -- what a protocol implements

    @abstractmethod
    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        """Never raises: a frame that cannot be decoded is `Invalid`."""

    @abstractmethod
    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        """The frames of an outgoing message; None where something must be read first."""

    @abstractmethod
    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        """Read what the message needs, then encode it."""

    def encode_answer(self, command: Command, request: Request, outcome: Any, agent: Agent) -> Sequence[bytes]:
        """The answer to a message once its command is committed; nothing, in a protocol without responses."""
        return ()

    @abstractmethod
    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        """Empty for what is not answered, such as an event."""

    def encode_receipt(self, message_ids: Sequence[str]) -> bytes:
        """Empty in a protocol without receipts."""
        return b""

    # -- the connection

    def writable(self) -> None:
        """There may be room again after `write_if_room` gave False."""
        self._room.set()

    def closed(self) -> None:
        """The connection is gone, or about to be."""
        self._is_closed = True
        self._room.set()
        if self._writing is not None:
            self._writing.cancel()

    # -- outgoing messages, in order

    def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        """The frames of an outgoing message; `LATER` where they follow by `write_if_room`."""
        if self._writing is None and (frames := self.encode_now(outgoing, agent, now)) is not None:
            return frames
        self._waiting.append((outgoing, agent))
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write_in_order())
        return LATER

    async def _write_in_order(self) -> None:
        try:
            while self._waiting:
                outgoing, agent = self._waiting[0]
                try:
                    frames = await self.encode_after_reading(outgoing, agent)
                    for frame in frames[:-1]:
                        await self._write([frame])
                    await self._write(frames[-1:], outgoing)  # it has arrived when its last frame has
                except StoreFailed:
                    log.warning("unread", task=outgoing.delivery.task)  # so the hub delivers it again
                except Exception as error:
                    report_unencodable(self._hub, self._agent, outgoing, error)
                self._waiting.popleft()
        finally:
            self._writing = None

    async def _write(self, frames: Sequence[bytes], outgoing: Outgoing | None = None) -> None:
        """Write the frames as soon as there is room for them."""
        while frames and not self._is_closed:
            self._room.clear()
            if self._connection.write_if_room(frames, outgoing):
                return
            await self._room.wait()


# -- what encoding an outgoing message needs beside the message


log = structlog.get_logger("dragoman.server")

PAGE = 200

UNENCODABLE = Fault(kind=Kind.INTERNAL, message="the work cannot be put into this agent's protocol")

UNREAD = Fault(kind=Kind.RESOURCES, message="the hub could not read what belongs to the work", retryable=True)
"""A kind that the hub retries, and does not count against the agent."""


async def read_account(store: Store, task: TaskId, last: int, most: int = MOST_OUTPUT) -> Account:
    """A task's account, from its events up to `last`; an output of more than `most` characters is cut."""
    transcript = Transcript(most)
    after = 0
    while after < last:
        page = await store.events(task, after=after, limit=PAGE)
        for event in page:
            transcript.feed(event)
        if not page:
            break
        after = page[-1].seq
    return transcript.account


def is_passing(error: Exception) -> bool:
    """Whether the store or the files cannot be read now: then the work has not failed."""
    return isinstance(error, StoreFailed) or (isinstance(error, Refused) and error.fault.kind is Kind.OVERLOADED)


def report_unencodable(hub: Intake, agent: AgentId, outgoing: Outgoing, error: Exception) -> None:
    """An outgoing message that cannot be encoded must not hold up the others. If it is work, the attempt has failed; a
    notice is never acknowledged, and becomes a dead letter in the end. `Refused`: no message of the protocol can carry
    it. Any other error is a defect of the hub."""
    kind, task = outgoing.delivery.kind, outgoing.delivery.task
    if is_passing(error):
        log.error("unread", task=task, kind=kind.value, why=str(disclosed(error, personal=outgoing.personal)))
        fault = UNREAD
    elif isinstance(error, Refused):
        fault = error.fault
    else:
        log.error("unencodable", task=task, kind=kind.value, exc_info=disclosed(error, personal=outgoing.personal))
        fault = UNENCODABLE
    if kind is MessageKind.WORK:
        command = ReportFault(principal=agent, task_id=task, fault=fault)
        hub.enqueue_then(command, lambda outcome, refusal: None)
