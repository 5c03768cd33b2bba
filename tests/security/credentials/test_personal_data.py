"""Personal data has canaries: whatever is printed, logged, raised or encoded, none of them is found."""

from __future__ import annotations

import io
import json
import traceback
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
import structlog

from dragoman.security.redaction import MARK, Undisclosed, blot_personal, disclosed, handling

CANARY = "Jane-Roe-1970-01-01"
PATIENT = {"patient": CANARY, "age": 55}
Log = tuple[Any, io.StringIO]


@pytest.fixture
def log() -> Log:
    out = io.StringIO()
    processors: list[Any] = [
        blot_personal,
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=str),
    ]
    return structlog.wrap_logger(structlog.PrintLogger(out), processors=processors), out


def test_no_log_line_holds_it_at_any_depth(log: Log) -> None:
    logger, out = log
    nested: Any = {"payload": CANARY}
    for _ in range(30):
        nested = {"a": [nested]}
    logger.info("routed", many=[{"personal": CANARY}], deep={"a": {"plaintext": CANARY}}, nested=nested)
    logger.info("routed", payload=PATIENT, details={"instance": CANARY, "path": "/patient"}, ciphertext="x")
    assert CANARY not in out.getvalue()
    assert json.loads(out.getvalue().splitlines()[1]) == {
        "event": "routed", "payload": MARK, "details": {"instance": MARK, "path": "/patient"}, "ciphertext": MARK,
    }  # fmt: skip


def test_while_it_is_handled_only_the_hubs_own_text_is_logged(log: Log) -> None:
    logger, out = log
    with handling():
        logger.warning(
            "refused", message_id="m-1", agent="a", said=CANARY, count=CANARY, facts={"intent": "i", CANARY: 1}
        )
        try:
            raise ValueError(CANARY)
        except ValueError:
            logger.exception("failed", intent="provision")
            logger.error("failed", exc_info=True)
        except TypeError as error:
            logger.error("failed", exc_info=error)
        logger.error("failed", exc_info=ValueError(CANARY), stack_info=CANARY)
    logger.info("later", said="all is plain again")
    assert CANARY not in out.getvalue()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[0] == {
        "event": "refused",
        "message_id": "m-1",
        "agent": "a",
        "said": MARK,
        "count": MARK,
        "facts": {"intent": "i", MARK: MARK},
    }
    assert lines[1]["error_type"] == "ValueError"
    assert lines[1]["error_at"].startswith("credentials/test_personal_data.py:")
    assert lines[-1]["said"] == "all is plain again"


def choke(patient: dict[str, Any]) -> None:
    int(patient["patient"])


def quote(patient: dict[str, Any]) -> None:
    jsonschema_rs.validate({"properties": {"patient": {"type": "integer"}}}, patient)


def chain(patient: dict[str, Any]) -> None:
    try:
        choke(patient)
    except ValueError as error:
        raise KeyError(patient["patient"]) from error


@pytest.mark.parametrize("step", [choke, quote, chain])
def test_an_error_that_quotes_it_leaves_as_its_type_and_place(step: Callable[[Any], None], log: Log) -> None:
    with pytest.raises(Exception, match=CANARY):
        step(PATIENT)  # this is what is at stake
    logger, out = log
    with pytest.raises(Undisclosed) as told, handling():
        step(PATIENT)
    error = told.value
    try:
        raise error
    except Undisclosed:
        logger.exception("failed")
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.__dict__) + out.getvalue()
    assert CANARY not in shown
    assert (error.__cause__, error.__context__) == (None, None)
    assert error.error_type in ("ValueError", "ValidationError", "KeyError")
    assert ".py:" in error.error_at


def test_what_is_known_to_quote_nothing_and_cancellations_pass() -> None:
    class SentEvent(Exception):
        pass

    with pytest.raises(SentEvent), handling(SentEvent):
        raise SentEvent
    with pytest.raises(KeyboardInterrupt), handling():
        raise KeyboardInterrupt


def test_of_a_personal_error_only_its_type_and_place_are_logged() -> None:
    error = ValueError(CANARY)
    assert disclosed(error, personal=False) is error
    assert str(disclosed(error, personal=True)) == "ValueError at an unknown place, while personal data was handled"
