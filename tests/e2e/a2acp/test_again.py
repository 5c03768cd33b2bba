"""A person lets work be done once more: as it was asked, and within its contract."""

from __future__ import annotations

from tests.e2e.a2acp.speaking import BROKER, INTENT, Json, Key, Speaker, until
from tests.support.hubproc import HubProcess


def cancelled(hub: HubProcess, request: Json) -> str:
    path = f"/api/v1/tasks/{request['task']['id']}"
    assert hub.admin.post(f"{path}/cancel", {}).status < 300
    return path


def test_what_is_retried_has_the_fields_that_only_its_agents_know_and_is_held_to_the_contract(
    hub: HubProcess, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    with bob.working(lambda request: None):
        contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
    asked = ada.message("request", bob, "provision", {"rows": 3, "contract_id": contract}, x_note={"kept": True})
    assert ada.post(asked, prefer="respond-async")[0] == 202
    path = cancelled(hub, bob.next("request", "provision"))
    refused = hub.admin.post(f"{path}/retry", {"input": {"rows": "many"}})
    assert (refused.status, refused.json["kind"]) == (422, "contract")
    assert hub.admin.post(f"{path}/retry", {"input": {"rows": 4}}).status < 300
    again = bob.next("request", "provision")
    assert (again["payload"]["rows"], again["x_note"]) == (4, {"kept": True})
    cancelled(hub, again)
    assert bob.ask(BROKER, "terminate_collaboration", {"contract_id": contract})[0] == 200
    over = hub.admin.post(f"{path}/retry", {})
    assert (over.status, over.json["facts"]["standing"]) == (422, "terminated")


def test_a_ciphertext_of_the_two_is_retried_as_it_is_or_not_at_all(hub: HubProcess) -> None:
    ada, bob, mine, his = Speaker(hub, "lab", "write:datasets"), Speaker(hub), Key(), Key()
    bob.serve(INTENT)
    with bob.working(lambda request: None, {"accepted": True, "public_key": his.public}) as heard:
        told = ada.shake_hands(bob, "provision", public_key=mine.public, mode="end-to-end")
        mine.take(told, ada.id)
        until(lambda: any(one["message_type"] == "event" for one in heard), "the contract")
    his.take(next(one["payload"] for one in heard if one["message_type"] == "event"), bob.id)
    wish = {"rows": 7, "contract_id": told["contract"]["contract_id"], "correlation_id": "e-2"}
    assert ada.post(mine.seal(ada.message("request", bob, "provision", wish)), prefer="respond-async")[0] == 202
    path = cancelled(hub, bob.next("request", "provision"))
    assert hub.admin.post(f"{path}/retry", {"input": {"rows": 8}}).status == 403
    assert hub.admin.post(f"{path}/retry", {}).status < 300
    assert his.open(bob.next("request", "provision")) == {"rows": 7}
