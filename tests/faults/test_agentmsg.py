"""Faults by name, between agents that converse: each promise is looked at from outside, after the fault.

fault                                          what holds
---------------------------------------------  -----------------------------------------------------------------------
receiver dies before its ACK                   the same message again, over whichever connection is next
an ACK is lost                                 the same message again; acted on once, by its id
hub killed at each step of accepting           accepted or not, once, and asking again is right
hub killed after commit, before send           it leaves after the restart
at most once, and the hub or receiver dies     never twice
OFFLINE by silence                             its work goes to somebody else; what it says later is refused
two writers race on one entity                 every version once, nothing overwritten unseen
policy changed while tasks run                 those that run go on; the next obey it
"""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import pytest
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.plain import Plain
from tests.faults.killing import HAPPENED
from tests.support.fleet import BROKEN
from tests.support.hubproc import HubProcess, until
from websockets.exceptions import ConnectionClosed


@pytest.fixture
def pair(hub: HubProcess) -> tuple[Plain, Plain]:
    return Plain(hub, "ada"), Plain(hub, "bob")


def note(agent: Plain, text: str, task: str | None = None) -> dict[str, Any]:
    """An ERROR_REPORT between agents is a direct message, and kept."""
    return words.error(agent.id, task, message=text)


def effects(hub: HubProcess) -> dict[str, int]:
    """What messages led to, seen from outside."""
    return {
        "order": len(hub.tasks()),
        "help": len(hub.admin.get("/api/v1/questions").json["questions"]),
        "letter": int(hub.gauge("dragoman_deliveries")),
        "state": hub.admin.get("/agentmsg/state/TASK/plan").status == 200,
    }


# -- the receiver, and its ACK


@pytest.mark.requirement("AM-DLV-5")
def test_a_receiver_that_dies_before_its_ack_gets_the_same_again(pair: tuple[Plain, Plain]) -> None:
    ada, bob = pair
    letter = ada.say("ERROR_REPORT", "bob", note(ada, "?"))
    ada.say("TASK_ASSIGNMENT", "bob", words.assignment("t-1"))
    with bob.link() as link:
        heard = [link.hears("ERROR_REPORT"), link.hears("TASK_ASSIGNMENT")]
        link.socket.socket.close()  # no goodbye
    assert heard[0]["id"] == letter["id"]
    found: dict[str, dict[str, Any]] = {}

    def both() -> bool:
        for one in bob.poll(1):
            found[one["message"]["type"]] = one["message"]
            bob.ack(one)
        return len(found) == 2

    until(both, "both again, over another connection")
    again = found["ERROR_REPORT"]
    assert (again["id"], again["payload"]) == (letter["id"], letter["payload"])
    assert again["metadata"]["retry_count"] > 0
    order = found["TASK_ASSIGNMENT"]["payload"]["task"]
    assert (order["task_id"], order["attempt"]) == ("t-1", 2)  # who dies over a task has tried it
    bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1})
    assert ada.hears("TASK_COMPLETE")["payload"]["result"] == 1


@pytest.mark.requirement("AM-DLV-5", "agentmsg/all-D5")
def test_an_ack_that_is_lost_changes_nothing_but_the_count(hub: HubProcess, pair: tuple[Plain, Plain]) -> None:
    """It lies in the buffers of a hub that stands still and is killed."""
    ada, bob = pair
    letter = ada.say("ERROR_REPORT", "bob", note(ada, "?"))
    [one] = bob.poll(60)
    os.kill(hub.pid, signal.SIGSTOP)
    ack = json.dumps({"delivery_ids": [one["delivery_id"]]}).encode()
    with pytest.raises(BROKEN):
        bob.http.ask("POST", "/agentmsg/ack", ack, timeout=0.3)
    hub.restart()
    [again] = until(lambda: bob.poll(1), "the letter again")
    assert (again["message"]["id"], again["delivery_id"]) == (letter["id"], one["delivery_id"])
    assert bob.ack(again) == 1
    assert bob.ack(again) == 0  # an ACK twice is none
    assert ada.send(letter).status == 202
    assert bob.poll() == []
    assert hub.pending == 0


# -- the hub, at every step


