"""The documents and the command line name the same commands and options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from cyclopts import App

from dragoman.cli.main import COMMANDS, build

ROOT = Path(__file__).parents[3]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PAGE = (ROOT / "docs" / "cli.md").read_text()
TYPED = re.compile(r"(?:^|[`(\s])dragoman (?!-)((?:[a-z]+(?:-[a-z]+)* ?)+)(.*)")
"""A command in a code block or a code span, and what follows it."""

CONTAINER = re.compile(r"^(?:kubectl|docker|podman|install) (?:.*?exec \S+ (?:-- )?(?P<inside>.*)|.*)$")
"""A command of another program: only what it runs inside a container may be ours."""


@cache
def verbs(command: str) -> frozenset[str]:
    """The commands below a command: `add`, `run`, … of `agent`; none for one that has none."""
    [path] = [path for name, path, _, _ in COMMANDS if name == command]
    module, _, attribute = path.partition(":")
    found = getattr(import_module(module), attribute)
    return frozenset(name for name in found if not name.startswith("-")) if isinstance(found, App) else frozenset()


def typed(text: str) -> Iterator[tuple[str, str | None]]:
    """Each `dragoman COMMAND VERB` of a document."""
    code = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`(dragoman [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    for line in (*(line for one in code for line in one.splitlines()), *spans):
        other = CONTAINER.match(line)
        ours = line if other is None else other["inside"] or ""
        if found := TYPED.search(ours.partition("#")[0]):
            command, *words = found[1].split()
            yield command, words[0] if words else None


def test_every_command_in_the_documents_exists() -> None:
    known = {name for name, _, _, _ in COMMANDS}
    wrong = set()
    for document in DOCUMENTS:
        for command, verb in typed(document.read_text()):
            if command not in known or (verbs(command) and verb is not None and verb not in verbs(command)):
                wrong.add(f"{document.relative_to(ROOT)}: dragoman {command} {verb or ''}")
    assert wrong == set()


def test_the_page_of_the_command_line_has_every_command() -> None:
    missing = {name for name, _, _, _ in COMMANDS if f"`dragoman {name}" not in PAGE}
    for name, _, _, _ in COMMANDS:
        rows = " ".join(line for line in PAGE.splitlines() if f"dragoman {name}" in line)
        missing |= {f"{name} {verb}" for verb in verbs(name) if not re.search(rf"\b{verb}\b", rows)}
    assert missing == set()


def test_the_command_line_is_built_from_the_same_table() -> None:
    assert {name for name, _, _, _ in COMMANDS} <= set(build())
