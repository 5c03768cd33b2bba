"""What the logs show, and what they never do."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from dragoman.app.logs import set_up_logs
from dragoman.security.redaction import handling

NAME = "Ada Lovelace"


@pytest.fixture
def form() -> str:
    return "json"


@pytest.fixture
def written(form: str) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    out = io.StringIO()
    set_up_logs(level="info", form=form, stream=out)
    yield out
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_contents_are_marked_always(written: io.StringIO) -> None:
    structlog.get_logger("ours").info("heard", payload={"name": NAME}, agent="a")
    [line] = lines(written)
    assert (line["event"], line["agent"], line["payload"]) == ("heard", "a", "[personal]")


def test_while_personal_data_is_handled_only_our_own_text_is_written(written: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(about=NAME), handling(ValueError):
        structlog.get_logger("ours").warning("refused", code="E7", detail=NAME)
        logging.getLogger("a.library").warning("cannot read %s", NAME)
        try:
            raise ValueError(NAME)
        except ValueError:
            structlog.get_logger("ours").exception("failed")
            logging.getLogger("a.library").exception("failed")
    assert NAME not in written.getvalue()
    ours, library, failed, theirs = lines(written)
    assert (ours["event"], ours["code"], ours["detail"], ours["about"]) == ("refused", "E7", "[personal]", "[personal]")
    assert (library["event"], library["logger"], library["level"]) == ("[personal]", "a.library", "warning")
    assert (failed["error_type"], theirs["error_type"]) == ("ValueError", "ValueError")
    assert "tests/unit/app/test_logs.py".endswith(failed["error_at"].partition(":")[0])


def test_otherwise_libraries_are_logged_and_tracebacks_shown(written: io.StringIO) -> None:
    logging.getLogger("a.library").warning("cannot read %s", "this")
    try:
        raise ValueError("Bearer abcdefghijkl")
    except ValueError:
        structlog.get_logger("ours").exception("failed", authorization="x")
    library, failed = lines(written)
    assert (library["event"], library["logger"]) == ("cannot read this", "a.library")
    assert "ValueError: Bearer [secret]" in failed["exception"]
    assert failed["authorization"] == "[secret]"


FORGED = "ok\r\n2026-01-01 [info] \x1b[2Jall is well \u202egnihton \u2028\u200b\x9b\x00"


@pytest.mark.parametrize("form", ["json", "console"])
def test_nothing_from_outside_makes_a_line_or_moves_a_cursor(written: io.StringIO) -> None:
    structlog.get_logger("ours").info("heard", agent=FORGED, details={FORGED: [FORGED]})
    logging.getLogger("a.library").warning("cannot read %s", FORGED)
    text = written.getvalue()
    assert text.count("\n") == len(text.splitlines()) == 2
    assert text.replace("\n", "").isprintable()
    assert "u001b[2Jall is well" in text
