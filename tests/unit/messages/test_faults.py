"""Faults: what to do next is a field, and no code looks for it in a sentence."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import dragoman
from dragoman.messages.error_table import TABLE, opening, sentence
from dragoman.messages.faults import Fault, Kind, new_fault, refuse
from dragoman.wire.errors import RemoteProtocolError, Stage

SOURCE = Path(dragoman.__file__).parent
OWN = {"refuse": 1, "new_fault": 1, "RemoteProtocolError": 0, "AgentmsgError": 0, "A2acpError": 0, "InvalidMessage": 0}
"""What makes a fault, and which of its arguments is the message."""


def test_a_fault_with_advice_ends_with_it_and_gets_no_other() -> None:
    fault = new_fault(Kind.CONFLICT, "the id is already in use", next="choose a new one", field="id")
    assert fault == Fault(
        kind=Kind.CONFLICT, message="the id is already in use; choose a new one", next="choose a new one", field="id"
    )
    assert sentence(fault) == "The id is already in use; choose a new one."
    assert sentence(fault, "Ask somebody.") == "The id is already in use; choose a new one."


def test_a_refusal_and_a_protocol_error_put_message_and_advice_together_alike() -> None:
    fault = refuse(Kind.CONFLICT, "already in use", next="choose a new one").fault
    error = RemoteProtocolError("already in use", stage=Stage.ORDER, next="choose a new one")
    assert (error.what, error.next) == (fault.message, fault.next)


def test_a_field_at_the_beginning_of_a_sentence_stays_as_it_is_written() -> None:
    fault = Fault(kind=Kind.INVALID, message="payload: missing required field", field="payload")
    assert opening(fault) == "payload: missing required field."
    assert opening(msgspec.structs.replace(fault, message="the field is missing")) == "The field is missing."


@pytest.mark.parametrize("words", ["no such file; giving up", "The disk is full.", "It is so. Do something."])
def test_no_punctuation_in_a_message_is_taken_for_advice(words: str) -> None:
    """It may be the name of a file, or the text of a library."""
    fault = Fault(kind=Kind.CONFLICT, message=words)
    assert sentence(fault) == f"{opening(fault)} {TABLE[Kind.CONFLICT].next}"


def test_a_fault_that_an_earlier_version_stored_is_read() -> None:
    row = b'{"kind":"conflict","message":"already in use; choose a new one","field":"id","facts":{"task_id":"t-1"}}'
    read = msgspec.json.decode(row, type=Fault)
    assert read == Fault(
        kind=Kind.CONFLICT, message="already in use; choose a new one", field="id", facts={"task_id": "t-1"}
    )
    assert msgspec.json.encode(read) == row


def test_every_message_of_the_hub_has_its_advice_in_a_field() -> None:
    found = [f"{path.relative_to(SOURCE)}:{line}: {text}" for path, line, text in _messages() if "; " in text]
    assert not found, found


def _messages() -> Iterator[tuple[Path, int, str]]:
    """What is written of each message where a fault is made."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (at := OWN.get(_name(node.func))) is not None and len(node.args) > at:
                yield path, node.lineno, _written(node.args[at])
            elif isinstance(node, ast.Call) and _name(node.func) == "Fault":
                for keyword in node.keywords:
                    if keyword.arg == "message":
                        yield path, node.lineno, _written(keyword.value)


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else ""


def _written(node: ast.expr) -> str:
    return "".join(one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))
