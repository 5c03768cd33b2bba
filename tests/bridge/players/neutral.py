"""What every protocol's players can do, in words of none of them.

A `Caller` has work done, a `Worker` does it. Each player speaks one protocol raw on the wire, and nothing of dragoman
but its addresses; what its protocol has no word for raises `Unsayable`. A history is what a caller heard about its
task, in order, each piece a dict with some of these keys:

    percent  message  thinking  output       as they came
    step                                     {number, name, total?}
    tool_use  tool_result                    {id, name, input}  {id, output, is_error}
    file                                     File, its bytes fetched the way this protocol fetches
    question                                 words that tell of a question to a person
    trace                                    a W3C trace id
    final                                    completed | failed | cancelled; the last piece has it, and beside it
    result  text  error  exit_code  usage    what there was of these
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, NamedTuple, TypeVar

from tests.bridge.players.stage import Stage

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds that anything may take on a busy machine; a wait ends as soon as what it waits for is there."""

CANCELLED = "cancelled"
Piece = dict[str, Any]


async def soon(what: Awaitable[T]) -> T:
    """Every wait is bounded."""
    return await asyncio.wait_for(what, PATIENCE)


class Unsayable(Exception):
    """This protocol has no word for it."""


class File(NamedTuple):
    name: str
    data: bytes


@dataclass(kw_only=True)
class Order:
    """Work to be done by the agent `to`. What is None is not said."""

    to: str
    type: str = "examine"
    input: dict[str, Any] = field(default_factory=lambda: {"subject": "the bridge"})
    priority: str | None = None
    description: str | None = None
    thread: str | None = None
    attachments: tuple[File, ...] = ()
    deadline: float | None = None
    dependencies: tuple[str, ...] = ()
    parent: str | None = None
    budget: float | None = None
    needs: tuple[str, ...] = ()
    """Capabilities of whoever does it; `to` may then be nobody in particular, where there is a word for that."""
    limit: int | None = None
    """What this protocol limits beside time and money: megabytes, or how good it must be."""
    context: Mapping[str, Any] | None = None
    """What is known around it."""
    trace: str | None = None
    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def cannot(self, *fields: str) -> None:
        """Raise `Unsayable` if any of these fields is to be said."""
        for name in fields:
            if getattr(self, name):
                raise Unsayable(name)


@dataclass(kw_only=True)
class Handle:
    """A task as its caller knows it. `native` is the player's own."""

    task_id: str
    native: Any = None


@dataclass(kw_only=True)
class Job:
    """A task as its worker knows it. `native` is the message that brought it."""

    id: str
    type: str
    input: Mapping[str, Any]
    native: Any
    priority: str | None = None
    description: str | None = None
    thread: str | None = None
    attachments: tuple[File, ...] = ()
    answer: Any = None
    attempt: int = 1
    trace: str | None = None
    percent: int = 0
    deadline: datetime | None = None
    seconds: int | None = None
    """How long it may take, where the agent is told that instead."""
    budget: float | None = None
    limit: int | None = None
    context: Mapping[str, Any] | None = None
    handover: Mapping[str, Any] | None = None
    """What is known of it where another agent began it: from, reason, metadata, history, ..."""


class Party(ABC):
    """Somebody with an id and a token. `refused` is what the hub would not take from it."""

    protocol: ClassVar[str]

    def __init__(self, stage: Stage, id: str, token: str) -> None:
        self.stage = stage
        self.id = id
        self.token = token
        self.refused: list[str] = []

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @abstractmethod
    async def connect(self) -> None: ...

    @abstractmethod
    async def leave(self) -> None: ...


class Caller(Party):
    @abstractmethod
    async def submit(self, order: Order) -> Handle:
        """Have it done; returns when the hub has taken it."""

    @abstractmethod
    async def piece(self, handle: Handle) -> Piece:
        """The next piece of the history."""

    @abstractmethod
    async def cancel(self, handle: Handle, reason: str) -> None: ...

    async def pause(self, handle: Handle) -> None:
        raise Unsayable("pause")

    async def resume(self, handle: Handle) -> None:
        raise Unsayable("resume")

    async def history(self, handle: Handle) -> list[Piece]:
        """Everything from here to the end."""
        told: list[Piece] = []
        while not told or "final" not in told[-1]:
            told.append(await soon(self.piece(handle)))
        return told


class WorkFailure(NamedTuple):
    """How work failed, in no protocol's words."""

    message: str
    retryable: bool
    exit_code: int | None
    usage: Mapping[str, Any] | None


