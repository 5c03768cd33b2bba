"""The shared state over HTTP, and as the answers to STATE_QUERYs. The admin may use it, too.

    GET  /agentmsg/state              200 SharedState, and `cursor`: where a watch goes on from it without a gap
    GET  /agentmsg/state/TYPE/ID      200 {"entity_type","entity_id","version","value"}
    POST /agentmsg/state              200 the same, after the commit; takes a StateUpdate. 409 if its version is not the
                                      current one, which is in context.details.version of the ErrorReport
    GET  /agentmsg/state/watch        server-sent events; ?cursor=N&entity_type=T&entity_id=ID, or Last-Event-ID

        id: 7                         the cursor
        event: state
        data: {…}                     a StateUpdate; `version` is the new one
        : heartbeat                   when nothing happens

A watch from a cursor that the log no longer reaches back to is refused with 409: read the state again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qs

import msgspec
import structlog

from dragoman.core.ids import AgentId, Instant, rfc3339
from dragoman.core.model.shared_tasks import in_full
from dragoman.core.model.state import Change, Entity, Registry
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.agentmsg import codec
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.types import HUB, EntityType, MessageType, StateQuery, StateUpdate
from dragoman.server.agentmsg.answers import change_view, entity_view, state_answer
from dragoman.server.agentmsg.handler import BARE, AgentmsgHandler
from dragoman.server.agentmsg.ids import task_id
from dragoman.server.agentmsg.inbound import change_of
from dragoman.server.asgi import ASGIApp, Disconnected, Receive, Scope, Send, answer, departure, header, read_body
from dragoman.server.handler import Endpoint
from dragoman.server.http_endpoint import Decided
from dragoman.wire.errors import RemoteProtocolError

if TYPE_CHECKING:
    from dragoman.server.agentmsg.http import AgentmsgHttp

log = structlog.get_logger("dragoman.server")

PATH = "/agentmsg/state"
WATCH = f"{PATH}/watch"
HEARTBEAT_SECONDS = 15.0
PROBE_SECONDS = 1.0
"""Between heartbeats to a client that closed its side: one that is gone fails the second write."""
MOST_WATCHES = 1000
"""Streams at once, over all readers."""

STREAM = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)
UNREADABLE = Fault(kind=Kind.OVERLOADED, message="the shared state cannot be read now", retryable=True)

ENTITY_TYPES: Mapping[Registry, EntityType] = {Registry(name): name for name in get_args(EntityType)}
POLICY = "policy"
REGISTRIES = {
    Registry.TASK: "task_registry",
    Registry.AGENT: "agent_registry",
    Registry.RESOURCE: "resource_allocations",
}
"""The fields of a SharedState."""

_encode = msgspec.json.Encoder().encode


# -- reading -----------------------------------------------------------------------------------------------------


class Reading(msgspec.Struct, frozen=True):
    """The answer to a query."""

    entities: Sequence[Entity]
    last_updated: Instant | str
    cursor: int

    def message(self, handler: AgentmsgHandler, to: AgentId, about: str) -> bytes:
        payload = state_answer(self.entities, self.last_updated, self.cursor)
        return handler.frame(MessageType.STATE_QUERY, payload, to, about)


async def read(handler: AgentmsgHandler, reader: AgentId, query: StateQuery) -> Reading:
    """Everything, one registry, one entity, or nothing for a watch that goes on from a cursor; raises `Refused`.

    The cursor is read first: what changes meanwhile is in the entities and follows again, and its version shows that.
    """
    view, now = handler.state, handler.hub.now()
    if query.entity_id is not None and query.entity_type is None:
        raise refuse(Kind.INVALID, "say the entity_type as well", field="payload.entity_type")
    if query.watch and query.cursor is not None:
        await view.changes(query.cursor, 1)  # refuses a cursor that is too old
        return Reading((), now, query.cursor)
    if query.entity_type is not None and query.entity_id is not None:
        cursor, registry = handler.hub.state_cursor, Registry(query.entity_type)
        one = await look(handler, reader, registry, query.entity_id)
        return Reading(() if one is None else (one,), now if one is None else one.updated_at, cursor)
    whole = await view.whole(reader, details=False)
    found = [
        await look(handler, reader, registry, name, history=False)
        for registry in (Registry if query.entity_type is None else (Registry(query.entity_type),))
        for name in ((POLICY,) if registry is Registry.POLICY else whole[REGISTRIES[registry]])
    ]
    return Reading([one for one in found if one is not None], whole["last_updated"], whole["cursor"])


async def look(
    handler: AgentmsgHandler, reader: AgentId, registry: Registry, name: str, *, history: bool = True
) -> Entity | None:
    """One entity. A task is found by the name that agents know it by, or by its id."""
    if registry is not Registry.TASK:
        return await handler.state.one(registry, name, reader)
    known = await handler.state.one(registry, task_id(name), reader, history=history)
    found = known or await handler.state.one(registry, name, reader)
    return None if found is None else msgspec.structs.replace(found, name=found.value.get("id", name))


def changes(
    handler: AgentmsgHandler, reader: AgentId, query: StateQuery, after: int | None
) -> AsyncGenerator[tuple[int, Change, Instant]]:
    """What changes after a cursor; raises `Refused` if that is too old."""
    registry = None if query.entity_type is None else Registry(query.entity_type)
    return handler.state.watch(after, registry, query.entity_id, reader)


# -- the endpoints -----------------------------------------------------------------------------------------------

Handler = Callable[[AgentId, Scope, Receive, Send], Awaitable[None]]


class AgentmsgState(Endpoint):
    def __init__(self, handler: AgentmsgHandler, http: AgentmsgHttp) -> None:
        self._handler = handler
        self._http = http
        self._closed = asyncio.Event()
        self._streams = 0

    def routes(self) -> Mapping[str, ASGIApp]:
        by_method = self._http.by_method
        return {
            PATH: by_method({"GET": self._guarded(self._whole), "POST": self._guarded(self._change)}),
            WATCH: by_method({"GET": self._guarded(self._watch)}),
        }

    def prefixes(self) -> Mapping[str, ASGIApp]:
        return {f"{PATH}/": self._http.by_method({"GET": self._guarded(self._one)})}

    async def drain(self, seconds: float) -> None:
        """End every watch; the clients come back after the restart."""
        self._closed.set()

    def _guarded(self, handle: Handler) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            reader: AgentId | None = None
            what: str | None = f"state.{handle.__name__.strip('_')}"
            try:
                reader = self._handler.reader(scope)
                self._handler.alive(reader)
                await handle(reader, scope, receive, send)
                return
            except Disconnected:
                return
            except Decided as decided:
                what, fault = None, decided.fault
            except (Refused, RemoteProtocolError) as error:
                fault = self._http.fault(error)
            except StoreFailed:
                fault = UNREADABLE
            if reader is not None and scope["method"] == "GET":
                what = None  # a look at something that is not there is not audited
            await self._http.refuse(send, what, fault, principal=reader, about=BARE)

        return app

    async def _whole(self, reader: AgentId, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, _encode(await self._handler.state.whole(reader)))

    async def _one(self, reader: AgentId, scope: Scope, receive: Receive, send: Send) -> None:
        kind, _, name = scope["path"].removeprefix(f"{PATH}/").partition("/")
        registry = _registry(kind)
        entity = await look(self._handler, reader, registry, name) if name else None
        if entity is None:
            what = f"no {registry.value} is called {name[:80]!r}" if name else f"the path names no {registry.value}"
            raise refuse(Kind.NOT_FOUND, what, next="read the whole state to see which there are", field="entity_id")
        await answer(send, 200, _encode(entity_view(entity)))

    async def _change(self, reader: AgentId, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._handler.json(await read_body(scope, receive, self._handler.limits.message_bytes, reader))
        update = self._update_in(reader, body)
        entity: Entity = await self._http.execute(change_of(reader, update))
        if entity.registry is Registry.TASK:
            entity = msgspec.structs.replace(entity, name=update.entity_id)
        await answer(send, 200, _encode(entity_view(in_full(entity))))

    def _update_in(self, writer: AgentId, body: dict[str, Any]) -> StateUpdate:
        """A bare StateUpdate, checked as if it had come in a message."""
        tree = {
            "id": self._handler.message_id(),
            "timestamp": rfc3339(self._handler.hub.now()),
            "from": writer,
            "to": HUB,
            "type": MessageType.STATE_UPDATE.value,
            "payload": body,
            "metadata": {"priority": "high", "retry_count": 0, "max_retries": 0},
        }
        try:
            update: StateUpdate = codec.interpret(tree).payload
        except AgentmsgError as error:
            field = None if error.field is None else error.field.removeprefix("payload.")
            raise AgentmsgError(error.what, stage=error.stage, field=field) from None
        return update

    # -- watching

    async def _watch(self, reader: AgentId, scope: Scope, receive: Receive, send: Send) -> None:
        query, after = _watch_query(scope)
        if self._streams >= MOST_WATCHES:
            raise refuse(Kind.OVERLOADED, f"{MOST_WATCHES} watches are open already", next="try again later")
        self._streams += 1
        try:
            with self._handler.hub.streams.one(reader):
                if after is not None:  # a cursor that is too old is refused while there is a status to refuse it with
                    await self._handler.state.changes(after, 1)
                async with aclosing(changes(self._handler, reader, query, after)) as updates:
                    await self._stream(updates, receive, send)
        finally:
            self._streams -= 1

    async def _stream(self, updates: AsyncGenerator[tuple[int, Change, Instant]], receive: Receive, send: Send) -> None:
        """A reader that does not read holds up only its own `send`: what it has not read stays in the log."""
        await send({"type": "http.response.start", "status": 200, "headers": list(STREAM)})
        await _piece(send, b"retry: 1000\n\n")
        pause = HEARTBEAT_SECONDS
        silent = asyncio.ensure_future(departure(receive))
        closed = asyncio.ensure_future(self._closed.wait())
        coming = asyncio.ensure_future(anext(updates, None))
        try:
            while True:
                done, _ = await asyncio.wait(
                    {coming, silent, closed}, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if closed in done:
                    break
                if silent in done and pause != PROBE_SECONDS:
                    pause, silent = PROBE_SECONDS, asyncio.ensure_future(_gone(receive))
                    continue
                if silent in done:
                    break
                if not done:
                    await _piece(send, b": heartbeat\n\n")
                    continue
                update = coming.result()
                if update is None:
                    break
                data = _encode(change_view(*update))
                await _piece(send, b"id: %d\nevent: state\ndata: %b\n\n" % (update[0], data))
                coming = asyncio.ensure_future(anext(updates, None))
        except (Refused, StoreFailed) as error:  # the client comes back where it was, and is refused then
            log.info("watch ended", why=type(error).__name__)
        finally:
            for future in (coming, silent, closed):
                future.cancel()
            await asyncio.wait({coming, silent, closed})
            if coming.done() and not coming.cancelled():
                coming.exception()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _piece(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _registry(name: str) -> Registry:
    try:
        return Registry(name.upper())
    except ValueError:
        known = ", ".join(registry.value for registry in Registry)
        raise refuse(Kind.NOT_FOUND, "no such registry", next=f"ask for one of {known}", field="entity_type") from None


def _watch_query(scope: Scope) -> tuple[StateQuery, int | None]:
    query = parse_qs(scope["query_string"].decode("latin-1"))
    kind, name = query.get("entity_type", [None])[-1], query.get("entity_id", [None])[-1]
    last = header(scope, b"last-event-id")
    # A browser that reconnects repeats the address it began with, so what it saw since counts more.
    text = last.decode("latin-1") if last else query.get("cursor", [None])[-1]
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise refuse(Kind.INVALID, "a cursor is the number that came as `id` or in the state", field="cursor")
    if name is not None and kind is None:
        raise refuse(Kind.INVALID, "say the entity_type as well", field="entity_type")
    entity_type = None if kind is None else ENTITY_TYPES[_registry(kind)]
    return StateQuery(entity_type=entity_type, entity_id=name, watch=True), None if text is None else int(text)
