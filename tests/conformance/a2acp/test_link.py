"""Both ends of a link, joined by bytes: who may say what, answers that find their requests, replays, limits of rate."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.a2acp.samples import ADA, BOB, BODIES, BROKER, START, TOKEN, Link, tree

from dragoman.core.directory import MINUTES, Directory
from dragoman.core.ids import Instant
from dragoman.core.model.ratelimit import EVERYBODY, SECOND, Exceeded, Limits, Minute, keys, take
from dragoman.core.ports import Recovered
from dragoman.protocols.a2acp import codec, intents
from dragoman.protocols.a2acp.connection import Connection
from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.events import Answered, Invalid, Overdue, Received, Unexpected
from dragoman.protocols.a2acp.replay import Memory, row, untimely
from dragoman.protocols.a2acp.state import Pending
from dragoman.protocols.a2acp.types import MessageType
from dragoman.wire import Limits as Sizes
from dragoman.wire import LocalProtocolError, Role


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def one(events: list[Any], kind: type) -> Any:
    assert [type(event) for event in events] == [kind], events
    return events[0]


# -- who may say what --


@pytest.mark.requirement("A2-LNK-1", "a2acp-D14", "A2-HSK-1", "A2-HSK-3")
@pytest.mark.parametrize(("intent", "kind", "speaker", "body"), BODIES)
def test_each_end_says_its_own_part_of_the_brokers_intents(intent: str, kind: str, speaker: Role, body: Any) -> None:
    link = Link()
    for role, end, other in ((Role.AGENT, link.agent, link.hub), (Role.HUB, link.hub, link.agent)):
        made = codec.message(
            MessageType(kind),
            link.stamp(),
            source=end.me,
            target=other.me,
            intent=intent,
            payload=intents.payload(body),
        )
        if role is not speaker and intent != intents.CANCEL:
            with pytest.raises(LocalProtocolError, match="is not said by"):
                end.send(made)
            assert one(other.receive(codec.encode(made)), Invalid).field == "intent"
        else:
            event = other.receive(end.send(made))[0]
            assert isinstance(event, Unexpected) or event.body == body


@pytest.mark.requirement("A2-LNK-1", "a2acp/all-D1", "A2-TOK-3")
@pytest.mark.parametrize("claimed", [{"agent_id": "eve"}, {"domain": "ward"}])
def test_an_agent_speaks_only_for_itself(link: Link, claimed: dict[str, str]) -> None:
    said = tree(source_agent={**tree()["source_agent"], **claimed})
    event = one(link.hub.receive(json.dumps(said).encode()), Invalid)
    assert (event.field, event.refusal.code) == ("source_agent", Code.AUTH_FAILED)
    answer = codec.decode(link.hub.refuse(event, link.stamp()))
    assert (answer.target_agent, answer.correlation_id) == (ADA, "k-1")  # who is connected, not who was claimed
    with pytest.raises(LocalProtocolError, match="is not who is connected"):
        link.agent.send(codec.decode(json.dumps(said).encode()))


@pytest.mark.requirement("A2-LNK-1")
def test_the_broker_is_asked_as_the_broker_and_speaks_to_who_is_connected(link: Link) -> None:
    body = intents.payload(intents.Discover())
    with pytest.raises(LocalProtocolError, match="between an agent and the broker"):
        link.agent.ask(intents.DISCOVER, body, link.stamp(), to=BOB)
    event = one(link.hub.receive(json.dumps(tree(intent=intents.DISCOVER, payload=body)).encode()), Invalid)
    assert event.field == "target_agent.agent_id"
    assert one(link.agent.receive(json.dumps(tree()).encode()), Invalid).field == "target_agent.agent_id"


# -- requests and answers --


@pytest.mark.requirement("A2-LNK-3", "A2-RTE-4", "a2acp-D8", "a2acp-D9")
def test_an_answer_finds_its_request_once(link: Link) -> None:
    frame = link.agent.ask("provision", {"contract_id": "c-1"}, link.stamp(), to=BOB)
    asked = one(link.hub.receive(frame, START), Received).message
    bob = Connection(Role.AGENT, BOB, BROKER)
    theirs = Connection(Role.HUB, BOB, BROKER)
    heard = one(bob.receive(theirs.send(asked, data=frame)), Received).message
    reply = bob.answer(heard, {"dataset_id": "d"}, link.stamp())
    answered = one(link.agent.receive(reply), Answered)
    assert (answered.request.message_id, answered.error) == (asked.message_id, None)
    assert answered.message.payload == {"dataset_id": "d", "contract_id": "c-1", "correlation_id": asked.message_id}
    assert type(link.agent.receive(reply)[0]) is Unexpected
    assert len(link.agent.pending) == 0


@pytest.mark.requirement("A2-LNK-3")
def test_an_answer_of_somebody_else_is_none_and_an_error_may_be_the_brokers(link: Link) -> None:
    asked = codec.decode(link.agent.ask("provision", {}, link.stamp(), to=BOB, correlation_id="k-7"))
    eve = Connection(Role.HUB, ADA, BROKER)
    forged = codec.answer(asked, link.stamp(), {}, source=BROKER)
    assert type(link.agent.receive(eve.send(forged))[0]) is Unexpected
    refusal = Refusal(code=Code.RATE_LIMIT_EXCEEDED, message="slow down", after=7.2)
    answered = one(link.agent.receive(link.hub.fail(asked, refusal, link.stamp())), Answered)
    assert (answered.error.code, answered.error.retry_after) == (Code.RATE_LIMIT_EXCEEDED, 8)
    assert answered.request.thread == "k-7"


@pytest.mark.requirement("A2-TIM-2")
def test_a_request_that_nobody_answers_is_overdue(link: Link) -> None:
    link.agent.ask("provision", {}, link.stamp(), to=BOB, correlation_id="slow")
    link.agent.ask("provision", {}, link.stamp(), to=BOB, correlation_id="quick", seconds=5)
    assert (link.agent.next_due, link.agent.overdue(after(4.9))) == (after(5), [])
    [quick] = link.agent.overdue(after(5))
    assert isinstance(quick, Overdue)
    assert (quick.request.thread, quick.refusal.code) == ("quick", Code.TIMEOUT)
    assert [late.request.thread for late in link.agent.overdue(after(30))] == ["slow"]
    assert (link.agent.next_due, len(link.agent.pending)) == (None, 0)


@pytest.mark.requirement("A2-LNK-2")
def test_a_broken_frame_is_answered_and_the_link_goes_on(link: Link) -> None:
    for frame in (b"", b"{", b"[]", json.dumps(tree(message_type="shout")).encode()):
        event = one(link.hub.receive(frame, START), Invalid)
        answer = codec.error(codec.decode(link.hub.refuse(event, link.stamp())))
        assert (answer.code, answer.retry_after) == (Code.SCHEMA_MISMATCH, 0)
        assert answer.details["stage"] == event.stage
    broken = one(link.hub.receive(json.dumps(tree("error", payload={"error": {}})).encode(), START), Invalid)
    assert link.hub.refuse(broken, link.stamp()) is None
    assert type(link.hub.receive(json.dumps(tree()).encode(), START)[0]) is Received


@pytest.mark.requirement("A2-LNK-4")
def test_a_links_memory_is_bounded(link: Link) -> None:
    link.agent.pending = Pending(most=1)
    link.agent.ask("provision", {}, link.stamp(), to=BOB)
    with pytest.raises(LocalProtocolError, match="wait for their answers"):
        link.agent.ask("provision", {}, link.stamp(), to=BOB)
    same, request = Pending(), codec.decode(json.dumps(tree()).encode())
    same.asked(request, START)
    with pytest.raises(LocalProtocolError, match="still open"):
        same.asked(request, START)
    tight = Connection(Role.AGENT, ADA, BROKER, limits=Sizes(bytes=100))
    with pytest.raises(LocalProtocolError, match="exceeds"):
        tight.tell(None, {}, link.stamp())


# -- replay --


@pytest.mark.requirement("a2acp-D15")
def test_a_message_counts_once_and_only_in_its_time(link: Link) -> None:
    frame = json.dumps(tree()).encode()
    assert type(link.hub.receive(frame, START)[0]) is Received
    again = one(link.hub.receive(frame.replace(b'"rows": 3', b'"rows": 4'), after(1)), Invalid)
    assert (again.refusal.code, again.refusal.details["reason"]) == (Code.AUTH_FAILED, "replayed")
    capitals = tree(message_id="AAAAAAAA-1111-4111-8111-111111111111")
    link.hub.receive(json.dumps(capitals).encode(), START)
    small = {**capitals, "message_id": capitals["message_id"].lower()}
    assert one(link.hub.receive(json.dumps(small).encode(), START), Invalid).field == "message_id"
    reasons = []
    for seconds in (-61, -60, 300, 300.1):
        found = untimely(START, after(seconds))
        reasons.append(found and found.details["reason"])
    assert reasons == ["in_the_future", None, None, "too_old"]


@pytest.mark.requirement("a2acp-D15")
def test_ids_are_the_senders_own_and_survive_a_restart() -> None:
    memory = Memory()
    kept = memory.remember("ada", "id-1", START)
    assert kept == row("ada", "ID-1", START)
    assert memory.judge("bob", "id-1", START, START) is None
    restarted = Memory()
    restarted.recall([kept, kept])
    found = restarted.judge("ada", "ID-1", START, after(300))
    assert found is not None
    assert found.details["reason"] == "replayed"
    restarted.release(kept)
    assert restarted.judge("ada", "id-1", START, START) is None


@pytest.mark.requirement("a2acp-D15", "A2-LNK-4")
def test_a_full_memory_refuses_rather_than_forgets() -> None:
    memory = Memory(most=2)
    for number in range(2):
        memory.remember("ada", f"id-{number}", START)
    full = memory.judge("ada", "id-9", START, after(1))
    assert full is not None
    assert (full.code, full.details["reason"]) == (Code.INTERNAL_ERROR, "overloaded")
    assert memory.judge("ada", "id-9", after(400), after(400)) is None
    assert len(memory) == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-70, 700), st.integers(0, 700)), max_size=40))
def test_no_id_is_ever_accepted_twice(told: list[tuple[int, int, int]]) -> None:
    """Whatever times the messages claim, and however late they come."""
    memory, accepted = Memory(), set()
    for number, claimed, now in sorted(told, key=lambda message: message[2]):
        if memory.judge("ada", str(number), after(claimed), after(now)) is None:
            memory.remember("ada", str(number), after(claimed))
            assert (number, claimed) not in accepted
            accepted.add((number, claimed))


# -- limits of rate --

NOON = int(START.timestamp()) * SECOND


class Meter:
    """Everybody's minutes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.minutes: dict[Any, Minute] = {}

    def admit(self, principal: str, now: int, collaboration: str | None = None) -> Exceeded | None:
        outcome = take(self.minutes.get, keys(principal, collaboration), self.limits, now)
        if isinstance(outcome, Exceeded):
            return outcome
        self.minutes.update(outcome)
        return None


