"""What machines ask a hub: is it alive, is it ready, how does it do.

Open to every client that can reach the port, so nothing here names a task, an agent or a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from starlette.responses import Response

from dragoman.core.ports import Store, StoreFailed


class Exposition(Protocol):
    """The metrics of the process, as text (app.metrics.Metrics)."""

    @property
    def content_type(self) -> str: ...

    def expose(self, counts: Mapping[str, int]) -> bytes:
        """Everything, with the gauges of `Store.counts` as of now."""
        ...


class Health(msgspec.Struct, frozen=True):
    """`status` is "ok" or "unready"; `detail` says why."""

    status: str
    detail: str = ""


def _answer(status: int, health: Health) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(msgspec.json.encode(health), status, headers, media_type="application/json")


def livez() -> Response:
    """The event loop turns: that is all this says, so that a full disk does not get the hub killed."""
    return _answer(200, Health("ok"))


def readyz(ready: Callable[[], tuple[bool, str]]) -> Response:
    """Whether new work would be taken now."""
    is_ready, detail = ready()
    return _answer(200, Health("ok", detail)) if is_ready else _answer(503, Health("unready", detail))


async def metrics(store: Store, exposition: Exposition) -> Response:
    """A store that cannot be read costs its gauges, not the scrape."""
    try:
        counts = await store.counts()
    except StoreFailed:
        counts = {}
    headers = {"Content-Type": exposition.content_type, "Cache-Control": "no-store"}
    return Response(exposition.expose(counts), headers=headers)
