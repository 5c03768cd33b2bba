"""The figures to reach, as a table: a sentence, how it is computed from one run, and the bound.

A target whose figures were not measured in this run has no value and no verdict. Names of suites that the hub's
own benchmark fills in are listed in bench/README.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from bench.figures import Figure, Figures

PEER = "a2a-sdk"

PEERS = {
    "hub-coven": "autogen",
    "echo-grpc": "autogen",
    "autogen-host": "autogen",
    "hub-forge": "acp-sdk",
    "pipe": "acp-sdk",
    "acp-sdk-bare": "acp-sdk",
    "hub-agentmsg": "rabbitmq",
    "rabbitmq": "rabbitmq",
}
"""Family of suites (the name without its number) → the family of its peer. Everything else: `PEER`."""

ALONE = (
    "amqp", "hub-amqp", "autogen", "acp-sdk", "hub-children", "hub-lonely", "fleet", "flood", "rabbitmq", "hub-lanes",
    "hub-a2acp", "token", "sandbox", "hub-nodes", "hub-whole", "store", "commits", "page",
    "failover",
)  # fmt: skip
"""Families that are put beside nobody."""


def peer(figures: Figures, suite: str, in_flight: int) -> Figure | None:
    """The figure of the peer beside which a suite is put."""
    family, _, count = suite.rpartition("-")
    if family in PEERS:
        # AutoGen is compared at the same number of agents; the SDK over stdio with what served it best.
        if PEERS[family] == "autogen":
            return figures.get(f"autogen-{count}", in_flight)
        if PEERS[family] == "rabbitmq":
            return figures.get("rabbitmq", in_flight)
        return best(figures, PEERS[family], in_flight)
    return None if suite.startswith(ALONE) else figures.get(PEER, in_flight)


def best(figures: Figures, family: str, in_flight: int) -> Figure | None:
    """The fastest sound figure of a family at this level, whatever its number."""
    found = [
        f for f in figures.all() if f.suite.rpartition("-")[0] == family and f.in_flight == in_flight and not f.errors
    ]
    return max(found, key=lambda f: f.rate, default=None)


class Target(msgspec.Struct, frozen=True):
    sentence: str
    value: Callable[[Figures], float | None]
    sense: Literal["≥", "≤"]
    bound: float
    unit: str = "×"


class Verdict(msgspec.Struct, frozen=True):
    sentence: str
    sense: str
    bound: float
    unit: str
    value: float | None
    reached: bool | None
    """None: not measured in this run, or its figures had errors."""


def rates(ours: str, theirs: str, in_flight: int) -> Callable[[Figures], float | None]:
    """Rate of one suite over the rate of another, at the same level."""

    def value(figures: Figures) -> float | None:
        top, bottom = _sound(figures, ours, in_flight), _sound(figures, theirs, in_flight)
        return top.rate / bottom.rate if top and bottom and bottom.rate else None

    return value


def tail(suite: str, in_flight: int) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        figure = _sound(figures, suite, in_flight)
        return figure.p99 / figure.p50 if figure and figure.p50 else None

    return value


def noted(suite: str, key: str, in_flight: int = 0) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        figure = _sound(figures, suite, in_flight)
        return figure.extra.get(key) if figure else None

    return value


def times(suite: str, other: str) -> Callable[[Figures], float | None]:
    """The p99 of one suite over that of another."""

    def value(figures: Figures) -> float | None:
        top, bottom = _sound(figures, suite, 0), _sound(figures, other, 0)
        return top.p99 / bottom.p99 if top and bottom and bottom.p99 else None

    return value


def slowest(suite: str, in_flight: int) -> Callable[[Figures], float | None]:
    """The p99, in milliseconds."""

    def value(figures: Figures) -> float | None:
        figure = _sound(figures, suite, in_flight)
        return figure.p99 / 1000 if figure else None

    return value


def memory(suite: str, other: str) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        top, bottom = _sound(figures, suite, 0), _sound(figures, other, 0)
        return top.rss_mb / bottom.rss_mb if top and bottom and bottom.rss_mb else None

    return value


def cpu(suite: str, other: str, key: str, in_flight: int) -> Callable[[Figures], float | None]:
    """CPU of an operation of one suite, over what the other one notes under a key, or its own CPU."""

    def value(figures: Figures) -> float | None:
        top, bottom = _sound(figures, suite, in_flight), _sound(figures, other, in_flight)
        below = bottom and (bottom.extra[key] if key else bottom.server_cpu)
        return top.server_cpu / below if top and below else None

    return value


def mistakes(suite: str) -> Callable[[Figures], float | None]:
    """Operations that went wrong, where that is itself what is judged."""

    def value(figures: Figures) -> float | None:
        figure = figures.get(suite)
        return float(figure.errors) if figure else None

    return value


def growth(small: str, large: str, in_flight: int) -> Callable[[Figures], float | None]:
    return percent(large, small, in_flight)


def percent(ours: str, theirs: str, in_flight: int) -> Callable[[Figures], float | None]:
    ratio = rates(ours, theirs, in_flight)
    return lambda figures: None if (value := ratio(figures)) is None else 100 * value


def _sound(figures: Figures, suite: str, in_flight: int) -> Figure | None:
    figure = figures.get(suite, in_flight)
    return figure if figure and not figure.errors else None


TARGETS = (
    Target("p99 ÷ p50 over WebSocket, 32 in flight", tail("hub-ws", 32), "≤", 5),
    Target("p99 ÷ p50 over HTTP, 32 in flight", tail("hub-http", 32), "≤", 5),
    Target("fsyncs per durable step of a lonely task, WebSocket", noted("hub-lonely-ws", "fsyncs_a_step"), "≤", 1),
    Target("fsyncs per durable step of a lonely task, HTTP", noted("hub-lonely-http", "fsyncs_a_step"), "≤", 1),
    Target(
        "rate with 1,000,000 finished tasks ÷ with 1,000",
        growth("hub-stored-1000", "hub-stored-1000000", 32),
        "≥",
        90,
        "%",
    ),
    Target("memory of an idle hub", noted("hub-idle", "rss_mb"), "≤", 120, "MB"),
    Target("more memory with 2,000 idle WebSocket agents", noted("hub-agents-2000", "added_mb"), "≤", 400, "MB"),
    Target("start to serving", noted("hub-idle", "start_ms"), "≤", 1500, "ms"),
    Target("`dragoman task ls`", noted("hub-task-ls", "ms"), "≤", 250, "ms"),
    Target("p99 of a commit under a saturated loop", noted("hub-saturated", "commit_p99_ms"), "≤", 50, "ms"),
    Target("others' p99 while a child writes 1 GB without a newline ÷ quiet", noted("flood-bytes", "ratio"), "≤", 3),
    Target("others' p99 while a child writes lines without end ÷ quiet", noted("flood-lines", "ratio"), "≤", 3),
    Target(
        "pieces lost or doubled between 100 streaming coven agents and their callers", mistakes("fleet-100"), "≤", 0, ""
    ),
    Target(
        "chiffon over RabbitMQ ÷ bare aio-pika on quorum queues, 32 in flight",
        rates("hub-amqp", "amqp-bare", 32),
        "≥",
        0.6,
    ),
    Target(
        "chiffon over RabbitMQ ÷ aio-pika with as many queues between, 32 in flight",
        rates("hub-amqp", "amqp-relayed", 32),
        "≥",
        0.6,
    ),
    Target("agentmsg at least once ÷ RabbitMQ, 256 in flight", rates("hub-agentmsg-kept", "rabbitmq", 256), "≥", 2),
    Target(
        "p99 of a claim with 1,000,000 waiting in 10,000 lanes ÷ with 1,000",
        times("hub-lanes-1000000", "hub-lanes-1000"),
        "≤",
        2,
    ),
    Target(
        "memory of the hub with 1,000,000 waiting ÷ with 1,000", memory("hub-lanes-1000000", "hub-lanes-1000"), "≤", 1.1
    ),
    Target("a critical message past all of them", noted("hub-lanes-1000000", "overtake_ms"), "≤", 50, "ms"),
    Target(
        "a2acp's checks (token, replay, rates, both payloads) for a request, of CPU, 32 in flight",
        noted("hub-a2acp", "more_cpu", 32),
        "≤",
        150,
        "µs",
    ),
    Target("p99 of a handshake, 32 in flight", slowest("hub-a2acp-handshake", 32), "≤", 100, "ms"),
    Target(
        "CPU of a request with 10,000 contracts in use ÷ with 10", noted("hub-a2acp-10000", "times_cpu", 32), "≤", 1.2
    ),
    Target(
        "CPU of the leader ÷ of a hub without nodes, HTTP through a second node",
        noted("hub-nodes", "leader_process_share", 32),
        "≤",
        0.55,
    ),
    Target("without a leader after kill -9 of it", noted("failover-kill", "seconds"), "≤", 1.0, "s"),
    Target("… after SIGSTOP of it: its lease of 3 s, and", noted("failover-stop", "seconds"), "≤", 4.0, "s"),
    Target("… after PostgreSQL's standby was promoted", noted("failover-promotion", "seconds"), "≤", 1.0, "s"),
    Target("CPU of both nodes ÷ of a hub without nodes", noted("hub-nodes", "all", 32), "≤", 1.4),
    Target(
        "CPU of the hub over PostgreSQL ÷ over SQLite with its writer process, 32 in flight",
        cpu("store-postgres", "store-sqlite", "", 32),
        "≤",
        1.25,
    ),
    Target(
        "CPU of the hub's own process over PostgreSQL ÷ over SQLite, 32 in flight",
        cpu("store-postgres", "store-sqlite", "main_cpu", 32),
        "≤",
        1.25,
    ),
    *(
        Target(
            f"rate over PostgreSQL ÷ over SQLite, {n} in flight", rates("store-postgres", "store-sqlite", n), "≥", 0.75
        )
        for n in (32, 256)
    ),
    Target(
        "rate over PostgreSQL ÷ its commits alone, with the same rows, 32 in flight",
        rates("store-postgres", "commits-postgres", 32),
        "≥",
        0.5,
    ),
    Target("loads for a round trip, 32 in flight", noted("store-postgres", "loads", 32), "≤", 0.01, ""),
    Target("start in bubblewrap, p50", noted("sandbox-bubblewrap", "p50_ms", 1), "≤", 100, "ms"),
    Target("start in Wasmtime, p50, in a warm host", noted("sandbox-wasm-warm", "p50_ms", 1), "≤", 20, "ms"),
    Target("dashboard: what is loaded, gzipped", noted("page-bundle", "kb"), "≤", 150, "kB"),
    Target("dashboard: first paint with 100,000 tasks", noted("page-open", "paint_ms"), "≤", 1000, "ms"),
    Target("dashboard: interactive with 100,000 tasks", noted("page-open", "interactive_ms"), "≤", 1500, "ms"),
    Target("dashboard: requests of a view beside the stream", noted("page-views", "most"), "≤", 1, ""),
    Target("dashboard: frames while a long list scrolls ÷ an empty page's", noted("page-scroll", "ratio"), "≥", 0.8),
    Target(
        "dashboard: a change on the page, 1,000 events a second, p90", noted("page-change", "p90_ms"), "≤", 300, "ms"
    ),
    Target("dashboard: heap at the end ÷ at the beginning", noted("page-heap", "ratio"), "≤", 1.1),
    Target("dashboard: CPU of the hub with 200 open ÷ with none", noted("page-streams-200", "ratio"), "≤", 1.15),
    *(
        Target(f"tasks at 1,000,000, {what}, p99", slowest(f"page-list-{name}", 1), "≤", 100, "ms")
        for name, what in (
            ("all", "no filter"),
            ("one", "one filter"),
            ("two", "two filters"),
            ("three", "three filters"),
            ("deep", "deep pages"),
            ("words", "words, with and without filters"),
        )
    ),
    Target("hub without a page ÷ before the dashboard, by CPU", noted("page-hub", "speed", 32), "≥", 0.97),
)


def judge(figures: Figures) -> list[Verdict]:
    verdicts = []
    for target in TARGETS:
        value = target.value(figures)
        reached = None
        if value is not None:
            reached = value >= target.bound if target.sense == "≥" else value <= target.bound
        verdicts.append(
            Verdict(target.sentence, target.sense, target.bound, target.unit, value, reached),
        )
    return verdicts
