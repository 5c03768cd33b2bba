"""Every setting that a document names exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from dragoman.app.settings.model import Settings

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))

NO_SETTINGS = {"v1", "proto", "hub", "dead"}
"""`chiffon.v1` is a subprotocol, `coven.proto` a file; `chiffon.hub` and `chiffon.dead` are queues of a broker."""


def groups() -> dict[str, set[str]]:
    """The groups of `dragoman.toml`, each with its keys."""
    found = {}
    for field in msgspec.structs.fields(Settings):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found[field.name] = {key.encode_name for key in msgspec.structs.fields(field.type)}
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_setting_in_a_document_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    known = groups()
    named = re.findall(rf"`({'|'.join(known)})\.([a-z_0-9]+)(?: = [^`]*)?`", text)
    for block in re.findall(r"^```toml\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        named += [(group, key) for group, keys in tomllib.loads(block).items() if group in known for key in keys]
    wrong = {f"{group}.{key}" for group, key in named if key not in known[group] | NO_SETTINGS}
    assert wrong == set()
