"""An agent's identity towards an a2acp broker: envelopes, tokens, seals.

An `Identity` outlives its links. An agent that both serves and calls has one: its requests go out, and their answers
come in, over the link by which it serves.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from dragoman.protocols.a2acp import codec, intents
from dragoman.protocols.a2acp.errors import A2acpError, Code
from dragoman.protocols.a2acp.types import (
    BROKER_ID,
    DEFAULT_TTL,
    SEMVER_PATTERN,
    Agent,
    Claims,
    Message,
    MessageType,
    Stamp,
    TokenGrant,
    TokenRequest,
)
from dragoman.sdk.a2acp import keyring
from dragoman.sdk.a2acp.channel import Channel, Post, Write
from dragoman.sdk.a2acp.keyring import KeyRing, Unopened
from dragoman.sdk.errors import Misconfigured, NotAllowed
from dragoman.sdk.runtime import Runtime
from dragoman.security.keys import decode64

log = logging.getLogger("dragoman.sdk")

BROKER = Agent(agent_id=BROKER_ID, domain="a_domain", version="1.0.0")
VERSION = "1.0.0"
REPLAYED, MISMATCH = "replayed", "mismatch"
"""The hub knows the id: from the last minutes, or from a task (which was sealed otherwise then)."""
STALE = ("expiration", "signature", "revoked")
"""Why a token that was good may not be any more."""
MARGIN = 0.2
"""The share of its life that a token has left when the agent fetches another."""
MOST_TOKENS = 1_000


class Caller(Protocol):
    """The side of an identity that calls other agents (`caller`). Each method says whether the message was its own."""

    def attach(self, channel: Channel) -> None: ...

    def detach(self) -> None: ...

    def accepted(self, id: str) -> bool: ...

    def refused(self, id: str, message: Message | None, error: Exception | None) -> bool:
        """The hub refused a message, or it could not be written."""
        ...

    def receive(self, message: Message) -> bool: ...


class Identity:
    """`domain` is the one that the hub names, unless it is given; then both must agree."""

    def __init__(
        self,
        agent_id: str,
        post: Post,
        runtime: Runtime,
        *,
        domain: str | None = None,
        version: str | None = None,
        state_dir: str | Path | None = None,
    ) -> None:
        if version is not None and re.match(SEMVER_PATTERN, version) is None:
            raise Misconfigured(f"a2acp wants a version as 1.2.3, not {version!r}")
        self.runtime = runtime
        self.post = post
        self.tokens = TokenCache(agent_id, runtime, post.token)
        self.ring = KeyRing(runtime, agent_id, keyring.path_for(state_dir, agent_id))
        self.caller: Caller | None = None
        self._me = Agent(agent_id=agent_id, domain=domain or "?", version=version or VERSION)
        self._knows_domain = domain is not None

    @property
    def me(self) -> Agent:
        return self._me

    async def find_domain(self) -> None:
        """Learn the agent's domain from the auth service, once."""
        if not self._knows_domain:
            domain = claims(await self.tokens.token(BROKER_ID)).domain
            self._me = msgspec.structs.replace(self._me, domain=domain)
            self._knows_domain = True

    # --- out ---

    def write(
        self,
        kind: MessageType,
        *,
        id: str,
        to: Agent,
        intent: str | None,
        payload: Mapping[str, Any],
        correlation_id: str | None,
        capabilities: tuple[str, ...] = (),
        seal: bool = False,
        beside: Mapping[str, Any] | None = None,
    ) -> Write:
        """A function that writes the message when its turn comes, with the fields `beside` its payload. Written again,
        it has the same id and a new seal: no nonce is accepted twice."""

        async def written() -> bytes:
            stamp = Stamp(id, self.runtime.now(), await self.tokens.token(to.agent_id, capabilities))
            message = codec.message(
                kind,
                stamp,
                source=self._me,
                target=to,
                intent=intent,
                payload=payload,
                correlation_id=correlation_id,
            )
            message = msgspec.structs.replace(message, **(beside or {}))
            if seal:
                security = msgspec.structs.replace(message.security, encryption="aes256")
                message = msgspec.structs.replace(message, payload=self.ring.seal(message), security=security)
            return codec.encode(message)

        return written

    def ask_broker(
        self, intent: str, body: intents.Body, *, correlation_id: str, capabilities: tuple[str, ...] = ()
    ) -> Write:
        """A request to the broker; each time it is written it is a new message."""

        async def written() -> bytes:
            return await self.write(
                MessageType.REQUEST,
                id=self.runtime.mint(),
                to=BROKER,
                intent=intent,
                payload=intents.payload(body),
                correlation_id=correlation_id,
                capabilities=capabilities,
            )()

        return written

    # --- in ---

    def read(self, data: bytes) -> Message | None:
        """A message for this agent, still sealed if it is. A message that cannot be read is logged and dropped."""
        try:
            message = codec.decode(data)
        except A2acpError as error:
            log.warning("the hub sent a message that cannot be read: %s", error)
            return None
        if message.target_agent.agent_id != self._me.agent_id:
            log.warning("the hub sent a message that is for %s", message.target_agent.agent_id)
            return None
        return message

    def opened(self, message: Message) -> Message:
        """The message with its payload in clear; raises `Unopened`."""
        if message.security.encryption != "aes256":
            return message
        return msgspec.structs.replace(message, payload=self.ring.open(message))

    def contract_changed(self, message: Message) -> bool:
        """Take an event of the broker about a contract; whether it was one."""
        if message.message_type is not MessageType.EVENT:
            return False
        try:
            match intents.read(message) if intents.form_of(message) is not None else None:
                case intents.Established() as stands:
                    self.ring.agreed(stands.contract, stands.key)
                case intents.Rotated() as rotated:
                    self.ring.take(rotated.collaboration_id, rotated.key)
                case intents.Terminated() as over:
                    log.info("%s ended collaboration %s: %s", over.by, over.collaboration_id, over.reason)
                    self.ring.forget(over.collaboration_id)
                case _:
                    return False
        except Unopened as error:
            log.warning("the hub sent a key that is of no use: %s", error)
        return True

    def is_repetition(self, message: Message) -> bool:
        """Whether a refusal says that the hub has the message already: then all is well."""
        details = codec.error(message).details
        return details.get("reason") == REPLAYED or details.get("kind") == MISMATCH

    def is_stale(self, message: Message) -> bool:
        """Whether a refusal says that the token is not valid any more: then another one may be."""
        error = codec.error(message)
        if error.code is not Code.AUTH_FAILED or error.details.get("rule") not in STALE:
            return False
        self.tokens.forget()
        return True


