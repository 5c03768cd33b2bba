"""One a2acp message being made: its envelope, what stands around its content, and whether that is sealed.

What the message of each kind says is `outbound`'s. What no pure layer can make or know (tokens, keys, who somebody is)
comes with the `Voice`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.ids import AgentId, Instant, rfc3339
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.model.tasks import Event, Task
from dragoman.protocols.a2acp.errors import Refusal
from dragoman.protocols.a2acp.sealing import KeyGrant, bound
from dragoman.protocols.a2acp.types import MESSAGE_BYTES, PAYLOAD_BYTES, PROTOCOL_VERSION, RESERVED, Agent
from dragoman.server.a2acp.names import PROTOCOL, message_id, thread_of
from dragoman.server.a2acp.said import ENVELOPE

REQUEST, RESPONSE, EVENT, ERROR = "request", "response", "event", "error"
ADDED = 200
"""Bytes that the hub puts into the payload of an answer which had room for nothing more: what it is about."""

_slices = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_NOTHING = msgspec.Raw(b"{}")

Shut = Callable[[bytes, Callable[[str], bytes]], dict[str, str]]
"""Seals a payload; what it is bound to depends on the key's name."""


class Voice(msgspec.Struct, frozen=True, kw_only=True):
    """What a message needs and a pure layer cannot make or know."""

    broker: Agent
    party: Callable[[AgentId], Agent]
    """An agent as others are told of it; the broker for whoever is none."""
    called: Callable[[Task], str]
    """What the agent that works on a task knows it by."""
    token: Callable[[str], str]
    """The broker's word, for one receiver."""
    shut: Callable[[Contract], Shut]
    grant: Callable[[Contract, AgentId], KeyGrant | None]


class MessageBuilder:
    """One message being made."""

    def __init__(
        self, outgoing: Outgoing, receiver: AgentId, now: Instant, voice: Voice, contract: Contract | None
    ) -> None:
        self.outgoing = outgoing
        self.receiver = receiver
        self.now = now
        self.voice = voice
        self.contract = contract
        self.id = message_id(outgoing.delivery.id)

    @property
    def task(self) -> Task:
        task: Task = self.outgoing.task
        return task

    @property
    def event(self) -> Event:
        event: Event = self.outgoing.event
        return event

    @property
    def traceparent(self) -> str:
        return f"00-{self.task.trace_id}-{self.outgoing.delivery.id.replace('-', '')[16:]}-01"

    @property
    def personal(self) -> bool:
        return self.task.personal or (self.contract is not None and self.contract.encrypted)

    def say(
        self,
        kind: str,
        intent: str | None,
        payload: Mapping[str, Any],
        *,
        source: Agent | None = None,
        encryption: str = "none",
        id: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        voice = self.voice
        message: dict[str, Any] = dict(extra or {})
        message |= {
            "protocol_version": PROTOCOL_VERSION,
            "message_id": id or self.id,
            "timestamp": rfc3339(self.now),
            "source_agent": source or voice.broker,
            "target_agent": voice.party(self.receiver),
            "message_type": kind,
        }
        if intent is not None:
            message["intent"] = intent
        message["payload"] = payload
        message["security"] = {"auth_token": voice.token(self.receiver), "encryption": encryption}
        return _encode(message)

    def converse(
        self,
        kind: str,
        intent: str,
        content: Any,
        correlation: str,
        *,
        source: Agent,
        extra: Mapping[str, Any] | None = None,
        spare: Sequence[str] = ("traceparent",),
    ) -> bytes:
        """What one agent says to another: sealed where their contract wants it. `spare`: what of the hub's own stays
        behind where there is no room for it."""
        around: dict[str, Any] = {"correlation_id": correlation, "traceparent": self.traceparent}
        if self.contract is not None:
            around["contract_id"] = self.contract.id
        message = self.put(kind, intent, content, around, source, extra)
        for name in spare:
            if not oversize(message):
                break
            del around[name]
            message = self.put(kind, intent, content, around, source, extra)
        return message

    def put(
        self,
        kind: str,
        intent: str,
        content: Any,
        around: Mapping[str, Any],
        source: Agent,
        extra: Mapping[str, Any] | None,
    ) -> bytes:
        """The content in its surroundings, which stand in clear: where it is sealed, it is bound to the ids there."""
        contract = self.contract
        if contract is None or not contract.encrypted:
            plain = content if type(content) is dict else {"result": content}
            return self.say(kind, intent, {**plain, **around}, source=source, extra=extra)

        def ids(kid: str) -> bytes:
            return bound(
                kid, message_id=self.id, source=source.agent_id, target=self.receiver, kind=kind,
                intent=intent, contract_id=around.get("contract_id"), correlation_id=around.get("correlation_id"),
            )  # fmt: skip

        sealed = self.voice.shut(contract)(_encode(content), ids)
        return self.say(kind, intent, {**sealed, **around}, source=source, encryption="aes256", extra=extra)

    def forward(
        self,
        kind: str,
        sealed: Any,
        envelope: dict[str, Any],
        *,
        source: Agent,
        extra: Mapping[str, Any],
        intent: str | None = None,
    ) -> bytes:
        """A ciphertext that only the two agents can open, in the envelope that it was made for."""
        named = {name: value for name, value in envelope.items() if name != "message_id"}
        id, intent = envelope["message_id"], intent or self.task.type
        message = b""
        for around in ({"traceparent": self.traceparent}, {}):
            payload = {**sealed, **named, **around}
            message = self.say(kind, intent, payload, source=source, encryption="aes256", id=id, extra=extra)
            if not oversize(message):
                break
        return message

    def complain(
        self,
        refusal: Refusal,
        correlation: str | None,
        intent: str | None,
        source: Agent | None,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        payload = refusal.payload(correlation)
        if self.contract is not None:
            payload["contract_id"] = self.contract.id
        return self.say(ERROR, intent, payload, source=source, extra=extra)

    def repeat(self, refusal: Refusal, source: Agent) -> bytes:
        """An agent's own error, with the fields of it that nobody here knows, as long as a message holds them."""
        as_it_came = came(self.event, ERROR)
        words = _slices(as_it_came.get("payload", _NOTHING))
        error = _slices(words.get("error", _NOTHING))
        payload: dict[str, Any] = {name: value for name, value in words.items() if name not in RESERVED}
        payload |= refusal.payload(thread_of(self.task))
        payload["error"] = {**error, **payload["error"]}
        if self.contract is not None:
            payload["contract_id"] = self.contract.id
        extra = {name: value for name, value in as_it_came.items() if name not in ENVELOPE}
        message = self.say(ERROR, self.task.type, payload, source=source, extra=extra)
        if not oversize(message):
            return message
        return self.complain(refusal, thread_of(self.task), self.task.type, source)


def oversize(message: bytes, added: int = 0) -> dict[str, int]:
    """The limit that a message exceeds (D10), and by what; nothing where it exceeds none."""
    if len(message) <= PAYLOAD_BYTES:
        return {}
    size = len(_slices(message)["payload"])
    if size > PAYLOAD_BYTES + added:
        return {"limit": PAYLOAD_BYTES, "size": size}
    return {"limit": MESSAGE_BYTES, "size": len(message)} if len(message) > MESSAGE_BYTES else {}


def came(event: Event, kind: str) -> dict[str, msgspec.Raw]:
    """The fields of the message that an event came of, each as its bytes; none where it was not of this kind."""
    came = {} if event.protocol != PROTOCOL or event.raw is None else _slices(event.raw)
    return came if bytes(came.get("message_type", b"")) == _encode(kind) else {}
