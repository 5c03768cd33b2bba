"""Who understands whom: versions of the protocol, and versions of agents (D11).

    protocol           same major      understood as it is, whatever the minor
                       next to ours    translated where a translation is registered, else SCHEMA_MISMATCH
                       further away    SCHEMA_MISMATCH
    agent, capability  same major      compatible
                       another         SCHEMA_MISMATCH when the contract is validated

A translation takes a message's JSON object of one major and gives that of the other. Messages come in as the sender's
major and leave as the receiver's, so an agent one major behind needs both directions. There is no major but 1 yet, so
the table is empty: the engineer who makes 2 writes the two rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from dragoman.protocols.a2acp.types import PROTOCOL_VERSION

Translation: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
Translations: TypeAlias = Mapping[tuple[int, int], Translation]

TRANSLATIONS: Translations = {}

_MAJOR = re.compile(r"([0-9]{1,9})(?:\.[0-9]{1,9}){0,2}")


@lru_cache(1024)
def major(version: str) -> int:
    """The first number of a version; raises ValueError where there is none."""
    parts = _MAJOR.fullmatch(version)
    if parts is None:
        raise ValueError(f"not a version: {version!r}")
    return int(parts[1])


def understands(theirs: str, ours: str = PROTOCOL_VERSION, translations: Translations = TRANSLATIONS) -> bool:
    """Whether a message of their version can become one of ours."""
    there, here = major(theirs), major(ours)
    return there == here or (abs(there - here) == 1 and (there, here) in translations)


def supported(ours: str = PROTOCOL_VERSION, translations: Translations = TRANSLATIONS) -> list[str]:
    """The majors that can be read, newest first, as `1.x`."""
    here = major(ours)
    return [f"{n}.x" for n in (here + 1, here, here - 1) if n == here or (n, here) in translations]


def translate(
    tree: dict[str, Any], wanted: str = PROTOCOL_VERSION, translations: Translations = TRANSLATIONS
) -> dict[str, Any] | None:
    """A message in the form of another major, itself where it is of that major, or None without a translation."""
    said = tree["protocol_version"]
    if not understands(said, wanted, translations):
        return None
    if major(said) == major(wanted):
        return tree
    return {**translations[major(said), major(wanted)](tree), "protocol_version": wanted}


def compatible(wanted: str, actual: str) -> bool:
    """Whether an agent or capability of version `actual` does what was promised as `wanted`."""
    return major(wanted) == major(actual)
