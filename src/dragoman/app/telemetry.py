"""What the hub tells its operators: structured logs, and metrics for Prometheus.

Logs never hold a secret: values under a telling name, and bearer tokens anywhere in a text, are blotted out before
anything is written. What is personal is taken out first of all (`security.redaction`). Nor can what came from outside
forge a line: control and direction characters are escaped.

Metrics live in a registry of their own. Labels are closed lists (a command's type, an outcome, a protocol): never
an id. The engine counts into plain dictionaries, which costs it no lock; they become Prometheus families when somebody
looks.

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
    dragoman_coven_total{what}                     what coven's door met: streams, what it ignored, whom it refused
    dragoman_links_open, dragoman_intake_depth     as of the scrape
    dragoman_streams_open                          streams of events that callers follow
    dragoman_held_bytes, dragoman_held_bytes_limit bytes of messages that are not decided yet, and how many may be
    dragoman_held_waiting                          requests and links that wait for room among them
    dragoman_held_refused_total                    requests refused because there was none
    dragoman_commit_age_seconds, dragoman_oldest_command_age_seconds    of the commit under way, and of who waits
    dragoman_tasks{status}, dragoman_deliveries{state}, dragoman_dead_letters, dragoman_questions_open    from the store
"""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TextIO

import structlog
from prometheus_client import CollectorRegistry, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from structlog.typing import EventDict, Processor, WrappedLogger

from dragoman.app.intake import Observer
from dragoman.core.commands import Command
from dragoman.core.ids import SECOND, AgentId
from dragoman.core.memory import MemoryBudget
from dragoman.core.model.agents import Agent, BreakerState
from dragoman.core.model.deliveries import DeadLetter
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.core.ports import Changes
from dragoman.security.redaction import blot_personal

# -- logs -------------------------------------------------------------------------------------------------------

