"""A message of an a2acp agent, with what is known of it when its token is verified and its payload open."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from dragoman.core.ids import Instant, QuestionId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract, Secret
from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.types import Message

ENVELOPE = frozenset(Message.__struct_fields__)

_trace = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_encode = msgspec.json.Encoder().encode


class Said(NamedTuple):
    """A message and what is known of it. `content` is its payload in clear, without what the protocol itself puts
    there; or, `sealed`, the ciphertext that nobody but its receiver can open."""

    agent: Agent
    message: Message
    tree: dict[str, Any]
    now: Instant
    granted: tuple[str, ...] = ()
    contract: Contract | None = None
    content: Any = None
    sealed: bool = False
    task: TaskId | None = None
    handshake: QuestionId | None = None
    secret: Secret | None = None
    sealed_by: str | None = None
    traceparent: str | None = None
    thread: str | None = None
    """What the receiver of an event knows the request by that it is about."""
    reports: bool = False
    """It is an event for somebody who can only hear of it as progress."""
    size: int = 0
    """Bytes of the message as it came."""

    @property
    def payload(self) -> dict[str, Any]:
        return self.message.payload or {}

    @property
    def trace_id(self) -> str | None:
        """The trace it belongs to: its own word, else the transport's (all-D7)."""
        for text in (self.payload.get("traceparent"), self.traceparent):
            found = _trace(text) if type(text) is str else None
            if found is not None and int(found[1], 16):
                return found[1]
        return None

    @property
    def extra(self) -> dict[str, Any]:
        """What nobody here knows, beside the payload: it reaches whoever speaks this protocol, too (all-D6)."""
        return {name: value for name, value in self.tree.items() if name not in ENVELOPE}

    @property
    def digest(self) -> str:
        return codec.fingerprint(self.tree).hex()

    @property
    def private(self) -> bool:
        """Whether its words must not be kept as they came."""
        return self.contract is not None and (self.contract.encrypted or self.contract.offer.pii)

    @property
    def raw(self) -> bytes | None:
        """The message for the record, without the credential (all-D4)."""
        if self.private:
            return None
        return _encode({**self.tree, "security": {"encryption": self.message.security.encryption}})

    @property
    def around(self) -> bytes | None:
        """The same; and where its words must not be kept, what it has beside them that nobody here knows (all-D6)."""
        if not self.private or not self.extra:
            return self.raw
        return _encode({"message_type": self.message.message_type, **self.extra})
