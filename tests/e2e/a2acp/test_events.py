"""Events of the agents' own: the hub carries them, and holds them to the contract they are said under."""

from __future__ import annotations

import uuid

import pytest

from tests.e2e.a2acp.speaking import BROKER, INTENT, RECORD, Key, Speaker, code
from tests.support.hubproc import HubProcess, until


@pytest.mark.requirement("A2-RTE-6")
def test_events_go_both_ways_under_a_contract_unchanged_and_in_order(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    with bob.working(lambda request: None):
        contract = ada.shake_hands(bob, INTENT["intent"])["contract"]["contract_id"]
    bob.poll(0)
    for n in range(3):
        about = {"rows": n, "nested": [{"a": None}], "contract_id": contract, "correlation_id": "ours"}
        status, told = ada.post({**ada.message("event", bob, "schema_changed", about), "x_mark": [n]})
        assert status == 202, told
    heard = bob.poll() + bob.poll(0) + bob.poll(0)
    assert [one["x_mark"] for one in heard] == [[0], [1], [2]]
    first = heard[0]
    assert first["payload"] == {
        "rows": 0, "nested": [{"a": None}], "contract_id": contract, "correlation_id": "ours",
    }  # fmt: skip
    assert (first["message_type"], first["intent"], first["source_agent"]["agent_id"]) == (
        "event", "schema_changed", ada.id,
    )  # fmt: skip
    assert first["security"]["auth_token"] != ada.token(bob.id)
    assert bob.post(bob.message("event", ada, None, {"contract_id": contract}))[0] == 202  # an intent is optional
    assert "intent" not in ada.poll()[0]

    stranger = Speaker(ada.hub, "lab")
    for sender, payload in ((ada, {}), (ada, {"contract_id": "none"}), (stranger, {"contract_id": contract})):
        status, refused = sender.post(sender.message("event", bob, "schema_changed", payload))
        assert (status, code(refused)) == (422, "CONTRACT_VIOLATION")
    steering = ada.post(ada.message("event", bob, "pause", {"contract_id": contract}))
    assert (steering[0], code(steering[1])) == (422, "SCHEMA_MISMATCH")
    assert ada.ask(BROKER, "terminate_collaboration", {"contract_id": contract})[0] == 200
    late = ada.post(ada.message("event", bob, "schema_changed", {"contract_id": contract}))
    assert code(late[1]) == "CONTRACT_VIOLATION"


@pytest.mark.parametrize("mode", ["broker", "end-to-end"])
def test_an_event_is_sealed_where_the_contract_wants_it(pair: tuple[Speaker, Speaker], mode: str) -> None:
    ada, bob = pair
    mine, his = Key(), Key()
    wish = {"public_key": mine.public, **({"mode": mode} if mode != "broker" else {})}
    with bob.working(lambda request: None, {"accepted": True, "public_key": his.public}) as heard:
        told = ada.shake_hands(bob, RECORD["intent"], **wish)
        mine.take(told, ada.id)
        until(lambda: any(one["message_type"] == "event" for one in heard))
        his.take(next(one["payload"] for one in heard if one["message_type"] == "event"), bob.id)
    contract = told["contract"]["contract_id"]
    said = ada.message("event", bob, "moved", {"patient": "Zaphod", "contract_id": contract})
    assert code(ada.post(said)[1]) == "SECURITY_POLICY_VIOLATION"
    said = ada.message("event", bob, "moved", {"patient": "Zaphod", "contract_id": contract})
    assert ada.post(mine.seal(said))[0] == 202
    event = bob.next("event", "moved")
    assert (event["security"]["encryption"], his.open(event)) == ("aes256", {"patient": "Zaphod"})
    assert (event["message_id"] == said["message_id"]) == (mode != "broker")


def test_an_event_about_a_request_names_it_as_its_receiver_does(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    with bob.working(lambda request: None):
        contract = ada.shake_hands(bob, INTENT["intent"])["contract"]["contract_id"]
    wish = {"rows": 1, "contract_id": contract, "correlation_id": "r-1"}
    assert ada.post(ada.message("request", bob, INTENT["intent"], wish), prefer="respond-async")[0] == 202
    request = bob.next("request", INTENT["intent"])
    named = request["payload"]["correlation_id"]
    assert bob.post(bob.message("event", ada, "half_loaded", {"rows": 1, "correlation_id": named}))[0] == 202
    assert ada.next("event", "half_loaded")["payload"] == {"rows": 1, "correlation_id": "r-1"}
    assert ada.post(ada.message("event", bob, "hurry", {"correlation_id": "r-1"}))[0] == 202
    assert bob.next("event", "hurry")["payload"] == {"correlation_id": named}
    assert bob.post(bob.response(request, {"dataset_id": "d1"}))[0] == 202
    assert ada.next("response", INTENT["intent"])["payload"]["correlation_id"] == "r-1"


@pytest.mark.requirement("a2acp/B4")
def test_of_two_requests_of_one_name_an_event_means_the_one_on_its_contract(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    eve = Speaker(ada.hub, "lab")
    eve.serve(INTENT)
    contracts = {}
    for target in (bob, eve):
        with target.working(lambda request: None):
            contracts[target.id] = ada.shake_hands(target, INTENT["intent"])["contract"]["contract_id"]
        wish = {"rows": 1, "contract_id": contracts[target.id], "correlation_id": "conversation"}
        assert ada.post(ada.message("request", target, INTENT["intent"], wish), prefer="respond-async")[0] == 202
        target.next("request", INTENT["intent"])
    around = {"correlation_id": "conversation", "contract_id": contracts[bob.id]}
    for target, said in ((eve, around), (bob, {**around, "contract_id": contracts[eve.id]})):
        astray = ada.post(ada.message("event", target, "cancel", said))
        assert (astray[0], code(astray[1])) == (404, "CAPABILITY_NOT_FOUND"), said
    assert ada.post(ada.message("event", bob, "hurry", around))[0] == 202
    assert bob.next("event", "hurry")["payload"] == around
    assert ada.post(ada.message("event", bob, "cancel", around))[0] == 202
    assert bob.next("event", "cancel")["payload"]["contract_id"] == contracts[bob.id]
    assert eve.poll(0) == []  # it works on


def test_a_caller_of_another_protocol_gets_an_event_as_progress(hub: HubProcess, pair: tuple[Speaker, Speaker]) -> None:
    _, bob = pair
    order = {"type": INTENT["intent"], "agent": bob.id, "input": {"rows": 1}, "request_id": str(uuid.uuid4())}
    task = hub.admin.post("/api/v1/tasks", order).json
    request = bob.next("request", INTENT["intent"])
    around = {"correlation_id": request["payload"]["correlation_id"]}
    said = bob.message("event", BROKER, "half_loaded", {"rows": 1, **around})
    assert bob.post(said)[0] == 202
    assert bob.post(bob.response(request, {"dataset_id": "d1"}))[0] == 202
    until(lambda: hub.admin.get(f"/api/v1/tasks/{task['id']}").json["status"] == "completed")

    def told() -> bool:
        lines = hub.admin.get(f"/api/v1/agents/{bob.id}/logs").json["logs"]
        return any("half_loaded" in line["text"] for line in lines)

    until(told, "the event is in the log")