@pytest.mark.requirement("AM-DLV-5", "agentmsg/all-D5")
@pytest.mark.parametrize(
    ("what", "step"),
    [("letter", step) for step in HAPPENED]
    + [(what, step) for what in ("order", "help", "state") for step in ("before_commit", "after_commit")],
)
def test_what_an_agent_says_survives_a_kill_at(
    hub: HubProcess, pair: tuple[Plain, Plain], what: str, step: str
) -> None:
    ada, bob = pair
    message = {
        "letter": ada.message("ERROR_REPORT", "bob", note(ada, "?")),
        "order": ada.message("TASK_ASSIGNMENT", "bob", words.assignment("t-1")),
        "help": ada.message("HELP_REQUEST", "hub", words.help_request("ada", "a thought")),
        "state": ada.message("STATE_UPDATE", "hub", words.change("CREATE", "TASK", "plan", {}, 0, words.now())),
    }[what]
    hub.restart(DRAGOMAN_CRASH_AT=step)
    with pytest.raises(BROKEN):
        ada.send(message)
    assert hub.died() == -signal.SIGKILL
    hub.start()
    assert effects(hub)[what] == HAPPENED[step]
    answer = ada.send(message)
    assert answer.status == 202, answer
    if what == "state":  # whoever wrote it hears the version that it has
        assert answer.json["answer"]["payload"] == {"version": 1}
    assert effects(hub)[what] == 1
    if what in ("letter", "order"):
        assert [one["type"] for one in until(bob.hear)] == [message["type"]]
        assert bob.hear() == []


@pytest.mark.requirement("AM-DLV-5")
@pytest.mark.parametrize("step", ["before_send", "after_send"])
def test_a_hub_killed_after_the_commit_and_around_the_send(
    hub: HubProcess, pair: tuple[Plain, Plain], step: str
) -> None:
    ada, bob = pair
    letter = ada.say("ERROR_REPORT", "bob", note(ada, "?"))
    hub.restart(DRAGOMAN_CRASH_AT=step)
    seen: list[str] = []
    with pytest.raises(ConnectionClosed), bob.link() as link:  # noqa: PT012
        while True:
            seen.append(link.hears("ERROR_REPORT")["id"])
    assert hub.died() == -signal.SIGKILL
    if step == "before_send":
        assert seen == []
    hub.start()
    with bob.link() as link:
        heard = link.hears("ERROR_REPORT")
        assert heard["id"] == letter["id"]
        link.ack(heard)
        link.settled()
    until(lambda: hub.pending == 0, "nothing left")


@pytest.mark.requirement("AM-DLV-5")
def test_a_hub_killed_in_the_middle_of_a_handoff_gives_the_task_one_owner(
    hub: HubProcess, pair: tuple[Plain, Plain]
) -> None:
    ada, bob = pair
    cid = Plain(hub, "cid")
    bob.works(ada, "t-1")
    request = bob.say("TASK_HANDOFF", "cid", words.handoff("t-1", "bob", "cid"))
    cid.hears("TASK_HANDOFF")
    yes = cid.message("TASK_HANDOFF", "bob", words.yes("cid"), correlation_id=request["id"])
    hub.restart(DRAGOMAN_CRASH_AT="after_commit")
    with pytest.raises(BROKEN):
        cid.send(yes)
    assert hub.died() == -signal.SIGKILL
    hub.start()
    assert ada.task("t-1")["assigned_agent"] == "cid"
    assert cid.send(yes).status in (202, 409)
    assert cid.hears("TASK_ASSIGNMENT")["payload"]["task"]["task_id"] == "t-1"
    assert bob.hears("TASK_HANDOFF")["payload"]["accepted"] is True
    assert bob.refused("TASK_COMPLETE", "hub", {"task_id": "t-1", "result": 0})[0] == 404
    cid.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1})
    assert ada.hears("TASK_COMPLETE")["from"] == "cid"


# -- at most once


@pytest.mark.requirement("AM-DLV-2")
def test_what_is_promised_at_most_once_is_never_delivered_twice(hub: HubProcess, pair: tuple[Plain, Plain]) -> None:
    ada, bob = pair
    said = [ada.say("HEARTBEAT", "bob", {"agent_id": "ada"}, priority="low") for _ in range(10)]
    first = [one["message"]["id"] for one in bob.poll(60, 4)]  # nobody acknowledges
    assert first
    for message in said:
        assert ada.send(message).status == 202  # the same again is the same
    hub.restart()
    for message in said:
        assert ada.send(message).status == 202  # also for the next hub
    rest: list[str] = []
    while got := bob.poll():
        rest += (one["message"]["id"] for one in got)
    assert set(first) & set(rest) == set()
    assert len(first) + len(rest) == len({*first, *rest})
    assert {*first, *rest} <= {message["id"] for message in said}


# -- silence


