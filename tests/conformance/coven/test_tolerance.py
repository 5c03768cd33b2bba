"""What coven's ends put up with, and what they do not: unknown things, odd things, hostile bytes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.coven import document

from dragoman.protocols.coven import codec, coven_pb2
from dragoman.protocols.coven.codec import Limits
from dragoman.protocols.coven.connection import Completed, Ignored, Invalid, Responded
from dragoman.protocols.coven.errors import Malformed, Oddity
from dragoman.protocols.coven.types import Done, FileData, MessageResponse, Progress, SendMessage, Text, Thinking
from dragoman.wire import Stage

NEWER = b"\xba\x06\x05later"  # field 103, a string
NEWER_EVENT = b"\x4a\x05later"  # field 9: an event of the time after us


def response(**fields: Any) -> bytes:
    return bytes(document().AgentMessage(response=fields).SerializeToString())


def wrapped(inner: bytes) -> bytes:
    return b"\x12" + bytes([len(inner)]) + inner


@pytest.mark.requirement("coven-D1")
def test_unknown_fields_are_skipped_and_kept(link: Any) -> None:
    link.open()
    link.message()
    inner = document().MessageResponse(request_id="r1", text="hi").SerializeToString() + NEWER
    (event,) = link.hub.receive(wrapped(inner))
    assert isinstance(event, Responded)
    assert event.message.event == Text("hi")
    assert NEWER in event.message.unknown
    assert NEWER in codec.encode_response(event.message)


@pytest.mark.requirement("coven-D1")
def test_an_event_of_a_newer_client_is_ignored_and_counted(link: Any) -> None:
    link.open()
    link.message()
    inner = document().MessageResponse(request_id="r1").SerializeToString()
    assert link.hub.receive(wrapped(inner + NEWER_EVENT)) == [Ignored(Oddity.EMPTY_EVENT, "r1")]
    assert link.hub.receive(wrapped(inner)) == [Ignored(Oddity.EMPTY_EVENT, "r1")]
    assert link.hub.ignored[Oddity.EMPTY_EVENT] == 2
    assert link.hub.request == "r1"


@pytest.mark.requirement("coven-D1")
def test_a_payload_of_a_newer_client_is_ignored_and_counted(link: Any) -> None:
    link.open()
    assert link.hub.receive(NEWER) == [Ignored(Oddity.EMPTY_MESSAGE)]
    assert link.agent.receive(NEWER) == [Ignored(Oddity.EMPTY_MESSAGE)]


def test_progress_alone_is_an_event_of_ours(link: Any) -> None:
    link.open()
    link.message()
    said = MessageResponse(request_id="r1", progress=Progress(percent=0))
    (event,) = link.hub.receive(link.agent.send(said))
    assert isinstance(event, Responded)
    assert event.message == said


@pytest.mark.requirement("coven-D7")
def test_events_about_unknown_and_finished_requests_are_dropped_and_counted(link: Any) -> None:
    link.open()
    assert link.hub.receive(response(request_id="nobody", text="x")) == [Ignored(Oddity.UNKNOWN_REQUEST, "nobody")]
    link.message("r1")
    assert link.hub.receive(response(request_id="", text="x")) == [Ignored(Oddity.UNKNOWN_REQUEST, "")]
    for odd in ("x" * 300, "a\nb"):
        assert link.hub.receive(response(request_id=odd, text="x")) == [Ignored(Oddity.UNKNOWN_REQUEST)]
    link.respond(Done())
    late = [link.hub.receive(response(request_id="r1", **late)) for late in ({"text": "x"}, {"done": {}})]
    assert late == [[Ignored(Oddity.FINISHED_REQUEST, "r1")]] * 2
    assert link.hub.ignored == {Oddity.UNKNOWN_REQUEST: 4, Oddity.FINISHED_REQUEST: 2}


@pytest.mark.requirement("coven-D3")
@pytest.mark.parametrize(
    "again",
    [
        {"agent_id": "other"},
        {"agent_id": ""},
        {"agent_id": "x" * 300},
        {"agent_id": "a\nb"},
        {"agent_id": "a1", "name": "x" * 300},
        {"agent_id": "a1", "capabilities": [str(number) for number in range(300)]},
        {"agent_id": "a1", "capabilities": ["x" * 300]},
    ],
)
def test_a_second_register_is_ignored_whatever_it_says(link: Any, again: dict[str, Any]) -> None:
    link.open()
    said = bytes(document().AgentMessage(register=again).SerializeToString())
    assert link.hub.receive(said) == [Ignored(Oddity.SECOND_REGISTER)]
    link.message()
    assert isinstance(link.respond(Done()), Completed)


@pytest.mark.requirement("coven-D7")
def test_presence_counts_even_for_an_empty_string(link: Any) -> None:
    link.open()
    link.message()
    for event in ({"text": ""}, {"thinking": ""}, {"tool_use": {}}, {"tool_result": {}}, {"file": {}}):
        (heard,) = link.hub.receive(response(request_id="r1", **event))
        assert isinstance(heard, Responded), event
    (ended,) = link.hub.receive(response(request_id="r1", error=""))
    assert isinstance(ended, Completed)


@pytest.mark.requirement("coven-D8")
@pytest.mark.parametrize(
    ("texts", "full", "whole", "streamed"),
    [
        (["a", "", "b"], "", "ab", True),
        (["a", "b"], "A, then B", "A, then B", False),
        ([], "only at the end", "only at the end", False),
        ([], "", "", True),
    ],
)
def test_the_whole_answer(link: Any, texts: list[str], full: str, whole: str, streamed: bool) -> None:
    link.open()
    link.message()
    link.respond(Thinking("not part of it"))
    for text in texts:
        link.respond(Text(text))
    ended = link.respond(Done(full_response=full))
    assert (ended.text, ended.streamed) == (whole, streamed)


@pytest.mark.requirement("coven-D8")
def test_text_beyond_the_bound_is_not_kept(make_link: Any) -> None:
    link = make_link(limits=Limits(text_bytes=10)).open()
    link.message("r1")
    for _ in range(3):
        link.respond(Text("12345"))
    assert link.respond(Done()).text is None
    link.message("r2")
    link.respond(Text("12345"), "r2")
    assert link.respond(Done(), "r2").text == "12345"


ATTACKS = {
    "garbage": b"\xff\xff\xff\xff",
    "an endless varint": b"\x08" + b"\xff" * 100,
    "a length beyond the end": b"\x0a\xff\xff\xff\xff\x07",
    "half a message": b"\x12\x10abc",
    "invalid UTF-8": b"\x12\x05\x0a\x03\xff\xfe\xfd",
    "a surrogate in UTF-8": b"\x12\x05\x0a\x03\xed\xa0\x80",
    "a group without end": b"\x0b" * 1000,
    "ten thousand nested groups": b"\x0b" * 10_000 + b"\x0c" * 10_000,
}


@pytest.mark.requirement("coven/all-D3")
@pytest.mark.parametrize("name", ATTACKS)
def test_bytes_that_are_no_message_are_refused_and_nothing_breaks(link: Any, name: str) -> None:
    link.open()
    for end in (link.hub, link.agent):
        (event,) = end.receive(ATTACKS[name])
        assert isinstance(event, Invalid | Ignored)
        if isinstance(event, Invalid):
            assert event.error.stage is Stage.SHAPE
    assert link.hub.ready


@pytest.mark.requirement("coven/all-D3")
def test_size_is_looked_at_first_and_every_bound_names_its_field() -> None:
    limits = Limits(message_bytes=2000, name_length=10, names=3, attachments=1)

    def refusal(data: bytes) -> tuple[Stage, str | None]:
        with pytest.raises(Malformed) as refused:
            codec.decode_agent(data, limits)
        return refused.value.stage, refused.value.field

    def register(**fields: Any) -> bytes:
        return bytes(document().AgentMessage(register=fields).SerializeToString())

    assert refusal(b"\xff" * 2001) == (Stage.SIZE, None)
    assert refusal(register(agent_id="x" * 11)) == (Stage.SIZE, "agent_id")
    assert refusal(register(agent_id="x\n\x1b[31m")) == (Stage.SHAPE, "agent_id")
    assert refusal(register(agent_id="x", capabilities=["a"] * 4)) == (Stage.SIZE, "capabilities")
    assert refusal(response(request_id="y" * 11, text="")) == (Stage.SIZE, "request_id")
    crowded = SendMessage(request_id="r", attachments=(FileData("a"), FileData("b")))
    with pytest.raises(Malformed) as refused:
        codec.decode_send(codec.encode_send(crowded), limits)
    assert refused.value.field == "attachments"


@pytest.mark.requirement("CO-SND-1")
@pytest.mark.parametrize("thread", ["Project\u00a0X", "two\nlines", "\U0001f468\u200d\U0001f469 family", "x" * 300])
def test_an_agent_reads_whatever_names_its_gateway_gives(link: Any, thread: str) -> None:
    """Callers of other protocols name their threads as they like: that is no reason to end a stream."""
    link.open()
    message = SendMessage(request_id="r1", thread_id=thread, work_type=thread)
    (event,) = link.agent.receive(link.hub.send(message))
    assert event == message
    with pytest.raises(Malformed) as refused:
        codec.decode_send(codec.encode_send(message))
    assert refused.value.field == "thread_id"


@pytest.mark.requirement("coven/all-D3")
def test_a_cursor_is_never_negative() -> None:
    with pytest.raises(Malformed) as refused:
        codec.decode_follow(coven_pb2.FollowRequest(task_id="t", after=-1).SerializeToString())
    assert refused.value.field == "after"
