"""What a token allows.

A capability is a name, by habit with a colon: `read:datasets`. It is held or not: there are no wildcards, because
whoever reads a list of grants must see what it grants.

    asked for                          granted (a2acp-D5)
    ---------------------------------  ---------------------------------------------
    nothing                            nothing: good for discovery and handshakes
    some, a part of them allowed       that part, in the order asked
    some, none of them allowed         refused
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dragoman.security.refusals import Reason, Refusal

MOST = 64
"""Capabilities in one token: it travels with every message."""


def grant(asked: Sequence[str], allowed: Collection[str]) -> tuple[str, ...] | Refusal:
    """The capabilities that are both asked for and allowed."""
    granted = tuple(word for word in dict.fromkeys(asked) if word in allowed)
    if asked and not granted:
        return Refusal(Reason.CAPABILITY, "requested_capabilities", tuple(dict.fromkeys(asked))[:MOST])
    if len(granted) > MOST:
        return Refusal(Reason.TOO_MANY, "requested_capabilities")
    return granted
