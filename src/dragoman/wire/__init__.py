"""The sans-IO vocabulary all five protocols share: roles, errors, guards, framing.

Nothing here knows a protocol, and nothing here touches a clock, a random source, a socket or a file. Bytes and
values go in, values and bytes come out.
"""

from dragoman.wire.errors import LocalProtocolError, ProtocolError, RemoteProtocolError, Stage
from dragoman.wire.framing import WholeMessage
from dragoman.wire.guard import Limits, check
from dragoman.wire.role import Role

__all__ = [
    "Limits",
    "LocalProtocolError",
    "ProtocolError",
    "RemoteProtocolError",
    "Role",
    "Stage",
    "WholeMessage",
    "check",
]
