"""No clause forgotten, no mark invented: manifests and tests must name each other.

The marks are read from the source of the tests, not from what pytest collected, so that the answer does not
depend on which tests were selected or on which worker this one runs.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
MARK = re.compile(r"mark\.requirement\(")
ID = re.compile(r'"([^"]+)"')
IDS = re.compile(r'(?:\s*"[^"]+"\s*,?)+\s*\)')
PROTOCOLS = sorted(path.parent.name for path in HERE.glob("*/requirements.py"))


def manifest(protocol: str) -> ModuleType:
    return importlib.import_module(f"tests.conformance.{protocol}.requirements")


@cache
def marks() -> tuple[tuple[Path, str], ...]:
    """Every `requirement("…")` in every test file."""
    return tuple(mark for path in sorted(TESTS.rglob("test_*.py")) for mark in marks_in(path))


def marks_in(path: Path) -> Iterator[tuple[Path, str]]:
    source = path.read_text("utf-8")
    places = [found.end() for found in MARK.finditer(source)]
    for place in places:
        named = IDS.match(source, place)
        assert named is not None, f"{path}: a requirement's id is a literal"
        for identity in ID.findall(named[0]):
            yield path, identity


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_requirement_has_a_test_or_is_awaited_and_not_both(protocol: str) -> None:
    module = manifest(protocol)
    shown = {identity for _, identity in marks()}
    untested = {entry.id for entry in module.REQUIREMENTS} - shown
    assert untested == module.AWAITED


def test_every_mark_names_a_known_requirement() -> None:
    known = {entry.id for protocol in PROTOCOLS for entry in manifest(protocol).REQUIREMENTS}
    unknown = [(path.name, identity) for path, identity in marks() if identity not in known]
    assert unknown == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ids_are_unique_and_nothing_of_the_pure_protocol_is_awaited(protocol: str) -> None:
    module = manifest(protocol)
    ids = [entry.id for entry in module.REQUIREMENTS]
    assert len(ids) == len(set(ids))
    pure = {entry.id for entry in module.REQUIREMENTS if entry.level == "protocol"}
    assert not pure & module.AWAITED
