"""Which names the database surely does not have, so that news need not be looked for.

Most of what the hub is asked about for the first time is new: a request's id, a message's id. To find that out from the
database costs more than everything else about such a question. So every name that was ever written is noted here, in a
Bloom filter: what is not noted is not there, and what is noted is looked up as before. A name noted in vain costs one
look; names of removed rows stay until the next start.

A name is noted *before* its row is committed, so it is noted whatever becomes of the commit. Those of earlier runs are
read in pages after the start; until all of them are, nothing is known to be missing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

SMALLEST, LARGEST = 1 << 24, 1 << 26
"""Bits of the first field, two megabytes, and of every later one."""

BITS_A_NAME = 16
"""A field that has fewer of them for each of its names is full: one look in two hundred is in vain then, per field."""


class NameFilter:
    """Fields of bits, of which the newest has room. Every name has three bits in one of them.

    Hashes are Python's own, which are keyed anew for every process: nobody can choose names that fall together.
    """

    __slots__ = ("_fields", "_largest", "_room", "complete")

    def __init__(self, smallest: int = SMALLEST, largest: int = LARGEST) -> None:
        self._fields = [(bytearray(smallest // 8), smallest - 1)]
        self._room = smallest // BITS_A_NAME
        self._largest = largest
        self.complete = False
        """Whether the names of earlier runs are noted, too."""

    def note(self, name: Hashable) -> None:
        if not self._room:
            self._fields.append((bytearray(self._largest // 8), self._largest - 1))
            self._room = self._largest // BITS_A_NAME
        self._room -= 1
        hashed, (field, mask) = hash(name), self._fields[-1]
        for place in (hashed & mask, hashed >> 19 & mask, hashed >> 38 & mask):
            field[place >> 3] |= 1 << (place & 7)

    def note_all(self, names: Iterable[Hashable]) -> None:
        for name in names:
            self.note(name)

    def lack(self, name: Hashable) -> bool:
        """Whether no row of that name can be there."""
        if not self.complete:
            return False
        hashed = hash(name)
        for field, mask in self._fields:
            place = hashed & mask
            if field[place >> 3] >> (place & 7) & 1:
                place = hashed >> 19 & mask
                if field[place >> 3] >> (place & 7) & 1:
                    place = hashed >> 38 & mask
                    if field[place >> 3] >> (place & 7) & 1:
                        return False
        return True
