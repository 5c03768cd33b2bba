"""The same over a WebSocket, by hand, between domains, and with people and other protocols."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.e2e.a2acp.speaking import BROKER, INTENT, ROWS, Json, Speaker, code, code_of_bare, dataset
from tests.support.hubproc import PATIENCE, HubProcess, until


class Socket:
    def __init__(self, speaker: Speaker, socket: ClientConnection) -> None:
        self.speaker = speaker
        self.socket = socket
        self.missed: list[Json] = []

    def say(self, message: Json) -> None:
        self.socket.send(json.dumps(message))

    def next(self, kind: str, intent: str | None) -> Json:
        for place, one in enumerate(self.missed):
            if (one["message_type"], one.get("intent")) == (kind, intent):
                return self.missed.pop(place)
        while True:
            one = json.loads(self.socket.recv(PATIENCE))
            if (one["message_type"], one.get("intent")) == (kind, intent):
                return dict(one)
            self.missed.append(one)


@contextmanager
def linked(speaker: Speaker, secret: str | None = None) -> Iterator[Socket]:
    url = f"{speaker.hub.url.replace('http', 'ws')}/a2acp/ws"
    headers = {"authorization": f"Bearer {secret or speaker.secret}"}
    with connect(url, additional_headers=headers, subprotocols=["a2acp.v1"], proxy=None) as socket:  # type: ignore[list-item]
        yield Socket(speaker, socket)


def test_the_same_over_a_websocket(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    with linked(ada) as hers, linked(bob) as his:
        wish = {"target_agent_id": bob.id, "requested_intent": "provision", "correlation_id": "h-1"}
        hers.say(ada.message("request", BROKER, "initiate_handshake", wish))
        offer = his.next("request", "accept_handshake")["payload"]
        decision = {"accepted": True, "correlation_id": offer["handshake_id"]}
        his.say(bob.message("response", BROKER, "accept_handshake", decision))
        told = hers.next("response", "initiate_handshake")["payload"]
        assert told["correlation_id"] == "h-1"
        assert his.next("event", "accept_handshake")["payload"]["contract"] == told["contract"]
        contract = told["contract"]["contract_id"]
        for number in range(5):
            asked = {"rows": number + 1, "contract_id": contract, "correlation_id": f"k-{number}"}
            hers.say(ada.message("request", bob, "provision", asked))
        for number in range(5):
            request = his.next("request", "provision")
            assert request["payload"]["rows"] == number + 1
            his.say(bob.response(request, {"dataset_id": f"d-{number}"}))
            answer = hers.next("response", "provision")["payload"]
            assert (answer["dataset_id"], answer["correlation_id"]) == (f"d-{number}", f"k-{number}")
        said = ada.message("request", bob, "provision", {"rows": "x", "contract_id": contract, "correlation_id": "bad"})
        hers.say(said)
        refused = hers.next("error", "provision")
        assert (code(refused), refused["payload"]["correlation_id"]) == ("CONTRACT_VIOLATION", "bad")
        hers.say(ada.message("request", BROKER, "discover_capabilities", {"agent_id": bob.id}))
        assert hers.next("response", "discover_capabilities")["payload"]["capabilities"][0]["available"] is True
        hers.say(bob.message("request", BROKER, "discover_capabilities", {}))  # another agent's, over her connection
        assert code(hers.next("error", "discover_capabilities")) == "AUTH_FAILED"
        hers.socket.send("{")
        assert code_of_bare(hers.next("error", None)) == "SCHEMA_MISMATCH"
        hers.say(
            ada.message("request", BROKER, "terminate_collaboration", {"collaboration_id": told["collaboration_id"]})
        )
        assert hers.next("response", "terminate_collaboration")["payload"]["by"] == ada.id
        assert his.next("event", "terminate_collaboration")["payload"]["by"] == ada.id
    with pytest.raises(InvalidStatus) as refusal, linked(ada, "0" * 32):
        pass
    assert refusal.value.response.status_code == 401
    assert code_of_bare(json.loads(refusal.value.response.body or b"")) == "AUTH_FAILED"


def test_a_domain_asks_another_when_a_person_allows_it(hub: HubProcess) -> None:
    ward = f"ward-{uuid.uuid4().hex[:6]}"
    ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, ward)
    bob.serve(INTENT)
    wish = {"target_agent_id": bob.id, "requested_intent": "provision"}
    assert code(ada.ask(BROKER, "initiate_handshake", wish)[1]) == "SECURITY_POLICY_VIOLATION"

    def dragoman(*words: str) -> Any:
        command = [sys.executable, "-m", "dragoman.cli", *words, "-o", "json"]
        environment = {**os.environ, "DRAGOMAN_URL": hub.url, "DRAGOMAN_TOKEN": hub.ready["admin_token"]}
        run = subprocess.run(command, capture_output=True, env=environment, timeout=PATIENCE, check=True)
        return json.loads(run.stdout)

    dragoman("policy", "allow", "lab", ward)
    assert {"source": "lab", "target": ward, "allow": True, "intents": [], "encrypt": False} in dragoman(
        "policy", "ls"
    )["domains"]
    with bob.working(dataset(bob)):
        told = ada.shake_hands(bob, "provision")
        contract = told["contract"]["contract_id"]
        shown = dragoman("contract", "show", contract)
        assert (shown["standing"], shown["source"]["agent"], shown["target"]["domain"]) == ("active", ada.id, ward)
        assert [one["id"] for one in dragoman("contract", "ls", "--agent", bob.id)["contracts"]] == [contract]
        assert dragoman("contract", "end", told["collaboration_id"], "--reason", "audit")["standing"] == "terminated"
        assert code(ada.ask(bob, "provision", {"rows": 1, "contract_id": contract})[1]) == "CONTRACT_VIOLATION"
    assert ada.next("event", "terminate_collaboration")["payload"]["reason"] == "audit"
    dragoman("policy", "forbid", "lab", ward)
    assert code(ada.ask(BROKER, "initiate_handshake", wish)[1]) == "SECURITY_POLICY_VIOLATION"
    dragoman("policy", "rm", "lab", ward)


def test_people_and_other_protocols_ask_an_a2acp_agent_and_are_asked(
    hub: HubProcess, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    with bob.working(dataset(bob)) as heard:
        task = hub.admin.post("/api/v1/tasks", {"type": "provision", "agent": bob.id, "input": {"rows": 4}}).json
        done = until(lambda: (t := hub.admin.get(f"/api/v1/tasks/{task['id']}").json)["status"] == "completed" and t)
        assert done["result"] == {"dataset_id": "d-4"}
        wrong = hub.admin.post("/api/v1/tasks", {"type": "provision", "agent": bob.id, "input": {"rows": "x"}})
        assert wrong.status == 422, wrong
    (request,) = [one for one in heard if one["intent"] == "provision"]
    assert request["source_agent"]["agent_id"] == BROKER
    assert "contract_id" not in request["payload"]
    offers = [{"intent": "echo", "input_schema": ROWS, "output_schema": True}]
    fields = {"agent_id": f"c-{uuid.uuid4().hex[:6]}", "protocol": "chiffon", "domain": "lab", "offers": offers}
    made = hub.admin.post("/api/v1/agents", fields)
    assert made.status == 201, made
    found = ada.ask(BROKER, "discover_capabilities", {"agent_id": fields["agent_id"]})[1]["payload"]["capabilities"]
    assert [one["capability"]["intent"] for one in found] == ["echo"]


def test_curl_can_do_it(pair: tuple[Speaker, Speaker]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    ada, _ = pair
    said = json.dumps(ada.message("request", BROKER, "discover_capabilities", {"intent": "provision"}))
    command = ["curl", "-sS", "-m", "60", "--data-binary", "@-", f"{ada.hub.url}/a2acp/messages"]
    out = subprocess.run(command, input=said.encode(), capture_output=True, check=True, timeout=PATIENCE).stdout
    assert json.loads(out)["payload"]["capabilities"]
