"""A2acp over HTTP: `ada` asks, `bob` serves the intent `square`, both of one domain."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from dragoman.cli.conformance.cast import Answer, Cast, Mailbox, Player, now, without
from dragoman.cli.conformance.checklist import Checklist, expect

BROKER = {"agent_id": "protocol-broker-agent", "domain": "a_domain", "version": "1.0.0"}
DOMAIN = "conformance"
INTENT = "square"
TAKES = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
GIVES = {"type": "object", "properties": {"square": {"type": "integer"}}, "required": ["square"]}
LATER = {"Prefer": "respond-async"}
checks: Checklist[Scene] = Checklist("a2acp")


class Scene:
    def __init__(self, cast: Cast) -> None:
        self.ada, self.bob = (
            cast.admit("a2acp", part, domain=DOMAIN, version="1.0.0", capabilities=["do:squares"])
            for part in ("ada", "bob")
        )
        self.mail = {one.id: Mailbox(one, "/a2acp/messages", "/a2acp/ack") for one in (self.ada, self.bob)}
        self.contract: dict[str, Any] = {}
        self.collaboration = ""
        self.sent: dict[str, Any] = {}


def party(player: Player) -> dict[str, str]:
    return {"agent_id": player.id, "domain": DOMAIN, "version": "1.0.0"}


def token(player: Player, audience: str) -> str:
    wish = {"agent_id": player.id, "target_agent_id": audience, "requested_capabilities": ["do:squares"], "ttl": 300}
    answer = player.post("/auth/token", wish)
    expect(answer.status == 200, f"no token: {answer.status} {answer.body[:200]!r}")
    return str(answer.json["token"])


def message(by: Player, to: dict[str, str], kind: str, intent: str, payload: Any, **replaced: Any) -> dict[str, Any]:
    said = {
        "protocol_version": "1.0", "message_id": str(uuid.uuid4()), "timestamp": now(), "source_agent": party(by),
        "target_agent": to, "message_type": kind, "intent": intent, "payload": payload,
    }  # fmt: skip
    if "security" not in replaced:
        said["security"] = {"auth_token": token(by, to["agent_id"]), "encryption": "none"}
    return {**said, **replaced}


def send(player: Player, said: Any, **headers: str) -> Answer:
    # The message carries its own credential.
    return player.post("/a2acp/messages", said, **headers)


def refused(answer: Answer, code: str) -> dict[str, Any]:
    expect(answer.status >= 400, f"it was accepted with {answer.status}")
    error: dict[str, Any] = answer.json["payload"]["error"]
    expect(error["code"] == code, f"the code is {error['code']}, not {code}")
    return error


@checks("A2-TOK-11", "POST /auth/token gives a token, signed by a key that is published.")
def token_is_given(scene: Scene) -> None:
    head = token(scene.ada, BROKER["agent_id"]).split(".")[0]
    said = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    keys = scene.ada.get("/.well-known/jwks.json").json["keys"]
    expect(said["kid"] in [key["kid"] for key in keys], "its key is not among the published ones")
    expect(all("d" not in key for key in keys), "a private key is published")


@checks("A2-TOK-4", "A token that the auth service has not signed is refused.")
def forged_token(scene: Scene) -> None:
    good = token(scene.ada, BROKER["agent_id"])
    forged = good[:-8] + ("A" * 8 if good[-8:] != "A" * 8 else "B" * 8)
    said = message(
        scene.ada, BROKER, "request", "discover_capabilities", {},
        security={"auth_token": forged, "encryption": "none"},
    )  # fmt: skip
    refused(send(scene.ada, said), "AUTH_FAILED")


@checks("A2-TOK-6", "A token for another audience is refused.")
def other_audience(scene: Scene) -> None:
    security = {"auth_token": token(scene.ada, scene.bob.id), "encryption": "none"}
    said = message(scene.ada, BROKER, "request", "discover_capabilities", {}, security=security)
    refused(send(scene.ada, said), "AUTH_FAILED")


@checks("A2-MSG-1", "A message that lacks a field is refused, and the field named.")
def missing_field(scene: Scene) -> None:
    said = message(scene.ada, BROKER, "request", "discover_capabilities", {})
    for field in ("protocol_version", "message_id", "timestamp", "source_agent", "target_agent", "message_type"):
        answer = send(scene.ada, without(said, field))
        expect(answer.status >= 400, f"without {field} it was accepted")
        expect(field in answer.body.decode(errors="replace"), f"the refusal does not name {field}")


@checks("A2-HSK-1", "An agent declares its capabilities, and others find them.")
def discovered(scene: Scene) -> None:
    offer = {
        "intent": INTENT, "version": "1.0.0", "input_schema": TAKES, "output_schema": GIVES,
        "required_capabilities": ["do:squares"],
    }  # fmt: skip
    answer = scene.bob.post("/a2acp/agents", {**party(scene.bob), "capabilities": [offer]})
    expect(answer.status in (200, 201), f"declaring was answered with {answer.status}: {answer.body[:200]!r}")
    said = message(scene.ada, BROKER, "request", "discover_capabilities", {"intent": INTENT})
    found = send(scene.ada, said).json["payload"]["capabilities"]
    expect(scene.bob.id in [one["agent"]["agent_id"] for one in found], "whoever offers it is not found")


@checks("A2-HSK-7", "Two agents that never met shake hands through the hub.")
def handshake(scene: Scene) -> None:
    wish = {"target_agent_id": scene.bob.id, "requested_intent": INTENT, "request_schema": TAKES}
    said = message(scene.ada, BROKER, "request", "initiate_handshake", wish)
    answer = send(scene.ada, said, **LATER)
    expect(answer.status == 202, f"it was answered with {answer.status}: {answer.body[:200]!r}")
    asked = scene.mail[scene.bob.id].next(lambda one: one.get("intent") == "accept_handshake", "the proposal")
    yes = {"accepted": True, "correlation_id": asked["payload"]["correlation_id"]}
    send(scene.bob, message(scene.bob, BROKER, "response", "accept_handshake", yes))
    told = scene.mail[scene.ada.id].next(
        lambda one: one["message_type"] == "response" and "contract" in one["payload"], "the contract"
    )["payload"]
    scene.contract, scene.collaboration = told["contract"], told["collaboration_id"]
    expect(scene.contract["contract_id"], "the contract has no id")


def asks(scene: Scene, payload: Any) -> dict[str, Any]:
    around = {"contract_id": scene.contract["contract_id"], "correlation_id": str(uuid.uuid4())}
    return message(scene.ada, party(scene.bob), "request", INTENT, {**payload, **around})


@checks("A2-RTE-1", "A message under a contract reaches its target, and the response its source.")
def routed(scene: Scene) -> None:
    expect(scene.contract, "there is no contract")
    scene.sent = asks(scene, {"n": 3})
    answer = send(scene.ada, scene.sent, **LATER)
    expect(answer.status == 202, f"it was answered with {answer.status}: {answer.body[:200]!r}")
    got = scene.mail[scene.bob.id].next(lambda one: one.get("intent") == INTENT, "the request")
    expect(got["payload"]["n"] == 3, "the payload is another")
    around = {name: got["payload"][name] for name in ("contract_id", "correlation_id")}
    reply = message(scene.bob, got["source_agent"], "response", INTENT, {"square": 9, **around})
    answer = send(scene.bob, reply)
    expect(answer.status in (200, 202), f"the response was answered with {answer.status}: {answer.body[:200]!r}")
    heard = scene.mail[scene.ada.id].next(lambda one: one["message_type"] == "response", "the response")
    expect(heard["payload"]["square"] == 9, "the response is another")
    expect(heard["payload"]["correlation_id"] == scene.sent["payload"]["correlation_id"], "it answers something else")


@checks("a2acp-D12", "The same message counts once: a replay is refused.")
def replayed(scene: Scene) -> None:
    expect(scene.sent, "there is nothing to replay")
    answer = send(scene.ada, scene.sent, **LATER)
    expect(answer.status >= 400, f"it was accepted with {answer.status}")


@checks("A2-CTR-6", "Payloads are validated against the contract's schemas.")
def held_to_schema(scene: Scene) -> None:
    expect(scene.contract, "there is no contract")
    refused(send(scene.ada, asks(scene, {"n": "three"}), **LATER), "CONTRACT_VIOLATION")


@checks("A2-CTR-5", "A message is held to the contract it names; one that ended is over.")
def ended(scene: Scene) -> None:
    expect(scene.contract, "there is no contract")
    over = {"collaboration_id": scene.collaboration, "reason": "checked"}
    answer = send(scene.ada, message(scene.ada, BROKER, "request", "terminate_collaboration", over))
    expect(answer.status == 200, f"ending it was answered with {answer.status}")
    refused(send(scene.ada, asks(scene, {"n": 4}), **LATER), "CONTRACT_VIOLATION")


@checks("A2-MSG-10", "The schema is served at /schemas/a2acp.json.")
def schema_is_served(scene: Scene) -> None:
    answer = scene.ada.get("/schemas/a2acp.json")
    expect((answer.status, "properties" in str(answer.json)) == (200, True), f"status {answer.status}")
