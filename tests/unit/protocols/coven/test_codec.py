"""The codec beyond the document: round trips of anything valid, and generated code that is fresh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocols.coven import codec, coven_pb2
from dragoman.protocols.coven.errors import Malformed
from dragoman.protocols.coven.types import (
    Cancel,
    CancelReply,
    CancelRequest,
    Done,
    Error,
    Fault,
    FileData,
    FollowRequest,
    Heartbeat,
    MessageResponse,
    Progress,
    Question,
    RegisterAgent,
    SendMessage,
    Shutdown,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Welcome,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=20)
UINT = st.integers(0, 2**32 - 1)
FILES = st.builds(FileData, TEXT, TEXT, st.binary(max_size=50))
QUESTIONS = st.builds(Question, question=TEXT, options_json=TEXT, timeout_seconds=st.floats(0, 1e9), default_json=TEXT)
EVENTS = st.one_of(
    st.builds(Thinking, TEXT),
    st.builds(Text, TEXT),
    st.builds(ToolUse, TEXT, TEXT, TEXT),
    st.builds(ToolResult, TEXT, TEXT, st.booleans()),
    FILES,
    st.builds(Done, full_response=TEXT, result_json=TEXT, question=st.none() | QUESTIONS, is_json=st.booleans()),
    st.builds(Error, TEXT),
)
RESPONSES = st.builds(
    MessageResponse,
    request_id=NAMES,
    event=st.none() | EVENTS,
    progress=st.none()
    | st.builds(Progress, percent=st.none() | st.integers(0, 100), step=TEXT, message=TEXT, number=UINT, total=UINT),
    fault=st.none() | st.builds(Fault, kind=TEXT, message=TEXT, retryable=st.booleans(), facts_json=TEXT),
    cursor=st.integers(0, 2**63 - 1),
    task_id=NAMES,
)
LISTS = st.lists(NAMES.filter(bool), max_size=4).map(tuple)
AGENT = st.one_of(
    RESPONSES,
    st.builds(Heartbeat, st.integers(-(2**63), 2**63 - 1)),
    st.builds(
        RegisterAgent,
        agent_id=NAMES,
        name=NAMES,
        capabilities=LISTS,
        work_types=LISTS,
        version=NAMES,
        extensions=LISTS,
    ),
)
SENDS = st.builds(
    SendMessage,
    request_id=NAMES,
    thread_id=NAMES,
    sender=NAMES,
    content=TEXT,
    attachments=st.lists(FILES, max_size=3).map(tuple),
    task_id=NAMES,
    work_type=NAMES,
    input_json=TEXT,
    answer_json=TEXT,
    attempt=UINT,
    traceparent=NAMES,
    to_agent=NAMES,
    priority=NAMES,
    context_json=TEXT,
)
SERVER = st.one_of(
    SENDS,
    st.builds(Welcome, server_id=TEXT, agent_id=TEXT),
    st.builds(Shutdown, TEXT),
    st.builds(Cancel, request_id=TEXT, reason=TEXT),
)


@given(AGENT)
def test_what_an_agent_says_comes_back_equal(message: object) -> None:
    assert codec.decode_agent(codec.encode_agent(message)) == message  # type: ignore[arg-type]


def test_names_that_say_nothing_are_left_out() -> None:
    said = RegisterAgent(agent_id="a", name="A", capabilities=("", "chat"), work_types=("",), extensions=("",))
    heard = RegisterAgent(agent_id="a", name="A", capabilities=("chat",))
    assert codec.decode_agent(codec.encode_agent(said)) == heard


@given(SERVER)
def test_what_a_gateway_says_comes_back_equal(message: object) -> None:
    assert codec.decode_server(codec.encode_server(message)) == message  # type: ignore[arg-type]


@given(RESPONSES, SENDS)
def test_what_callers_hear_and_say_comes_back_equal(response: MessageResponse, send: SendMessage) -> None:
    assert codec.decode_response(codec.encode_response(response)) == response
    assert codec.decode_send(codec.encode_send(send)) == send


def test_the_callers_small_messages_come_back_equal() -> None:
    follow = FollowRequest(task_id="t", after=7)
    cancel = CancelRequest(task_id="t", reason="why")
    reply = CancelReply(task_id="t", status="cancelled")
    assert codec.decode_follow(codec.encode_follow(follow)) == follow
    assert codec.decode_cancel(codec.encode_cancel(cancel)) == cancel
    told = coven_pb2.CancelReply.FromString(codec.encode_cancel_reply(reply))
    assert (told.task_id, told.status) == ("t", "cancelled")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_malformed(data: bytes) -> None:
    for decode in (codec.decode_agent, codec.decode_server, codec.decode_response, codec.decode_send):
        try:
            decode(data)
        except Malformed:
            pass


@given(RESPONSES, st.integers(2000, 2**29 - 1), st.binary(max_size=20))
def test_unknown_fields_travel_on_without_a_files_data(message: MessageResponse, number: int, value: bytes) -> None:
    unknown = coven_pb2.MessageResponse().SerializeToString() + _field(number, value)
    read = codec.decode_response(codec.encode_response(message) + unknown)
    assert unknown in read.unknown
    again = codec.decode_response(codec.encode_response(read))
    assert (again.event, again.request_id) == (message.event, message.request_id)
    if isinstance(message.event, FileData) and len(message.event.data) > 20:
        assert message.event.data not in read.unknown


def _field(number: int, value: bytes) -> bytes:
    def varint(n: int) -> bytes:
        out = bytearray()
        while n > 0x7F:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        return bytes([*out, n])

    return varint(number << 3 | 2) + varint(len(value)) + value


@pytest.mark.parametrize("name", ["coven_pb2.py", "coven_pb2.pyi"])
def test_the_generated_code_is_fresh(name: str, tmp_path: Path) -> None:
    tool = Path(__file__).parents[4] / ".ci" / "generate_coven.py"
    subprocess.run([sys.executable, tool, tmp_path], check=True)
    fresh = (tmp_path / "dragoman/protocols/coven" / name).read_text("utf-8")
    kept = Path(coven_pb2.__file__).with_name(name).read_text("utf-8")
    assert _settled(kept) == _settled(fresh), "run `python .ci/generate_coven.py`"


def _settled(code: str) -> list[str]:
    """Without the generator's own version, which may differ from the one that generated the file last."""
    lines = code.splitlines()
    if "_runtime_version.Domain.PUBLIC," in code:
        start = next(i for i, line in enumerate(lines) if "Domain.PUBLIC" in line)
        del lines[start : start + 5]
    return [line for line in lines if not line.startswith("# Protobuf Python Version")]
