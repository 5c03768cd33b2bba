"""What each protocol offers to agents and clients: one table, and the same two functions in each package.

    service(who, address, runtime)   what an agent needs while it serves, as an asynchronous context manager
    client(who, address, runtime)    a backend of `Client`

A protocol joins by a row here and a module with these two. The modules are imported when an address names them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import cast

from msgspec import Struct

from dragoman.sdk.address import API, Address
from dragoman.sdk.calling.backend import Backend
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.links import Bring, Fetch, Link
from dragoman.sdk.runtime import Runtime


class Row(Struct, frozen=True, kw_only=True):
    """A protocol, as far as agents and clients of the SDK treat it differently."""

    client: str
    """The function that makes a backend of `Client`."""
    service: str = ""
    """The function that makes a `Service`; no agent speaks the management API."""
    fetches_files: bool = False
    """The protocol names files; their content is fetched and brought over HTTP."""
    converses: bool = False
    """Agents ask each other for help and hand tasks over. Elsewhere the hub asks for help as a task."""
    shares_state: bool = False
    """The shared state is reached with the same address and token."""
    needs_id: bool = True
    """A client says under which id it calls."""
    makes_contracts: bool = False
    """Agents belong to domains, and a caller makes a contract before it asks. It knows a task by a name of its own."""
    extra: str = ""
    """What `pip install 'dragoman[…]'` brings that the protocol needs and the light install lacks."""


TABLE: dict[str, Row] = {
    API: Row(client="dragoman.sdk.calling.api:client", shares_state=True, needs_id=False),
    "chiffon": Row(
        client="dragoman.sdk.chiffon.entry:client",
        service="dragoman.sdk.chiffon.entry:service",
        fetches_files=True,
    ),
    "agentmsg": Row(
        client="dragoman.sdk.agentmsg.entry:client",
        service="dragoman.sdk.agentmsg.entry:service",
        fetches_files=True,
        converses=True,
        shares_state=True,
    ),
    "a2acp": Row(
        client="dragoman.sdk.a2acp.entry:client",
        service="dragoman.sdk.a2acp.entry:service",
        fetches_files=True,
        makes_contracts=True,
        extra="a2acp",
    ),
    "coven": Row(
        client="dragoman.sdk.coven.entry:client",
        service="dragoman.sdk.coven.entry:service",
        needs_id=False,
        extra="coven",
    ),
    "forge": Row(
        client="dragoman.sdk.forge.entry:client",
        service="dragoman.sdk.forge.entry:service",
        needs_id=False,
    ),
}


class Participant(Struct, frozen=True, kw_only=True):
    """Who serves or calls. Only clients of some protocols may leave out their id."""

    id: str | None = None
    kind: str | None = None
    domain: str | None = None
    version: str | None = None
    state_dir: str | Path | None = None
    give_up_after: float | None = None
    """How many seconds a hub may be gone; None for what is usual for the protocol."""

    @property
    def known_id(self) -> str:
        assert self.id is not None  # `Row.needs_id`
        return self.id


class Service(Struct, frozen=True, kw_only=True):
    """What a serving agent has of its protocol. `dial` makes a fresh link each time. `fetch` and `bring` move files
    that a link only names. `caller` calls other agents over the link that serves: a second link would replace it."""

    dial: Callable[[], Link]
    converses: bool = False
    fetch: Fetch | None = None
    bring: Bring | None = None
    caller: Backend | None = None


def serve(who: Participant, address: Address, runtime: Runtime) -> AbstractAsyncContextManager[Service]:
    """The service of an agent, by the protocol of this address."""
    make = _found(address.protocol, TABLE[address.protocol].service)
    return cast("AbstractAsyncContextManager[Service]", make(who, address, runtime))


def connect(who: Participant, address: Address, runtime: Runtime) -> Backend:
    """The backend of a client, by the protocol of this address."""
    return cast(Backend, _found(address.protocol, TABLE[address.protocol].client)(who, address, runtime))


def _found(protocol: str, place: str) -> Callable[..., object]:
    """The function of a row. Its module is imported here, so that a program loads only the protocols it uses."""
    module, _, name = place.partition(":")
    extra = TABLE[protocol].extra
    try:
        return cast(Callable[..., object], getattr(importlib.import_module(module), name))
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").partition(".")[0] == "dragoman":
            raise
        raise Misconfigured(
            f"{protocol} needs packages that are not installed. Run: pip install 'dragoman[{extra}]'"
        ) from None
