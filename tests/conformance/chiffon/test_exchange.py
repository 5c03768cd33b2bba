"""Both ends of a link, joined by bytes: the order of things, acknowledgments, and what goes wrong."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.connection import Connection
from dragoman.protocols.chiffon.errors import resource_limit, unsupported_work
from dragoman.protocols.chiffon.events import (
    AckReceived,
    ErrorReceived,
    Invalid,
    ReceiptReceived,
    RequestReceived,
    ResultReceived,
    StatusReceived,
    delivery_id,
)
from dragoman.protocols.chiffon.state import EXCHANGE, SPEAKER, Said, Side, State
from dragoman.protocols.chiffon.types import Correlation, ErrorPayload, Stamp, WorkRequest, WorkResult, WorkStatus
from dragoman.wire import LocalProtocolError, Role, Stage

NOON = datetime(2026, 1, 19, 12, tzinfo=UTC)


def one(events: list[Any], kind: type) -> Any:
    assert [type(event) for event in events] == [kind], events
    return events[0]


def number(value: int) -> str:
    return f"00000000-0000-4000-9000-{value:012d}"


@pytest.mark.requirement("CH-FLW-1", "CH-STA-3", "CH-ENV-8")
def test_the_full_workflow_of_the_document(link: Any) -> None:
    request = one(link.agent.receive(link.request()), RequestReceived)
    assert request.message.payload.work_type == "run_playbook"
    for percent in (20, 40, 60, 80, 100):
        status = one(link.hub.receive(link.status("step_completed", percent)), StatusReceived)
        assert status.message.payload.progress_percent == percent
    result = one(link.hub.receive(link.result()), ResultReceived)
    assert result.last
    assert result.message.trace_id == link.about.trace_id
    assert result.message.request_id == link.about.request_id
    assert (result.message.from_agent, result.message.to_agent) == ("infra", "orchestrator")
    assert link.hub.state(link.about.request_id) is State.DONE
    assert link.agent.state(link.about.request_id) is State.DONE


@pytest.mark.requirement("CH-VER-2")
def test_messages_are_written_in_the_negotiated_version() -> None:
    hub = Connection(Role.HUB, version="1.1")
    frame = hub.send_error(
        resource_limit(limit_name="x", available=0, required=1),
        Stamp(number(1), NOON),
        about=None,
        from_agent="orchestrator",
        to_agent="infra",
    )
    assert json.loads(frame)["protocol_version"] == "1.1"


def _sample() -> Any:
    stamp = Stamp(number(1), NOON)
    status = WorkStatus(task_id=number(2), status="running", progress_percent=1)
    about = Correlation(number(3), number(4))
    return codec.envelope(status, stamp, about, from_agent="infra", to_agent="orchestrator")


@pytest.mark.requirement("CH-RES-2")
@pytest.mark.parametrize("late", ["status", "result"])
def test_nothing_new_follows_a_result(link: Any, late: str) -> None:
    link.agent.receive(link.request())
    link.hub.receive(link.result())
    with pytest.raises(LocalProtocolError):
        getattr(link, late)()
    ghost = Connection(Role.AGENT)
    ghost.receive(link.hub.send(_request(link)))
    link.hub.receive(link.result())
    link.agent = ghost
    event = one(link.hub.receive(getattr(link, late)()), Invalid)
    assert (event.stage, event.field, event.about) == (Stage.ORDER, "type", link.about)
    assert event.answer.error_code == 5003


def _request(link: Any) -> Any:
    """The same request once more; both ends take it up again."""
    frame = link.request()
    link.agent.receive(frame)
    return codec.decode(frame)


def test_the_very_same_result_twice_is_a_repetition(link: Any) -> None:
    link.agent.receive(link.request())
    frame = link.result()
    assert link.hub.receive(frame) == link.hub.receive(frame)


@pytest.mark.requirement("CH-REQ-2")
def test_only_the_performer_answers(link: Any) -> None:
    link.agent.receive(link.request())
    status = WorkStatus(task_id=link.task, status="running", progress_percent=1)
    with pytest.raises(LocalProtocolError, match="requester does not send work_status"):
        link.hub.send_status(link.about.request_id, status, link.stamp())
    echo = link.request()
    assert one(link.hub.receive(echo), Invalid).stage is Stage.ORDER


def test_an_agent_cannot_answer_what_was_never_asked(link: Any) -> None:
    with pytest.raises(LocalProtocolError, match="no request"):
        link.status()


def test_a_contradiction_of_ours_never_leaves(link: Any) -> None:
    link.agent.receive(link.request())
    lie = WorkResult(task_id=link.task, status="success", exit_code=1, output="")
    with pytest.raises(LocalProtocolError):
        link.agent.send_result(link.about.request_id, lie, link.stamp())
    assert link.agent.state(link.about.request_id) is State.REQUESTED


def test_an_exchange_outlives_its_link(link: Any) -> None:
    """Both ends reconnect: the agent adopts the request it has, the hub believes the answer."""
    request = one(link.agent.receive(link.request()), RequestReceived)
    link.hub, link.agent = Connection(Role.HUB), Connection(Role.AGENT)
    link.agent.adopt(request.message)
    one(link.hub.receive(link.status()), StatusReceived)
    one(link.hub.receive(link.result()), ResultReceived)
    assert link.hub.state(link.about.request_id) is State.DONE


def test_paused_waits_and_goes_on(link: Any) -> None:
    link.agent.receive(link.request())
    link.hub.receive(link.status("paused"))
    assert link.hub.state(link.about.request_id) is State.PAUSED
    link.hub.receive(link.status("running"))
    assert link.hub.state(link.about.request_id) is State.RUNNING


def test_an_answer_about_another_task_is_refused(link: Any) -> None:
    link.agent.receive(link.request())
    frame = codec.reissue(link.status(), {"payload": {**_payload(link), "task_id": number(7)}})
    event = one(link.hub.receive(frame), Invalid)
    assert (event.field, event.stage) == ("payload.task_id", Stage.MEANING)


def _payload(link: Any) -> dict[str, Any]:
    return {"task_id": link.task, "status": "running", "progress_percent": 1}


def test_answers_with_a_request_id_of_their_own_are_found_by_task(link: Any) -> None:
    link.agent.receive(link.request(delivery_id="d-1"))
    frame = codec.reissue(link.status(), {"request_id": number(8)})
    assert one(link.hub.receive(frame), StatusReceived).acknowledges == "d-1"


@pytest.mark.requirement("chiffon-D5")
@pytest.mark.parametrize("answer", ["status", "result", "error"])
def test_the_first_answer_acknowledges_and_only_the_first(link: Any, answer: str) -> None:
    link.agent.receive(link.request(delivery_id="d-1"))
    frame = _error(link) if answer == "error" else getattr(link, answer)()
    assert link.hub.receive(frame)[0].acknowledges == "d-1"
    again = link.hub.receive(frame)[0]
    assert again.acknowledges is None


def _error(link: Any, payload: ErrorPayload | None = None, about: Any = "same") -> bytes:
    return bytes(
        link.agent.send_error(
            payload or unsupported_work(work_type_requested="fly", supported_types=[]),
            link.stamp(),
            about=link.about if about == "same" else about,
            from_agent="infra",
            to_agent="orchestrator",
        )
    )


@pytest.mark.requirement("CH-ERR-1")
def test_either_side_may_send_an_error_also_out_of_the_blue(link: Any) -> None:
    one(link.hub.receive(_error(link, about=None)), ErrorReceived)
    frame = link.hub.send_error(
        resource_limit(limit_name="x", available=0, required=1),
        link.stamp(),
        about=None,
        from_agent="orchestrator",
        to_agent="infra",
    )
    assert not one(link.agent.receive(frame), ErrorReceived).ends_task


@pytest.mark.requirement("chiffon-D11")
def test_an_error_copies_the_ids_and_a_final_one_ends_the_task(link: Any) -> None:
    link.agent.receive(link.request())
    event = one(link.hub.receive(_error(link)), ErrorReceived)
    assert Correlation(event.message.request_id, event.message.trace_id) == link.about
    assert event.ends_task
    assert link.hub.state(link.about.request_id) is State.FAILED


def test_a_retryable_error_lets_the_same_request_be_sent_again(link: Any) -> None:
    link.agent.receive(link.request())
    setback = resource_limit(limit_name="gpu_vram_mb", available=1, required=2)
    assert not one(link.hub.receive(_error(link, setback)), ErrorReceived).ends_task
    assert link.hub.state(link.about.request_id) is State.SET_BACK
    one(link.agent.receive(link.request()), RequestReceived)
    one(link.hub.receive(link.result()), ResultReceived)


@pytest.mark.requirement("CH-WS-3", "chiffon-D11")
def test_a_broken_frame_is_answered_and_the_link_goes_on(link: Any) -> None:
    link.agent.receive(link.request())
    broken = codec.reissue(link.status(), {"payload": {}})
    event = one(link.hub.receive(broken), Invalid)
    assert (event.about, event.field) == (link.about, "payload.task_id")
    assert one(link.hub.receive(b"{"), Invalid).about is None
    one(link.hub.receive(link.status()), StatusReceived)


@pytest.mark.requirement("CH-WS-1")
def test_a_client_acknowledges_with_a_control_frame(link: Any) -> None:
    request = one(link.agent.receive(link.request(delivery_id="d-9", agent_id="infra-1")), RequestReceived)
    ack = link.agent.send_ack([delivery_id(request.message)])
    assert json.loads(ack) == {"ack": ["d-9"]}
    assert link.hub.receive(ack) == [AckReceived(("d-9",))]
    assert one(link.hub.receive(b'{"ack": "d-9"}'), Invalid).field == "ack"
    assert one(link.agent.receive(ack), Invalid).field == "type"
    with pytest.raises(LocalProtocolError):
        link.hub.send_ack(["d-9"])


@pytest.mark.requirement("CH-WS-2")
def test_receipts_go_only_to_whom_asked(link: Any) -> None:
    with pytest.raises(LocalProtocolError):
        link.hub.send_receipt([number(1)])
    hub = Connection(Role.HUB, receipts=True)
    receipt = hub.send_receipt([number(1)])
    assert link.agent.receive(receipt) == [ReceiptReceived((number(1),))]
    with pytest.raises(LocalProtocolError):
        Connection(Role.AGENT, receipts=True).send_receipt([])


@pytest.mark.requirement("CH-WS-4")
def test_two_thousand_exchanges_leave_a_bounded_memory() -> None:
    hub = Connection(Role.HUB, remember=50)
    template = codec.encode(_sample())
    for n in range(2_000):
        payload = {"task_id": number(n), "status": "running", "progress_percent": 1}
        hub.receive(codec.reissue(template, {"request_id": number(n), "payload": payload}))
    assert len(hub) == 50
    assert len(hub._exchanges._by_task) == 50


@pytest.mark.requirement("CH-WS-4")
def test_a_full_agent_asks_to_be_tried_later(link: Any) -> None:
    link.agent = Connection(Role.AGENT, remember=1)
    link.agent.receive(link.request())
    other = Correlation(number(5), number(6))
    event = one(link.agent.receive(link.request(other, number(7))), Invalid)
    assert (event.answer.error_code, event.about) == (5005, other)


def test_many_exchanges_share_a_link_in_any_order() -> None:
    """Frames of a hundred exchanges, shuffled among each other and some doubled, all arrive."""
    hub, agent = Connection(Role.HUB), Connection(Role.AGENT)
    chance = random.Random(7)
    queues: list[list[bytes]] = []
    for n in range(100):
        request = codec.encode(
            codec.envelope(
                WorkRequest(task_id=number(n), work_type="w", parameters={}),
                Stamp(number(1000 + n), NOON),
                Correlation(number(n), number(n)),
                from_agent="orchestrator",
                to_agent="infra",
            )
        )
        hub.send(codec.decode(request))
        one(agent.receive(request), RequestReceived)
        stamps = [Stamp(number(10_000 + 10 * n + i), NOON) for i in range(3)]
        status = WorkStatus(task_id=number(n), status="running", progress_percent=5)
        done = WorkResult(task_id=number(n), status="success", exit_code=0, output="")
        frames = [agent.send_status(number(n), status, stamp) for stamp in stamps[:2]]
        frames.append(agent.send_result(number(n), done, stamps[2]))
        queues.append([frame for frame in frames for _ in range(chance.choice((1, 2)))])
    while queues:
        queue = chance.choice(queues)
        assert not isinstance(hub.receive(queue.pop(0))[0], Invalid)
        queues = [queue for queue in queues if queue]
    assert {hub.state(number(n)) for n in range(100)} == {State.DONE}


def test_the_table_lets_both_sides_speak_everywhere_they_must() -> None:
    assert set(SPEAKER) == set(Said)
    for state, row in EXCHANGE.rows.items():
        assert Said.REQUEST in row, f"a lost answer must be askable again in {state}"
    answers = {word for word, side in SPEAKER.items() if side is Side.PERFORMER}
    assert EXCHANGE.allowed(State.DONE) & answers == {Said.PART}
