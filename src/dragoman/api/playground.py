"""The playground: a person sends work as an agent of any protocol, and sees the bytes that go and come.

The hub connects to its own port with the client of the SDK, under an identity that it adds for this
(`playground-chiffon`, and `playground-chiffon-2` while that one waits for a reply). So a message takes the whole way of
any other, and what is shown are the bytes of the connection; only credentials in them are blanked out. The identities
do no type of work: they get none. A person takes one up by a new token, so the audit record names the person.

Exchanges are kept in memory, the last `KEPT` of them; what became of the work is in its task. Nothing of personal work
is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

from dragoman.api import tasks
from dragoman.api.agents import find_agent
from dragoman.api.bodies import PlaygroundIn, TaskIn
from dragoman.api.context import PROTOCOL, Call, Context, Plain
from dragoman.api.problems import Next, Problem
from dragoman.api.store_reads import find_task, whole_task
from dragoman.core.commands import AddAgent, RemoveAgent, RotateToken
from dragoman.core.ids import ADMIN, AgentId, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.core.ports import TaskFilter
from dragoman.core.queries import is_hidden
from dragoman.core.queries.tasks import PERSONAL
from dragoman.messages.faults import Kind
from dragoman.sdk.address import Address
from dragoman.sdk.calling.backend import Backend, ContractBackend
from dragoman.sdk.errors import DragomanError, RequestRefused, TaskFailed
from dragoman.sdk.runtime import SystemRuntime
from dragoman.sdk.services import TABLE, Participant, connect
from dragoman.security.tokens import new_token, token_hash

API = "api"
MARK = "playground"
"""The detail of an agent that says it is an identity of the playground."""
IDENTITIES = 8
"""Of each protocol: so many exchanges may be unfinished at once."""
KEPT = 100
MOST_FRAMES = 300
LONGEST_FRAME = 64 * 1024
SUBMIT = 15.0
REPLY = 1.0
"""Seconds that a request waits for a reply that may come at once; the page reads the exchange again when it comes."""

_CREDENTIALS = re.compile(rb"eyJ[\w-]{8,}\.[\w-]+\.[\w-]+")
"""Signed tokens, as a2acp has them in its messages."""

Place = Callable[[str], Address | None]
"""Where this hub serves agents of a protocol; None where it does not."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """`text` is the message as it was on the wire; of coven, which is binary, its JSON form."""

    at: str
    text: str


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """The same request from elsewhere. `curl` asks the management API."""

    cli: str
    curl: str
    python: str


class ExchangeOut(msgspec.Struct, frozen=True, kw_only=True):
    """`reply` is the result, or `{"error": …}`; None while the task is unfinished."""

    task_id: str
    status: str
    sent: tuple[Frame, ...]
    received: tuple[Frame, ...]
    reply: Any
    commands: Commands


class Exchange:
    """One request, and what the hub sent about it."""

    def __init__(self, now: Callable[[], str], commands: Commands) -> None:
        self.commands = commands
        self.task_id = ""
        self.sent: list[Frame] = []
        self.received: list[Frame] = []
        self.reply: Any = None
        self.is_over = asyncio.Event()
        self.is_asked_by_api = False
        self._now = now

    def add(self, is_sent: bool, text: str) -> None:
        frames = self.sent if is_sent else self.received
        if len(frames) < MOST_FRAMES:
            if len(text) > LONGEST_FRAME:
                text = f"{text[:LONGEST_FRAME]} … {len(text) - LONGEST_FRAME} more characters"
            frames.append(Frame(at=self._now(), text=text))

    def end(self, reply: Any) -> None:
        self.reply = reply
        self.is_over.set()


class Playground:
    """All exchanges of this hub, and the connections of those that are unfinished."""

    def __init__(self, place: Place) -> None:
        self.place_of = place
        self._exchanges: dict[str, Exchange] = {}
        self._busy: set[str] = set()
        self._waiting: set[asyncio.Task[None]] = set()

    def find(self, task: str) -> Exchange | None:
        return self._exchanges.get(task)

    def keep(self, exchange: Exchange) -> None:
        self._exchanges[exchange.task_id] = exchange
        while len(self._exchanges) > KEPT:
            self._exchanges.pop(next(iter(self._exchanges)))

    async def send(self, context: Context, call: Call[None, PlaygroundIn], exchange: Exchange) -> None:
        """Returns when the hub has the work; `exchange` goes on until the reply is there."""
        wanted = call.body
        address = self.place_of(wanted.protocol)
        if address is None:
            raise Problem(Kind.INVALID, f"this hub does not serve {wanted.protocol}", field="protocol")
        name = self._free(context, wanted.protocol)
        self._busy.add(name)
        backend: Backend | None = None
        try:
            token = await self._take_up(context, call, AgentId(name))
            record = _recorder(wanted.protocol, token, exchange)
            address = msgspec.structs.replace(address, token=token, record=record)
            backend = connect(Participant(id=name, give_up_after=SUBMIT), address, SystemRuntime())
            async with asyncio.timeout(SUBMIT):
                await backend.open()
                asked = await backend.submit(wanted.agent, wanted.work, wanted.input, {})
            exchange.task_id = await self._task(context, wanted.protocol, name, asked)
        except BaseException as error:
            self._busy.discard(name)
            if backend is not None:
                await _close(backend)
            raise _problem(error, wanted.protocol) from None
        self.keep(exchange)
        waiting = asyncio.create_task(self._listen(backend, asked, name, wanted, exchange), name="playground")
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)

    async def close(self) -> None:
        """The hub stops: an unfinished exchange ends, its task does not."""
        waiting = tuple(self._waiting)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _listen(self, backend: Backend, asked: str, name: str, wanted: PlaygroundIn, exchange: Exchange) -> None:
        try:
            exchange.end(await backend.result(asked))
        except TaskFailed as error:
            exchange.end({"error": error.message, "kind": error.kind})
        except DragomanError as error:
            exchange.end({"error": str(error)})
        finally:
            self._busy.discard(name)
            exchange.is_over.set()
            with contextlib.suppress(DragomanError, TimeoutError):
                if isinstance(backend, ContractBackend):
                    async with asyncio.timeout(SUBMIT):
                        contract = await backend.contract(wanted.work, wanted.agent, "broker", False)
                        await backend.terminate(contract.collaboration_id, "asked and answered")
            await _close(backend)

    def _free(self, context: Context, protocol: str) -> str:
        """An identity that waits for nothing."""
        for number in range(1, IDENTITIES + 1):
            name = f"{MARK}-{protocol}" + (f"-{number}" if number > 1 else "")
            agent = context.intake.agent(AgentId(name))
            if name not in self._busy and (agent is None or agent.details.get(MARK) is True):
                return name
        raise Problem(
            Kind.OVERLOADED,
            f"{IDENTITIES} tasks that were sent from here over {protocol} are unfinished",
            next=Next("wait for one of them, or cancel it", command="dragoman task ls"),
        )

    async def _take_up(self, context: Context, call: Call[None, PlaygroundIn], name: AgentId) -> str:
        """Add the identity, or give it a new token, in the name of the person. Returns the token."""
        token = new_token()
        protocol = call.body.protocol
        fitting = _fitting(find_agent(context, call.body.agent), call.body.work) if _agrees(protocol) else {}
        agent = context.intake.agent(name)
        if agent is not None and any(getattr(agent, field) != value for field, value in fitting.items()):
            await context.execute(call, RemoveAgent(principal=ADMIN, protocol=PROTOCOL, agent=name))
            agent = None
        if agent is not None:
            hashed = token_hash(token)
            await context.execute(call, RotateToken(principal=ADMIN, protocol=PROTOCOL, agent=name, token_hash=hashed))
            return token
        agent = Agent(
            id=name,
            protocol=protocol,
            created_at=context.intake.now(),
            token_hash=token_hash(token),
            name="playground",
            work_types=(),
            details={MARK: True},
            **fitting,
        )
        await context.execute(call, AddAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent))
        return token

    async def _task(self, context: Context, protocol: str, name: str, asked: str) -> str:
        if not _agrees(protocol):
            return asked
        # Such a caller knows a task by a name of its own.
        newest, _ = await context.store.tasks(TaskFilter(principal=AgentId(name)), after=None, limit=1)
        return newest[0].id


def _agrees(protocol: str) -> bool:
    return TABLE[protocol].makes_contracts


def _fitting(agent: Agent, work: str) -> dict[str, Any]:
    """What a caller must be to ask this of an agent under a contract."""
    offer = agent.offer(work)
    return {"domain": agent.domain, "capabilities": () if offer is None else offer.required_capabilities}


def _recorder(protocol: str, token: str, exchange: Exchange) -> Callable[[bool, bytes], None]:
    def record(is_sent: bool, data: bytes) -> None:
        if protocol == "coven":
            from dragoman.protocols.coven import codec, json_form

            message = codec.decode_send(data) if is_sent else codec.decode_response(data)
            data = msgspec.json.encode(json_form.written(message))
        data = _CREDENTIALS.sub("…".encode(), data).replace(token.encode(), "…".encode())
        exchange.add(is_sent, data.decode("utf-8", "replace"))

    return record


async def _close(backend: Backend) -> None:
    with contextlib.suppress(DragomanError, OSError, TimeoutError):
        async with asyncio.timeout(SUBMIT):
            await backend.close()


def _problem(error: BaseException, protocol: str) -> BaseException:
    """What the hub's own endpoint said to the playground, said to the person."""
    match error:
        case RequestRefused(kind=kind) | TaskFailed(kind=kind):
            known = next((one for one in Kind if one.value == kind), Kind.INVALID)
            text = error.message if isinstance(error, TaskFailed) else str(error)
            return Problem(Kind.CONFLICT if known is Kind.UNAUTHENTICATED else known, text)
        case DragomanError():
            return Problem(Kind.INVALID, str(error))
        case TimeoutError():
            return Problem(Kind.TIMEOUT, f"the hub did not take the work over {protocol} within {SUBMIT:g} s")
    return error