def flood(meter: Meter, count: int, now: int, who: str = "ada", where: str | None = None) -> list[Exceeded]:
    return [found for _ in range(count) if (found := meter.admit(who, now, where)) is not None]


@pytest.mark.requirement("A2-LIM-1", "A2-LIM-2", "A2-LIM-3", "a2acp-D16")
def test_each_limit_holds_and_says_how_long_to_wait() -> None:
    meter = Meter()
    assert len(flood(meter, 101, NOON, where="l-1")) == 1
    [met] = flood(meter, 1, NOON + 30 * SECOND, where="l-1")
    assert (met.scope, met.limit, met.retry_after) == ("collaboration", 100, 30)
    assert flood(meter, 900, NOON + SECOND) == []
    [met] = flood(meter, 1, NOON + SECOND)
    assert (met.scope, met.limit, met.retry_after) == ("agent", 1000, 59)
    for number in range(9):
        assert flood(meter, 1000, NOON + SECOND, f"a{number}") == []
    [met] = flood(meter, 1, NOON + SECOND, "fresh")
    assert (met.scope, met.limit) == ("broker", 10_000)
    assert flood(meter, 100, NOON + 60 * SECOND, where="l-1") == []


@pytest.mark.requirement("a2acp-D16")
def test_a_refused_message_takes_from_nobody() -> None:
    limits = Limits(agent=5, collaboration=1, broker=9)
    meter = Meter(limits)
    flood(meter, 3, NOON, where="l-1")
    assert {key: minute.total for key, minute in meter.minutes.items()} == {
        ("agent", "ada"): 1, ("collaboration", "l-1"): 1, EVERYBODY: 1,
    }  # fmt: skip
    assert flood(Meter(Limits(agent=0, broker=0)), 2000, NOON) == []


