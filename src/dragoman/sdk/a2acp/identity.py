"""Who we are towards an a2acp broker, and what of ours and theirs is said: envelopes, tokens, seals.

An `Identity` outlives its links. An agent that both serves and calls is one identity: its requests go out, and their
answers come in, over the link it serves by.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from dragoman.protocols.a2acp import codec, intents
from dragoman.protocols.a2acp.errors import A2acpError, Code
from dragoman.protocols.a2acp.types import BROKER_ID, SEMVER_PATTERN, Agent, Message, MessageType, Stamp
from dragoman.sdk.a2acp import keyring
from dragoman.sdk.a2acp.channel import Channel, Post, Write
from dragoman.sdk.a2acp.keyring import KeyRing, Unopened
from dragoman.sdk.a2acp.token_cache import TokenCache, claims
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.runtime import Runtime

log = logging.getLogger("dragoman.sdk")

BROKER = Agent(agent_id=BROKER_ID, domain="a_domain", version="1.0.0")
VERSION = "1.0.0"
PROGRESS = "progress"
"""An event of ours: how far a request is. The document has none."""
QUESTION, ANSWER = "question", "answer"
"""Events of ours: what a person is asked, and what that person says."""
REPLAYED, MISMATCH = "replayed", "mismatch"
"""The hub knows the id: from the last minutes, or from a task (which was sealed otherwise then)."""
STALE = ("expiration", "signature", "revoked")
"""Why a token that was good may not be any more."""


class Caller(Protocol):
    """Who asks others by an identity (`caller`)."""

    def attach(self, channel: Channel) -> None: ...

    def detach(self) -> None: ...

    def accepted(self, id: str) -> bool: ...

    def refused(self, id: str, message: Message | None, error: Exception | None) -> bool:
        """A message of ours was not taken, or could not be written. Each of these says whether it was the caller's."""
        ...

    def hear(self, message: Message) -> bool: ...


class Identity:
    """`domain` is what the hub says it is, unless it is given; then both must agree."""

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

    async def find_out(self) -> None:
        """Learn from the auth service which domain we are of, once."""
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
        """What writes the message when its turn comes, with what stands `beside` its payload. Written again, it has the
        same id and a new seal: no nonce is accepted twice."""

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
        """A request for the broker itself; each time it is written it is a new message."""

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
        """A message for us, as it came: sealed if it is. What makes no sense is logged and dropped."""
        try:
            message = codec.decode(data)
        except A2acpError as error:
            log.warning("the hub said something that makes no sense: %s", error)
            return None
        if message.target_agent.agent_id != self._me.agent_id:
            log.warning("the hub said something that is for %s", message.target_agent.agent_id)
            return None
        return message

    def opened(self, message: Message) -> Message:
        """The message with its payload in clear; raises `Unopened`."""
        if message.security.encryption != "aes256":
            return message
        return msgspec.structs.replace(message, payload=self.ring.open(message))

    def news(self, message: Message) -> bool:
        """What the broker tells about contracts; whether it was that."""
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
            log.warning("a key was told that is of no use: %s", error)
        return True

    def is_repetition(self, message: Message) -> bool:
        """Whether a refusal says that the hub has had the message before: then all is well."""
        details = codec.error(message).details
        return details.get("reason") == REPLAYED or details.get("kind") == MISMATCH

    def is_stale(self, message: Message) -> bool:
        """Whether a refusal says that the token was not good any more: then another one may be."""
        error = codec.error(message)
        if error.code is not Code.AUTH_FAILED or error.details.get("rule") not in STALE:
            return False
        self.tokens.forget()
        return True
