"""The small parts of `wire`: framing, roles, errors."""

from __future__ import annotations

import pytest

from dragoman.wire import Limits, LocalProtocolError, RemoteProtocolError, Role, Stage, WholeMessage


def test_a_message_is_whole_however_it_is_cut() -> None:
    message = WholeMessage(Limits(bytes=10))
    for byte in b"0123456789":
        message.feed(bytes([byte]))
    assert message.finish() == b"0123456789"
    message.feed(b"next")
    assert message.finish() == b"next"
    assert message.finish() == b""


def test_an_endless_message_is_refused_at_the_limit() -> None:
    message = WholeMessage(Limits(bytes=10))
    message.feed(b"0123456789")
    with pytest.raises(RemoteProtocolError) as caught:
        message.feed(b"x")
    assert caught.value.stage is Stage.SIZE


def test_roles_face_each_other() -> None:
    assert [role.peer for role in Role] == [Role.AGENT, Role.HUB]


def test_an_error_is_facts_first_and_a_sentence_second() -> None:
    error = RemoteProtocolError("missing", stage=Stage.SHAPE, field="payload.task_id", retryable=True)
    assert (error.what, error.field, error.stage, error.retryable) == (
        "missing",
        "payload.task_id",
        Stage.SHAPE,
        True,
    )
    assert str(error) == "payload.task_id: missing"
    assert str(LocalProtocolError("too early")) == "too early"
