"""Words that are too long for where they are to stand: a row that is written again and again, some protocol's message.

They are cut, and say so. The whole is in the task's events, where people find it.
"""

from __future__ import annotations

LONGEST_TEXT = 4 * 1024 * 1024
"""Bytes of each text: half of a message of most protocols, for JSON may need more bytes than the text has."""

CUT = "… (cut here; the whole is kept with the task)"


def in_short(words: str, most: int) -> str:
    """At most so many bytes of them, in UTF-8, never cut inside a character; and the mark."""
    if len(words) * 4 <= most or len(data := words.encode("utf-8", "surrogatepass")) <= most:
        return words
    return data[:most].decode("utf-8", "ignore") + CUT
