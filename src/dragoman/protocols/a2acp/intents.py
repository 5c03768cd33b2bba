"""The broker's own messages: the five intents (D14), and the cancel event (B4).

    intent                   request, by whom            response to it            event, from the broker
    -----------------------  --------------------------  ------------------------  -------------------------------------
    discover_capabilities    Discover, an agent          Discovered                -
    initiate_handshake       Initiate, the source        Established               -
    accept_handshake         Offer, the broker           Decision, the target      Established: the target is notified
    terminate_collaboration  Terminate, either party     Terminated                Terminated: the other is notified
    rotate_key               Rotate, either party        Rotated                   Rotated: the other is notified
    cancel                   -                           -                         Cancel: stop what was asked; the
                                                                                   source may send it, too

All but accept_handshake are asked of the broker, which is then the message's target. They travel in clear: there is no
key before the handshake, and nothing secret in them. Renewal is a handshake that names its collaboration.

The broker checks of every message, before its token's grants, its contract and the limits:

    from        must have                                                       else
    ----------  --------------------------------------------------------------  ----------------------
    an agent    `source_agent` itself (all-D1)                                  AUTH_FAILED
    an agent    the broker as `target_agent` of requests to the broker          SCHEMA_MISMATCH
    the broker  the agent as `target_agent`                                     SCHEMA_MISMATCH
    the broker  itself as `source_agent` of its own messages                    SCHEMA_MISMATCH
    either      of the broker's intents only the ones in its column above       SCHEMA_MISMATCH
    an agent    a timestamp at most 5 minutes old                               AUTH_FAILED, too_old
    an agent    a timestamp at most 60 seconds ahead                            AUTH_FAILED, in_the_future

That a message id counts once (D15), the hub's core decides: the ids are rows of its store.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dragoman.protocols.a2acp.contracts import Capability, Contract, Mode
from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.sealing import KeyGrant, PublicKey
from dragoman.protocols.a2acp.types import Agent, Id, Message, MessageType, Name, Record, SchemaVersion, SemVer
from dragoman.wire.errors import with_next
from dragoman.wire.role import Role
from dragoman.wire.schema.library import Schema

DISCOVER = "discover_capabilities"
INITIATE = "initiate_handshake"
ACCEPT = "accept_handshake"
TERMINATE = "terminate_collaboration"
ROTATE = "rotate_key"
CANCEL = "cancel"

OLDEST = timedelta(minutes=5)
AHEAD = timedelta(seconds=60)
"""How old the timestamp of a message may be, and how far ahead."""

Page: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]


class Body(Record, frozen=True, kw_only=True):
    """A payload of the broker's intents, with the protocol's own fields."""

    correlation_id: Id | None = None
    traceparent: str | None = None


class Discover(Body, frozen=True, kw_only=True):
    """Which agents can do it? Every given field must fit; `version` by its major."""

    intent: Name | None = None
    capability: Name | None = None
    domain: Name | None = None
    version: SchemaVersion | None = None
    agent_id: Id | None = None
    limit: Page = 100


class Offering(Record, frozen=True, kw_only=True, omit_defaults=False):
    """An agent and one of its capabilities; the intent `*` is any. `available`: it can be reached now. `allowed`: the
    domain policies let the asker shake hands on it (D19)."""

    agent: Agent
    capability: Capability
    available: bool = True
    allowed: bool = True


class Discovered(Body, frozen=True, kw_only=True, omit_defaults=False):
    capabilities: tuple[Offering, ...]
    more: bool = False


class Initiate(Body, frozen=True, kw_only=True):
    """The source wants a contract with the target. `request_schema` is what it will send, `response_schema` what it can
    read; without them the target's own schemas hold. With `collaboration_id` the contract is renewed."""

    target_agent_id: Id
    requested_intent: Name
    target_version: SemVer | None = None
    request_schema: Schema | None = None
    response_schema: Schema | None = None
    mode: Mode = "broker"
    encrypt: bool = False
    public_key: PublicKey | None = None
    collaboration_id: Id | None = None


class Offer(Body, frozen=True, kw_only=True):
    """The broker asks the target. `contract` has the terms that will stand if it accepts."""

    handshake_id: Id
    source_agent: Agent
    requested_intent: Name
    contract: Contract
    public_key: PublicKey | None = None


class Decision(Body, frozen=True, kw_only=True):
    """The correlation id names the handshake; or `handshake_id`, as in the offer."""

    accepted: bool
    reason: str | None = None
    handshake_id: Id | None = None
    public_key: PublicKey | None = None


