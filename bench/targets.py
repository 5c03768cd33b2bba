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


def share_of_raw(ours: str, in_flight: int) -> Callable[[Figures], float | None]:
    """Durable rows a second, ours over bare SQLite's; with the hub's own mix where the run measured it."""

    def value(figures: Figures) -> float | None:
        raw = _sound(figures, "sqlite-hub", in_flight) or _sound(figures, "sqlite", in_flight)
        hub = _sound(figures, ours, in_flight)
        if not raw or not hub:
            return None
        rows = hub.extra.get("rows", raw.extra["rows"])
        return 100 * hub.rate * rows / raw.extra["rows_rate"]

    return value


def tail(suite: str, in_flight: int) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        figure = _sound(figures, suite, in_flight)
        return figure.p99 / figure.p50 if figure and figure.p50 else None

    return value


def lonely(suite: str, echo: str) -> Callable[[Figures], float | None]:
    """Fsyncs per durable step that one lonely round trip costs, beyond the echoes that it contains.

    The hub's figure says how many of each: extra["durable_steps"], extra["echoes"].
    """

    def value(figures: Figures) -> float | None:
        hub, bare, fsync = _sound(figures, suite, 1), _sound(figures, echo, 1), _sound(figures, "fdatasync", 1)
        if not hub or not bare or not fsync:
            return None
        added = hub.p50 - hub.extra.get("echoes", 1.0) * bare.p50
        return added / (hub.extra["durable_steps"] * fsync.p50)

    return value


def noted(suite: str, key: str, in_flight: int = 0) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        figure = _sound(figures, suite, in_flight)
        return figure.extra.get(key) if figure else None

    return value


def growth(small: str, large: str, in_flight: int) -> Callable[[Figures], float | None]:
    ratio = rates(large, small, in_flight)
    return lambda figures: None if (value := ratio(figures)) is None else 100 * value


def _sound(figures: Figures, suite: str, in_flight: int) -> Figure | None:
    figure = figures.get(suite, in_flight)
    return figure if figure and not figure.errors else None


TARGETS = (
    Target("durable round trips over WebSocket ÷ a2a-sdk, 32 in flight", rates("hub-ws", PEER, 32), "≥", 10),
    Target("durable round trips over HTTP ÷ a2a-sdk, 32 in flight", rates("hub-http", PEER, 32), "≥", 4),
    Target("share of the raw group commit, WebSocket, 32 in flight", share_of_raw("hub-ws", 32), "≥", 40, "%"),
    Target("p99 ÷ p50 over WebSocket, 32 in flight", tail("hub-ws", 32), "≤", 5),
    Target("p99 ÷ p50 over HTTP, 32 in flight", tail("hub-http", 32), "≤", 5),
    Target("fsyncs per durable step of a lonely task, WebSocket", lonely("hub-ws", "echo-ws"), "≤", 1),
    Target("fsyncs per durable step of a lonely task, HTTP", lonely("hub-http", "echo-http"), "≤", 1),
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
