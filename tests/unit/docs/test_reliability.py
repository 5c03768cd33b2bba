"""Every test that stands for a promise exists, and is run at every `make test`."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
ROWS = [
    line for line in PAGE.splitlines() if line.startswith("| ") and not line.endswith(("shown by |", "caught by |"))
]


@cache
def found_in(file: str) -> dict[str, bool]:
    """The tests of a file, and whether each is for the long runs only."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: any("soak" in ast.unparse(mark) for mark in node.decorator_list) for node in functions}


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip() for row in ROWS])
def test_every_promise_is_shown_by_tests_that_exist(row: str) -> None:
    shown = NAMED.findall(row.split("|")[-2])
    assert shown
    for file, name in shown:
        assert found_in(file).get(name) is False, f"{file}::{name}"
