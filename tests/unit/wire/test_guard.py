"""The guard against an oracle: the standard library's parser, made strict by hand and slow."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.wire import Limits, RemoteProtocolError, Stage, check

LIMITS = Limits(bytes=10_000, depth=5)

KEYS = st.sampled_from(["a", "b", ":", "a:", '"', "\\", "é", "\\u003a", "{[", ""])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | KEYS
)
SPELLINGS = (str, lambda text: "".join(f"\\u{ord(char):04x}" for char in text))


class Pairs(list[tuple[str, Any]]):
    """An object that may repeat its keys."""


TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(KEYS, inner), max_size=4).map(Pairs),
    max_leaves=15,
)


def written(value: Any, ascii_only: bool) -> str:
    """JSON with repeated keys as they are."""
    if isinstance(value, Pairs):
        inner = (f"{json.dumps(key, ensure_ascii=ascii_only)}: {written(item, ascii_only)}" for key, item in value)
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(written(item, ascii_only) for item in value) + "]"
    return json.dumps(value, ensure_ascii=ascii_only)


def depth(value: Any) -> int:
    if isinstance(value, Pairs):
        return 1 + max((depth(item) for _, item in value), default=0)
    if isinstance(value, list):
        return 1 + max((depth(item) for item in value), default=0)
    return 0


def faulty(value: Any) -> bool:
    if isinstance(value, Pairs):
        keys = [key for key, _ in value]
        return len(keys) != len(set(keys)) or any(faulty(item) for _, item in value)
    if isinstance(value, list):
        return any(faulty(item) for item in value)
    return isinstance(value, int) and abs(value) >= 2**64


@given(tree=TREES, ascii_only=st.booleans())
@example(tree=Pairs([("a", ":"), ("a", ":")]), ascii_only=True)
def test_the_guard_agrees_with_the_oracle(tree: Any, ascii_only: bool) -> None:
    data = written(tree, ascii_only).encode()
    if depth(tree) > LIMITS.depth:
        expected = Stage.DEPTH
    elif faulty(tree):
        expected = Stage.JSON
    else:
        assert check(data, LIMITS) == json.loads(data)
        return
    with pytest.raises(RemoteProtocolError) as caught:
        check(data, LIMITS)
    assert caught.value.stage is expected


@given(st.binary(max_size=40) | st.text(alphabet='{}[]":,\\u0039ae- \n', max_size=40).map(str.encode))
def test_any_bytes_are_accepted_or_refused_and_what_is_accepted_is_json(data: bytes) -> None:
    try:
        tree = check(data, LIMITS)
    except RemoteProtocolError:
        return
    assert tree == json.loads(data)


@pytest.mark.parametrize("spelling", range(len(SPELLINGS)))
def test_equal_keys_are_equal_however_they_are_spelt(spelling: int) -> None:
    for key in ("a", ":", "a:b"):
        data = f'{{"{key}": ":", "{SPELLINGS[spelling](key)}": 2}}'.encode()
        with pytest.raises(RemoteProtocolError) as caught:
            check(data, LIMITS)
        assert caught.value.field == key


def test_brackets_in_strings_do_not_nest() -> None:
    text = '[["\\"[[[[[[[[[[{{{{{{"]]'
    assert check(text.encode(), LIMITS) == json.loads(text)


def test_wide_is_not_deep() -> None:
    text = "[" + ",".join(["[]"] * 3000) + "]"
    assert check(text.encode(), LIMITS) == [[]] * 3000


def test_arrays_and_objects_are_counted_outside_strings() -> None:
    limits = Limits(bytes=100_000, depth=5, containers=3000)
    fits = b"[" + b",".join([b"[]"] * 2998) + b',{"text": "' + b"[]" * 5000 + b'"}]'
    assert len(check(fits, limits)) == 2999
    with pytest.raises(RemoteProtocolError, match="more than 3000 arrays and objects"):
        check(fits[:-1] + b",[]]", limits)


def test_the_limits_are_inclusive() -> None:
    assert check(b"[[[[[]]]]]", LIMITS) == [[[[[]]]]]
    assert check(b" " * 9_998 + b"[]", LIMITS) == []
    with pytest.raises(RemoteProtocolError) as caught:
        check(b" " * 9_999 + b"[]", LIMITS)
    assert caught.value.stage is Stage.SIZE


@pytest.mark.parametrize("digits", [b"18446744073709551616", b"-18446744073709551616", b"1" + b"0" * 400])
def test_an_integer_beyond_64_bits_is_refused_with_its_place(digits: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="64 bits") as caught:
        check(b'{"a":[0,{"b":' + digits + b"}]}", LIMITS)
    assert (caught.value.stage, caught.value.field) == (Stage.JSON, "a[1].b")


@pytest.mark.parametrize(
    ("number", "what"),
    [(b"1e400", "double"), (b"-1E+309", "double"), (b"1" * 400 + b".5", "double"), (b"1" * 5000, "64 bits")],
)
def test_a_number_beyond_a_double_is_refused_with_its_place(number: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what) as caught:
        check(b'{"a":[0,{"b":' + number + b"}]}", LIMITS)
    assert (caught.value.stage, caught.value.field) == (Stage.JSON, "a[1].b")


@pytest.mark.parametrize("data", [b'{"a":1e400', b"[1e400,NaN]", b'[1e400,"\xff"]', b"1e400"])
def test_a_number_beyond_a_double_in_what_is_no_json_either_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"double|out of range") as caught:
        check(data, LIMITS)
    assert (caught.value.stage, caught.value.field) == (Stage.JSON, None)


def test_integers_up_to_64_bits_and_long_fractions_pass() -> None:
    assert check(b"[18446744073709551615, 0.12345678901234567890123]", LIMITS)[0] == 2**64 - 1
    assert check(b'["99999999999999999999999"]', LIMITS) == ["9" * 23]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"a":"\\ud800"}', "half of a surrogate pair"),
        (b'["\\uDBFFx"]', "half of a surrogate pair"),
        (b'"\\udc00"', "surrogate pair"),
        (b'{"a":"\\ud83d\\ude00"', "truncated"),
        (b"{", "truncated"),
        (b"", "is empty"),
        (b" \r\n", "is empty"),
    ],
)
def test_a_string_that_is_no_text_is_not_called_truncated(data: bytes, why: str) -> None:
    with pytest.raises(RemoteProtocolError, match=why) as refused:
        check(data, LIMITS)
    assert refused.value.stage is Stage.JSON
