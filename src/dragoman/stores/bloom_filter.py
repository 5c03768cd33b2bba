"""A Bloom filter of names (ids of requests and messages) in the database, which saves lookups of new ones.

Most ids that the hub looks up are new, and a lookup in the database costs more than the rest of such a decision. So the
store adds every written name to this filter. A name that is not in the filter is not in the database; any other is
looked up. A false positive costs one lookup. Names of removed rows stay until the next start.

A name is added *before* its row is committed, so it is in the filter whether or not the commit succeeds. After a start
the names of earlier runs are read in pages; until that is done the filter rules out no name.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

SMALLEST, LARGEST = 1 << 24, 1 << 26
"""Bits of the first field, two megabytes, and of every later one."""

BITS_A_NAME = 16
"""A field with fewer bits for each name is full: one lookup in two hundred is a false positive then, per field."""


class NameFilter:
    """Fields of bits; names are added to the newest. Every name has three bits in one field.

    Hashes are Python's own, which have a new key in every process: an attacker cannot choose names that collide.
    """

    __slots__ = ("_fields", "_largest", "_room", "complete")

    def __init__(self, smallest: int = SMALLEST, largest: int = LARGEST) -> None:
        self._fields = [(bytearray(smallest // 8), smallest - 1)]
        self._room = smallest // BITS_A_NAME
        self._largest = largest
        self.complete = False
        """Whether the names of earlier runs have been added."""

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
        """Whether the database certainly has no row of that name."""
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