class Worker(Party):
    """Does one job after the other."""

    fails_with_usage = True
    """Whether a failure can say what the work used."""

    def __init__(self, stage: Stage, id: str, token: str) -> None:
        super().__init__(stage, id, token)
        self.jobs: asyncio.Queue[Job] = asyncio.Queue()
        self.told: asyncio.Queue[str] = asyncio.Queue()
        """What the hub says of a job under way: `paused`, `in_progress`."""
        self._cancelled: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    @abstractmethod
    def die(self) -> None:
        """Break off without a word."""

    async def come_back(self) -> None:
        """Connect again, as a new process would."""
        await self.connect()

    @abstractmethod
    async def say(self, job: Job, **features: Any) -> None:
        """One report: percent, message, step, output, thinking, tool_use, tool_result, file."""

    @abstractmethod
    async def ask(self, job: Job, question: str, options: tuple[Any, ...] = ()) -> None: ...

    @abstractmethod
    async def answered(self, job: Job) -> Job:
        """Wait for the answer, and go on with the job that has it."""

    @abstractmethod
    async def finish(
        self, job: Job, *, result: Any = None, text: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> None: ...

    async def fail(
        self,
        job: Job,
        message: str,
        *,
        retryable: bool = False,
        exit_code: int | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> None:
        """The work failed; raises `Unsayable` for what the protocol has no field for."""
        if usage is not None and not self.fails_with_usage:
            raise Unsayable("usage")
        await self.end_in(job, WorkFailure(message, retryable, exit_code, usage))

    @abstractmethod
    async def end_in(self, job: Job, failure: WorkFailure) -> None:
        """End a job in a failure, in the protocol's own form."""

    async def take(self) -> Job:
        return await soon(self.jobs.get())

    async def hears(self) -> str:
        """What the hub says next of a job under way; raises `Unsayable` where it cannot."""
        return await soon(self.told.get())

    async def until_cancelled(self, job: Job) -> None:
        """Wait until the hub says to stop; raises `Unsayable` where it cannot."""
        await soon(self._cancelled[job.id].wait())

    # what agents ask of each other; who has no word for it is asked in its words for work

    async def hand_over(self, job: Job, to: str, metadata: Mapping[str, Any]) -> str:
        """Ask an agent to go on with it, with what is known; returns the id of the request."""
        raise Unsayable("handover")

    async def take_over(self) -> Job:
        return await self.take()

    async def ask_for_help(self, job: Job, question: str, to: str) -> str:
        """Ask another agent; the name of the request."""
        raise Unsayable("help")

    async def help(self, text: str) -> str:
        """Give the help that is asked for; what was asked."""
        job = await self.take()
        await self.finish(job, text=text)
        return str(job.input["content"])

    async def refuse_to_help(self, text: str) -> None:
        await self.fail(await self.take(), text)

    async def escalate(self, text: str, resources: list[dict[str, str]]) -> list[dict[str, Any]]:
        """Pass on what is asked; what those said who had passed it on before."""
        job = await self.take()
        await self.finish(job, result={"response_type": "ESCALATION", "content": text, "resources": resources})
        return list(job.input["help"].get("escalations", ()))

    async def write(self, to: str, words: str) -> None:
        """A message that is no task."""
        raise Unsayable("letter")

    async def reads(self) -> str:
        raise Unsayable("letter")


class Player(NamedTuple):
    """A protocol's two roles."""

    caller: type[Caller]
    worker: type[Worker]


def only(limits: Mapping[str, Any] | None) -> Any:
    """The one limit that was told, whatever it limits."""
    return next(iter((limits or {}).values()), None)


def heard(history: list[Piece], what: str) -> list[Any]:
    """All that a history says of something, in order."""
    return [piece[what] for piece in history if what in piece]


def trace_in(traceparent: str | None) -> str | None:
    return traceparent.split("-")[1] if traceparent else None


def traceparent_of(trace: str) -> str:
    return f"00-{trace}-{uuid.uuid4().hex[:16]}-01"


def said(**fields: Any) -> Piece:
    """A piece of a history, without what was not there."""
    return {name: value for name, value in fields.items() if value is not None and value != ""}


async def upload(party: Any, file: File) -> str:
    """Bring a file over HTTP, to name it in a message; gives its id."""
    answer = await party.stage.http.post(
        "/api/agent/files", params={"name": file.name}, content=file.data, headers=party.bearer
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])
