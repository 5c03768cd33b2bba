"""What was said once is not heard again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.a2acp.plain import BROKER, PROVISION, Bond, Plain, now
from tests.security.a2acp.ground import INTENT
from tests.support.hubproc import running


@pytest.mark.requirement("a2acp-D15")
def test_a_message_counts_once_and_in_its_time(bond: Bond, cast: dict[str, Plain]) -> None:
    ada, eve = bond.source, cast["eve"]
    asked = bond.request()
    ada.say(asked)
    bond.target.hears("request")
    with ada.link() as link:  # by another way, in another spelling, with another token and time
        for again in (
            asked,
            {**asked, "message_id": asked["message_id"].upper()},
            {**asked, "timestamp": now(), "security": {"auth_token": ada.token("bob", ttl=30)}},
        ):
            assert ada.refused(again)["details"]["reason"] == "replayed"
            link.say(again)
            assert link.hears("error")["payload"]["error"]["details"]["reason"] == "replayed"
    for seconds in (-301, -86_400, 120, 3600):
        told = ada.refused(bond.request(at=seconds))
        assert told["code"] == "AUTH_FAILED", told
    ada.say(bond.request(at=-200))
    ada.say(bond.request(at=50))
    assert len(bond.target.hear()) == 2
    own = eve.message("request", BROKER, "discover_capabilities", {}, message_id=asked["message_id"])
    assert eve.send(own).status == 200  # an id is used up for its sender only


@pytest.mark.requirement("a2acp-D15")
@pytest.mark.parametrize("word", ["discover_capabilities", "initiate_handshake", "cancel", "error"])
def test_every_kind_of_message_counts_once(bond: Bond, word: str) -> None:
    ada, bob = bond.source, bond.target
    if word == "discover_capabilities":
        who, said = ada, ada.message("request", BROKER, word, {})
        assert ada.send(said).status == 200
    elif word == "initiate_handshake":
        who, said = ada, ada.initiate(bob, INTENT)
        ada.say(said)
    elif word == "cancel":
        work = bond.request()
        ada.say(work)
        who, said = ada, ada.message("event", bob, word, {"correlation_id": work["payload"]["correlation_id"]})
        ada.say(said)
    else:
        work = bond.ask()
        error = {"code": "INTERNAL_ERROR", "message": "no", "retry_after": 1}
        payload = {"error": error, "correlation_id": work["payload"]["correlation_id"], "contract_id": bond.id}
        who, said = bob, bob.message("error", ada, INTENT, payload)
        bob.say(said)
    told = who.refused(said)
    assert (told["code"], told["details"]["reason"]) == ("AUTH_FAILED", "replayed"), told
    if word == "initiate_handshake":
        bob.accept(False)  # left alone it would be told later, in the midst of another attack, that it was in vain


@pytest.mark.requirement("a2acp-D15")
def test_a_restart_forgets_no_message(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_RULES__IDLE_SECONDS="600") as hub:
        bond = Plain(hub, "ada").shake(Plain(hub, "bob").serves(PROVISION))
        asked = bond.request()
        discover = bond.source.message("request", BROKER, "discover_capabilities", {})
        bond.source.say(asked)
        assert bond.source.send(discover).status == 200
        hub.restart()
        for message in (asked, discover):
            told = bond.source.refused(message)
            assert (told["code"], told["details"]["reason"]) == ("AUTH_FAILED", "replayed")
        bond.target.hears("request")
        assert bond.target.hear() == []
