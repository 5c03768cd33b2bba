"""Forge: bare pipes, the peer, and ours, in one run."""

from __future__ import annotations

from collections.abc import Iterable

from bench import peer_acp, raw_pipe
from bench.figures import Figure, Settings


def measure(settings: Settings) -> Iterable[Figure]:
    yield from raw_pipe.measure(settings)
    yield from peer_acp.measure(settings)
