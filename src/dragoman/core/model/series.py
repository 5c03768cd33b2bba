"""Figures over time that the hub keeps itself: how much came, ended, failed, took, cost, in steps of time.

There are four resolutions, each kept for so long that it fills its range; what is older is in the next coarser one:

    step     kept        for
    -------  ----------  -----------------
    15 s     6 hours     15 minutes to 6 hours
    5 min    2 days      a day
    1 h      31 days     7 and 30 days

A `Bucket` is one step of one resolution. Buckets add up (`plus`), so a coarse one is the sum of fine ones, and times
are counted in a histogram whose bins grow by a fixed factor, so that a percentile of a sum is as good as one of its
parts.
"""

from __future__ import annotations

import math
from collections import Counter

import msgspec

STEPS = (15, 300, 3600)
"""Seconds of a bucket, the finest first."""
KEPT = {15: 6 * 3600, 300: 2 * 86_400, 3600: 31 * 86_400}
RANGES = {
    "15m": (900, 15),
    "1h": (3600, 15),
    "6h": (6 * 3600, 15),
    "1d": (86_400, 300),
    "7d": (7 * 86_400, 3600),
    "30d": (30 * 86_400, 3600),
}
"""What may be asked for: seconds, and the resolution that shows it."""

GROWTH = math.log(1.25)
"""Each bin of a histogram of times is a quarter wider than the one before; the first ends at a millisecond."""
FIRST = 0.001
MOST_AGENTS = 200
"""Agents counted one by one in a bucket; the others are counted together."""
OTHERS = "(others)"


class AgentFigures(msgspec.Struct, omit_defaults=True):
    completed: int = 0
    failed: int = 0
    cost: float = 0.0


class Bucket(msgspec.Struct, omit_defaults=True):
    """`at` is the second it begins; `times` counts tasks by how long they took (the number of a bin), `traffic`
    counts them by the protocols of caller and agent. `queue_depth` is the most that waited at once."""

    step: int
    at: int
    submitted: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    dead_lettered: int = 0
    queue_depth: int = 0
    times: dict[int, int] = {}
    traffic: dict[str, int] = {}
    agents: dict[str, AgentFigures] = {}

    def plus(self, other: Bucket) -> None:
        """Add another bucket to this one."""
        for name in ("submitted", "completed", "failed", "cancelled", "retried", "dead_lettered"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.queue_depth = max(self.queue_depth, other.queue_depth)
        self.times = dict(Counter(self.times) + Counter(other.times))
        self.traffic = dict(Counter(self.traffic) + Counter(other.traffic))
        for id, figures in other.agents.items():
            self.of_agent(id).completed += figures.completed
            self.of_agent(id).failed += figures.failed
            self.of_agent(id).cost += figures.cost

    def of_agent(self, id: str) -> AgentFigures:
        if id not in self.agents and len(self.agents) >= MOST_AGENTS:
            id = OTHERS
        found = self.agents.get(id)
        if found is None:
            found = self.agents[id] = AgentFigures()
        return found

    def percentile(self, share: float) -> float | None:
        """The time in seconds that this share of the tasks needed at most."""
        return percentile(self.times, share)


def bin_of(seconds: float) -> int:
    return 0 if seconds <= FIRST else math.ceil(math.log(seconds / FIRST) / GROWTH)


def percentile(times: dict[int, int], share: float) -> float | None:
    total = sum(times.values())
    if not total:
        return None
    seen = 0
    for bin in sorted(times):
        seen += times[bin]
        if seen >= share * total:
            return float(FIRST * math.exp(bin * GROWTH))
    return None


class SeriesRow(msgspec.Struct, frozen=True, gc=False):
    """A bucket as the store keeps it. Writing it again replaces it; the store deletes those older than `KEPT`."""

    step: int
    at: int
    body: msgspec.Raw

    @property
    def id(self) -> tuple[int, int]:
        return self.step, self.at


_read = msgspec.json.Decoder(Bucket).decode
_write = msgspec.json.Encoder().encode


def row_of(bucket: Bucket) -> SeriesRow:
    return SeriesRow(bucket.step, bucket.at, msgspec.Raw(_write(bucket)))


def bucket_of(row: SeriesRow) -> Bucket:
    return _read(row.body)


def total(buckets: list[Bucket], step: int, at: int) -> Bucket:
    """The sum of buckets, as one of this step."""
    found = Bucket(step, at)
    for bucket in buckets:
        found.plus(bucket)
    return found
