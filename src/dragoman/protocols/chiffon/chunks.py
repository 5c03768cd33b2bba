"""Outputs too long for one message: labels, splitting, reassembly (D3, D4).

A block's label says which bytes of the whole output it holds, counted in UTF-8, the end exclusive:
`bytes 0-262144 of 524288`. We always write that form. The document also shows `bytes 0-256k`: a label in k
(1024) may be rounded, so its block may be shorter or longer than the label by less than 1 KiB, and order follows
the labels. Without a total, the whole is known to be whole only when the result arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from dragoman.protocols.chiffon.types import WorkResult

MIB = 1024 * 1024
LARGEST_OUTPUT = MIB
BLOCK = 262_144
QUOTA = 64 * MIB
MOST_BLOCKS = 4096

_RANGE = "bytes ([0-9]{1,15})(k?)-([0-9]{1,15})(k?)"
_TOTAL = " of ([0-9]{1,15})(k?)"
LABEL_PATTERN = f"^{_RANGE}(?:{_TOTAL})?$"
RESULT_LABEL_PATTERN = f"^{_RANGE}{_TOTAL}$"
_LABEL = re.compile(LABEL_PATTERN)


class ChunkError(ValueError):
    """A block that does not fit; answered with 5003, and the buffer is freed."""


class Label(NamedTuple):
    """Bytes `start` to `end`, exclusive, of `total` where it is known."""

    start: int
    end: int
    total: int | None
    slack: int = 0

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total}"
        return f"bytes {self.start}-{self.end}{of}"


class Block(Struct, frozen=True):
    """A labelled piece of output."""

    label: Label
    text: str


def parse(text: str) -> Label:
    """Read a label in any of its forms."""
    match = _LABEL.fullmatch(text)
    if match is None:
        raise ChunkError(f"not a chunk label: {text[:60]!r}")
    start = int(match[1]) * (1024 if match[2] else 1)
    end = int(match[3]) * (1024 if match[4] else 1)
    total = None if match[5] is None else int(match[5]) * (1024 if match[6] else 1)
    if start >= end or (total is not None and end > total):
        raise ChunkError(f"not a range of bytes: {text!r}")
    rounded = bool(match[2] or match[4] or match[6])
    return Label(start, end, total, 1023 if rounded else 0)


def fault(output: str, label: str | None, *, total_required: bool = False) -> tuple[str, str] | None:
    """What is wrong with one message's output and label: (field, why). Nothing, mostly, and at little cost."""
    if must_split(output):
        return "output", f"an output above {LARGEST_OUTPUT} bytes must be split"
    if label is None:
        return None
    try:
        place = parse(label)
        if total_required and place.total is None:
            return "output_chunk", "a result's chunk must state the total"
        _check_length(place, output)
    except ChunkError as error:
        return "output_chunk", str(error)
    return None


def _check_length(label: Label, output: str) -> int:
    size = len(output.encode())
    if abs(size - (label.end - label.start)) > label.slack:
        raise ChunkError(f"{size} bytes do not fit the label {label}")
    return size


def must_split(output: str) -> bool:
    """Whether `output` is too long to travel whole. Short ones are not encoded to find out."""
    return len(output) * 4 > LARGEST_OUTPUT and len(output.encode()) > LARGEST_OUTPUT


def split(output: str, block: int = BLOCK) -> Iterator[Block]:
    """Cut `output` into labelled blocks of at most `block` bytes, never inside a code point."""
    data = output.encode()
    total = len(data)
    start = 0
    while start < total:
        end = min(start + block, total)
        while end < total and data[end] & 0xC0 == 0x80:
            end -= 1
        yield Block(Label(start, end, total), data[start:end].decode())
        start = end


def is_last(result: WorkResult) -> bool:
    """Whether this message ends the exchange: it is whole, or it is the block that reaches the total."""
    if result.output_chunk is None:
        return True
    label = parse(result.output_chunk)
    return label.end == label.total


class Reassembly(Struct, frozen=True, kw_only=True):
    """What has arrived of one split output: a value, so that it can live in a store.

    Blocks may come in any order and more than once. `feed` returns the next value or raises `ChunkError`; after an
    error, or when the set never completes, the holder drops the value, and that is all there is to free.
    """

    quota: int = QUOTA
    total: int | None = None
    size: int = 0
    blocks: tuple[Block, ...] = ()

    def feed(self, block: Block) -> Reassembly:
        """Add one block. The same block again changes nothing."""
        label = block.label
        if max(label.end, label.total or 0) > self.quota:
            raise ChunkError(f"output above the quota of {self.quota} bytes")
        if self.total is not None and label.total is not None and label.total != self.total:
            raise ChunkError(f"total changed from {self.total} to {label.total}")
        size = _check_length(label, block.text)
        place = self._place(block)
        if place is None:
            return self
        if len(self.blocks) >= MOST_BLOCKS:
            raise ChunkError(f"more than {MOST_BLOCKS} blocks")
        total = self.total if label.total is None else label.total
        blocks = (*self.blocks[:place], block, *self.blocks[place:])
        if total is not None and blocks[-1].label.end > total:
            raise ChunkError(f"bytes up to {blocks[-1].label.end} of an output of {total}")
        return Reassembly(quota=self.quota, total=total, size=self.size + size, blocks=blocks)

    def _place(self, block: Block) -> int | None:
        """Where the block belongs, or None if it is there already."""
        place = len(self.blocks)
        while place and self.blocks[place - 1].label.start >= block.label.start:
            place -= 1
        following = self.blocks[place] if place < len(self.blocks) else None
        if following is not None and _same(following, block):
            return None
        if following is not None and following.label.start < block.label.end:
            raise ChunkError(f"{block.label} overlaps {following.label}")
        if place and self.blocks[place - 1].label.end > block.label.start:
            raise ChunkError(f"{block.label} overlaps {self.blocks[place - 1].label}")
        return place

    @property
    def complete(self) -> bool:
        """Whether every byte up to a known total is there."""
        return self.total is not None and self._gap() is None and self._end() == self.total

    def finish(self) -> str:
        """The whole output, now that the result says there is no more. Raises for a gap or a missing tail."""
        gap = self._gap()
        if gap is not None:
            raise ChunkError(f"bytes from {gap} are missing")
        if self.total is not None and self._end() != self.total:
            raise ChunkError(f"bytes {self._end()}-{self.total} are missing")
        return "".join(block.text for block in self.blocks)

    def _end(self) -> int:
        return self.blocks[-1].label.end if self.blocks else 0

    def _gap(self) -> int | None:
        expected = 0
        for block in self.blocks:
            if block.label.start != expected:
                return expected
            expected = block.label.end
        return None


def _same(one: Block, other: Block) -> bool:
    return (one.label.start, one.label.end, one.text) == (other.label.start, other.label.end, other.text)
