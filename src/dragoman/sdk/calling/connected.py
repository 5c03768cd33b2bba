"""Staying online: a link that is dialled anew whenever it breaks, for as long as the client is open."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

from dragoman.sdk.calling.calls import C, CallTracker
from dragoman.sdk.errors import DragomanError, HubUnreachable
from dragoman.sdk.links import LinkDown
from dragoman.sdk.network.connect_errors import asks
from dragoman.sdk.runtime import backoff

log = logging.getLogger("dragoman.sdk")


class Link(Protocol):
    async def close(self) -> None: ...


L = TypeVar("L", bound=Link)


def unreachable(down: LinkDown) -> HubUnreachable:
    """What a caller is told of a link that could not be made."""
    return HubUnreachable(asks(f"no link to the hub: {down}", "Is it running there?"))


def gave_up(down: LinkDown, seconds: float) -> HubUnreachable:
    """What ends an agent or a client whose hub was gone for as long as it is to try."""
    return HubUnreachable(asks(f"no link to the hub for {seconds:g} s, so it gives up: {down}", "Is it running there?"))


class ConnectedClient(CallTracker[C], Generic[C, L]):
    """A client with a link of its own; what that is for a protocol, the five methods below `close` say."""

    _online: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect; a hub that is not there is reported at once, one that goes away later is waited for."""
        link = self._new_link()
        try:
            await self._connect(link)
        except BaseException as error:
            await link.close()
            if isinstance(error, LinkDown):
                raise unreachable(error) from None
            raise
        self._attach(link)
        self._online = asyncio.get_running_loop().create_task(self._stay_online(link))

    async def close(self) -> None:
        if self._online is not None:
            self._online.cancel()
            await asyncio.gather(self._online, return_exceptions=True)
        await self.end(HubUnreachable("the client was closed"))

    @abstractmethod
    def _new_link(self) -> L: ...

    @abstractmethod
    async def _connect(self, link: L) -> None: ...

    @abstractmethod
    def _attach(self, link: L) -> None:
        """It stands: say again what may not have been heard."""

    @abstractmethod
    def _detach(self) -> None: ...

    @abstractmethod
    async def _listen(self, link: L) -> None:
        """Wait for something to come and hear it; raises `LinkDown`."""

    async def _stay_online(self, link: L) -> None:
        failures, is_connected = 0, True
        lost_at: float | None = None
        try:
            while True:
                try:
                    if not is_connected:
                        await self._connect(link)
                        self._attach(link)
                        lost_at = None
                    while True:
                        await self._listen(link)
                        failures = 0
                except LinkDown as down:
                    now = self._runtime.monotonic()
                    lost_at = now if lost_at is None else lost_at
                    if self._give_up_after is not None and now - lost_at >= self._give_up_after:
                        raise gave_up(down, self._give_up_after) from None
                    delay = max(backoff(failures, self._runtime.chance()), down.retry_after or 0.0)
                    log.warning("no link to the hub (%s); next try in %.1f s", down, delay)
                    self._detach()
                    await link.close()
                    await self._runtime.sleep(delay)
                link, is_connected, failures = self._new_link(), False, failures + 1
        except DragomanError as error:
            self._fail_all(error)
        finally:
            self._detach()
            await link.close()
