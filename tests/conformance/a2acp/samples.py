"""Two agents of two domains, the broker between them, and good messages to break."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.contracts import Capability, Contract, Held, SecurityPolicy
from dragoman.protocols.a2acp.types import BROKER_ID, Agent
from dragoman.wire import Role

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TIME = "2026-03-01T12:00:00Z"
TOKEN = "token-canary"
KEY = "A" * 43
NONCE = "B" * 16

ADA = Agent(agent_id="ada", domain="lab", version="1.2.3")
BOB = Agent(agent_id="bob", domain="ward", version="2.1.0")
BROKER = Agent(agent_id=BROKER_ID, domain="hub", version="1.0.0")

CAPABILITY = Capability(
    intent="provision",
    input_schema={
        "type": "object",
        "properties": {"rows": {"type": "integer", "minimum": 1}, "kind": {"type": "string"}},
        "required": ["rows"],
        "additionalProperties": False,
    },
    output_schema={"type": "object", "required": ["dataset_id"]},
    version="1.4.0",
    required_capabilities=("write:datasets",),
)


def contract(
    capability: Capability = CAPABILITY, *, encrypt: bool = False, mode: Any = "broker", **said: Any
) -> Contract:
    """The terms between `ada` and `bob` that follow from a capability."""
    encrypted = encrypt or capability.pii or mode == "end-to-end"
    security = SecurityPolicy(
        encryption="aes256" if encrypted else "none",
        mode=mode,
        pii=capability.pii,
        validated=mode == "broker",
        required_capabilities=capability.required_capabilities,
    )
    terms: dict[str, Any] = {
        "contract_id": "c-1",
        "collaboration_id": "l-1",
        "intent": capability.intent,
        "source_agent": ADA,
        "target_agent": BOB,
        "input_schema": capability.input_schema,
        "output_schema": capability.output_schema,
        "capability_version": capability.version,
        "timeout_seconds": capability.timeout_seconds,
        "created_at": START,
        "expires_at": START + timedelta(days=1),
    }
    return Contract(security=security, **{**terms, **said})


def held(**said: Any) -> Held:
    return Held(contract=contract(**said), since=START)


def tree(kind: str = "request", **replaced: Any) -> dict[str, Any]:
    """A whole message as JSON: `ada` to `bob`."""
    made: dict[str, Any] = {
        "protocol_version": "1.0",
        "message_id": "11111111-1111-4111-8111-111111111111",
        "timestamp": TIME,
        "source_agent": {"agent_id": "ada", "domain": "lab", "version": "1.2.3"},
        "target_agent": {"agent_id": "bob", "domain": "ward", "version": "2.1.0"},
        "message_type": kind,
        "intent": "provision",
        "payload": {"rows": 3, "contract_id": "c-1", "correlation_id": "k-1"},
        "security": {"auth_token": TOKEN, "encryption": "none"},
    }
    if kind == "error":
        made["payload"] = {"error": {"code": "TIMEOUT", "message": "late", "retry_after": 3, "correlation_id": "k-1"}}
    return {name: value for name, value in {**made, **replaced}.items() if value is not None}


#: One whole payload for each thing that is said to or by the broker: intent, type, who says it, payload.
BODIES: list[tuple[str, str, Role, intents.Body]] = [
    (intents.DISCOVER, "request", Role.AGENT, intents.Discover(intent="provision", domain="ward", version="1.0.0")),
    (intents.DISCOVER, "response", Role.HUB, intents.Discovered(
        capabilities=(intents.Offering(agent=BOB, capability=CAPABILITY, available=False),), more=True)),
    (intents.INITIATE, "request", Role.AGENT, intents.Initiate(
        target_agent_id="bob", requested_intent="provision", target_version="2.0.0", request_schema={"type": "object"},
        response_schema=True, mode="end-to-end", encrypt=True, public_key=KEY, collaboration_id="l-1")),
    (intents.INITIATE, "response", Role.HUB, intents.Established(
        collaboration_id="l-1", contract=contract(), key=intents.KeyGrant(kid="k", public_key=KEY))),
    (intents.ACCEPT, "request", Role.HUB, intents.Offer(
        handshake_id="h-1", source_agent=ADA, requested_intent="provision", contract=contract(), public_key=KEY)),
    (intents.ACCEPT, "response", Role.AGENT, intents.Decision(accepted=False, reason="busy")),
    (intents.ACCEPT, "event", Role.HUB, intents.Established(collaboration_id="l-1", contract=contract())),
    (intents.TERMINATE, "request", Role.AGENT, intents.Terminate(collaboration_id="l-1", reason="done")),
    (intents.TERMINATE, "response", Role.HUB, intents.Terminated(collaboration_id="l-1", by="ada")),
    (intents.TERMINATE, "event", Role.HUB, intents.Terminated(collaboration_id="l-1", by="ada", reason="done")),
    (intents.ROTATE, "request", Role.AGENT, intents.Rotate(collaboration_id="l-1", public_key=KEY)),
    (intents.ROTATE, "response", Role.HUB, intents.Rotated(
        collaboration_id="l-1", contract_id="c-1",
        key=intents.KeyGrant(kid="k2", public_key=KEY, nonce=NONCE, wrapped="C" * 64))),
    (intents.ROTATE, "event", Role.HUB, intents.Rotated(
        collaboration_id="l-1", contract_id="c-1", key=intents.KeyGrant(kid="k2", public_key=KEY))),
    (intents.CANCEL, "event", Role.HUB, intents.Cancel(correlation_id="k-1", contract_id="c-1", reason="not wanted")),
]  # fmt: skip
