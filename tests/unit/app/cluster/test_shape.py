"""The digest that two nodes compare differs when one of them would misread the other, and only then."""

from __future__ import annotations

import enum
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from dragoman.app.cluster.link.messages import shape
from dragoman.app.cluster.link.shape import shape_of


class Color(enum.Enum):
    RED = "red"


class Inner(msgspec.Struct, array_like=True):
    a: int
    b: str = ""


More = dict[str, list[Inner | None]] | None
FIELDS: list[Any] = [("n", int), ("inner", Inner), ("color", Color), ("more", More, None)]


def made(fields: list[Any], **how: Any) -> str:
    return shape_of([msgspec.defstruct("Said", fields, module="here", **how)])


CHANGES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "a field more": ([*FIELDS, ("x", int, 0)], {}),
    "a field less": (FIELDS[:-1], {}),
    "another name": ([("m", int), *FIELDS[1:]], {}),
    "another type": ([("n", float), *FIELDS[1:]], {}),
    "a field that must be there": ([*FIELDS[:3], ("more", More)], {}),
    "another order": ([FIELDS[1], FIELDS[0], *FIELDS[2:]], {}),
    "another tag": (FIELDS, {"tag": "said"}),
    "an array": (FIELDS, {"array_like": True}),
    "a kind more": ([*FIELDS[:2], ("color", enum.Enum("Color", {"RED": "red", "BLUE": "blue"})), FIELDS[3]], {}),
    "a change within": (
        [FIELDS[0], ("inner", msgspec.defstruct("Inner", [("a", int)], array_like=True)), *FIELDS[2:]], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_one_version_says_and_the_other_misreads_changes_the_digest(change: str) -> None:
    fields, how = CHANGES[change]
    assert made(fields, **how) != made(FIELDS)


def test_another_default_and_a_docstring_do_not_change_the_digest() -> None:
    other = [*FIELDS[:3], ("more", More, {})]
    assert made(other, namespace={"__doc__": "What it is for."}) == made(FIELDS)


def test_a_type_that_has_itself_in_a_field_has_a_digest() -> None:
    assert shape_of([Nested]) == shape_of([Nested])


class Nested(msgspec.Struct):
    children: "list[Nested]" = []  # noqa: UP037


def test_two_processes_of_one_version_have_the_same_digest() -> None:
    program = "from dragoman.app.cluster.link.messages import shape; print(shape())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == shape()
