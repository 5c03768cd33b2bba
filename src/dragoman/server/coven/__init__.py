"""Coven over gRPC: the door (`door`), an agent's stream (`link`, `reports`), callers (`callers`), who is who
(`identity`), who is here (`roster`), and how much of everything (`limits`)."""

from dragoman.server.coven.endpoint import CovenEndpoint
from dragoman.server.coven.limits import CovenLimits

__all__ = ["CovenEndpoint", "CovenLimits"]
