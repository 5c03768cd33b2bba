"""Near the limits (D10): what is taken reaches its target, within them; what cannot is refused with the numbers."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.a2acp.speaking import BROKER, Json, Key, Speaker, code, details, until
from tests.support.hubproc import HubProcess

ANYTHING = {"intent": "take", "input_schema": True, "output_schema": True}
PAYLOAD, MESSAGE = 900_000, 1_000_000


def wire(message: Json) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


class Large(Speaker):
    """Says everything in as few bytes as there can be, and answers by the message's id where nothing else is there."""

    def post(self, message: Json, **headers: str) -> tuple[int, Json]:
        return self.call("POST", "/a2acp/messages", wire(message), **headers)

    def _react(self, one: Json, *how: Any) -> None:
        if one["message_type"] == "request":
            one["size"], one["payload_size"] = len(wire(one)), len(wire(one["payload"]))
            one["payload"].setdefault("correlation_id", one["message_id"])
        super()._react(one, *how)


def filled(message: Json, payload: int) -> Json:
    """With a payload of so many bytes."""
    inside = message["payload"]
    return {**message, "payload": {**inside, "x": "x" * (payload - len(wire({**inside, "x": ""})))}}


def padded(message: Json, size: int) -> Json:
    """With so much beside the payload that it has so many bytes."""
    return {**message, "note": "n" * (size - len(wire({**message, "note": ""})))}


def asked(heard: list[Json]) -> Json:
    return next(one for one in heard if one["message_type"] == "request" and one["intent"] == "take")


def test_as_much_as_a_message_may_have_reaches_its_target_within_the_limits(hub: HubProcess) -> None:
    ada, bob = Large(hub), Large(hub)
    bob.serve(ANYTHING)
    with bob.working(lambda request: filled(bob.response(request, {}), PAYLOAD)) as heard:
        terms = {"contract_id": ada.shake_hands(bob, "take")["contract"]["contract_id"]}
        for extra in ({}, {"correlation_id": "k-1"}):
            heard.clear()
            whole = filled(ada.message("request", bob, "take", {**terms, **extra}), PAYLOAD)
            status, answer = ada.post(whole)
            assert (status, len(answer["payload"]["x"]) > PAYLOAD - 200) == (200, True), str(answer)[:500]
            assert asked(heard)["payload"]["x"] == whole["payload"]["x"]
            assert asked(heard)["payload_size"] <= PAYLOAD
        heard.clear()
        close = padded(ada.message("request", bob, "take", {**terms, "correlation_id": "k-2"}), MESSAGE - 300)
        assert ada.post(close)[0] == 200
        assert (asked(heard)["note"], asked(heard)["size"] <= MESSAGE) == (close["note"], True)


def test_what_would_be_too_large_when_it_is_sent_on_is_refused_with_the_numbers_and_makes_no_task(
    hub: HubProcess,
) -> None:
    ada, bob = Large(hub), Large(hub)
    bob.serve(ANYTHING)
    with bob.working(lambda request: bob.response(request, {})) as heard:
        terms = {"contract_id": ada.shake_hands(bob, "take")["contract"]["contract_id"]}
        whole = padded(ada.message("request", bob, "take", terms), MESSAGE)
        numbers = wire(ada.message("request", bob, "take", {**terms, "x": []}))
        numbers = numbers.replace(b"[]", b"[" + b",".join([b"1e15"] * 150_000) + b"]")
        for data, limit in ((wire(whole), MESSAGE), (numbers, PAYLOAD)):
            status, answer = ada.call("POST", "/a2acp/messages", data)
            assert (status, code(answer), details(answer)["limit"]) == (413, "SCHEMA_MISMATCH", limit)
            assert details(answer)["size"] > limit
        assert not [one for one in heard if one.get("intent") == "take"]
    assert hub.admin.get(f"/api/v1/tasks?principal={ada.id}").json["tasks"] == []


def test_a_ciphertext_of_the_two_is_sent_on_within_the_limits_and_its_name_may_have_served_before(
    hub: HubProcess,
) -> None:
    ada, bob, mine, his = Large(hub), Large(hub), Key(), Key()
    bob.serve(ANYTHING)

    def answer(request: Json) -> Json:
        said = bob.response(request, {"done": 1})
        return his.seal(said) if request["security"]["encryption"] == "aes256" else said

    with bob.working(answer, {"accepted": True, "public_key": his.public}) as heard:
        plain = {"contract_id": ada.shake_hands(bob, "take")["contract"]["contract_id"], "correlation_id": "same"}
        assert ada.ask(bob, "take", plain)[0] == 200
        heard.clear()
        told = ada.shake_hands(bob, "take", public_key=mine.public, mode="end-to-end")
        mine.take(told, ada.id)
        until(lambda: any(one["message_type"] == "event" for one in heard), "the contract")
        his.take(next(one["payload"] for one in heard if one["message_type"] == "event"), bob.id)
        wish = {"contract_id": told["contract"]["contract_id"], "correlation_id": "same"}
        request = ada.message("request", bob, "take", {**wish, "x": ""})
        spare = PAYLOAD - len(wire(mine.seal(request)["payload"])) - 2
        request["payload"]["x"] = "x" * (spare * 3 // 4)
        sealed = mine.seal(request)
        assert PAYLOAD - 8 < len(wire(sealed["payload"])) <= PAYLOAD
        status, response = ada.post(sealed)
        assert (status, mine.open(response)) == (200, {"done": 1})
        assert asked(heard)["payload_size"] <= PAYLOAD
        status, refused = ada.post(padded(mine.seal(ada.message("request", bob, "take", wish)), MESSAGE))
        assert (status, details(refused)["limit"]) == (413, MESSAGE)
    assert ada.ask(BROKER, "terminate_collaboration", {"contract_id": wish["contract_id"]})[0] == 200
