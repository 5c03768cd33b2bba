"""Personal data has canaries: whatever is printed, logged, raised or encoded, none of them is found."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import structlog

from dragoman.security.redaction import MARK, Personal, Undisclosed, blot_personal, handling

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


SHOWN: list[Callable[[Any], str]] = [
    repr,
    str,
    lambda it: f"{it}",
    lambda it: f"{it!r:>40} {it:>40}",
    lambda it: "%s %r" % (it, it),  # noqa: UP031
    lambda it: str([it, {"a": it}]),
    lambda it: logging.LogRecord("n", 10, "p", 1, "%s", (it,), None).getMessage(),
]


@pytest.mark.parametrize("show", SHOWN)
@pytest.mark.parametrize("content", [CANARY, CANARY.encode(), PATIENT, [CANARY]])
def test_a_personal_value_shows_a_mark_however_it_is_printed(show: Callable[[Any], str], content: Any) -> None:
    shown = show(Personal(content))
    assert MARK in shown
    assert CANARY not in shown


@pytest.mark.parametrize(
    "encode", [json.dumps, msgspec.json.encode, msgspec.to_builtins, pickle.dumps, bytes, hash, vars, list, len]
)
def test_a_personal_value_is_encoded_by_nobody(encode: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError) as told:
        encode(Personal(CANARY))
    assert CANARY not in str(told.value)


def test_a_personal_value_is_what_it_was_where_it_may_be_seen() -> None:
    assert Personal(PATIENT).reveal() is PATIENT
    assert Personal(PATIENT) == Personal(dict(PATIENT))
    assert Personal(b"a") != Personal(b"b")
    assert Personal("a") != "a"
    assert copy.deepcopy(Personal(PATIENT)) == copy.copy(Personal(PATIENT)) == Personal(PATIENT)


def test_no_log_line_holds_it_at_any_depth(log: Log) -> None:
    logger, out = log
    nested: Any = Personal(CANARY)
    for _ in range(30):
        nested = {"a": [nested]}
    logger.info(
        "routed",
        personal_one=Personal(PATIENT),
        many=[Personal(CANARY)],
        deep={"a": {"b": Personal(CANARY)}},
        nested=nested,
    )
    logger.info("routed", payload=PATIENT, details={"instance": CANARY, "path": "/patient"}, ciphertext="x")
    assert CANARY not in out.getvalue()
    assert json.loads(out.getvalue().splitlines()[1]) == {
        "event": "routed", "payload": MARK, "details": {"instance": MARK, "path": "/patient"}, "ciphertext": MARK,
    }  # fmt: skip


def test_while_it_is_handled_only_the_hubs_own_words_are_logged(log: Log) -> None:
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
    class Told(Exception):
        pass

    with pytest.raises(Told), handling(Told):
        raise Told
    with pytest.raises(KeyboardInterrupt), handling():
        raise KeyboardInterrupt
