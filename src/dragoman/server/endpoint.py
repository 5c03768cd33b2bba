"""An endpoint: the server side of one protocol on one transport of the HTTP port.

Each protocol's package has a function `endpoints` that makes all of its own. The wiring puts them into one list, and
the server (`server.HttpServer`) asks each for its paths, starts and drains it. It knows no protocol by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dragoman.server.asgi import ASGIApp


class Endpoint:
    compressed: ClassVar[bool] = False
    """Whether WebSockets at its paths are compressed where the client offers it: that costs memory and time for each
    connection."""

    def routes(self) -> Mapping[str, ASGIApp]:
        """Handlers by their path."""
        return {}

    def prefixes(self) -> Mapping[str, ASGIApp]:
        """Handlers of everything below a path, which ends with a slash."""
        return {}

    def start(self) -> None:
        """The port is open."""

    async def drain(self, seconds: float) -> None:
        """Answer what was received, and let go of every connection, within this time."""
