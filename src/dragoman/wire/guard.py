"""What every input passes before any protocol looks at it: size, nesting depth, strict JSON (all-D3).

This is the hot path of the whole hub, so nothing here walks the input byte by byte in Python. Each check has a
cheap bound that settles ordinary input, and an exact check for whatever the bound cannot settle:

    check             cheap bound                                  exact check, only when in doubt
    ----------------  -------------------------------------------  ---------------------------------------
    size              len()                                        -
    depth, division   number of opening brackets, anywhere         running sum over brackets outside strings
    strict JSON       msgspec parses the whole text                -
    repeated keys     colons before parsing = colons after         stdlib json, pairs kept
    huge integers     a run of twenty digits, anywhere             stdlib json, integers kept as text
    huge numbers      msgspec refuses them                         stdlib json, to say where it is

Why counting colons is exact: parsing keeps the last of two equal keys, so encoding the parsed tree again loses
at least the colon after the dropped key, and nothing else adds or removes a colon, save the escape `\\u003a`. When that
might be present the exact check decides. Keys spelt differently but equal (`"\\u0061"` and `"a"`) fall together
in the parsed tree, so they are caught alike.

msgspec refuses by itself: invalid UTF-8, lone surrogates, NaN and Infinity, numbers that overflow a double,
control characters, a byte order mark, anything after the value. It accepts integers of any width up to a few
thousand digits. This module refuses a magnitude of 2**64 or more, because the next reader of the message would fail on
it or round it silently.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from itertools import accumulate, islice
from typing import Any

import msgspec

from dragoman.wire.errors import RemoteProtocolError, Stage


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How large, how deeply nested and how finely divided one message may be.

    `containers` counts arrays and objects. Each costs a few dozen times its two bytes once it is parsed, so a message
    of nothing but `[]` would hold up all other connections for a second.
    """

    bytes: int
    depth: int = 64
    containers: int = 100_000


INTEGER_MAGNITUDE = 2**64

_OPEN, _CLOSE = b"[{", b"]}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_OPEN + _CLOSE))
# Read as signed bytes, an opening bracket becomes +1 and a closing one -1: the running sum is the depth.
_STEPS = bytes.maketrans(_OPEN + _CLOSE, b"\x01\x01\xff\xff")
# The closing quote is optional so that the pattern can never fail after a long scan, which would be quadratic.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SLICE = 4096
_BACKSLASH = ord("\\")

_DIGITS = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
_TWENTY_DIGITS = b"0" * 20
_MOST_DIGITS = 21
"""Of 64 bits, and a sign. Python makes no integer of thousands of digits."""

# What comes after half of a pair is missing: to msgspec the text ends there.
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")

_SPACE = b" \t\r\n"

_parse = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode


def check(data: bytes, limits: Limits) -> Any:
    """Return the parsed JSON, or raise `RemoteProtocolError` naming the stage that refused it."""
    if len(data) > limits.bytes:
        raise RemoteProtocolError(f"message of {len(data)} bytes exceeds the limit of {limits.bytes}", stage=Stage.SIZE)
    if data.count(b"[") + data.count(b"{") > limits.depth:
        _check_nesting(data, limits)
    try:
        tree = _parse(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if "out of range" in str(error):
            with contextlib.suppress(ValueError):  # it is no JSON in other respects, either
                _look_exactly(data)
        if not data.strip(_SPACE):
            raise RemoteProtocolError("the message is empty, where JSON is expected", stage=Stage.JSON) from None
        halved = "truncated" in str(error) and _HALF_PAIR.search(data) is not None
        why = "half of a surrogate pair stands alone in a string" if halved else error
        raise RemoteProtocolError(f"not strict JSON: {why}", stage=Stage.JSON) from None
    escaped = data.find(_BACKSLASH) >= 0 and b"\\u003" in data
    if data.count(b":") != _write(tree).count(b":") or escaped or _TWENTY_DIGITS in data.translate(_DIGITS):
        _look_exactly(data)
    return tree


def _check_nesting(data: bytes, limits: Limits) -> None:
    """Sum the brackets outside strings, a slice at a time, so that hostile nesting is refused at once."""
    steps = memoryview(_STRING.sub(b"", data).translate(_STEPS, _NOT_BRACKETS)).cast("b")
    depth = 0
    for start in range(0, len(steps), _SLICE):
        sums = list(islice(accumulate(steps[start : start + _SLICE], initial=depth), 1, None))
        if max(sums) > limits.depth:
            raise RemoteProtocolError(f"nested deeper than {limits.depth} levels", stage=Stage.DEPTH)
        if start > 2 * limits.containers:
            break
        depth = sums[-1]
    if len(steps) > 2 * limits.containers:
        raise RemoteProtocolError(f"more than {limits.containers} arrays and objects", stage=Stage.DEPTH)


class _Object(list[tuple[str, Any]]):
    """A JSON object with every pair it had, repeated keys included."""


def _look_exactly(data: bytes) -> None:
    """Name the key or the number that is at fault, if one is. The depth is known to be bounded, so recursion is safe
    here."""
    tree = json.loads(str(data, "utf-8"), object_pairs_hook=_Object, parse_int=_Digits, parse_constant=_no_number)
    for path, fault in _faults(tree, ""):
        raise RemoteProtocolError(fault, stage=Stage.JSON, field=path)


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class _Digits(str):
    """An integer as it was written."""

    __slots__ = ()


def _faults(value: Any, path: str) -> Any:
    if isinstance(value, _Object):
        seen: set[str] = set()
        for key, inner in value:
            place = f"{path}.{key}" if path else key
            if key in seen:
                yield place, "key appears twice in one object"
            seen.add(key)
            yield from _faults(inner, place)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _faults(inner, f"{path}[{index}]")
    elif isinstance(value, _Digits) and (len(value) > _MOST_DIGITS or abs(int(value)) >= INTEGER_MAGNITUDE):
        yield path or None, "integer of more than 64 bits"
    elif isinstance(value, float) and math.isinf(value):
        yield path or None, "number beyond what a double holds"
