"""How a person calls this program: every printed command must work as it is."""

from __future__ import annotations

import os
import shlex
import shutil
import sys


def program() -> str:
    """How to call this program in another terminal: by its name if the PATH finds it, else as it was called."""
    called = sys.argv[0]
    found = shutil.which("dragoman")
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "dragoman"
    return shlex.quote(os.path.relpath(called)) if os.path.basename(called) == "dragoman" else "dragoman"


def hub_option() -> str:
    """The option with the hub's address that this command got, for the next command; empty if it got none."""
    return typed("--data", "--hub")


def typed(*options: str) -> str:
    """The first of these options as it was given to this command, for the next one; nothing if none was."""
    words = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option in options and (equals or words[place + 1 :]):
            return f" {option} {shlex.quote(value if equals else words[place + 1])}"
    return ""
