"""The hub's metrics for Prometheus.

Labels are closed lists (a command's type, an outcome, a protocol): never an id. The intake counts into plain
dictionaries (`Counters`), which costs it no lock; they become Prometheus families when a scrape asks (`Metrics`).

    dragoman_commands_total{command,outcome}       what was asked, and "ok" or the kind of refusal
    dragoman_commit_seconds, dragoman_commit_size  one observation a commit
    dragoman_commit_failures_total                 units that could not be committed
    dragoman_events_total{kind}                    what happened to tasks
    dragoman_deliveries_sent_total{protocol}       outgoing messages handed to links
    dragoman_retries_total                         attempts that failed and are tried again
    dragoman_dead_letters_made_total               given up
    dragoman_breaker_transitions_total{state}      breakers that changed to this state
    dragoman_tasks_forgotten_total                 finished tasks that were removed after their time
    dragoman_files_dropped_total                   files that belonged to no task any more
    dragoman_coven_total{what}                     what coven's endpoint met: streams, what it ignored, whom it refused
    dragoman_links_open, dragoman_intake_depth     as of the scrape
    dragoman_streams_open                          streams of events that callers follow
    dragoman_held_bytes, dragoman_held_bytes_limit bytes of messages that are not decided yet, and how many may be
    dragoman_held_waiting                          requests and links that wait for room among them
    dragoman_held_refused_total                    requests refused because there was none
    dragoman_commit_age_seconds, dragoman_oldest_command_age_seconds    of the commit under way, and of who waits
    dragoman_cluster_leader, dragoman_cluster_epoch    whether this node leads, and the epoch it knows of
    dragoman_cluster_terms_total{part}             times that this node began to lead, follow or wait
    dragoman_cluster_replication_bytes{standby}    how far PostgreSQL's standbys are behind (asked by the leader)
    dragoman_tasks{status}, dragoman_deliveries{state}, dragoman_dead_letters, dragoman_questions_open    from the store
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from dragoman.app.intake import Observer
from dragoman.core.commands import Command
from dragoman.core.ids import SECOND, AgentId
from dragoman.core.memory import MemoryBudget
from dragoman.core.model.agents import Agent, BreakerState
from dragoman.core.model.deliveries import DeadLetter
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.core.ports import Changes

COMMIT_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
COMMIT_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

GAUGES = {"tasks": "status", "deliveries": "state"}
"""Figures of `Store.counts` whose name ends with a label's value: `tasks_queued`."""


class Counters(Observer):
    """Counts what the intake does."""

    def __init__(self) -> None:
        self.commands: Counter[tuple[str, str]] = Counter()
        self.events: Counter[str] = Counter()
        self.sent_to: Counter[str] = Counter()
        self.breakers: Counter[str] = Counter()
        self.dead_letters = 0
        self.forgotten = 0
        self.removed = 0
        self.failures = 0
        self.commit_seconds = Histogram(
            "dragoman_commit_seconds", "How long a commit took", buckets=COMMIT_SECONDS, registry=None
        )
        self.commit_size = Histogram(
            "dragoman_commit_size", "Commands in one commit", buckets=COMMIT_SIZES, registry=None
        )
        self._breaker_of: dict[AgentId, BreakerState] = {}

    def decided(self, command: Command, outcome: str) -> None:
        self.commands[type(command).__name__, outcome] += 1

    def committed(self, changes: Changes, commands: int, seconds: float) -> None:
        self.commit_seconds.observe(seconds)
        self.commit_size.observe(commands)
        events = self.events
        for row in changes.added:
            if type(row) is Event:
                events[row.kind] += 1
            elif type(row) is DeadLetter:
                self.dead_letters += 1
        for row in changes.changed:
            if type(row) is Agent:
                self._note_breaker(row)
        for row in changes.removed:
            self.forgotten += type(row) is Task

    def _note_breaker(self, agent: Agent) -> None:
        state = agent.breaker.state
        if self._breaker_of.get(agent.id, BreakerState.CLOSED) is not state:
            self._breaker_of[agent.id] = state
            self.breakers[state.value] += 1

    def failed(self, commands: int) -> None:
        self.failures += 1

    def files_removed(self, count: int) -> None:
        self.removed += count

    def sent(self, outgoing_messages: int, protocol: str = "any") -> None:
        if outgoing_messages:
            self.sent_to[protocol] += outgoing_messages


def _zero() -> int:
    return 0


def _not_stalled() -> tuple[int, int]:
    return 0, 0


def _no_counts() -> Mapping[str, int]:
    return {}


class ClusterFigures(msgspec.Struct, frozen=True, kw_only=True):
    leads: bool
    epoch: int
    terms: Mapping[str, int]
    """How many terms this node began, by its part in them."""
    behind: Mapping[str, int]
    """Bytes that each standby of PostgreSQL has not applied yet."""


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """What a scrape reads of the running hub. `stalled` is `Intake.stalled`; `coven`, `endpoints`: what they count."""

    links_open: Callable[[], int] = _zero
    intake_depth: Callable[[], int] = _zero
    log_bytes: Callable[[], int] = _zero
    streams_open: Callable[[], int] = _zero
    stalled: Callable[[], tuple[int, int]] = _not_stalled
    coven: Callable[[], Mapping[str, int]] = _no_counts
    endpoints: Callable[[], Mapping[str, int]] = _no_counts
    memory: MemoryBudget
    cluster: Callable[[], ClusterFigures] | None = None


