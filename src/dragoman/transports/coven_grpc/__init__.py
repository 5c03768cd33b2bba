"""Coven over gRPC: the door (`door`), an agent's stream (`link`, `reports`), callers (`callers`), who is who
(`identity`), who is here (`roster`), and how much of everything (`limits`)."""

from dragoman.transports.coven_grpc.door import CovenDoor
from dragoman.transports.coven_grpc.limits import CovenLimits

__all__ = ["CovenDoor", "CovenLimits"]
