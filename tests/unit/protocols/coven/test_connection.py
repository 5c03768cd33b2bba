"""A stream of anything: whatever bytes come in whatever order, an end never raises and never believes nonsense."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocols.coven import codec
from dragoman.protocols.coven.connection import (
    OF_AGENTS,
    STREAM,
    Completed,
    Connection,
    Input,
    Interrupted,
    Invalid,
    Responded,
    State,
)
from dragoman.protocols.coven.types import (
    Cancel,
    Done,
    Error,
    Heartbeat,
    MessageResponse,
    RegisterAgent,
    SendMessage,
    Shutdown,
    Text,
    Thinking,
    Welcome,
)
from dragoman.wire import Role

REQUESTS = st.sampled_from(["r1", "r2", ""])
EVENTS = st.sampled_from([Text("a"), Text(""), Thinking("t"), Done(), Done(full_response="f"), Error("e"), None])
FROM_AGENT = st.one_of(
    st.builds(MessageResponse, request_id=REQUESTS, event=EVENTS).map(codec.encode_agent),
    st.just(codec.encode_agent(Heartbeat(1))),
    st.just(codec.encode_agent(RegisterAgent(agent_id="x"))),
    st.just(codec.encode_agent(RegisterAgent(agent_id=""))),
    st.binary(max_size=30),
)
FROM_HUB = st.one_of(
    st.builds(SendMessage, request_id=REQUESTS).map(codec.encode_server),
    st.builds(Cancel, request_id=REQUESTS).map(codec.encode_server),
    st.just(codec.encode_server(Welcome(server_id="g", agent_id="x"))),
    st.just(codec.encode_server(Shutdown("bye"))),
    st.binary(max_size=30),
)


@given(st.lists(FROM_AGENT, max_size=30))
def test_a_hub_believes_only_one_registration_and_only_the_open_request(messages: list[bytes]) -> None:
    hub = Connection(Role.HUB)
    registered = 0
    for data in messages:
        (event,) = hub.receive(data)
        if isinstance(event, RegisterAgent):
            registered += 1
            hub.send_welcome("g")
        if hub.ready:
            hub.send(SendMessage(request_id="r1"))
        if isinstance(event, Responded | Completed):
            assert event.message.request_id == "r1"
    assert registered <= 1
    expected = [Interrupted("r1")] if registered else []
    assert hub.end_of_stream() == expected


@given(st.lists(FROM_HUB, max_size=30))
def test_an_agent_has_at_most_one_request_open(messages: list[bytes]) -> None:
    agent = Connection(Role.AGENT)
    agent.send_register("x")
    received = ended = 0
    for data in messages:
        (event,) = agent.receive(data)
        received += isinstance(event, SendMessage)
        if received - ended and agent.request and len(data) % 2:
            agent.send(MessageResponse(request_id=agent.request, event=Done()))
            ended += 1
        assert received - ended in (0, 1)
    for event in agent.end_of_stream():
        assert isinstance(event, Interrupted)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=10), st.data())
def test_text_is_whole_however_much_else_comes_between(pieces: list[str], data: st.DataObject) -> None:
    hub, agent = Connection(Role.HUB), Connection(Role.AGENT)
    hub.receive(agent.send_register("x"))
    agent.receive(hub.send_welcome("g"))
    agent.receive(hub.send(SendMessage(request_id="r1")))
    frames = []
    for piece in pieces:
        frames += [codec.encode_agent(noise) for noise in data.draw(st.lists(NOISE, max_size=3))]
        frames.append(agent.send(MessageResponse(request_id="r1", event=Text(piece))))
    for frame in frames:
        assert not any(isinstance(event, Invalid) for event in hub.receive(frame))
    (ended,) = hub.receive(agent.send(MessageResponse(request_id="r1", event=Done())))
    assert isinstance(ended, Completed)
    assert ended.text == "".join(pieces)


NOISE = st.sampled_from(
    [
        Heartbeat(3),
        MessageResponse(request_id="other", event=Text("not mine")),
        MessageResponse(request_id="r1", event=Thinking("aside")),
        MessageResponse(request_id="r1"),
        RegisterAgent(agent_id="again"),
    ]
)


def test_a_message_is_only_sent_when_nothing_is_open() -> None:
    assert [state for state in State if Input.MESSAGE in STREAM[state]] == [State.READY]
    assert set(Input) - OF_AGENTS == {
        Input.WELCOME,
        Input.MESSAGE,
        Input.CANCEL,
        Input.SHUTDOWN,
    }