# -- the routes ------------------------------------------------------------------------------------------------------


async def send_work(context: Context, call: Call[None, PlaygroundIn]) -> ExchangeOut:
    find_agent(context, call.body.agent)
    exchange = Exchange(lambda: rfc3339(context.intake.now()), _commands(context, call))
    if call.body.protocol == API:
        await _submit(context, call, exchange)
    else:
        await context.playground.send(context, call, exchange)
        await _wait(exchange)
    return await _shown(context, exchange)


async def show_exchange(context: Context, call: Plain) -> ExchangeOut:
    exchange = context.playground.find(call.id)
    if exchange is None:
        raise Problem(
            Kind.NOT_FOUND,
            f"no exchange about {call.id[:80]!r}: the hub keeps the last {KEPT} until it stops",
            next=Next("look at the task", command=f"dragoman task show {call.id[:80]}"),
        )
    return await _shown(context, exchange)


async def _submit(context: Context, call: Call[None, PlaygroundIn], exchange: Exchange) -> None:
    """Over this API itself: the body of `POST /api/v1/tasks`, and its answer."""
    wanted = call.body
    body = msgspec.json.encode({"type": wanted.work, "agent": wanted.agent, "input": wanted.input})
    exchange.add(True, body.decode())
    asked = Call(call.request, None, msgspec.json.decode(body, type=TaskIn), msgspec.json.decode(body), call.caller)
    answer: Response = await tasks.submit_task(context, asked)
    content = bytes(answer.body)
    exchange.add(False, content.decode())
    exchange.task_id = msgspec.json.decode(content)["id"]
    exchange.is_asked_by_api = True
    context.playground.keep(exchange)


