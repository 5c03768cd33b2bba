"""Both ends of a link, joined by bytes: requests find their responses, and time passes as it is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.forge import Link

from dragoman.protocols.forge import codec
from dragoman.protocols.forge.connection import Connection
from dragoman.protocols.forge.errors import Code
from dragoman.protocols.forge.events import (
    EventReceived,
    Invalid,
    NoticeReceived,
    RequestReceived,
    ResponseReceived,
    TimedOut,
)
from dragoman.protocols.forge.ratelimit import Bucket
from dragoman.protocols.forge.state import REQUEST, Said, State
from dragoman.protocols.forge.types import (
    AskUser,
    Encoding,
    ErrorBody,
    GetTask,
    Progress,
    QueryTasks,
    Shutdown,
    TaskAssigned,
)
from dragoman.wire import LocalProtocolError, Role


def one(events: list[Any], kind: type) -> Any:
    assert [type(event) for event in events] == [kind], events
    return events[0]


@pytest.mark.requirement("FG-RSP-2", "FG-PAR-2", "FG-COR-1")
@pytest.mark.parametrize("settings", [{}, {"lines": True}, {"encoding": Encoding.MSGPACK}])
def test_two_requests_cross_and_each_finds_its_response(settings: dict[str, Any]) -> None:
    link = Link(**settings)
    first = one(link.hub.receive(link.agent.request(QueryTasks(), link.stamp("r1"))), RequestReceived)
    second = one(link.hub.receive(link.agent.request(GetTask(task_id="t"), link.stamp("r2"))), RequestReceived)
    assert (first.message.agent_id, second.message.payload.task_id) == ("agent-1", "t")
    refused = ErrorBody(code=Code.NOT_FOUND, message="no such task")
    answer = one(link.agent.receive(link.hub.fail("r2", refused, link.stamp())), ResponseReceived)
    assert (answer.expected, answer.message.correlation_id, answer.message.error) == (True, "r2", refused)
    answer = one(link.agent.receive(link.hub.succeed("r1", {"tasks": []}, link.stamp())), ResponseReceived)
    assert (answer.expected, answer.message.correlation_id, answer.message.payload) == (True, "r1", {"tasks": []})
    assert link.agent.state("r1") is link.hub.state("r1") is State.ANSWERED


@pytest.mark.requirement("FG-COR-1")
def test_a_request_is_answered_once(link: Any) -> None:
    link.hub.receive(link.agent.request(QueryTasks(), link.stamp("r")))
    frame = link.hub.succeed("r", {}, link.stamp())
    with pytest.raises(LocalProtocolError, match="answered"):
        link.hub.succeed("r", {}, link.stamp())
    assert one(link.agent.receive(frame), ResponseReceived).expected
    assert not one(link.agent.receive(frame), ResponseReceived).expected
    with pytest.raises(LocalProtocolError, match="idle"):
        link.hub.succeed("never asked", {}, link.stamp())


@pytest.mark.requirement("FG-TMO-1", "FG-COR-2")
def test_a_request_is_given_up_after_30_seconds(link: Any) -> None:
    link.hub.receive(link.agent.request(QueryTasks(), link.stamp("r"), 100.0), 100.0)
    assert link.agent.next_deadline == link.hub.next_deadline == 130.0
    assert link.agent.expire(129.9) == []
    late = link.hub.succeed("r", {}, link.stamp())
    assert link.agent.expire(130.0) == [TimedOut("r")]
    assert (link.agent.next_deadline, len(link.agent)) == (None, 0)
    assert not one(link.agent.receive(late), ResponseReceived).expected
    assert link.agent.state("r") is State.TIMED_OUT


@pytest.mark.requirement("FG-TMO-1")
def test_the_time_can_be_configured_and_the_hub_says_timeout() -> None:
    link = Link(seconds=2.0)
    link.hub.receive(link.agent.request(QueryTasks(), link.stamp("r")))
    [late] = link.hub.expire(2.0)
    answer = one(link.agent.receive(link.hub.too_late(late, link.stamp())), ResponseReceived)
    assert (answer.message.error.code, answer.message.correlation_id) == ("TIMEOUT", "r")


@pytest.mark.requirement("FG-ASK-1", "FG-TMO-1")
def test_a_question_has_its_own_time(link: Any) -> None:
    asked = AskUser(question="?", timeout=300_000)
    link.hub.receive(link.agent.request(asked, link.stamp("q")))
    assert link.hub.next_deadline == 300.0
    assert link.agent.expire(310.0) == []  # the hub's word is on its way
    patient = Connection(Role.AGENT)
    patient.request(AskUser(question="?"), link.stamp("q"))
    assert patient.next_deadline == 60.0  # a request like any other, and the time for the word to arrive


def test_a_repeated_request_waits_anew(link: Any) -> None:
    link.agent.request(QueryTasks(), link.stamp("r"), 0.0)
    link.agent.request(QueryTasks(), link.stamp("r"), 20.0)
    assert link.agent.expire(30.0) == []
    assert link.agent.expire(50.0) == [TimedOut("r")]


def test_an_answer_may_come_over_a_later_connection(link: Any) -> None:
    frame = link.agent.request(AskUser(question="?"), link.stamp("q"))
    link.hub.receive(frame)
    later = Connection(Role.AGENT)
    later.adopt("q", "request:ask-user")
    assert one(later.receive(link.hub.succeed("q", {"answer": 1}, link.stamp())), ResponseReceived).expected


@pytest.mark.requirement("FG-MSG-5")
def test_each_end_says_only_what_it_may(link: Any) -> None:
    with pytest.raises(LocalProtocolError):
        link.agent.notify(Shutdown(), link.stamp())
    with pytest.raises(LocalProtocolError):
        link.agent.succeed("r", {}, link.stamp())
    with pytest.raises(LocalProtocolError):
        link.hub.request(QueryTasks(), link.stamp())
    with pytest.raises(LocalProtocolError):
        link.hub.event(Progress(task_id="t"), link.stamp())
    with pytest.raises(LocalProtocolError, match="JSON only"):
        Connection(Role.AGENT, lines=True, encoding=Encoding.MSGPACK)


@pytest.mark.requirement("FG-NOT-3")
def test_a_shutdown_says_how_long_there_is(pipe: Any) -> None:
    line = pipe.hub.notify(Shutdown(), pipe.stamp())
    assert json.loads(line)["payload"] == {"gracePeriod": 30000, "reason": "Orchestrator stopping"}
    assert one(pipe.agent.receive(line), NoticeReceived).message.payload.grace_period == 30000


@pytest.mark.requirement("FG-FUT-3")
@pytest.mark.parametrize("settings", [{}, {"lines": True}, {"encoding": Encoding.MSGPACK}])
def test_several_messages_in_one_frame(settings: dict[str, Any]) -> None:
    link = Link(**settings)
    said = [codec.message(Progress(task_id="t", progress=n / 4), link.stamp()) for n in range(4)]
    said.append(codec.message(QueryTasks(), link.stamp("r")))
    events = link.hub.receive(link.agent.send_batch(said))
    assert [type(event) for event in events] == [EventReceived] * 4 + [RequestReceived]
    assert link.agent.state("r") is State.WAITING


def test_a_connection_has_a_bound_on_open_requests() -> None:
    link = Link(most=2)
    other = Connection(Role.AGENT)
    for number in range(2):
        link.hub.receive(other.request(QueryTasks(), link.stamp(f"r{number}")))
    event = one(link.hub.receive(other.request(QueryTasks(), link.stamp("r2"))), Invalid)
    assert event.answer.details == {"reason": "RATE_LIMITED"}
    for number in range(2):
        link.agent.request(QueryTasks(), link.stamp(f"r{number}"))
    with pytest.raises(LocalProtocolError, match="open"):
        link.agent.request(QueryTasks(), link.stamp("r2"))


@pytest.mark.requirement("FG-USE-1")
def test_the_documents_own_agent_is_understood(pipe: Any) -> None:
    """What the TypeScript of the document prints, and what it looks at in the answer."""
    request = {
        "type": "request:query-tasks",
        "id": "1f0e7f4e-2b5a-4ed0-9d2b-5f0c0a9b8d11",
        "timestamp": "2026-02-04T14:30:00.000Z",
        "payload": {"status": "queued"},
    }
    event = one(pipe.hub.receive(json.dumps(request).encode() + b"\n"), RequestReceived)
    assert event.message.payload == QueryTasks(status="queued")
    message = json.loads(pipe.hub.succeed(request["id"], {"tasks": []}, pipe.stamp()))
    assert message["correlationId"] == request["id"]
    assert message["payload"] == {"tasks": []}


def test_the_table_of_a_requests_life() -> None:
    assert REQUEST.allowed(State.WAITING) == set(Said)
    assert REQUEST.after(State.ANSWERED, Said.RESPONSE) is None
    assert REQUEST.after(State.TIMED_OUT, Said.RESPONSE) is State.TIMED_OUT


@pytest.mark.requirement("FG-SEC-3")
def test_a_bucket_lets_200_through_at_once_and_100_a_second() -> None:
    bucket, granted = Bucket(at=10.0).take(10.0, 250)
    assert granted == 200
    bucket, granted = bucket.take(10.0, 1)
    assert granted == 0
    assert bucket.wait(10.0) == pytest.approx(0.01)
    bucket, granted = bucket.take(10.5, 100)
    assert granted == 50
    bucket, granted = bucket.take(9.0, 100)  # a clock that goes back fills nothing
    assert granted == 0
    bucket, granted = bucket.take(1000.0, 1000)
    assert granted == 200


@pytest.mark.requirement("forge-D1")
def test_an_agent_may_be_told_more_than_it_may_say(pipe: Any) -> None:
    """The input of a task came from elsewhere, and an agent must not lose it to a limit on lines."""
    long = "x" * (2 * 1024 * 1024)
    with pytest.raises(LocalProtocolError, match="exceeds the limit"):
        pipe.agent.request(AskUser(question=long), pipe.stamp("r"))
    assert pipe.agent.state("r") is State.IDLE
    told = TaskAssigned(task_id="t", message="m", task={"payload": {"text": long}})
    event = one(pipe.agent.receive(pipe.hub.notify(told, pipe.stamp())), NoticeReceived)
    assert event.message.payload.task["payload"]["text"] == long
