"""The state that all agents share: read it, change it, watch it.

    await hub.state.read()                                        everything, and where a watch begins
    entity = await hub.state.get("RESOURCE", "editor:tokens")     one entity, with its version
    await hub.state.update("RESOURCE", entity.id, {"limit": 50_000}, version=entity.version)
    async for change in hub.state.watch(entity_type="TASK"): ...

A change names the version that its writer has read: if another writer was faster, it is a `StateConflict` with the
current one, and nothing is changed. `changes` is a JSON merge patch. A watch that breaks goes on where it was:
no change is missed and none comes twice.

The SDK repeats a read over a broken connection, but not a change: without an answer, read whether it happened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal, NoReturn, TypeAlias
from urllib.parse import quote

import httpx2
import msgspec
from msgspec import Struct

from dragoman.protocols.agentmsg.records import ErrorReport
from dragoman.sdk.address import Address
from dragoman.sdk.blocking import BlockingPart, iterates, waits
from dragoman.sdk.calling.backend import HubRetries, TemporaryFailure
from dragoman.sdk.errors import Conflict, DragomanError, HubUnreachable, NotAllowed, NotFound, RequestRefused
from dragoman.sdk.network.connect_errors import sentence
from dragoman.sdk.network.http import http_client, listening
from dragoman.sdk.runtime import Runtime

PATH = "/agentmsg/state"
RAISED: dict[int, type[DragomanError]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound}
PASSING = frozenset({429, 502, 503, 504})

EntityType: TypeAlias = Literal["TASK", "AGENT", "RESOURCE", "POLICY"]


class StateConflict(Conflict):
    """Another writer was faster: the entity is at `current_version`, if it is there at all."""

    def __init__(self, message: str, current_version: int | None) -> None:
        super().__init__(message)
        self.current_version = current_version


class Entity(Struct, frozen=True, kw_only=True):
    """One shared thing; `value` has the document's fields."""

    entity_type: EntityType
    entity_id: str
    version: int
    value: dict[str, Any] = {}

    @property
    def id(self) -> str:
        return self.entity_id


class Shared(Struct, frozen=True, kw_only=True):
    """Everything at once. `cursor` is where a watch goes on from here."""

    task_registry: dict[str, dict[str, Any]] = {}
    agent_registry: dict[str, dict[str, Any]] = {}
    resource_allocations: dict[str, dict[str, Any]] = {}
    policy_state: dict[str, Any] = {}
    last_updated: str = ""
    cursor: int = 0


class Change(Struct, frozen=True, kw_only=True):
    """What has changed; `version` is the new one. `cursor` is where a watch goes on after it; several changes of one
    moment share it."""

    operation: Literal["CREATE", "UPDATE", "DELETE"]
    entity_type: EntityType
    entity_id: str
    changes: dict[str, Any] = {}
    version: int = 0
    timestamp: str = ""
    cursor: int | None = None


_change = msgspec.json.Decoder(Change).decode
_report = msgspec.json.Decoder(ErrorReport).decode


