"""Coven over gRPC: the endpoint, an agent's stream (`stream`, a wire; `session`, coven on it), callers (`callers`), who
is who (`authentication`), who is connected (`connected_agents`), and how much of everything (`limits`)."""

from dragoman.server.coven.endpoint import CovenEndpoint
from dragoman.server.coven.limits import CovenLimits

__all__ = ["CovenEndpoint", "CovenLimits"]
