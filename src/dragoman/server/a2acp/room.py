"""Whether a request can be sent on to its target, before it is taken.

The hub puts its own names, token and task around what an agent says, and writes its JSON anew (`1e15` becomes
`1000000000000000.0`), so a message that was within the limits (D10) may leave them. Only a large one can.
"""

from __future__ import annotations

import msgspec

from dragoman.core.ids import rfc3339
from dragoman.core.model.contracts import Contract
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.protocols.a2acp.types import PAYLOAD_BYTES, PROTOCOL_VERSION
from dragoman.server.a2acp.builder import REQUEST, Voice, oversize
from dragoman.server.a2acp.said import Said

LARGE = 200_000
"""Bytes of a message that might be too large when it is sent on: none becomes four times as long."""

_UUID = "0" * 36
_NONCE = "A" * 16
_TAG = 16
_encode = msgspec.json.Encoder().encode


def check_room(said: Said, contract: Contract, voice: Voice) -> None:
    """Raises `Refused` for a request that no message to its target holds, with as little as the hub can put there."""
    message, target = said.message, contract.target.agent
    payload = {"contract_id": contract.id, **(said.content if said.content else {})}
    if message.correlation_id is not None:
        payload["correlation_id"] = message.correlation_id
    if contract.encrypted and not said.sealed:
        assert contract.secret is not None
        length = -(-(len(_encode(said.content)) + _TAG) * 4 // 3)
        around = {name: payload[name] for name in ("contract_id", "correlation_id") if name in payload}
        payload = {"alg": "A256GCM", "kid": contract.secret.kid, "nonce": _NONCE, "ciphertext": "A" * length, **around}
    whole = {
        **said.extra,
        "task": {"id": _UUID, "attempt": 99},
        "protocol_version": PROTOCOL_VERSION,
        "message_id": _UUID,
        "timestamp": rfc3339(said.now),
        "source_agent": voice.party(said.agent.id),
        "target_agent": voice.party(target),
        "message_type": REQUEST,
        "intent": message.intent,
        "payload": payload,
        "security": {"auth_token": voice.token(target), "encryption": message.security.encryption},
    }
    if large := oversize(_encode(whole)):
        over = large["size"] - large["limit"]
        what = f"sent on to {target}, it would be {over} bytes larger than a message may be; ask for less at a time"
        field = "payload" if large["limit"] == PAYLOAD_BYTES else None
        raise Refused(Fault(kind=Kind.TOO_LARGE, message=what, field=field, facts=dict(large)))
