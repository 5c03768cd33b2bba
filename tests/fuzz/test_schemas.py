"""Where one schema is said to accept all that another allows, no document may show the contrary.

jsonschema-rs judges. A wrong yes is rare, so this goes on for a while: documents are made of the very words that the
two schemas use, and one or two steps beside them, since that is where they can differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.wire.schema import library
from dragoman.wire.schema.compatibility import Answer, accepts
from dragoman.wire.schema.library import SchemaError
from tests.conformance.a2acp.made_up import VALUES, pairs, relatives
from tests.fuzz.thoroughness import THOROUGH, UNTIMED, for_a_while

MOST = 400
ALWAYS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    0.5,
    "",
    "a",
    "b",
    "ab",
    "xx",
    "x" * 4,
    [],
    {},
    [1, 1],
    [1, 1.0],
    [[]],
)


def around(*schemas: Any) -> Iterator[Any]:
    """Documents at the edges of what these schemas say."""
    leaves: list[Any] = list(ALWAYS)
    names: dict[str, None] = {}
    for schema in schemas:
        for value in _constants(schema):
            leaves.append(value)
            if isinstance(value, str):
                names[value] = None
            elif isinstance(value, int | float) and not isinstance(value, bool):
                leaves += [
                    value - 1,
                    value + 1,
                    value + 0.5,
                    "a" * max(0, min(5, int(value))),
                    [0] * max(0, min(5, int(value))),
                ]
    leaves = [one for number, one in enumerate(leaves) if one not in leaves[:number] or isinstance(one, bool | float)]
    yield from leaves
    few = leaves[:40]
    for one, two in itertools.product(few[:16], few):
        yield [one, two]
    known = [*[name for name in names if len(name) < 6][:6], "a", "y"]
    for name in known:
        for value in few:
            yield {name: value}
    for (one, two), (left, right) in itertools.product(
        itertools.combinations(known, 2), itertools.product(few[:6], few[:6])
    ):
        yield {one: left, two: right}
    yield dict.fromkeys(known, 1)
    yield {name: {} for name in known}


def _constants(schema: Any) -> Iterator[Any]:
    waiting = [schema]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            waiting += [*found.values(), *found]
        elif isinstance(found, list):
            yield found
            waiting += found
        else:
            yield found


def check(target: Any, source: Any, documents: list[Any]) -> None:
    try:
        verdict = accepts(target, source)
    except SchemaError:
        return
    if verdict.answer is not Answer.YES:
        return
    takes, sends = library.compile(target), library.compile(source)
    for document in itertools.chain(documents, itertools.islice(around(target, source), MOST)):
        assert not sends.accepts(document) or takes.accepts(document), (target, source, document)


def compared(how: settings) -> Any:
    @how
    @given(relatives() | st.tuples(pairs(), st.lists(VALUES, max_size=10)).map(lambda two: (*two[0], two[1])))
    def attempt(case: tuple[Any, Any, list[Any]]) -> None:
        check(*case)

    return attempt


def test_a_yes_holds_for_made_up_documents() -> None:
    compared(UNTIMED)()


@pytest.mark.soak
def test_a_yes_holds_for_made_up_documents_for_a_while() -> None:
    for_a_while(compared(THOROUGH))
