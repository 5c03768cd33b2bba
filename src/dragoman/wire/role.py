"""Which end of a link a connection plays.

One machine plays either role, so every protocol test can join two of them over a fake link.
"""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """One end of a link."""

    HUB = "hub"
    AGENT = "agent"

    @property
    def peer(self) -> Role:
        """The role at the other end."""
        return Role.AGENT if self is Role.HUB else Role.HUB
