"""Text from outside, made safe to show.

Names, outputs and questions come from agents, and a terminal obeys what it is shown: escape sequences move the
cursor and rewrite lines, bidirectional marks turn `cancel` into something else, invisible characters make two names
look alike. All of them are shown as what they are; nothing is removed (forge-D13).
"""

from __future__ import annotations

import json
import re
from typing import Any

# C0 and C1 controls and DEL; soft hyphen; Arabic letter mark; zero-width characters and direction marks; line and
# paragraph separators; embeddings and overrides; word joiner, invisible operators and isolates; byte order mark and
# interlinear annotation; lone surrogates; tags.
_UNSAFE = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f"
)
_LINE = re.compile(f"[{_UNSAFE}]")
_BLOCK = re.compile(f"(?![\n\t])[{_UNSAFE}]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}


def _spell(match: re.Match[str]) -> str:
    char = match.group()
    code = ord(char)
    return _NAMED.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:x}}}")


def line(value: Any) -> str:
    """One line of safe text."""
    return _LINE.sub(_spell, str(value))


def block(value: Any) -> str:
    """Safe text that may have lines and tabs. A carriage return before a line's end is dropped, others are shown."""
    return _BLOCK.sub(_spell, str(value).replace("\r\n", "\n"))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that means exactly the same, and is safe on a terminal too."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    return _BLOCK.sub(lambda match: json.dumps(match.group())[1:-1], text)
