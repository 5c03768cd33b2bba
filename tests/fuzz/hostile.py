"""Strategies: what an attacker or a broken program might send.

Most raw bytes fail the first check of any decoder, so most of what is made here was a good message once: cut off, with
a bit turned, a piece repeated, a value of another type at any place, a key twice, numbers and texts that are at the
edge of what JSON, Unicode and calendars can say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st


class Verbatim(str):
    """Text that goes into the JSON as it is."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """An object with all of its pairs, also those with the same key."""


EDGES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 101, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 0.5, -0.0,
    1e-320, 1e300, "", " ", "\n", "0", "a", "A" * 300, "x" * 5000, "é", "İ", "ß", "\u0000", "\u007f", "\u202e",
    "\u2028", "😀", "\ufeff", "../../etc/passwd", "{{id}}", "%s%n", "null", "request:nothing", "response:success",
    "1.0", "2.0", "99999.99999", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-02-30T00:00:00Z",
    "2026-03-01T12:00:60Z", "2026-03-01T12:00:00", "2026-03-01", "11111111-1111-4111-8111-11111111111A",
    "00000000-0000-0000-0000-000000000000",
    "bytes 0-5", "bytes 0-1k of 1k", "hub", "*", "aes256", "A" * 43, [], {}, [[]], [None], {"": ""}, {"a": {"b": []}},
    ["a"] * 300, [{}] * 50, {str(n): n for n in range(100)}, {"$ref": "#"}, {"type": "error", "id": "x"},
    Verbatim("NaN"), Verbatim("-Infinity"), Verbatim("1e999"), Verbatim("-0"), Verbatim("01"), Verbatim("9" * 5000),
    Verbatim("1e-99999"), Verbatim("18446744073709551616"), Verbatim('"\\ud800"'), Verbatim('"\\u003a"'),
    Verbatim('"\x01"'), Verbatim("'a'"), Verbatim("[" * 70 + "]" * 70), Verbatim('{"a":' * 70 + "1" + "}" * 70),
    Verbatim("[" * 3000), Verbatim("/* */ 1"), Verbatim(""), Verbatim("1,"), Verbatim("\\u0061"),
)  # fmt: skip

#: Bytes that mean something to one decoder or another: to JSON, UTF-8, MessagePack, protobuf, WebSockets, base64.
TELLING = b'"{}[]:,\\\x00\n\r\xff\xfe\xc0\xf4\xed\xa0\x80\x7f\x81\x82\x88\x89\x8a\x90\xc1\xca\xcb\xc7\xd4\xdc'
TELLING += b"\xde\xdf\x08\x0a\x12.-_= "


def written(value: Any) -> str:
    """JSON text, with what is verbatim as it is and repeated keys repeated."""
    if isinstance(value, Verbatim):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ",".join(f"{json.dumps(key)}:{written(inner)}" for key, inner in value) + "}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a tree, the root first."""
    found = [path]
    if isinstance(tree, dict):
        found += [place for key, inner in tree.items() for place in places(inner, (*path, key))]
    elif isinstance(tree, list):
        found += [place for index, inner in enumerate(tree) for place in places(inner, (*path, index))]
    return found


def at(tree: Any, path: Sequence[Any]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def put(tree: Any, path: Sequence[Any], value: Any) -> Any:
    """The tree with another value at a place."""
    if not path:
        return value
    first, *rest = path
    if isinstance(tree, dict):
        return {key: put(inner, rest, value) if key == first else inner for key, inner in tree.items()}
    return [put(inner, rest, value) if index == first else inner for index, inner in enumerate(tree)]


VALUES = (
    st.sampled_from(EDGES) | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)


@st.composite
def broken_trees(draw: st.DrawFn, trees: Sequence[Any]) -> Any:
    """A tree with one to three places that are not as they were."""
    tree = draw(st.sampled_from(list(trees)))
    for _ in range(draw(st.integers(1, 3))):
        found = places(tree)
        path = found[draw(st.integers(0, len(found) - 1))]
        there = at(tree, path)
        how = draw(st.sampled_from(("other", "other", "other", "elsewhere", "left out", "twice", "more", "deep")))
        if how == "left out" and path and isinstance(at(tree, path[:-1]), dict):
            parent = at(tree, path[:-1])
            tree = put(tree, path[:-1], {key: inner for key, inner in parent.items() if key != path[-1]})
        elif how == "elsewhere":
            tree = put(tree, path, at(tree, found[draw(st.integers(0, len(found) - 1))]))
        elif how == "twice" and isinstance(there, dict) and there:
            again = draw(st.sampled_from(sorted(there)))
            return put(tree, path, Pairs([*there.items(), (again, draw(st.just(there[again]) | VALUES))]))
        elif how == "more" and isinstance(there, dict):
            name = draw(st.sampled_from(("", "type", "x", "$ref", "token", "é", "payload")) | st.text(max_size=5))
            tree = put(tree, path, {**there, name: draw(VALUES)})
        elif how == "deep":
            for _ in range(draw(st.sampled_from((1, 2, 40, 70)))):
                there = [there] if draw(st.booleans()) else {"x": there}
            return put(tree, path, there)
        else:
            tree = put(tree, path, draw(VALUES))
            if not isinstance(tree, dict | list):
                return tree
    return tree


@st.composite
def broken_bytes(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Bytes that were a good message once."""
    data = bytearray(draw(st.sampled_from(list(samples))))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(data) - 1)))
        length = draw(st.integers(1, 40))
        how = draw(st.sampled_from(("turn", "set", "cut", "drop", "repeat", "insert", "splice")))
        if how == "turn" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "set" and data:
            data[place] = draw(st.sampled_from(TELLING))
        elif how == "cut":
            del data[place:]
        elif how == "drop":
            del data[place : place + length]
        elif how == "repeat":
            data[place:place] = data[place : place + length] * draw(st.integers(1, 5))
        elif how == "insert":
            data[place:place] = draw(st.binary(min_size=1, max_size=8))
        else:
            other = draw(st.sampled_from(list(samples)))
            data[place:] = other[draw(st.integers(0, max(0, len(other) - 1))) :]
    return bytes(data)


def texts(trees: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """Broken trees as JSON."""
    return broken_trees(trees).map(lambda tree: written(tree).encode("utf-8", "surrogatepass"))


def inputs(samples: Sequence[bytes], trees: Sequence[Any] = ()) -> st.SearchStrategy[bytes]:
    """Everything together; of what is JSON, the trees are given as well."""
    kinds = [st.sampled_from(list(samples)), st.binary(max_size=100), broken_bytes(samples)]
    if trees:
        kinds += [texts(trees)] * 3
    return st.one_of(kinds)