class Metrics:
    """`api.context.Exposition`: counters and gauges as text."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, counters: Counters, gauges: Gauges) -> None:
        self._counters = counters
        self._gauges = gauges
        self._counts: Mapping[str, int] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(counters.commit_seconds)
        self._registry.register(counters.commit_size)
        self._registry.register(_Families(self._families))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def expose(self, counts: Mapping[str, int]) -> bytes:
        self._counts = counts
        return generate_latest(self._registry)

    def _families(self) -> Iterator[Metric]:
        counted, now = self._counters, self._gauges
        commands = CounterMetricFamily("dragoman_commands", "What was asked", labels=("command", "outcome"))
        for (command, outcome), n in counted.commands.items():
            commands.add_metric((command, outcome), n)
        yield commands
        yield _labelled("dragoman_events", "What happened to tasks", "kind", counted.events)
        yield _labelled("dragoman_deliveries_sent", "Messages handed to links", "protocol", counted.sent_to)
        yield _labelled("dragoman_breaker_transitions", "Breakers that changed to this", "state", counted.breakers)
        retries = counted.events[EventKind.ATTEMPT_FAILED]
        yield CounterMetricFamily("dragoman_retries", "Attempts that failed and are tried again", retries)
        yield CounterMetricFamily("dragoman_dead_letters_made", "Given up", counted.dead_letters)
        yield CounterMetricFamily("dragoman_tasks_forgotten", "Finished tasks that were removed", counted.forgotten)
        yield CounterMetricFamily("dragoman_files_dropped", "Files that belonged to no task any more", counted.removed)
        yield CounterMetricFamily("dragoman_commit_failures", "Units that could not be committed", counted.failures)
        yield _labelled("dragoman_coven", "What coven's endpoint met", "what", now.coven())
        yield GaugeMetricFamily("dragoman_links_open", "Links open now", now.links_open())
        yield GaugeMetricFamily("dragoman_intake_depth", "Commands waiting to be decided", now.intake_depth())
        yield GaugeMetricFamily("dragoman_store_log_bytes", "Bytes in the write-ahead log", now.log_bytes())
        yield GaugeMetricFamily("dragoman_streams_open", "Streams of events open now", now.streams_open())
        for name, count in now.endpoints().items():
            yield GaugeMetricFamily(f"dragoman_{name}", "What an endpoint of the hub counts", count)
        yield from self._held()
        yield from self._of_the_cluster()
        yield from self._of_the_store()

    def _held(self) -> Iterator[Metric]:
        memory, (unit, waits) = self._gauges.memory, self._gauges.stalled()
        yield GaugeMetricFamily("dragoman_held_bytes", "Bytes of messages that are not decided yet", memory.held)
        yield GaugeMetricFamily("dragoman_held_bytes_limit", "How many there may be", memory.limits.total)
        yield GaugeMetricFamily("dragoman_held_waiting", "Requests and links that wait for room", memory.waiting)
        yield CounterMetricFamily("dragoman_held_refused", "Requests refused for want of room", memory.refused)
        yield GaugeMetricFamily("dragoman_commit_age_seconds", "Age of the commit under way", unit / SECOND)
        yield GaugeMetricFamily("dragoman_oldest_command_age_seconds", "Age of the oldest that waits", waits / SECOND)

    def _of_the_cluster(self) -> Iterator[Metric]:
        if self._gauges.cluster is None:
            return
        now = self._gauges.cluster()
        yield GaugeMetricFamily("dragoman_cluster_leader", "1 where this node leads", float(now.leads))
        yield GaugeMetricFamily("dragoman_cluster_epoch", "The epoch that this node knows of", now.epoch)
        yield _labelled("dragoman_cluster_terms", "Terms that this node began", "part", now.terms)
        behind = GaugeMetricFamily(
            "dragoman_cluster_replication_bytes", "Bytes that a standby of PostgreSQL is behind", labels=("standby",)
        )
        for standby, n in now.behind.items():
            behind.add_metric((standby,), n)
        yield behind

    def _of_the_store(self) -> Iterator[Metric]:
        for group, label in GAUGES.items():
            family = GaugeMetricFamily(f"dragoman_{group}", f"Unfinished {group}, from the store", labels=(label,))
            for name, n in self._counts.items():
                if name.startswith(f"{group}_"):
                    family.add_metric((name.removeprefix(f"{group}_"),), n)
            yield family
        for name, n in self._counts.items():
            if name.partition("_")[0] not in GAUGES:
                yield GaugeMetricFamily(f"dragoman_{name}", "From the store", n)


def _labelled(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, n in counts.items():
        family.add_metric((value,), n)
    return family


class _Families:
    """A collector over a function."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def describe(self) -> Iterable[Metric]:
        return ()
