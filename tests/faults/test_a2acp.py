"""Faults by name, between agents under contracts: each promise is looked at from outside, after the fault.

fault                                          what holds
---------------------------------------------  -----------------------------------------------------------------------
target dies over a request                     the same request again, by whichever way it comes back; one answer
target fetches a request and dies              the same request again, until it acknowledges it
target fetches a request and is never seen     TIMEOUT for its caller, in the intent's time
caller fetches an answer and dies              the same answer again
hub killed at each step of accepting           accepted or not, once; sent again it is taken, or known as used
hub killed between accepting and delivering    it is delivered after the restart
caller, or hub, dies while the caller waits    its answer, or how its handshake ended, is in the inbox
answer lost in a connection that seemed good   it is told again, to whoever names the request
target never answers a handshake               TIMEOUT within its 5 s, and no contract comes of a late yes
hub killed in the middle of a handshake        the handshake goes on
contract ends while a request is under way     what was asked in time is answered; nothing new is asked
key rotated while messages are on their way    what was sealed before opens; also after a restart
nonce used again after a restart               refused
target answers again after a restart           taken as what it is, and nobody hears it twice
caller repeats a name after a restart          its target can tell the two requests apart, and so can the hub
"""

from __future__ import annotations

import json
import signal
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.conformance.a2acp.plain import BROKER, PROVISION, WANTED, Bond, Plain, error_of
from tests.faults.killing import HAPPENED
from tests.support.fleet import BROKEN
from tests.support.hubproc import HubProcess, until

Json = dict[str, Any]
INTENT = PROVISION["intent"]


@pytest.fixture
def pair(hub: HubProcess) -> tuple[Plain, Plain]:
    return Plain(hub, "ada"), Plain(hub, "bob").serves({**PROVISION, "timeout_seconds": 120})


@pytest.fixture
def bond(pair: tuple[Plain, Plain]) -> Bond:
    return pair[0].shake(pair[1])


def finishes(bond: Bond, work: Json, id: str = "d-1") -> Json:
    """The target answers, and the source hears it once."""
    bond.target.say(bond.response(work, {"dataset_id": id}))
    told = bond.source.hears("response", INTENT)
    assert bond.content(told) == {"dataset_id": id}
    assert bond.source.hear() == []
    return told


# -- the target


def test_a_target_that_dies_over_a_request_gets_it_again(hub: HubProcess, bond: Bond) -> None:
    asked = bond.request()
    with bond.target.link() as link:
        bond.source.say(asked)
        first = link.hears("request", INTENT)
        link.socket.socket.close()  # no goodbye
    again = bond.target.hears("request", INTENT)
    assert again["payload"]["correlation_id"] == first["payload"]["correlation_id"]
    assert bond.content(again) == WANTED
    told = finishes(bond, again)
    assert told["payload"]["correlation_id"] == asked["payload"]["correlation_id"]
    assert hub.task(again["task"]["id"])["status"] == "completed"


@pytest.mark.requirement("A2-RTE-1")
def test_a_request_that_was_fetched_and_not_acknowledged_comes_again(
    hub: HubProcess, pair: tuple[Plain, Plain]
) -> None:
    ada, bob = pair
    bob.serves({**PROVISION, "timeout_seconds": 900})  # longer than the hub would wait for any sign of life
    bond = ada.shake(bob)
    ada.say(bond.request())
    [first] = until(lambda: bob.poll(1), "the request")
    [again] = until(lambda: bob.poll(1), "the same again")
    assert again["delivery_id"] == first["delivery_id"]
    assert again["message"]["message_id"] == first["message"]["message_id"]  # known by its id
    assert bob.ack(again) == 1
    hub.restart()
    finishes(bond, again["message"])
    assert bob.hear() == []