BLOT = "[secret]"
SECRET_NAMES = re.compile(r"token|secret|password|passwd|authorization|credential|cookie|api_?key|private", re.I)
HARMLESS_NAMES = frozenset({"token_status", "secrets_blotted"})
SECRET_TEXT = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{6,}|([?&#](?:access_)?token=)[^&\s\"']+")
# Control characters, and those that change the direction or are not seen: U+2028 and its kin, bidi, zero width.
UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
DEEPEST = 6


def blot(value: Any, depth: int = 0) -> Any:
    """The value without secrets, and without characters that could forge a line."""
    if isinstance(value, str):
        text = SECRET_TEXT.sub(lambda match: f"{match[1] or match[2]}{BLOT}", value)
        return UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if depth >= DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        return {str(name): _under(str(name), inner, depth) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [blot(inner, depth + 1) for inner in value]
    return value if isinstance(value, (int, float, bool, type(None))) else blot(str(value), depth + 1)


def _under(name: str, value: Any, depth: int) -> Any:
    if SECRET_NAMES.search(name) and name not in HARMLESS_NAMES and value is not None:
        return BLOT
    return blot(value, depth + 1)


def blot_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The last look at an event before it is written."""
    return {blot(name): _under(name, value, 0) for name, value in event.items()}


def without_personal(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """The first look at an event. What a library says may quote anything, so its whole text counts as contents."""
    record = event.pop("_record", None)
    if record is None:
        return blot_personal(logger, method, event)
    ours, text = event.pop("_from_structlog", False), event.pop("event", "")
    kept = blot_personal(logger, method, {"text": text, **event})
    return {"event": kept.pop("text"), **kept, "_record": record, "_from_structlog": ours}


def not_about_peers_that_left(record: logging.LogRecord) -> bool:
    """gRPC logs an error with a traceback when a peer resets a stream while something is under way on it. Anybody can
    do that at any time, and our own line about the stream says it."""
    return "ExecuteBatchError" not in record.getMessage()


def set_up_logs(*, level: str = "info", form: str = "json", stream: TextIO | None = None) -> None:
    """Everything that logs, ours and the libraries', goes through the same chain to `stream` (stderr).

    `form` is "json" (one object a line) or "console".
    """
    out = sys.stderr if stream is None else stream
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        without_personal,  # before anything could make a text of it
        structlog.stdlib.add_logger_name,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=out.isatty())
        if form == "console"
        else structlog.processors.JSONRenderer()  # ASCII only: what is not, is escaped
    )
    # A traceback becomes text before the blotting, so that a secret in a message of an exception is blotted too.
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            blot_secrets,
            renderer,
        ],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("grpc._cython.cygrpc").addFilter(not_about_peers_that_left)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets", "httpx2", "httpcore2"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
        # They log every request with its address, and an address may hold what must not be logged.
        library.setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


# -- metrics ----------------------------------------------------------------------------------------------------

COMMIT_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
COMMIT_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

GAUGES = {"tasks": "status", "deliveries": "state"}
"""Figures of `Store.counts` whose name ends with a label's value: `tasks_queued`."""


def _none() -> int:
    return 0


class Metrics(Observer):
    """Counts what the intake does; `server.operations.Exposition` for whoever asks."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.links_open: Callable[[], int] = _none
        self.intake_depth: Callable[[], int] = _none
        self.log_bytes: Callable[[], int] = _none
        self.stalled: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.memory = MemoryBudget()
        self.streams_open: Callable[[], int] = _none
        self.coven: Mapping[str, int] = {}
        """What coven's door counts."""
        self._commands: Counter[tuple[str, str]] = Counter()
        self._events: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._breakers: Counter[str] = Counter()
        self._breaker_of: dict[AgentId, BreakerState] = {}
        self._dead = 0
        self._forgotten = 0
        self._dropped = 0
        self._failures = 0
        self._counts: Mapping[str, int] = {}
        self._commit_seconds = Histogram(
            "dragoman_commit_seconds", "How long a commit took", buckets=COMMIT_SECONDS, registry=self.registry
        )
        self._commit_size = Histogram(
            "dragoman_commit_size", "Commands in one commit", buckets=COMMIT_SIZES, registry=self.registry
        )
        self.registry.register(_Families(self._families))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    # What the intake tells.

    def decided(self, command: Command, outcome: str) -> None:
        self._commands[type(command).__name__, outcome] += 1

    def committed(self, changes: Changes, commands: int, seconds: float) -> None:
        self._commit_seconds.observe(seconds)
        self._commit_size.observe(commands)
        events = self._events
        for row in changes.added:
            if isinstance(row, Event):
                events[row.kind] += 1
            elif isinstance(row, DeadLetter):
                self._dead += 1
        for row in changes.changed:
            if isinstance(row, Agent):
                self._note_breaker(row)
        for row in changes.removed:
            self._forgotten += isinstance(row, Task)

    def _note_breaker(self, agent: Agent) -> None:
        state = agent.breaker.state
        if self._breaker_of.get(agent.id, BreakerState.CLOSED) is not state:
            self._breaker_of[agent.id] = state
            self._breakers[state.value] += 1

    def failed(self, commands: int) -> None:
        self._failures += 1

    def dropped_files(self, count: int) -> None:
        self._dropped += count

    def sent(self, outgoing_messages: int, protocol: str = "any") -> None:
        if outgoing_messages:
            self._sent[protocol] += outgoing_messages

    # What a scrape sees.

    def expose(self, counts: Mapping[str, int]) -> bytes:
        self._counts = counts
        return generate_latest(self.registry)

    def _families(self) -> Iterator[Metric]:
        commands = CounterMetricFamily("dragoman_commands", "What was asked", labels=("command", "outcome"))
        for (command, outcome), n in self._commands.items():
            commands.add_metric((command, outcome), n)
        yield commands
        yield _labelled("dragoman_events", "What happened to tasks", "kind", self._events)
        yield _labelled("dragoman_deliveries_sent", "Messages handed to links", "protocol", self._sent)
        yield _labelled("dragoman_breaker_transitions", "Breakers that changed to this", "state", self._breakers)
        retries = self._events[EventKind.ATTEMPT_FAILED]
        yield CounterMetricFamily("dragoman_retries", "Attempts that failed and are tried again", retries)
        yield CounterMetricFamily("dragoman_dead_letters_made", "Given up", self._dead)
        yield CounterMetricFamily("dragoman_tasks_forgotten", "Finished tasks that were removed", self._forgotten)
        yield CounterMetricFamily("dragoman_files_dropped", "Files that belonged to no task any more", self._dropped)
        yield CounterMetricFamily("dragoman_commit_failures", "Units that could not be committed", self._failures)
        yield _labelled("dragoman_coven", "What coven's door met", "what", self.coven)
        yield GaugeMetricFamily("dragoman_links_open", "Links open now", self.links_open())
        yield GaugeMetricFamily("dragoman_intake_depth", "Commands waiting to be decided", self.intake_depth())
        yield GaugeMetricFamily("dragoman_store_log_bytes", "Bytes in the write-ahead log", self.log_bytes())
        yield GaugeMetricFamily("dragoman_streams_open", "Streams of events open now", self.streams_open())
        yield from self._held()
        yield from self._gauges()

    def _held(self) -> Iterator[Metric]:
        memory, (unit, waits) = self.memory, self.stalled()
        yield GaugeMetricFamily("dragoman_held_bytes", "Bytes of messages that are not decided yet", memory.held)
        yield GaugeMetricFamily("dragoman_held_bytes_limit", "How many there may be", memory.limits.total)
        yield GaugeMetricFamily("dragoman_held_waiting", "Requests and links that wait for room", memory.waiting)
        yield CounterMetricFamily("dragoman_held_refused", "Requests refused for want of room", memory.refused)
        yield GaugeMetricFamily("dragoman_commit_age_seconds", "Age of the commit under way", unit / SECOND)
        yield GaugeMetricFamily("dragoman_oldest_command_age_seconds", "Age of the oldest that waits", waits / SECOND)

    def _gauges(self) -> Iterator[Metric]:
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
