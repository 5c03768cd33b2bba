"""Which version two parties speak: the lowest they share, as the document has it, or the highest if configured (D9)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from dragoman.protocols.chiffon.errors import UnsupportedVersion
from dragoman.protocols.chiffon.types import PROTOCOL_VERSION

SUPPORTED: tuple[str, ...] = (PROTOCOL_VERSION,)

_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def negotiate(
    theirs: Iterable[str],
    ours: Iterable[str] = SUPPORTED,
    *,
    negotiation: Literal["lowest", "highest"] = "lowest",
) -> str:
    """The version to speak from now on; raises `UnsupportedVersion` where there is none in common.

    Versions compare as numbers, so that 1.10 is above 1.9. What is not a version is in nobody's common set.
    """
    offered, supported = set(theirs), tuple(ours)
    common = sorted((version for version in supported if version in offered), key=_rank)
    if not common:
        raise UnsupportedVersion(sorted(offered), sorted(supported, key=_rank), subject="register")
    return common[0] if negotiation == "lowest" else common[-1]


def _rank(version: str) -> tuple[int, int]:
    parts = _VERSION.fullmatch(version)
    if parts is None:
        raise ValueError(f"not a protocol version of ours: {version!r}")
    return int(parts[1]), int(parts[2])