class Established(Body, frozen=True, kw_only=True):
    """The contract is in force. `key` is for this receiver only."""

    collaboration_id: Id
    contract: Contract
    key: KeyGrant | None = None


class Terminate(Body, frozen=True, kw_only=True):
    """Ends a collaboration, named by itself or by the contract in force."""

    collaboration_id: Id | None = None
    contract_id: Id | None = None
    reason: str | None = None


class Terminated(Body, frozen=True, kw_only=True):
    collaboration_id: Id
    by: Id
    reason: str = ""


class Rotate(Body, frozen=True, kw_only=True):
    collaboration_id: Id
    public_key: PublicKey


class Rotated(Body, frozen=True, kw_only=True):
    collaboration_id: Id
    contract_id: Id
    key: KeyGrant


class Cancel(Body, frozen=True, kw_only=True):
    """The request with this correlation id is not wanted any more."""

    contract_id: Id | None = None
    reason: str = ""


Form: TypeAlias = tuple[Role | None, type[Body]]


class Forms(Struct, frozen=True):
    """The payloads of one intent, and which end of a link sends each; no role means either."""

    request: Form | None = None
    response: Form | None = None
    event: Form | None = None


INTENTS: dict[str, Forms] = {
    DISCOVER: Forms((Role.AGENT, Discover), (Role.HUB, Discovered)),
    INITIATE: Forms((Role.AGENT, Initiate), (Role.HUB, Established)),
    ACCEPT: Forms((Role.HUB, Offer), (Role.AGENT, Decision), (Role.HUB, Established)),
    TERMINATE: Forms((Role.AGENT, Terminate), (Role.HUB, Terminated), (Role.HUB, Terminated)),
    ROTATE: Forms((Role.AGENT, Rotate), (Role.HUB, Rotated), (Role.HUB, Rotated)),
    CANCEL: Forms(event=(None, Cancel)),
}


def form_of(message: Message) -> Form | None:
    """The sender and the payload of a message of the broker's intents that is no error."""
    known = INTENTS.get(message.intent or "")
    if known is None or message.message_type is MessageType.ERROR:
        return None
    found: Form | None = getattr(known, message.message_type.value)
    return found


def read(message: Message) -> Body:
    """The payload of one of the broker's intents; the codec has checked that it fits."""
    found = form_of(message)
    if found is None:
        raise ValueError(f"{message.intent} as {message.message_type} is not one of the broker's")
    return msgspec.convert(message.payload or {}, found[1])


def payload(body: Record) -> dict[str, Any]:
    """A payload as a message carries it."""
    built: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
    return built


# -- who may send which message, and when


def misspoken(message: Message, speaker: Role, agent: Agent, broker: Agent) -> tuple[str, str, Code] | None:
    """Why `speaker` may not send this on a link between these two: the field, the reason, the code."""
    source, target = message.source_agent, message.target_agent
    if speaker is Role.AGENT and (source.agent_id, source.domain) != (agent.agent_id, agent.domain):
        return "source_agent", "is not who is connected", Code.AUTH_FAILED
    if speaker is Role.HUB and target.agent_id != agent.agent_id:
        return "target_agent.agent_id", f"{target.agent_id!r} is not who is connected", Code.SCHEMA_MISMATCH
    found = form_of(message) if message.intent in INTENTS else None
    if found is None:
        return None
    if found[0] not in (None, speaker):
        what = f"{message.intent} as {message.message_type} does not come from the {speaker.value}"
        return "intent", what, Code.SCHEMA_MISMATCH
    field, party = ("target_agent", target) if speaker is Role.AGENT else ("source_agent", source)
    if found[0] is not None and party.agent_id != broker.agent_id:
        what = f"{message.intent} is only between an agent and the broker"
        return f"{field}.agent_id", what, Code.SCHEMA_MISMATCH
    return None


def untimely(timestamp: datetime, now: datetime) -> Refusal | None:
    """Why a timestamp is not accepted now, or None."""
    age = now - timestamp
    if -AHEAD <= age <= OLDEST:
        return None
    reason = "too_old" if age > OLDEST else "in_the_future"
    what = "timestamp is older than 5 minutes" if age > OLDEST else "timestamp is more than 60 seconds ahead"
    details = {"reason": reason, "field": "timestamp", "now": now.astimezone(UTC).isoformat().replace("+00:00", "Z")}
    next = "check your clock"
    return Refusal(code=Code.AUTH_FAILED, message=with_next(what, next), next=next, details=details)
