"""Tokens, one for each audience and what is asked for: fetched when first needed, replaced before they run out.

A token is asked for again when it has less than `MARGIN` of its life left. Two who need the same one at once share one
request. A refusal is not remembered: what an agent may do can be changed at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple

import msgspec

from dragoman.protocols.a2acp.types import DEFAULT_TTL, Claims, TokenGrant, TokenRequest
from dragoman.sdk.errors import NotAllowed
from dragoman.sdk.runtime import Runtime
from dragoman.security.keys import decode64

MARGIN = 0.2
MOST = 1_000

Fetch = Callable[[TokenRequest], Awaitable[TokenGrant]]


class _Held(NamedTuple):
    token: str
    until: datetime


class TokenCache:
    """`fetch` asks the auth service."""

    def __init__(self, agent_id: str, runtime: Runtime, fetch: Fetch, *, ttl: int = DEFAULT_TTL) -> None:
        self._agent_id = agent_id
        self._runtime = runtime
        self._fetch = fetch
        self._ttl = ttl
        self._held: dict[tuple[str, tuple[str, ...]], _Held] = {}
        self._fetching: dict[tuple[str, tuple[str, ...]], asyncio.Task[str]] = {}

    async def token(self, audience: str, capabilities: tuple[str, ...] = ()) -> str:
        """A token that will do for a while. Raises what `fetch` raises."""
        key = (audience, tuple(sorted(set(capabilities))))
        held = self._held.get(key)
        if held is not None and self._runtime.now() < held.until:
            return held.token
        under_way = self._fetching.get(key)
        if under_way is None:
            under_way = self._fetching[key] = asyncio.get_running_loop().create_task(self._get(key))
            under_way.add_done_callback(lambda done: self._fetched(key, done))
        return await asyncio.shield(under_way)

    async def _get(self, key: tuple[str, tuple[str, ...]]) -> str:
        audience, capabilities = key
        request = TokenRequest(
            agent_id=self._agent_id, target_agent_id=audience, requested_capabilities=capabilities, ttl=self._ttl
        )
        asked = self._runtime.now()
        grant = await self._fetch(request)
        if len(self._held) >= MOST:
            now = self._runtime.now()
            self._held = {known: held for known, held in self._held.items() if now < held.until}
        self._held[key] = _Held(grant.token, grant.expires_at - (grant.expires_at - asked) * MARGIN)
        return grant.token

    def _fetched(self, key: tuple[str, tuple[str, ...]], done: asyncio.Task[str]) -> None:
        self._fetching.pop(key, None)
        if not done.cancelled():
            done.exception()  # who waits hears of it

    def forget(self, audience: str | None = None) -> None:
        """The tokens of an audience, or all of them, are not accepted any more."""
        self._held = {} if audience is None else {key: kept for key, kept in self._held.items() if key[0] != audience}


def claims(token: str) -> Claims:
    """What a token of ours says about us. Whether it is good, its audience decides: we only read it."""
    try:
        return msgspec.json.decode(decode64(token.split(".")[1]), type=Claims)
    except (IndexError, ValueError, msgspec.DecodeError):
        raise NotAllowed("the auth service gave a token that cannot be read") from None
