"""The document's stream between two ends of ours: the opening, one request at a time, the end."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.coven import document

from dragoman.protocols.coven import codec, coven_pb2, types
from dragoman.protocols.coven.connection import Completed, Ignored, Interrupted, Invalid, Responded, State
from dragoman.protocols.coven.errors import NotRegistered, Oddity
from dragoman.protocols.coven.types import (
    Cancel,
    Done,
    Error,
    FileData,
    Heartbeat,
    MessageResponse,
    Progress,
    RegisterAgent,
    SendMessage,
    Shutdown,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Welcome,
)
from dragoman.wire import LocalProtocolError, Role, Stage

EVENTS = [
    Thinking("hm"),
    Text("Hello"),
    ToolUse("t1", "search", '{"q": 1}'),
    ToolResult("t1", "found", True),
    FileData("a.txt", "text/plain", b"\x00\xff"),
    Done(full_response="Hello, world"),
    Error("out of tokens"),
]


@pytest.mark.requirement("CO-CON-1")
def test_the_lifecycle_of_the_documents_picture(link: Any) -> None:
    assert link.register(name="mux", capabilities=["chat"]) == link.agent.agent
    assert link.welcome() == Welcome(server_id="gateway-1", agent_id="agent-1")
    assert isinstance(link.message(content="hi"), SendMessage)
    for event in EVENTS[:4]:
        assert isinstance(link.respond(event), Responded)
    assert isinstance(link.respond(Text(", world")), Responded)
    ended = link.respond(Done())
    assert isinstance(ended, Completed)
    assert ended.text == "Hello, world"
    assert link.hub.receive(link.agent.send_heartbeat(5)) == [Heartbeat(5)]
    assert link.agent.receive(link.hub.send_shutdown("upgrade")) == [Shutdown("upgrade")]
    assert link.hub.end_of_stream() == []
    assert not link.hub.ignored


@pytest.mark.requirement("CO-CON-3")
def test_the_port_of_the_document() -> None:
    assert types.DEFAULT_PORT == 50051


@pytest.mark.requirement("CO-MSG-1")
@pytest.mark.requirement("CO-EXT-1")
def test_fields_and_numbers_are_the_documents_and_ours_lie_beyond() -> None:
    ours = coven_pb2.DESCRIPTOR.message_types_by_name
    for name, form in document().descriptors.items():
        theirs = {field.number: (field.name, field.type, field.is_repeated) for field in form.fields}
        mine = {field.number: (field.name, field.type, field.is_repeated) for field in ours[name].fields}
        assert {number: field for number, field in mine.items() if number <= 1000} == theirs, name


@pytest.mark.requirement("CO-REG-1")
@pytest.mark.parametrize(
    "first",
    [Heartbeat(1), MessageResponse(request_id="r", event=Text("x"))],
    ids=["heartbeat", "response"],
)
def test_anything_before_register_is_refused(link: Any, first: Any) -> None:
    (event,) = link.hub.receive(codec.encode_agent(first))
    assert isinstance(event, Invalid)
    assert isinstance(event.error, NotRegistered)
    assert event.error.stage is Stage.ORDER


@pytest.mark.requirement("CO-REG-1")
def test_a_payload_nobody_knows_is_no_registration(link: Any) -> None:
    (event,) = link.hub.receive(b"")
    assert isinstance(event, Invalid)


def test_register_without_an_id_is_refused_by_name(link: Any) -> None:
    (event,) = link.hub.receive(codec.encode_agent(RegisterAgent(agent_id="", name="x")))
    assert isinstance(event, Invalid)
    assert event.error.field == "agent_id"
    with pytest.raises(LocalProtocolError):
        link.agent.send_register("")


@pytest.mark.requirement("CO-REG-2")
def test_the_documents_registration_is_read() -> None:
    said = document().AgentMessage(
        register={
            "agent_id": "550e8400-e29b-41d4-a716-446655440000",
            "name": "mux-agent-1",
            "capabilities": ["chat"],
        }
    )
    assert codec.decode_agent(said.SerializeToString()) == RegisterAgent(
        agent_id="550e8400-e29b-41d4-a716-446655440000", name="mux-agent-1", capabilities=("chat",)
    )


def test_a_name_is_what_its_user_likes_and_an_empty_capability_is_none() -> None:
    said = document().AgentMessage(register={"agent_id": "a", "name": "👩‍💻\tcoder", "capabilities": ["", "chat"]})
    assert codec.decode_agent(said.SerializeToString()) == RegisterAgent(
        agent_id="a", name="👩‍💻\tcoder", capabilities=("chat",)
    )


def test_a_second_register_is_ignored_and_counted(link: Any) -> None:
    link.open()
    again = codec.encode_agent(RegisterAgent(agent_id="somebody-else"))
    assert link.hub.receive(again) == [Ignored(Oddity.SECOND_REGISTER)]
    assert link.hub.ignored[Oddity.SECOND_REGISTER] == 1
    assert link.hub.agent.agent_id == "agent-1"
    with pytest.raises(LocalProtocolError):
        link.agent.send_register("agent-1")


@pytest.mark.requirement("CO-WEL-1")
def test_welcome_names_gateway_and_agent(link: Any) -> None:
    link.register()
    said = document().ServerMessage.FromString(link.hub.send_welcome("gateway-9"))
    assert (said.welcome.server_id, said.welcome.agent_id) == ("gateway-9", "agent-1")


@pytest.mark.requirement("CO-SND-1")
def test_a_request_reaches_the_documents_client_whole(link: Any) -> None:
    link.open()
    data = link.hub.send(
        SendMessage(
            request_id="r1",
            thread_id="t1",
            sender="alice",
            content="hi",
            attachments=(FileData("a.bin", "application/octet-stream", b"\x00\x01"),),
            task_id="ours",
            attempt=2,
        )
    )
    said = document().ServerMessage.FromString(data).send_message
    (file,) = said.attachments
    assert (said.request_id, said.thread_id, said.sender, said.content) == ("r1", "t1", "alice", "hi")
    assert (file.filename, file.mime_type, file.data) == ("a.bin", "application/octet-stream", b"\x00\x01")


@pytest.mark.requirement("CO-RSP-1")
def test_an_agent_of_ours_answers_only_the_open_request(link: Any) -> None:
    link.open()
    with pytest.raises(LocalProtocolError):
        link.agent.send(MessageResponse(request_id="r1", event=Text("early")))
    link.message()
    with pytest.raises(LocalProtocolError):
        link.agent.send(MessageResponse(request_id="r2", event=Text("other")))
    assert link.agent.state is State.BUSY


@pytest.mark.requirement("CO-RSP-2")
@pytest.mark.requirement("CO-RSP-4")
def test_only_done_and_error_end_a_request(link: Any) -> None:
    link.open()
    for number, event in enumerate(EVENTS):
        link.message(f"r{number}")
        heard = link.respond(event, f"r{number}")
        if isinstance(event, Done | Error):
            assert isinstance(heard, Completed)
        else:
            assert isinstance(heard, Responded)
            assert heard.first
            assert link.hub.state is State.BUSY
            second = link.respond(Text("more"), f"r{number}")
            assert isinstance(second, Responded)
            assert not second.first
            link.respond(Done(), f"r{number}")
        assert link.hub.ready
        assert link.agent.ready


@pytest.mark.requirement("CO-RSP-3")
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_each_event_is_read_and_written_back_equal(event: Any) -> None:
    said = MessageResponse(request_id="r1", event=event)
    data = codec.encode_agent(said)
    assert codec.decode_agent(data) == said
    theirs = document().AgentMessage.FromString(data)
    assert theirs.SerializeToString() == data
    assert codec.decode_agent(theirs.SerializeToString()) == said


@pytest.mark.requirement("CO-SUP-1")
def test_a_tools_use_and_result_share_their_id(link: Any) -> None:
    link.open()
    link.message()
    used = link.respond(ToolUse("t7", "grep", '{"pattern": "x"}')).message.event
    gave = link.respond(ToolResult("t7", "no such file", True)).message.event
    assert (used.id, gave.id, gave.is_error) == ("t7", "t7", True)


@pytest.mark.requirement("CO-HBT-1")
@pytest.mark.requirement("CO-CCY-2")
def test_heartbeats_come_at_any_time_and_disturb_nothing(link: Any) -> None:
    link.register()
    beats = [link.hub.receive(link.agent.send_heartbeat(1))]
    link.welcome()
    beats.append(link.hub.receive(link.agent.send_heartbeat(2)))
    link.message()
    link.respond(Text("a"))
    beats.append(link.hub.receive(link.agent.send_heartbeat(3)))
    link.respond(Text("b"))
    assert beats == [[Heartbeat(n)] for n in (1, 2, 3)]
    assert link.respond(Done()).text == "ab"


@pytest.mark.requirement("CO-CCY-1")
def test_one_request_at_a_time(link: Any) -> None:
    link.open()
    link.message("r1")
    with pytest.raises(LocalProtocolError):
        link.hub.send(SendMessage(request_id="r2"))
    link.respond(Done(), "r1")
    assert isinstance(link.message("r2"), SendMessage)


@pytest.mark.requirement("CO-CCY-1")
def test_a_gateway_that_sends_two_at_once_has_the_second_ignored(link: Any) -> None:
    link.open()
    link.message("r1")
    assert link.agent.receive(codec.encode_server(SendMessage(request_id="r2"))) == [Ignored(Oddity.MISPLACED)]
    assert link.agent.request == "r1"


@pytest.mark.requirement("CO-SHD-1")
def test_after_shutdown_the_request_under_way_is_finished_and_none_follows(link: Any) -> None:
    link.open()
    link.message("r1")
    link.agent.receive(link.hub.send_shutdown("bye"))
    assert link.agent.state is link.hub.state is State.FINISHING
    link.respond(Text("still here"))
    assert link.respond(Done()).text == "still here"
    assert link.hub.state is State.LEAVING
    with pytest.raises(LocalProtocolError):
        link.hub.send(SendMessage(request_id="r2"))


def test_a_stream_that_ends_with_a_request_open_is_reported_once(link: Any) -> None:
    link.open()
    link.message("r1")
    link.respond(Text("half"))
    assert link.hub.end_of_stream() == [Interrupted("r1")]
    assert link.hub.end_of_stream() == []
    assert link.agent.end_of_stream() == [Interrupted("r1")]


@pytest.mark.requirement("CO-EXT-2")
def test_cancel_goes_only_to_agents_that_declared_it(make_link: Any) -> None:
    deaf = make_link().open(extensions=())
    deaf.message("r1")
    with pytest.raises(LocalProtocolError):
        deaf.hub.send_cancel("no longer wanted")
    hearing = make_link().open()
    hearing.message("r1")
    heard = hearing.agent.receive(hearing.hub.send_cancel("no longer wanted"))
    assert heard == [Cancel(request_id="r1", reason="no longer wanted")]


@pytest.mark.requirement("CO-EXT-2")
def test_events_about_a_request_that_was_given_up_are_dropped_until_it_ends(link: Any) -> None:
    link.open(extensions=())
    link.message("r1")
    link.hub.abandon()
    assert link.respond(Text("x")) == Ignored(Oddity.ABANDONED_REQUEST, "r1")
    assert not link.hub.ready
    assert link.respond(Done()) == Ignored(Oddity.ABANDONED_REQUEST, "r1")
    assert link.hub.ready
    link.message("r2")
    assert isinstance(link.respond(Done(), "r2"), Completed)


@pytest.mark.requirement("CO-EXT-2")
def test_a_request_given_up_counts_again_only_if_nothing_of_it_was_dropped(make_link: Any) -> None:
    link = make_link().open(extensions=())
    link.message("r1")
    link.hub.abandon()
    assert link.hub.resume()
    link.respond(Text("whole"))
    assert link.respond(Done()).text == "whole"
    link.message("r2")
    link.hub.abandon()
    link.respond(Text("dropped"), "r2")
    assert not link.hub.resume()
    assert isinstance(link.respond(Done(), "r2"), Ignored)
    told = make_link().open()
    told.message("r1")
    told.agent.receive(told.hub.send_cancel("stop"))
    assert not told.hub.resume()


@pytest.mark.requirement("CO-EXT-1")
def test_our_fields_beside_an_event_are_skipped_by_the_documents_client() -> None:
    said = MessageResponse(
        request_id="r1", event=Thinking("step 2"), progress=Progress(percent=0, step="two"), cursor=7, task_id="t"
    )
    data = codec.encode_response(said)
    theirs = document().MessageResponse.FromString(data)
    assert theirs.thinking == "step 2"
    assert codec.decode_response(data) == said


def test_each_role_sends_only_its_own_messages(link: Any) -> None:
    link.open()
    with pytest.raises(LocalProtocolError):
        link.hub.send(Heartbeat(1))
    with pytest.raises(LocalProtocolError):
        link.agent.send(Shutdown("no"))
    assert link.hub.role is Role.HUB