@pytest.mark.requirement("a2acp-D16")
@given(st.integers(1, 8), st.lists(st.integers(0, 30 * SECOND), min_size=1, max_size=60))
def test_no_sliding_minute_holds_more_than_the_limit(limit: int, pauses: list[int]) -> None:
    meter, now, passed = Meter(Limits(agent=limit, broker=0)), NOON, []
    for pause in pauses:
        now += pause
        met = meter.admit("ada", now)
        if met is None:
            passed.append(now)
        else:
            assert 1 <= met.retry_after <= 60
    for start in passed:
        assert len([at for at in passed if start <= at < start + 60 * SECOND]) <= limit


@given(st.integers(1, 5), st.lists(st.integers(0, 20 * SECOND), min_size=1, max_size=40))
def test_whoever_waits_as_told_passes(limit: int, pauses: list[int]) -> None:
    minute, now = Minute(), NOON
    for pause in pauses:
        now += pause
        now += minute.wait(limit, now)
        assert minute.wait(limit, now) == 0
        minute = minute.taken(now)
        assert len(minute.slots) <= 61


@pytest.mark.requirement("A2-LNK-4")
def test_empty_minutes_are_forgotten() -> None:
    directory = Directory(Recovered())
    once = Minute().taken(NOON)
    directory.note_minutes({("agent", f"a{number}"): once for number in range(MINUTES + 1)}, Instant(NOON))
    assert len(directory.minutes) == MINUTES + 1
    for number in range(MINUTES + 2):  # looked for now and then, not with every one that comes
        directory.note_minutes({("agent", f"b{number}"): once}, Instant(NOON + 61 * SECOND))
    assert not directory.minutes
    back = Minute().taken(NOON).taken(NOON - 5 * SECOND)  # a clock that was set back
    assert back.slots == ((NOON, 2),)


def test_a_token_is_part_of_every_message_of_ours(link: Link) -> None:
    frames = [
        link.agent.ask(intents.DISCOVER, {}, link.stamp()),
        link.agent.tell("note", {"a": 1}, link.stamp(), to=BOB, correlation_id="k"),
        link.hub.tell(intents.CANCEL, {"correlation_id": "k"}, link.stamp()),
    ]
    assert all(json.loads(frame)["security"] == {"auth_token": TOKEN, "encryption": "none"} for frame in frames)
