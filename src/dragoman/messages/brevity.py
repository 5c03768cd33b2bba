"""Text that is too long for its place: a row that is often written again, or a message of some protocol.

It is cut, with a mark. The whole text is in the task's events, where people find it.
"""

from __future__ import annotations

LONGEST_TEXT = 4 * 1024 * 1024
"""Bytes of each text: half of a message in most protocols, because JSON may need more bytes than the text has."""

CUT = "… (cut here; the whole is kept with the task)"


def in_short(text: str, most: int) -> str:
    """At most so many bytes of the text, in UTF-8, never cut inside a character; and the mark."""
    if len(text) * 4 <= most or len(data := text.encode("utf-8", "surrogatepass")) <= most:
        return text
    return data[:most].decode("utf-8", "ignore") + CUT