async def _wait(exchange: Exchange) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REPLY):
            await exchange.is_over.wait()


async def _shown(context: Context, exchange: Exchange) -> ExchangeOut:
    task = await find_task(context, exchange.task_id)
    if task.final and not exchange.is_over.is_set():
        if exchange.is_asked_by_api:
            end = await whole_task(context, task)
            exchange.add(False, msgspec.json.encode(end).decode())
            exchange.end(end.result if end.error is None else {"error": end.error})
        else:
            await _wait(exchange)  # the last message is on its way to the playground's connection
    if is_hidden(task):
        sent, received = (
            [Frame(at=one.at, text=PERSONAL) for one in side] for side in (exchange.sent, exchange.received)
        )
        empty = Commands(cli=PERSONAL, curl=PERSONAL, python=PERSONAL)
        reply = None if exchange.reply is None else {"personal": True}
        return ExchangeOut(
            task_id=task.id, status=task.status.value, sent=tuple(sent), received=tuple(received), reply=reply,
            commands=empty,
        )  # fmt: skip
    return ExchangeOut(
        task_id=exchange.task_id,
        status=task.status.value,
        sent=tuple(exchange.sent),
        received=tuple(exchange.received),
        reply=exchange.reply,
        commands=exchange.commands,
    )


def _commands(context: Context, call: Call[None, PlaygroundIn]) -> Commands:
    wanted, base = call.body, str(call.request.base_url).rstrip("/")
    given = json.dumps(wanted.input, ensure_ascii=False)
    body = json.dumps({"type": wanted.work, "agent": wanted.agent, "input": wanted.input}, ensure_ascii=False)
    agent, work = shlex.quote(wanted.agent), shlex.quote(wanted.work)
    return Commands(
        cli=f"echo {shlex.quote(given)} | dragoman call {agent} {work} - --via {wanted.protocol}",
        curl=f'curl {base}/api/v1/tasks -H "Authorization: Bearer $DRAGOMAN_TOKEN"'
        f" -H 'Content-Type: application/json' -d {shlex.quote(body)}",
        python=_python(wanted, base, context.playground.place_of("coven")),
    )


def _python(wanted: PlaygroundIn, base: str, grpc: Address | None) -> str:
    scheme, _, place = base.partition("://")
    ws = "wss" if scheme == "https" else "ws"
    url = base if wanted.protocol == API else f"{wanted.protocol}+{ws}://{place}"
    if wanted.protocol == "coven" and grpc is not None:
        url = grpc.shown
    who = "" if wanted.protocol == API else ', id="my-agent"'
    return (
        "from dragoman import SyncClient\n\n"
        f"with SyncClient({url!r}{who}) as hub:  # its token: DRAGOMAN_TOKEN\n"
        f"    print(hub.submit({wanted.agent!r}, {wanted.work!r}, {wanted.input!r}).result())\n"
    )
