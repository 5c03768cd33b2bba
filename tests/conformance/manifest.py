"""What a protocol's manifest is made of: one `Requirement` for each clause and each decision.

`level` says where a requirement can be shown: in the pure protocol, in the hub's core, over a transport, or in the
SDK. A manifest also has `AWAITED`: the ids that no test shows yet. The meta-test holds it to be exact, so that it
can only shrink in plain sight.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Requirement(NamedTuple):
    """One thing a protocol asks for, in our words."""

    id: str
    clause: str
    sentence: str
    level: Literal["protocol", "hub", "sdk", "transport"] = "protocol"
    divergence: str | None = None
