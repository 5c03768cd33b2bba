"""Both ends of a link, joined by bytes: promises, repetitions, time, and who may say what."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.conformance.agentmsg.samples import PAYLOADS, START, Link, decode, tree

from dragoman.protocols.agentmsg import codec, records, routing
from dragoman.protocols.agentmsg.connection import (
    Acknowledged,
    Connection,
    DeadLetter,
    Inbox,
    Invalid,
    Outbox,
    Outlived,
    Received,
    Repeated,
    SendAgain,
    Sent,
)
from dragoman.protocols.agentmsg.records import ErrorType, Priority
from dragoman.protocols.agentmsg.routing import Guarantee
from dragoman.protocols.agentmsg.types import (
    Heartbeat,
    MessageType,
    Register,
    Stamp,
    StateQuery,
    TaskComplete,
    TaskUpdate,
    Welcome,
)
from dragoman.wire import Limits, LocalProtocolError, Role, Stage

DONE = TaskComplete(task_id="t-1", result=1)
HALF = TaskUpdate(task_id="t-1", progress=50)
BEAT = Heartbeat(agent_id="ada")


def one(events: list[Any], kind: type) -> Any:
    assert [type(event) for event in events] == [kind], events
    return events[0]


def after(milliseconds: float) -> Any:
    return START + timedelta(milliseconds=milliseconds)


@pytest.mark.requirement("AM-RTE-1", "agentmsg-D3")
def test_each_type_has_its_priority_and_each_priority_its_guarantee() -> None:
    assert set(routing.PRIORITY) == set(MessageType)
    assert routing.PRIORITY[MessageType.ERROR_REPORT] is Priority.CRITICAL
    high = {kind for kind in MessageType if kind.startswith(("TASK_", "HELP_")) and kind is not MessageType.TASK_UPDATE}
    assert {kind for kind in high if routing.PRIORITY[kind] is Priority.HIGH} == high
    for kind in (MessageType.STATUS_UPDATE, MessageType.TASK_UPDATE):
        assert routing.PRIORITY[kind] is Priority.NORMAL
    assert routing.PRIORITY[MessageType.HEARTBEAT] is Priority.LOW
    assert [routing.GUARANTEE[priority] for priority in routing.ORDER] == [
        Guarantee.AT_MOST_ONCE, Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_LEAST_ONCE,
    ]  # fmt: skip


@pytest.mark.requirement("agentmsg-D3", "AM-HLP-3")
@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.parametrize("own", list(Priority))
def test_the_higher_priority_counts(name: str, own: Priority) -> None:
    message = decode(json.dumps(tree(name, priority=own)).encode())
    table = routing.PRIORITY[message.type]
    assert routing.priority(message) in (own, table)
    assert routing.RANK[routing.priority(message)] == max(routing.RANK[own], routing.RANK[table])
    assert set(routing.URGENCY.values()) == set(Priority)


@pytest.mark.requirement("AM-DLV-1", "agentmsg-D4")
def test_a_high_message_is_kept_until_acknowledged_and_acted_on_once(link: Link) -> None:
    frame = link.agent.send_payload(DONE, link.stamp())
    heard = one(link.hub.receive(frame, START), Received)
    assert (heard.message.payload, heard.wants_ack, heard.raw) == (DONE, True, frame)
    assert not one(link.hub.receive(frame, START), Repeated).acknowledged  # it is not safe yet: no ACK
    link.hub.acknowledge([heard.message], link.stamp())  # and it is lost on the way
    [again] = link.agent.late(after(1000))
    assert isinstance(again, SendAgain)
    repeated = one(link.hub.receive(again.data, after(1000)), Repeated)
    assert repeated.acknowledged
    ack = link.hub.acknowledge([repeated.message], link.stamp())
    assert one(link.agent.receive(ack), Acknowledged).message_ids == (heard.message.id,)
    assert one(link.agent.receive(ack), Acknowledged).message_ids == ()
    assert link.agent.outbox.state(heard.message.id) is Sent.ACKNOWLEDGED
    assert (link.agent.late(after(1e9)), link.agent.next_due) == ([], None)


@pytest.mark.requirement("AM-DLV-2", "agentmsg-D4")
@pytest.mark.parametrize("payload", [HALF, BEAT])
def test_a_normal_or_low_message_is_sent_once_and_delivered_once(link: Link, payload: Any) -> None:
    frame = link.agent.send_payload(payload, link.stamp())
    assert not one(link.hub.receive(frame), Received).wants_ack
    assert not one(link.hub.receive(frame), Repeated).acknowledged
    assert link.agent.late(after(1e9)) == []


@pytest.mark.requirement("agentmsg-D4", "agentmsg-D3")
def test_a_message_may_ask_for_a_better_promise_but_not_a_worse(link: Link) -> None:
    frame = link.agent.send_payload(HALF, link.stamp(), priority=Priority.CRITICAL)
    assert one(link.hub.receive(frame), Received).wants_ack
    frame = link.agent.send_payload(DONE, link.stamp(), priority=Priority.LOW)
    assert one(link.hub.receive(frame), Received).wants_ack
    assert len(link.agent.outbox) == 2


def test_the_same_id_with_other_content_is_refused(link: Link) -> None:
    stamp = link.stamp()
    link.hub.receive(link.agent.send_payload(DONE, stamp))
    other = Connection(Role.AGENT, "ada").send_payload(TaskComplete(task_id="t-1", result=2), stamp)
    event = one(link.hub.receive(other), Invalid)
    assert (event.error.field, event.error.about, event.error.stage) == ("id", stamp.id, Stage.ORDER)


def test_what_could_not_be_taken_may_come_again(link: Link) -> None:
    frame = link.agent.send_payload(DONE, link.stamp())
    heard = one(link.hub.receive(frame), Received)
    link.hub.release([heard.message])
    assert one(link.hub.receive(frame), Received) == heard
    with pytest.raises(LocalProtocolError, match="to acknowledge"):
        Connection(Role.HUB, "ada").acknowledge([heard.message], link.stamp())


@pytest.mark.requirement("AM-DLV-4", "agentmsg-D7", "AM-MTA-4", "AM-MTA-5", "AM-RTY-1")
def test_waits_double_and_end_among_the_dead_letters(link: Link) -> None:
    link.agent.outbox = Outbox(records.RetryConfig(jitter=False))
    frame = link.agent.send_payload(DONE, link.stamp())
    now, counts = START, []
    for wait in (1000, 2000, 4000):
        assert link.agent.next_due == now + timedelta(milliseconds=wait)
        assert link.agent.late(now + timedelta(milliseconds=wait - 1)) == []
        now += timedelta(milliseconds=wait)
        [again] = link.agent.late(now)
        assert isinstance(again, SendAgain)
        counts.append(json.loads(again.data)["metadata"]["retry_count"])
    assert counts == [1, 2, 3]
    [dead] = link.agent.late(now + timedelta(milliseconds=8000))
    assert dead == DeadLetter(decode(frame))
    assert link.agent.outbox.state(dead.message.id) is Sent.DEAD
    link.agent.send_payload(DONE, link.stamp(), max_retries=0)
    [dead] = link.agent.late(now + timedelta(milliseconds=1000))
    assert isinstance(dead, DeadLetter)


@pytest.mark.requirement("AM-RTY-1", "agentmsg-D7")
def test_the_delays_are_a_function_of_the_configuration() -> None:
    assert (
        records.RetryConfig(max_attempts=4, base_delay_ms=1000, max_delay_ms=30_000, backoff_multiplier=2, jitter=True)
        == records.DEFAULT_RETRIES
    )
    plain = records.RetryConfig(jitter=False)
    assert [routing.delay(plain, attempt, 0.3) for attempt in range(1, 8)] == [
        1000, 2000, 4000, 8000, 16000, 30000, 30000,
    ]  # fmt: skip
    assert [routing.delay(records.DEFAULT_RETRIES, 2, chance) for chance in (0, 0.5, 1)] == [1000, 1500, 2000]
    assert routing.delay(plain, 10**9, 0) == 30000
    assert routing.delay(records.RetryConfig(base_delay_ms=0), 5, 0.5) == 0


@pytest.mark.requirement("AM-RTY-1", "AM-MTA-5")
def test_a_message_with_a_configuration_of_its_own_waits_as_it_says(link: Link) -> None:
    link.agent.outbox = Outbox(records.RetryConfig(jitter=False))
    wish = records.RetryOverrides(base_delay_ms=200, backoff_multiplier=3)
    frame = link.agent.send_payload(DONE, link.stamp(), max_retries=2, retry_config=wish)
    assert json.loads(frame)["metadata"]["retry_config"] == {"base_delay_ms": 200, "backoff_multiplier": 3}
    assert routing.retries(decode(frame).metadata) == records.RetryConfig(
        max_attempts=3, base_delay_ms=200, backoff_multiplier=3
    )
    now, said = START, []
    for wait in (200, 600, 1800):
        now += timedelta(milliseconds=wait)
        assert link.agent.next_due == now
        said += link.agent.late(now)
    assert [type(event) for event in said] == [SendAgain, SendAgain, DeadLetter]


@pytest.mark.requirement("AM-RTY-3", "agentmsg-D7")
def test_what_a_message_says_of_its_attempts_agrees(link: Link) -> None:
    link.agent.send_payload(DONE, link.stamp(), max_retries=2, retry_config=records.RetryOverrides(max_attempts=3))
    with pytest.raises(LocalProtocolError, match="contradicts metadata"):
        link.agent.send_payload(DONE, link.stamp(), max_retries=3, retry_config=records.RetryOverrides(max_attempts=3))


@pytest.mark.requirement("AM-MTA-3", "agentmsg-D6")
def test_an_expired_message_is_dropped_and_reported_to_its_sender_if_it_was_promised_more(link: Link) -> None:
    frame = link.agent.send_payload(DONE, link.stamp(), ttl_ms=500)
    assert routing.expires_at(decode(frame)) == after(500)
    event = one(link.hub.receive(frame, after(500)), Outlived)
    report = link.hub.refuse(event, link.stamp(after(500)))
    told = one(link.agent.receive(report or b"", after(501)), Received)
    assert (told.message.type, told.message.payload.error_type) == (MessageType.ERROR_REPORT, ErrorType.TIMEOUT)
    assert (told.message.answers, told.message.payload.task_id) == (event.message.id, "t-1")
    quiet = one(link.hub.receive(link.agent.send_payload(HALF, link.stamp(), ttl_ms=500), after(500)), Outlived)
    assert link.hub.refuse(quiet, link.stamp()) is None
    in_time = link.agent.send_payload(DONE, link.stamp(), ttl_ms=500)
    assert one(link.hub.receive(in_time, after(499)), Received)
    assert one(link.hub.receive(in_time, after(9999)), Repeated)  # it came in time


@pytest.mark.requirement("AM-MTA-3", "agentmsg-D6")
def test_a_sender_stops_when_its_message_has_expired(link: Link) -> None:
    link.agent.send_payload(DONE, link.stamp(), ttl_ms=300)
    assert link.agent.next_due == after(300)
    [late] = link.agent.late(after(300))
    assert isinstance(late, Outlived)
    endless = codec.message(DONE, link.stamp(), sender="ada", to="hub", ttl_ms=1e300)
    assert routing.expires_at(endless) is None


@pytest.mark.requirement("AM-LNK-2")
def test_an_ack_names_many_and_is_not_acknowledged(link: Link) -> None:
    heard = [one(link.hub.receive(link.agent.send_payload(DONE, link.stamp())), Received).message for _ in range(3)]
    ack = link.hub.acknowledge(heard, link.stamp())
    assert one(link.agent.receive(ack), Acknowledged).message_ids == tuple(message.id for message in heard)
    assert len(link.agent.outbox) == 0
    urgent = codec.message(decode(ack).payload, link.stamp(), sender="ada", to="hub", priority=Priority.CRITICAL)
    assert not routing.is_kept(urgent)
    keeper = Connection(Role.AGENT, "ada")  # somebody else keeps what it sent
    assert one(keeper.receive(ack), Acknowledged).message_ids == tuple(message.id for message in heard)


@pytest.mark.requirement("AM-LNK-1", "AM-MSG-4")
def test_each_end_speaks_in_its_own_name(link: Link) -> None:
    eve = Connection(Role.AGENT, "eve")
    event = one(link.hub.receive(eve.send_payload(DONE, link.stamp())), Invalid)
    assert (event.error.field, event.error.error_type) == ("from", ErrorType.AUTHENTICATION_ERROR)
    report = one(link.agent.receive(link.hub.refuse(event, link.stamp()) or b""), Received).message
    assert (report.payload.error_type, report.answers) == (ErrorType.AUTHENTICATION_ERROR, event.error.about)
    event = one(
        link.agent.receive(Connection(Role.HUB, "eve").send_payload(Welcome(agent_id="eve"), link.stamp())), Invalid
    )
    assert event.error.field == "to"
    forged = codec.message(DONE, link.stamp(), sender="eve", to="hub")
    with pytest.raises(LocalProtocolError, match="this token belongs to agent"):
        link.agent.send(forged)


@pytest.mark.requirement("AM-LNK-1")
def test_some_messages_are_for_one_end_only(link: Link) -> None:
    said = {**tree("Welcome"), "from": "ada", "to": "hub"}
    assert one(link.hub.receive(json.dumps(said).encode()), Invalid).error.field == "type"
    said = {**tree("StateAnswer"), "from": "ada", "to": "hub"}
    assert one(link.hub.receive(json.dumps(said).encode()), Invalid).error.field == "type"
    assert one(link.hub.receive(json.dumps({**tree("StateUpdate"), "to": "bob"}).encode()), Invalid).error.field == "to"
    with pytest.raises(LocalProtocolError, match="does not say"):
        link.hub.send_payload(Register(agent_id="ada"), link.stamp())
    with pytest.raises(LocalProtocolError, match="only between"):
        link.agent.send_payload(StateQuery(), link.stamp(), to="bob")


@pytest.mark.requirement("AM-LNK-5")
def test_an_agent_may_register_or_just_speak(link: Link) -> None:
    assert one(link.hub.receive(link.agent.send_payload(BEAT, link.stamp())), Received)
    registered = one(
        link.hub.receive(link.agent.send_payload(Register(agent_id="ada"), link.stamp())), Received
    ).message
    frame = link.hub.send_payload(Welcome(agent_id="ada"), link.stamp(), correlation_id=registered.id)
    assert json.loads(frame)["payload"]["heartbeat_interval_ms"] == 10000
    assert one(link.agent.receive(frame), Received).message.answers == registered.id


def test_the_hub_carries_what_agents_say_to_each_other(link: Link) -> None:
    bob = Connection(Role.HUB, "bob")
    frame = link.agent.send_payload(decode(json.dumps(tree()).encode()).payload, link.stamp(), to="bob")
    heard = one(link.hub.receive(frame), Received)
    onward = codec.reissue(heard.raw, {}, {"delivery_id": "d-1"})
    assert one(Connection(Role.AGENT, "bob").receive(bob.send(heard.message, data=onward)), Received).wants_ack


@pytest.mark.requirement("AM-LNK-3")
@pytest.mark.parametrize("broken", [b"", b"{}", b"\xff", b"[]", b'{"type": []}', b'{"type": "TASK_UPDATE"}', b"[" * 99])
def test_a_broken_frame_is_answered_and_the_connection_goes_on(link: Link, broken: bytes) -> None:
    event = one(link.hub.receive(broken), Invalid)
    report = one(link.agent.receive(link.hub.refuse(event, link.stamp()) or b""), Received)
    assert report.message.payload.error_type is ErrorType.VALIDATION_ERROR
    assert one(link.hub.receive(link.agent.send_payload(BEAT, link.stamp())), Received)


@pytest.mark.requirement("AM-LNK-3")
@pytest.mark.parametrize("kind", ["ERROR_REPORT", "ACK"])
def test_a_broken_report_is_not_answered_with_another(link: Link, kind: str) -> None:
    event = one(link.hub.receive(json.dumps({"type": kind}).encode()), Invalid)
    assert link.hub.refuse(event, link.stamp()) is None


@pytest.mark.requirement("AM-LNK-4")
def test_memory_is_bounded(link: Link) -> None:
    small = Connection(Role.HUB, "ada", inbox=Inbox(most=2))
    frames = [link.agent.send_payload(DONE, link.stamp()) for _ in range(3)]
    held = [one(small.receive(frame), Received).message for frame in frames[:2]]
    event = one(small.receive(frames[2]), Invalid)
    assert event.error.error_type is ErrorType.RESOURCE_EXHAUSTED
    small.acknowledge(held, link.stamp())
    for _ in range(10):
        small.receive(link.agent.send_payload(BEAT, link.stamp()))
    assert len(small.inbox) == 2
    tight = Connection(Role.AGENT, "ada", outbox=Outbox(most=1), limits=Limits(bytes=1000))
    tight.send_payload(DONE, link.stamp())
    with pytest.raises(LocalProtocolError, match="wait for their ACK"):
        tight.send_payload(DONE, link.stamp())
    with pytest.raises(LocalProtocolError, match="exceeds"):
        tight.send_payload(TaskUpdate(task_id="t", output="x" * 1000), link.stamp())


@pytest.mark.requirement("AM-LNK-6", "AM-DLV-1")
def test_what_waits_outlives_its_connection(link: Link) -> None:
    sent = [link.agent.send_payload(DONE, link.stamp()) for _ in range(3)]
    first = link.hub.receive(sent[0])[0]
    assert isinstance(first, Received)
    later = Connection(Role.AGENT, "ada", outbox=link.agent.outbox, inbox=link.agent.inbox)
    hub = Connection(Role.HUB, "ada", inbox=link.hub.inbox)
    again = [later.send(entry.message, START, data=entry.data) for entry in link.agent.outbox]
    assert again == sent
    assert [type(hub.receive(frame)[0]) for frame in again] == [Repeated, Received, Received]


@pytest.mark.requirement("AM-DLV-4")
def test_one_draw_of_chance_spreads_a_crowd() -> None:
    link = Link()
    outbox = link.agent.outbox = Outbox()
    for _ in range(8):
        link.agent.send_payload(DONE, link.stamp(), chance=0.0)
    assert len(link.agent.late(after(500), chance=0.9)) == 8
    dues = sorted(entry.due for entry in outbox)
    assert all(one < two for one, two in pairwise(dues))
    assert after(500) + timedelta(milliseconds=1000) <= dues[0] <= dues[-1] <= after(500) + timedelta(milliseconds=2000)


def test_a_message_belongs_to_the_lane_of_its_task() -> None:
    tasks = {name: routing.task(decode(json.dumps(tree(name)).encode())) for name in PAYLOADS}
    with_task = {
        "TaskAssignment",
        "TaskHandoffRequest",
        "TaskUpdate",
        "TaskComplete",
        "TaskFailed",
        "HelpRequest",
        "ErrorReport",
    }
    assert tasks == {name: "t-1" if name in with_task else None for name in PAYLOADS}


def test_an_id_in_capitals_is_the_same_id(link: Link) -> None:
    stamp = Stamp("11111111-1111-4111-8111-11111111111A", START)
    link.agent.send_payload(DONE, stamp)
    assert link.agent.outbox.state(stamp.id.lower()) is Sent.WAITING