class SharedState:
    """The shared state of the hub at `address`, with its token."""

    def __init__(
        self, address: Address, runtime: Runtime, *, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self._runtime = runtime
        self._retries = HubRetries(address.base, runtime)
        self._http = http_client(address, transport=transport)

    async def close(self) -> None:
        await self._http.aclose()

    # --- reading ---

    async def read(self) -> Shared:
        """Everything that is shared."""
        return msgspec.json.decode(await self._get(PATH), type=Shared)

    async def get(self, entity_type: EntityType, entity_id: str) -> Entity:
        """One entity; `NotFound` if there is none."""
        return msgspec.json.decode(await self._get(_place(entity_type, entity_id)), type=Entity)

    # --- changing ---

    async def create(self, entity_type: EntityType, entity_id: str, value: Mapping[str, Any]) -> Entity:
        """A new entity; `StateConflict` if it is there."""
        return await self._change("CREATE", entity_type, entity_id, value, 0)

    async def update(
        self, entity_type: EntityType, entity_id: str, changes: Mapping[str, Any], *, version: int
    ) -> Entity:
        """Change some fields of an entity that was at `version` when it was read."""
        return await self._change("UPDATE", entity_type, entity_id, changes, version)

    async def delete(self, entity_type: EntityType, entity_id: str, *, version: int) -> None:
        """Remove an entity that was at `version` when it was read."""
        await self._change("DELETE", entity_type, entity_id, {}, version)

    async def _change(
        self, operation: str, entity_type: EntityType, entity_id: str, changes: Mapping[str, Any], version: int
    ) -> Entity:
        wish = {
            "operation": operation,
            "entity_type": entity_type,
            "entity_id": entity_id,
            "changes": changes,
            "version": version,
            "timestamp": self._runtime.now(),
        }
        headers = {"content-type": "application/json"}
        try:
            response = await self._http.post(PATH, content=msgspec.json.encode(wish), headers=headers)
        except httpx2.TransportError as error:
            raise HubUnreachable(
                f"no answer from {self._retries.where}: {sentence(error)}. "
                "It may have happened: read before you try again"
            ) from None
        self._retries.was_reached = True
        if not response.is_success:
            _raise(response)
        made = msgspec.json.decode(response.content, type=dict[str, Any])
        known = {"entity_type": entity_type, "entity_id": entity_id, "version": version}
        return msgspec.convert({**known, **{name: value for name, value in made.items() if value is not None}}, Entity)

    # --- watching ---

    async def watch(
        self,
        cursor: int | None = None,
        entity_type: EntityType | None = None,
        entity_id: str | None = None,
    ) -> AsyncGenerator[Change]:
        """Every change from now on, or from after `cursor`: of everything, one registry, or one entity.

        `Conflict` if the hub's memory no longer reaches back to `cursor`: then `read` again, and go on from there.
        """
        after = (await self.read()).cursor if cursor is None else cursor
        # Several changes may share a cursor. So one counts as done with when the next begins; if the stream breaks in
        # between, its changes come again, and those that were yielded before are passed over.
        current, yielded = after, set[tuple[str, str, str, int]]()
        asked = {"entity_type": entity_type, "entity_id": entity_id}
        only = {name: value for name, value in asked.items() if value is not None}
        tries = self._retries.begin()
        while True:
            try:
                params = {**only, "cursor": str(after)}
                async with listening(self._http, f"{PATH}/watch", check=self._check, params=params) as stream:
                    tries.reached()
                    async for sent in stream:
                        if not sent.id or not sent.data:
                            continue
                        change = _change(sent.data)
                        at = int(sent.id)
                        key = (change.operation, change.entity_type, change.entity_id, change.version)
                        if at <= after or (at == current and key in yielded):
                            continue
                        if at != current:
                            after, current, yielded = current, at, set()
                        yielded.add(key)
                        yield msgspec.structs.replace(change, cursor=at)
                raise TemporaryFailure("the watch ended")
            except (httpx2.TransportError, TemporaryFailure) as error:
                await tries.again(error)

    # --- one request ---

    async def _get(self, path: str) -> bytes:
        tries = self._retries.begin()
        while True:
            try:
                response = await self._http.get(path)
                self._check(response)
                return response.content
            except (httpx2.TransportError, TemporaryFailure) as error:
                await tries.again(error)

    def _check(self, response: httpx2.Response) -> None:
        self._retries.was_reached = True
        if response.status_code in PASSING:
            raise TemporaryFailure(f"the hub answered with {response.status_code}")
        if not response.is_success:
            _raise(response)


def _place(entity_type: str, entity_id: str) -> str:
    return f"{PATH}/{quote(entity_type, safe='')}/{quote(entity_id, safe='')}"


def _raise(response: httpx2.Response) -> NoReturn:
    try:
        report = _report(response.content)
        message, kind, facts = report.message, report.error_type.value, report.context.details
    except msgspec.DecodeError:
        message, kind, facts = f"the hub answered with {response.status_code}", None, {}
    if response.status_code == 409:
        version = facts.get("version")
        raise StateConflict(message, version if type(version) is int else None)
    raised = RAISED.get(response.status_code)
    raise RequestRefused(message, kind=kind, facts=facts) if raised is None else raised(message)


class SyncState(BlockingPart[SharedState]):
    """`SharedState`, with methods that wait."""

    read = waits(SharedState.read)
    get = waits(SharedState.get)
    create = waits(SharedState.create)
    update = waits(SharedState.update)
    delete = waits(SharedState.delete)
    watch = iterates(SharedState.watch)
