"""MessagePack, held to JSON's rules (D12): what could not be written as JSON is refused, and the same guard checks it.

It is turned into JSON text at once, so that everything behind the codec sees one form for both encodings. Binary
values become base64 text, which is what an attachment's data is in JSON.

    could slip through           caught by
    ---------------------------  -----------------------------------------------------------------------
    endless nesting              msgspec's own bound while reading, the guard's afterwards
    a key twice in one map       reading keeps the last: written again, the message is shorter
    NaN, infinities              looked for in the bytes, then in the values
    extension types              cannot be written as JSON

Written again, a message grows only where it had floats of four bytes. Where one of these may hide a lost key, or the
sender wrote numbers longer than it had to, the pairs are counted one by one.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError, Stage
from dragoman.wire.guard import Limits

MOST_ITEMS = 200_000
"""How many items are counted one by one, at most: it is done in Python."""

_read = msgspec.msgpack.Decoder().decode
_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_SHORT_FLOAT = b"\xca"
_odd_float = re.compile(rb"\xca[\x7f\xff][\x80-\xff]|\xcb[\x7f\xff][\xf0-\xff]").search


def unpack(data: bytes, limits: Limits) -> tuple[Any, bytes]:
    """The message as a checked tree and as JSON text; raises `RemoteProtocolError`."""
    if len(data) > limits.bytes:
        raise RemoteProtocolError(f"message of {len(data)} bytes exceeds the limit of {limits.bytes}", stage=Stage.SIZE)
    try:
        tree = _read(data)
    except RecursionError:
        raise RemoteProtocolError(f"nested deeper than {limits.depth} levels", stage=Stage.DEPTH) from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError, TypeError) as error:
        raise RemoteProtocolError(f"not MessagePack: {error}", stage=Stage.JSON) from None
    try:
        text = _json(tree)
        if (len(_pack(tree)) != len(data) or _SHORT_FLOAT in data) and _pairs(data) != _pairs_in(tree):
            raise RemoteProtocolError("key appears twice in one map", stage=Stage.JSON)
    except RecursionError:
        raise RemoteProtocolError(f"nested deeper than {limits.depth} levels", stage=Stage.DEPTH) from None
    except (msgspec.MsgspecError, TypeError, OverflowError) as error:
        raise RemoteProtocolError(f"has no form in JSON: {error}", stage=Stage.JSON) from None
    if _odd_float(data) and not _finite(tree):
        raise RemoteProtocolError("not a finite number", stage=Stage.JSON)
    # Base64 and escapes make the text longer than what came; what came was within the limit.
    return guard.check(text, msgspec.structs.replace(limits, bytes=max(limits.bytes, len(text)))), text


def glimpse(data: bytes) -> Any:
    """What a message seems to be that was refused; None if it cannot be read at all."""
    try:
        return _read(data)
    except (RecursionError, msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError, TypeError):
        return None


def pack(value: Any) -> bytes:
    """Anything that has a form in JSON, times included, as MessagePack."""
    return _pack(msgspec.to_builtins(value))


def _finite(tree: Any) -> bool:
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if type(value) is float and not math.isfinite(value):
            return False
        if type(value) is dict:
            waiting.extend(value.values())
        elif type(value) is list:
            waiting.extend(value)
    return True


def _pairs_in(tree: Any) -> int:
    count = 0
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            count += len(value)
            waiting.extend(value.values())
        elif type(value) is list:
            waiting.extend(value)
    return count


#: First byte → (bytes of a fixed-size body | bytes of a length field, what the length counts).
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4,
          0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # fmt: skip
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENDED = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def _pairs(data: bytes) -> int:
    """How many pairs all the maps have together, repeated keys included. The data was read before, so it is whole."""
    place, pairs, items = 0, 0, 0
    end = len(data)
    while place < end:
        first = data[place]
        place += 1
        items += 1
        if items > MOST_ITEMS:
            raise RemoteProtocolError(f"more than {MOST_ITEMS} items in an unusual encoding", stage=Stage.DEPTH)
        if first < 0x80 or first >= 0xE0 or 0x90 <= first < 0xA0:  # small integers; arrays, whose items follow
            continue
        if first < 0x90:
            pairs += first & 0x0F
        elif first < 0xC0:
            place += first & 0x1F
        elif first in _FIXED:
            place += _FIXED[first]
        else:
            width = _SIZED.get(first) or _EXTENDED.get(first) or _ARRAYS.get(first) or _MAPS[first]
            length = int.from_bytes(data[place : place + width], "big")
            place += width
            if first in _MAPS:
                pairs += length
            elif first in _SIZED:
                place += length
            elif first in _EXTENDED:
                place += length + 1
    return pairs
