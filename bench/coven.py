"""Coven: the bare echo, the peer, and ours, in one run."""

from __future__ import annotations

from collections.abc import Iterable

from bench import peer_autogen, raw_grpc
from bench.figures import Figure, Settings


def measure(settings: Settings) -> Iterable[Figure]:
    yield from raw_grpc.measure(settings)
    yield from peer_autogen.measure(settings)
