"""What is longer than a message to a caller may be."""

from __future__ import annotations

import pytest

from dragoman.messages.brevity import CUT
from dragoman.protocols.coven import codec
from dragoman.protocols.coven.types import (
    Done,
    FileData,
    MessageResponse,
    Progress,
    ResponseEvent,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from dragoman.server.coven.outbound import fitted

MIB = 1024 * 1024
LONG = "ü\\" * MIB  # three bytes, and four in JSON
JSON = f'{{"is":"{"x" * 2 * MIB}"}}'


def within(event: ResponseEvent | None, told: str = "", **beside: object) -> list[ResponseEvent | None]:
    response = MessageResponse(request_id="q1", event=event, task_id="t1", cursor=7, **beside)  # type: ignore[arg-type]
    parts = fitted(response, MIB, told)
    assert max(len(codec.encode_response(part)) for part in parts) <= MIB
    assert [part.cursor for part in parts] == [0] * (len(parts) - 1) + [7]
    assert {(part.request_id, part.task_id) for part in parts} == {("q1", "t1")}
    return [part.event for part in parts]


def test_text_comes_in_pieces() -> None:
    parts = within(Text(LONG))
    assert "".join(part.text for part in parts if isinstance(part, Text)) == LONG


@pytest.mark.parametrize(
    "event", [Thinking(LONG), ToolResult("t", LONG, True), ToolUse("t", "n", JSON), ToolUse(LONG, LONG, JSON)]
)
def test_long_fields_beside_the_text_are_cut_and_say_so(event: ResponseEvent) -> None:
    (said,) = within(event, progress=Progress(percent=5, step=LONG, message=LONG), unknown=b"\xba\x06\x05later")
    assert type(said) is type(event)
    words = (
        said.text if isinstance(said, Thinking) else said.output if isinstance(said, ToolResult) else said.input_json
    )
    assert CUT in words


def test_a_caller_learns_that_a_file_exists_which_no_message_holds() -> None:
    (said,) = within(FileData("big.bin", "x/y", b"\0" * MIB))
    assert said == Thinking(f"The file 'big.bin' has {MIB} bytes, which no message holds; it is kept with the task.")


@pytest.mark.parametrize("told", ["", LONG[:1000], LONG])
def test_a_long_answer_is_sent_as_text_as_far_as_it_was_not(told: str) -> None:
    *texts, done = within(Done(full_response=LONG, result_json="{}"), told)
    assert told + "".join(part.text for part in texts if isinstance(part, Text)) == LONG
    assert done == Done(result_json="{}")


def test_an_answer_other_than_the_streamed_text_is_cut() -> None:
    """As text it would stand behind the other."""
    (done,) = within(Done(full_response=LONG, result_json="{}"), "a draft")
    assert isinstance(done, Done)
    assert (done.full_response.endswith(CUT), done.result_json) == (True, "{}")


def test_a_text_that_is_its_own_result_is_sent_once() -> None:
    words = "x" * (MIB * 6 // 10)
    assert within(Done(full_response=words, result_json=f'"{words}"')) == [Done(full_response=words)]


def test_a_long_result_is_cut_and_says_so() -> None:
    (done,) = within(Done(full_response="short", result_json=JSON))
    assert isinstance(done, Done)
    assert done.full_response == "short"
    assert done.result_json.startswith('"{\\"is\\":\\"xxx')
    assert done.result_json.endswith(f'{CUT}"')