@pytest.mark.requirement("A2-TIM-2")
def test_a_request_that_was_fetched_and_never_answered_ends_in_its_time(pair: tuple[Plain, Plain]) -> None:
    """Its caller is told, however often it was fetched."""
    ada, bob = pair
    for seconds in (1, 10, 50):  # a busy machine may be slower than the first
        bob.serves({**PROVISION, "timeout_seconds": seconds})
        bond = ada.shake(bob)
        asked = bond.request()
        ada.say(asked)
        fetched = until(lambda: bob.poll() or ada.poll(), "the request, or that it was too late")
        told = ada.hears("error", INTENT)["payload"]["error"]
        if fetched[0]["message"]["message_type"] == "request":
            break
    [work] = fetched
    assert (told["code"], told["correlation_id"]) == ("TIMEOUT", asked["payload"]["correlation_id"])
    assert told["retry_after"] >= 1
    assert bob.refused(bond.response(work["message"], {"dataset_id": "late"}))["retry_after"] == 0


def test_an_answer_that_was_fetched_and_not_acknowledged_comes_again(bond: Bond) -> None:
    bond.target.say(bond.response(bond.ask(), {"dataset_id": "d-1"}))
    [first] = until(lambda: bond.source.poll(1), "the answer")
    [again] = until(lambda: bond.source.poll(1), "the same again")
    assert again["delivery_id"] == first["delivery_id"]
    assert again["message"]["message_id"] == first["message"]["message_id"]  # known by its id
    assert bond.source.ack(again) == 1
    assert bond.source.hear() == []


# -- the hub


@pytest.mark.requirement("a2acp/all-D5", "a2acp-D15")
@pytest.mark.parametrize("step", list(HAPPENED))
def test_a_request_survives_a_kill_at(hub: HubProcess, bond: Bond, step: str) -> None:
    asked = bond.request()
    hub.restart(DRAGOMAN_CRASH_AT=step)
    with pytest.raises(BROKEN):
        bond.source.send(asked, later=True)
    assert hub.died() == -signal.SIGKILL
    hub.start()
    assert len(hub.tasks()) == HAPPENED[step]
    answer = bond.source.send(asked, later=True)
    if HAPPENED[step]:  # whoever asks again learns that it was heard
        assert error_of(answer)["details"]["reason"] == "replayed"
    else:
        assert answer.status == 202, answer
    assert len(hub.tasks()) == 1
    finishes(bond, bond.target.hears("request", INTENT))
    assert bond.target.hear() == []


@pytest.mark.requirement("A2-RTE-1", "A2-RTE-5")
def test_a_hub_killed_between_accepting_and_delivering_delivers_afterwards(hub: HubProcess, bond: Bond) -> None:
    asked = bond.request()
    bond.source.say(asked)
    hub.restart()
    work = bond.target.hears("request", INTENT)
    assert bond.content(work) == WANTED
    bond.target.say(bond.response(work, {"dataset_id": "d-1"}))
    hub.restart()  # and again, between the answer and its delivery
    told = bond.source.hears("response", INTENT)
    assert (bond.content(told), told["payload"]["correlation_id"]) == (
        {"dataset_id": "d-1"},
        asked["payload"]["correlation_id"],
    )
    assert [bond.source.hear(), bond.target.hear()] == [[], []]