@pytest.mark.requirement("agentmsg-D12")
def test_a_silent_agent_loses_its_work_to_another(hub: HubProcess, pair: tuple[Plain, Plain]) -> None:
    ada, bob = pair
    hub.restart(DRAGOMAN_AGENTMSG__HEARTBEAT_SECONDS="1")
    skill = words.constraints(required_capabilities=["weave"])
    bob.say("REGISTER", "hub", {"agent_id": "bob", "capabilities": ["weave"]})
    ada.say("TASK_ASSIGNMENT", "*", words.assignment("t-1", constraints=skill))
    bob.hears("TASK_ASSIGNMENT")
    until(lambda: ada.get("/state/AGENT/bob").json["value"]["state"] == "OFFLINE", "silent for three heartbeats")
    cid = Plain(hub, "cid", capabilities=["weave"])
    order = cid.hears("TASK_ASSIGNMENT")
    assert order["payload"]["task"]["attempt"] >= 2
    assert bob.refused("TASK_COMPLETE", "hub", {"task_id": "t-1", "result": "late"})[0] == 404
    cid.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": "in time"})
    assert ada.hears("TASK_COMPLETE")["payload"]["result"] == "in time"


# -- shared state


@pytest.mark.requirement("agentmsg-D9")
def test_two_writers_race_on_one_entity_and_the_hub_is_killed_meanwhile(
    hub: HubProcess, pair: tuple[Plain, Plain]
) -> None:
    """Each writer adds one, ten times, and reads again whenever another was faster or no answer came."""
    ada, bob = pair
    made = words.change("CREATE", "TASK", "sum", {"assigned_agent": "bob", "context": {"by": {}}}, 0, words.now())
    assert ada.post("/state", made).status == 200
    failures: list[BaseException] = []
    conflicts = 0

    def add(agent: Plain) -> None:
        nonlocal conflicts
        done = 0
        while done < 10:
            try:
                now = agent.get("/state/TASK/sum").json
                done = now["value"]["context"]["by"].get(agent.id, 0)
                if done == 10:
                    return
                changes = {"context": {"by": {agent.id: done + 1}}}
                update = words.change("UPDATE", "TASK", "sum", changes, now["version"], words.now())
                answer = agent.post("/state", update)
                assert answer.status in (200, 409), answer
                conflicts += answer.status == 409
            except BROKEN:
                continue
            except BaseException as error:
                failures.append(error)
                return

    writers = [threading.Thread(target=add, args=(agent,)) for agent in (ada, bob)]
    for writer in writers:
        writer.start()
    until(lambda: ada.get("/state/TASK/sum").json["version"] > 5, "they are under way")
    hub.restart()
    for writer in writers:
        writer.join(60)
        assert not writer.is_alive()
    assert failures == []
    now = ada.get("/state/TASK/sum").json
    assert now["value"]["context"]["by"] == {"ada": 10, "bob": 10}
    assert now["version"] == 21  # each version is one change, and none was lost or made twice


@pytest.mark.requirement("AM-SST-5")
def test_a_policy_that_changes_while_tasks_run_lets_them_end_and_binds_the_next(
    hub: HubProcess, pair: tuple[Plain, Plain]
) -> None:
    ada, bob = pair
    admin = Plain(hub, "admin", hub.ready["admin_token"])
    given = words.context("t-1", metadata={"chain": "B"})
    bob.works(ada, "t-1", context=given, constraints=words.constraints(budget_usd=5))
    limits = {"enabled_chains": ["A"], "budget_limits": {"per_task": 1, "total": 1}}
    assert admin.post("/state", words.change("UPDATE", "POLICY", "policy", limits, 1, words.now())).status == 200
    hub.restart()
    bob.say("TASK_UPDATE", "ada", {"task_id": "t-1", "progress": 50})
    bob.say("TASK_COMPLETE", "ada", {"task_id": "t-1", "result": 1, "usage": {"cost_usd": 0.5}})
    assert ada.hears("TASK_COMPLETE")["payload"]["result"] == 1
    status, report = ada.refused("TASK_ASSIGNMENT", "bob", words.assignment("t-2", context={**given, "task_id": "t-2"}))
    assert (status, report["context"]["details"]["enabled_chains"]) == (403, ["A"])
    paid = words.assignment("t-3", constraints=words.constraints(budget_usd=0.75))
    status, report = ada.refused("TASK_ASSIGNMENT", "bob", paid)
    assert (status, report["context"]["details"]["remaining"]) == (422, 0.5)


# -- in the end


@pytest.mark.requirement("AM-DLV-3", "AM-DLV-5")
def test_a_lane_keeps_its_order_over_kills(hub: HubProcess, pair: tuple[Plain, Plain]) -> None:
    ada, bob = pair
    said = []
    for n in range(6):
        said.append(ada.say("ERROR_REPORT", "bob", note(ada, str(n), "lane"))["id"])
        if n == 2:
            hub.restart()
    heard: list[str] = []

    def all_of_them() -> bool:
        for one in bob.poll(1, 1):
            if one["message"]["id"] not in heard:
                heard.append(one["message"]["id"])
                if len(heard) == 3:
                    hub.restart()  # nobody acknowledged it
                    return False
            bob.ack(one)
        return len(heard) == len(said)

    until(all_of_them, "the whole lane")
    assert heard == said
