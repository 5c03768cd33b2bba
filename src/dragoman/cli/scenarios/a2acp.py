"""A2acp over HTTP: `caller` asks, `worker` serves the intent `square`, both of one domain."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from dragoman.cli.scenarios.fake_agents import Answer, FakeAgent, FakeAgents, now, without
from dragoman.cli.scenarios.steps import Checks, expect

BROKER = {"agent_id": "protocol-broker-agent", "domain": "a_domain", "version": "1.0.0"}
DOMAIN = "conformance"
INTENT = "square"
TAKES = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
GIVES = {"type": "object", "properties": {"square": {"type": "integer"}}, "required": ["square"]}
LATER = {"Prefer": "respond-async"}
checks: Checks[Scenario] = Checks()


class Scenario:
    def __init__(self, fakes: FakeAgents) -> None:
        self.caller, self.worker = (
            fakes.admit("a2acp", part, domain=DOMAIN, version="1.0.0", capabilities=["do:squares"])
            for part in ("caller", "worker")
        )
        self.contract: dict[str, Any] = {}
        self.collaboration = ""
        self.sent: dict[str, Any] = {}


def party(agent: FakeAgent) -> dict[str, str]:
    return {"agent_id": agent.id, "domain": DOMAIN, "version": "1.0.0"}


def token(agent: FakeAgent, audience: str) -> str:
    request = {"agent_id": agent.id, "target_agent_id": audience, "requested_capabilities": ["do:squares"], "ttl": 300}
    answer = agent.post("/auth/token", request)
    expect(answer.status == 200, f"no token: {answer.status} {answer.body[:200]!r}")
    return str(answer.json["token"])


def message(by: FakeAgent, to: dict[str, str], kind: str, intent: str, payload: Any, **replaced: Any) -> dict[str, Any]:
    sent = {
        "protocol_version": "1.0", "message_id": str(uuid.uuid4()), "timestamp": now(), "source_agent": party(by),
        "target_agent": to, "message_type": kind, "intent": intent, "payload": payload,
    }  # fmt: skip
    if "security" not in replaced:
        sent["security"] = {"auth_token": token(by, to["agent_id"]), "encryption": "none"}
    return {**sent, **replaced}


def send(agent: FakeAgent, sent: Any, **headers: str) -> Answer:
    # The message carries its own credential.
    return agent.post("/a2acp/messages", sent, headers=headers)


def refused(answer: Answer, code: str) -> dict[str, Any]:
    expect(answer.status >= 400, f"it was accepted with {answer.status}")
    error: dict[str, Any] = answer.json["payload"]["error"]
    expect(error["code"] == code, f"the code is {error['code']}, not {code}")
    return error


@checks("A2-TOK-11", "POST /auth/token gives a token, signed by a key that is published.")
def token_is_given(scenario: Scenario) -> None:
    head = token(scenario.caller, BROKER["agent_id"]).split(".")[0]
    sent = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    keys = scenario.caller.get("/.well-known/jwks.json").json["keys"]
    expect(sent["kid"] in [key["kid"] for key in keys], "its key is not among the published ones")
    expect(all("d" not in key for key in keys), "a private key is published")


@checks("A2-TOK-4", "A token that the auth service has not signed is refused.")
def forged_token(scenario: Scenario) -> None:
    good = token(scenario.caller, BROKER["agent_id"])
    forged = good[:-8] + ("A" * 8 if good[-8:] != "A" * 8 else "B" * 8)
    sent = message(
        scenario.caller, BROKER, "request", "discover_capabilities", {},
        security={"auth_token": forged, "encryption": "none"},
    )  # fmt: skip
    refused(send(scenario.caller, sent), "AUTH_FAILED")


@checks("A2-TOK-6", "A token for another audience is refused.")
def other_audience(scenario: Scenario) -> None:
    security = {"auth_token": token(scenario.caller, scenario.worker.id), "encryption": "none"}
    sent = message(scenario.caller, BROKER, "request", "discover_capabilities", {}, security=security)
    refused(send(scenario.caller, sent), "AUTH_FAILED")


@checks("A2-MSG-1", "A message that lacks a field is refused, and the field named.")
def missing_field(scenario: Scenario) -> None:
    sent = message(scenario.caller, BROKER, "request", "discover_capabilities", {})
    for field in ("protocol_version", "message_id", "timestamp", "source_agent", "target_agent", "message_type"):
        answer = send(scenario.caller, without(sent, field))
        expect(answer.status >= 400, f"without {field} it was accepted")
        expect(field in answer.body.decode(errors="replace"), f"the refusal does not name {field}")


@checks("A2-HSK-1", "An agent declares its capabilities, and others find them.")
def discovered(scenario: Scenario) -> None:
    offer = {
        "intent": INTENT, "version": "1.0.0", "input_schema": TAKES, "output_schema": GIVES,
        "required_capabilities": ["do:squares"],
    }  # fmt: skip
    answer = scenario.worker.post("/a2acp/agents", {**party(scenario.worker), "capabilities": [offer]})
    expect(answer.status in (200, 201), f"declaring was answered with {answer.status}: {answer.body[:200]!r}")
    sent = message(scenario.caller, BROKER, "request", "discover_capabilities", {"intent": INTENT})
    found = send(scenario.caller, sent).json["payload"]["capabilities"]
    expect(scenario.worker.id in [one["agent"]["agent_id"] for one in found], "the agent that offers it is not found")


@checks("A2-HSK-7", "Two agents that never met shake hands through the hub.")
def handshake(scenario: Scenario) -> None:
    request = {"target_agent_id": scenario.worker.id, "requested_intent": INTENT, "request_schema": TAKES}
    sent = message(scenario.caller, BROKER, "request", "initiate_handshake", request)
    answer = send(scenario.caller, sent, **LATER)
    expect(answer.status == 202, f"it was answered with {answer.status}: {answer.body[:200]!r}")
    asked = scenario.worker.inbox.next(lambda one: one.get("intent") == "accept_handshake", "the proposal")
    yes = {"accepted": True, "correlation_id": asked["payload"]["correlation_id"]}
    send(scenario.worker, message(scenario.worker, BROKER, "response", "accept_handshake", yes))
    agreed = scenario.caller.inbox.next(
        lambda one: one["message_type"] == "response" and "contract" in one["payload"], "the contract"
    )["payload"]
    scenario.contract, scenario.collaboration = agreed["contract"], agreed["collaboration_id"]
    expect(scenario.contract["contract_id"], "the contract has no id")


def asks(scenario: Scenario, payload: Any) -> dict[str, Any]:
    around = {"contract_id": scenario.contract["contract_id"], "correlation_id": str(uuid.uuid4())}
    return message(scenario.caller, party(scenario.worker), "request", INTENT, {**payload, **around})


@checks("A2-RTE-1", "A message under a contract reaches its target, and the response its source.")
def routed(scenario: Scenario) -> None:
    expect(scenario.contract, "there is no contract")
    scenario.sent = asks(scenario, {"n": 3})
    answer = send(scenario.caller, scenario.sent, **LATER)
    expect(answer.status == 202, f"it was answered with {answer.status}: {answer.body[:200]!r}")
    got = scenario.worker.inbox.next(lambda one: one.get("intent") == INTENT, "the request")
    expect(got["payload"]["n"] == 3, "the payload is another")
    around = {name: got["payload"][name] for name in ("contract_id", "correlation_id")}
    reply = message(scenario.worker, got["source_agent"], "response", INTENT, {"square": 9, **around})
    answer = send(scenario.worker, reply)
    expect(answer.status in (200, 202), f"the response was answered with {answer.status}: {answer.body[:200]!r}")
    received = scenario.caller.inbox.next(lambda one: one["message_type"] == "response", "the response")
    expect(received["payload"]["square"] == 9, "the response is another")
    expect(
        received["payload"]["correlation_id"] == scenario.sent["payload"]["correlation_id"], "it answers something else"
    )


@checks("a2acp-D12", "The same message counts once: a replay is refused.")
def replayed(scenario: Scenario) -> None:
    expect(scenario.sent, "there is nothing to replay")
    answer = send(scenario.caller, scenario.sent, **LATER)
    expect(answer.status >= 400, f"it was accepted with {answer.status}")


@checks("A2-CTR-6", "Payloads are validated against the contract's schemas.")
def held_to_schema(scenario: Scenario) -> None:
    expect(scenario.contract, "there is no contract")
    refused(send(scenario.caller, asks(scenario, {"n": "three"}), **LATER), "CONTRACT_VIOLATION")


@checks("A2-CTR-5", "A message is held to the contract it names; one that ended is over.")
def ended(scenario: Scenario) -> None:
    expect(scenario.contract, "there is no contract")
    over = {"collaboration_id": scenario.collaboration, "reason": "checked"}
    answer = send(scenario.caller, message(scenario.caller, BROKER, "request", "terminate_collaboration", over))
    expect(answer.status == 200, f"ending it was answered with {answer.status}")
    refused(send(scenario.caller, asks(scenario, {"n": 4}), **LATER), "CONTRACT_VIOLATION")


@checks("A2-MSG-10", "The schema is served at /schemas/a2acp.json.")
def schema_is_served(scenario: Scenario) -> None:
    answer = scenario.caller.get("/schemas/a2acp.json")
    expect((answer.status, "properties" in str(answer.json)) == (200, True), f"status {answer.status}")