@pytest.mark.requirement("A2-RTE-3", "A2-RTE-5")
@pytest.mark.parametrize("fault", ["hub killed", "connection cut"])
def test_an_answer_is_not_lost_with_the_connection_that_waited_for_it(hub: HubProcess, bond: Bond, fault: str) -> None:
    asked = bond.request()
    with socket.create_connection(("127.0.0.1", urlsplit(hub.url).port or 0)) as connection:
        body = json.dumps(asked).encode()
        connection.sendall(
            b"POST /a2acp/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        work = bond.target.hears("request", INTENT)
        if fault == "hub killed":
            hub.kill()
    if fault == "hub killed":
        hub.start()
    bond.target.say(bond.response(work, {"dataset_id": "d-1"}))
    told = bond.source.hears("response", INTENT)
    assert (bond.content(told), told["payload"]["correlation_id"]) == (
        {"dataset_id": "d-1"},
        asked["payload"]["correlation_id"],
    )
    assert bond.source.refused(asked)["details"]["reason"] == "replayed"  # the inbox is the only way
    assert bond.source.hear() == []


@pytest.mark.requirement("A2-RTE-3", "A2-HSK-7")
def test_an_answer_that_was_lost_on_its_way_is_sent_again(hub: HubProcess, pair: tuple[Plain, Plain]) -> None:
    """It was written to a connection whose client never read it; nobody can know that but the client."""
    ada, bob = pair
    wish = ada.initiate(bob, INTENT)
    with ada.sending(wish) as shaking:
        bob.accept()
    assert ada.hear() == []
    lost = shaking.result().json["payload"]["contract"]
    hub.restart()
    [told] = answers_to(ada, wish)
    assert told["payload"]["contract"] == lost
    bond = Bond(ada, bob, told["payload"]["contract"], told["payload"]["collaboration_id"], {}, (None, None))
    asked = bond.request()
    with ada.sending(asked) as waiting:
        bob.say(bond.response(bob.hears("request", INTENT), {"dataset_id": "d-1"}))
    assert waiting.result().status == 200
    for _ in range(2):
        assert [bond.content(one) for one in answers_to(ada, asked)] == [{"dataset_id": "d-1"}]
    assert ada.hear() == []
    assert error_of(bob.http.get(f"/a2acp/messages?answer_to={asked['message_id']}"))["code"] == "CAPABILITY_NOT_FOUND"


def answers_to(who: Plain, asked: Json) -> list[Json]:
    """What the hub has to say about a request, acknowledged."""
    polled = who.http.get(f"/a2acp/messages?answer_to={asked['message_id']}").json["messages"]
    assert who.ack(*polled) == len(polled)
    return [one["message"] for one in polled]


@pytest.mark.requirement("A2-HSK-6", "A2-HSK-7")
def test_a_handshake_goes_on_after_a_kill(hub: HubProcess, pair: tuple[Plain, Plain]) -> None:
    ada, bob = pair
    ada.say(ada.initiate(bob, INTENT))
    proposal = bob.hears("request", "accept_handshake")
    yes = {"accepted": True, "correlation_id": proposal["payload"]["handshake_id"]}
    said = bob.message("response", BROKER, "accept_handshake", yes)
    hub.restart()
    answer = bob.send(said, later=True)
    told = ada.hears("response" if answer.status == 202 else "error", "initiate_handshake")  # 5 s may be over
    if answer.status == 202:
        assert told["payload"]["contract"]["contract_id"] == proposal["payload"]["contract"]["contract_id"]
        bob.hears("event", "accept_handshake")
    else:
        assert told["payload"]["error"]["code"] == "TIMEOUT"


@pytest.mark.requirement("A2-TIM-1")
@pytest.mark.parametrize("later", [True, False], ids=["async", "sync"])
def test_a_handshake_that_nobody_answers_ends(pair: tuple[Plain, Plain], later: bool) -> None:
    ada, bob = pair
    asked = ada.initiate(bob, INTENT)
    if later:
        ada.say(asked)
        proposal = bob.hears("request", "accept_handshake")
        told = ada.hears("error", "initiate_handshake")["payload"]["error"]
    else:
        with ada.sending(asked) as waiting:
            proposal = bob.hears("request", "accept_handshake")
        told = error_of(waiting.result())
    assert told["code"] == "TIMEOUT"
    assert told["retry_after"] >= 1
    yes = {"accepted": True, "correlation_id": proposal["payload"]["handshake_id"]}
    assert bob.refused(bob.message("response", BROKER, "accept_handshake", yes))["retry_after"] == 0
    contract = proposal["payload"]["contract"]["contract_id"]
    request = ada.message("request", bob, INTENT, {**WANTED, "contract_id": contract})
    assert ada.refused(request)["code"] == "CONTRACT_VIOLATION"  # what was proposed never stood
    assert [ada.hear(), bob.hear()] == [[], []]


# -- the contract


@pytest.mark.long
@pytest.mark.requirement("A2-CTR-5", "a2acp-D7")
@pytest.mark.parametrize("end", ["expired", "terminated"])
def test_a_contract_that_ends_under_a_request_still_carries_its_answer(hub: HubProcess, end: str) -> None:
    if end == "expired":
        hub.restart(DRAGOMAN_A2ACP__CONTRACT_HOURS="0.0028", DRAGOMAN_A2ACP__MESSAGES_PER_COLLABORATION="0")
    ada, bob = Plain(hub, "ada"), Plain(hub, "bob").serves({**PROVISION, "timeout_seconds": 120})
    bond = ada.shake(bob)
    work = bond.ask()
    if end == "terminated":
        payload = {"collaboration_id": bond.collaboration}
        assert bob.send(bob.message("request", BROKER, "terminate_collaboration", payload)).status == 200
        ada.hears("event", "terminate_collaboration")
    else:
        until(lambda: ada.send(bond.request({}), later=True).json["payload"]["error"]["details"].get("standing"), end)
    assert ada.refused(bond.request())["details"]["standing"] == end
    hub.restart()
    finishes(bond, work)


# -- keys


@pytest.mark.requirement("a2acp-D12")
@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
def test_a_key_rotated_in_flight_loses_nothing(hub: HubProcess, pair: tuple[Plain, Plain], killed: bool) -> None:
    ada, bob = pair
    bond = ada.shake(bob, encrypt=True)
    old = bond._replace(keys=dict(bond.keys))
    held = bond.ask()  # the target has it, sealed with the old key
    on_its_way = bond.request()
    bond.source.say(bond.request())  # the hub has it, and the target not yet
    assert bond.pairs[0] is not None
    wish = {"collaboration_id": bond.collaboration, "public_key": bond.pairs[0].public_key}
    answer = ada.send(ada.message("request", BROKER, "rotate_key", wish))
    assert answer.status == 200, answer
    bond.granted(answer.json["payload"]["key"], 0)
    if killed:
        hub.restart()
    early = bob.hears("request", INTENT)
    assert bond.content(early) == WANTED
    assert bond.granted(bob.hears("event", "rotate_key")["payload"]["key"], 1)
    ada.say(on_its_way)
    late = bob.hears("request", INTENT)
    assert bond.content(late) == WANTED
    bob.say(old.response(held, {"dataset_id": "old key"}))
    bob.say(bond.response(early, {"dataset_id": "new key"}))
    bob.say(bond.response(late, {"dataset_id": "late"}))
    told = [ada.hears("response", INTENT) for _ in range(3)]
    assert {bond.content(one)["dataset_id"] for one in told} == {"old key", "new key", "late"}
    assert ada.hear() == []


@pytest.mark.requirement("a2acp-D12")
def test_a_nonce_is_used_once_also_across_a_restart(hub: HubProcess, pair: tuple[Plain, Plain]) -> None:
    bond, nonce = pair[0].shake(pair[1], encrypt=True), bytes(range(12))
    bond.source.say(bond.request(nonce=nonce))
    hub.restart()
    told = bond.source.refused(bond.request({**WANTED, "record_count": 1}, nonce=nonce))
    assert (told["code"], told["details"]["reason"]) == ("SECURITY_POLICY_VIOLATION", "nonce")
    bond.source.say(bond.request())


@pytest.mark.parametrize("way", ["inbox", "link"])
def test_a_name_that_is_taken_since_before_a_kill_is_given_to_nothing_else(
    hub: HubProcess, bond: Bond, way: str
) -> None:
    """A caller may call a whole conversation by one name; its target must tell the requests apart all the same."""
    first = bond.ask(thread="conversation")
    hub.restart()
    if way == "link":
        with bond.target.link() as link:
            bond.source.say(bond.request({**WANTED, "record_count": 2}, thread="conversation"))
            second = link.hears("request", INTENT)
    else:
        second = bond.ask({**WANTED, "record_count": 2}, thread="conversation")
    assert second["payload"]["correlation_id"] == second["task"]["id"]
    for work, answer in ((first, "d-1"), (second, "d-2")):
        finishes(bond, work, answer)
        assert hub.task(work["task"]["id"])["result"] == {"dataset_id": answer}


@pytest.mark.requirement("a2acp/all-D5")
def test_an_answer_may_come_again_after_a_kill(hub: HubProcess, bond: Bond) -> None:
    work = bond.ask()
    finishes(bond, work)
    hub.restart()  # the target may not have heard that its answer was taken
    bond.target.say(bond.response(work, {"dataset_id": "d-1"}))
    other = bond.target.refused(bond.response(work, {"dataset_id": "d-2"}))
    assert other["code"] == "CONTRACT_VIOLATION"
    assert bond.source.hear() == []
