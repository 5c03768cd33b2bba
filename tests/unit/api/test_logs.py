"""Logs without secrets, and without lines that a client forged."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from dragoman.app.logs import BLOT, blot, set_up_logs

TOKEN = "a7f3d8c2e1b9f4a6c8e2d1b3f4a6c8e2"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    out = io.StringIO()
    set_up_logs(level="info", form="json", stream=out)
    yield out
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_what_is_named_like_a_secret_is_blotted_out(log: io.StringIO) -> None:
    structlog.get_logger("dragoman.test").info(
        "added", agent="mux-1", token=TOKEN, headers={"Authorization": f"Bearer {TOKEN}", "deep": [{"api_key": TOKEN}]}
    )
    assert TOKEN not in log.getvalue()
    [line] = lines(log)
    assert (line["event"], line["agent"], line["token"]) == ("added", "mux-1", BLOT)
    assert (line["level"], line["logger"]) == ("info", "dragoman.test")


def test_a_bearer_token_in_any_text_is_blotted_out(log: io.StringIO) -> None:
    logging.getLogger("some.library").warning("sent Authorization: Bearer %s to /x?token=%s&a=1", TOKEN, TOKEN)
    try:
        raise ValueError(f"bad header: bearer {TOKEN}")
    except ValueError:
        structlog.get_logger().exception("broken")
    assert TOKEN not in log.getvalue()
    assert lines(log)[0]["event"] == f"sent Authorization: Bearer {BLOT} to /x?token={BLOT}&a=1"
    assert "ValueError" in lines(log)[1]["exception"]


def test_nobody_else_writes_a_line(log: io.StringIO) -> None:
    structlog.get_logger().info("task", name='x\r\n{"event":"forged"}\x1b[31m\u202egnp.exe')
    [line] = lines(log)
    assert line["name"] == 'x\\u000d\\u000a{"event":"forged"}\\u001b[31m\\u202egnp.exe'


def test_the_console_is_no_more_trusting() -> None:
    out = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:]
    set_up_logs(form="console", stream=out)
    structlog.get_logger().info("task", name="a\nb\x1b[2J", token=TOKEN)
    root.handlers[:] = before
    structlog.reset_defaults()
    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b[2J" not in out.getvalue()
    assert TOKEN not in out.getvalue()


def test_libraries_do_not_log_addresses(log: io.StringIO) -> None:
    logging.getLogger("uvicorn.access").info("GET /?secret=1")
    logging.getLogger("uvicorn.error").warning("something")
    assert [line["event"] for line in lines(log)] == ["something"]


@pytest.mark.parametrize(
    ("value", "told"),
    [(1, 1), (None, None), (b"xyz", "<3 bytes>"), ((1, "a"), [1, "a"]), ({"password": None}, {"password": None})],
)
def test_plain_values_stay(value: Any, told: Any) -> None:
    assert blot(value) == told


def test_a_peer_that_leaves_in_the_middle_fills_no_log() -> None:
    out = io.StringIO()
    set_up_logs(level="info", form="json", stream=out)
    grpc = logging.getLogger("grpc._cython.cygrpc")
    grpc.error("ExecuteBatchError raised in core by servicer method [%s]", "/coven.CovenControl/AgentStream")
    grpc.error("something else")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["something else"]
