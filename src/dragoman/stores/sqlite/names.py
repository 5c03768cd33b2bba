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

BITS = 1 << 24
"""Two megabytes. With a million names one look in two hundred is in vain, with four millions one in seven."""


class Names:
    """Hashes are Python's own, which are keyed anew for every process: nobody can choose names that fall together."""

    __slots__ = ("_field", "_mask", "complete")

    def __init__(self, bits: int = BITS) -> None:
        self._field = bytearray(bits // 8)
        self._mask = bits - 1
        self.complete = False
        """Whether the names of earlier runs are noted, too."""

    def note(self, name: Hashable) -> None:
        hashed, mask, field = hash(name), self._mask, self._field
        for place in (hashed & mask, hashed >> 20 & mask, hashed >> 40 & mask):
            field[place >> 3] |= 1 << (place & 7)

    def note_all(self, names: Iterable[Hashable]) -> None:
        for name in names:
            self.note(name)

    def lack(self, name: Hashable) -> bool:
        """Whether no row of that name can be there."""
        if not self.complete:
            return False
        hashed, mask, field = hash(name), self._mask, self._field
        place = hashed & mask
        if not field[place >> 3] >> (place & 7) & 1:
            return True
        place = hashed >> 20 & mask
        if not field[place >> 3] >> (place & 7) & 1:
            return True
        place = hashed >> 40 & mask
        return not field[place >> 3] >> (place & 7) & 1
