"""How a person calls this program: every command we print must work as it stands."""

from __future__ import annotations

import os
import shlex
import shutil
import sys


def program() -> str:
    """How to call us in another terminal: by name if that finds us, else by the way we were called."""
    called = sys.argv[0]
    found = shutil.which("dragoman")
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "dragoman"
    return shlex.quote(os.path.relpath(called)) if os.path.basename(called) == "dragoman" else "dragoman"


def hub_option() -> str:
    """The option that told this command where its hub is, for the next command; nothing if it found it itself."""
    return typed("--data", "--hub")


def typed(*options: str) -> str:
    """The first of these options as it was given to this command, for the next one; nothing if none was."""
    words = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in options and (equals or words[place + 1 :]):
            return f" {option} {shlex.quote(value if equals else words[place + 1])}"
    return ""