# --- tokens ---


class _Held(NamedTuple):
    token: str
    until: datetime


class TokenCache:
    """Tokens, one for each audience and set of capabilities: fetched when first needed, and again before they expire.

    Two that need the same token at once share one request. A refusal is not remembered: a person may change what an
    agent may do at any time. `fetch` asks the auth service.
    """

    def __init__(
        self,
        agent_id: str,
        runtime: Runtime,
        fetch: Callable[[TokenRequest], Awaitable[TokenGrant]],
        *,
        ttl: int = DEFAULT_TTL,
    ) -> None:
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
        if len(self._held) >= MOST_TOKENS:
            now = self._runtime.now()
            self._held = {known: held for known, held in self._held.items() if now < held.until}
        self._held[key] = _Held(grant.token, grant.expires_at - (grant.expires_at - asked) * MARGIN)
        return grant.token

    def _fetched(self, key: tuple[str, tuple[str, ...]], done: asyncio.Task[str]) -> None:
        self._fetching.pop(key, None)
        if not done.cancelled():
            done.exception()  # a waiting caller gets it; without one it is no news

    def forget(self, audience: str | None = None) -> None:
        """The hub does not accept the tokens of an audience, or any, any more."""
        self._held = {} if audience is None else {key: kept for key, kept in self._held.items() if key[0] != audience}


def claims(token: str) -> Claims:
    """The claims of the agent's own token, unverified: its audience decides whether it is valid."""
    try:
        return msgspec.json.decode(decode64(token.split(".")[1]), type=Claims)
    except (IndexError, ValueError, msgspec.DecodeError):
        raise NotAllowed("the auth service gave a token that cannot be read") from None
