"""One run as a table for the terminal, as JSON for machines, as Markdown for bench/README.md."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import sysconfig
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import apsw
import msgspec

from bench import broker, peers
from bench.figures import Figure, Figures, Settings
from bench.targets import PEER, Verdict, peer

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
README = HERE / "README.md"
BEGIN = "<!-- figures: written by `python -m bench --write-readme`, do not edit between the markers -->"
END = "<!-- /figures -->"
WIDTH = 120

FIGURE_COLUMNS = (
    "suite",
    "in flight",
    "ops/s",
    "spread",
    "p50",
    "p99",
    "server CPU µs",
    "client CPU µs",
    "÷ peer",
    "÷ raw",
    "errors",
)
PACKAGES = (
    "a2a-sdk",
    "uvicorn",
    "uvloop",
    "httptools",
    "websockets",
    "picows",
    "apsw",
    "msgspec",
    "grpcio",
    "aio-pika",
)
VERDICT_COLUMNS = ("target", "bound", "measured", "verdict")

RAW = {
    "hub-ws": "echo-ws",
    "hub-http": "echo-http",
    PEER: "echo-http",
    **{f"{family}-{n}": f"echo-grpc-{n}" for family in ("hub-coven", "autogen", "autogen-host") for n in (1, 50)},
    **{f"token-{act}": f"token-{act}-pyjwt" for act in ("issue", "verify")},
    "token-verify-again": "token-verify-pyjwt",
    **{f"{family}-{n}": "pipe-1" for family in ("hub-forge", "acp-sdk", "acp-sdk-bare") for n in (1, 2, 4, 32)},
}
"""Beside which bare echo (tokens: PyJWT) a suite is put in the `÷ raw` column."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure depends on. No names, no paths: results are passed around."""

    cpu: str
    cores: int
    load: float
    python: str
    pgo: bool
    sqlite: str
    packages: dict[str, str]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    machine: Machine
    settings: Settings
    figures: Sequence[Figure]
    verdicts: Sequence[Verdict]


def machine() -> Machine:
    names = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return Machine(
        cpu=names[0] if names else platform.machine(),
        cores=os.cpu_count() or 0,
        load=os.getloadavg()[0],
        python=f"{platform.python_implementation()} {platform.python_version()}",
        pgo="--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
        sqlite=apsw.sqlite_lib_version(),
        packages={
            **{name: importlib.metadata.version(name) for name in PACKAGES},
            **peers.versions("autogen-ext", "agent-client-protocol"),
            "RabbitMQ": broker.version() or "absent",
        },
    )


def write_json(run: Run) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    return path


def figure_rows(figures: Figures) -> list[list[str]]:
    rows = []
    for f in figures.all():
        beside = peer(figures, f.suite, f.in_flight)
        raw = figures.get(RAW.get(f.suite, ""), f.in_flight)
        spread = f.extra.get("rate_max", f.rate) - f.extra.get("rate_min", f.rate)
        rows.append(
            [
                f.suite,
                str(f.in_flight or ""),
                f"{f.rate:,.0f}" if f.rate else "",
                f"±{50 * spread / f.rate:.0f} %" if f.rate and spread else "",
                _time(f.p50),
                _time(f.p99),
                f"{f.server_cpu:,.0f}" if f.server_cpu else "",
                f"{f.client_cpu:,.0f}" if f.client_cpu else "",
                f"{f.rate / beside.rate:.1f}" if beside and f is not beside and f.rate else "",
                f"{f.rate / raw.rate:.2f}" if raw and f.rate else "",
                f"{f.errors} void" if f.errors else "",
            ]
        )
    return rows


def commit_rows(figures: Figures) -> list[str]:
    """What only the SQLite suites have, one line each."""
    return [
        f"{f.suite} at {f.in_flight}: {f.extra['rows_rate']:,.0f} rows/s, {f.extra['commits_rate']:,.0f} commits/s, "
        f"commit p50 {_time(f.extra['commit_p50'])} p99 {_time(f.extra['commit_p99'])} "
        f"({f.extra['rows']:.0f} rows in {f.extra['durable_steps']:.0f} commits a round trip)"
        for f in figures.all()
        if "rows_rate" in f.extra
    ]


def note_rows(figures: Figures) -> list[str]:
    """What only some suites have (fleets, floods, children, lanes, sandboxes), one line each, in their own words."""
    absent = [] if broker.installed() or not figures.get("hub-agentmsg-kept", 256) else [f"rabbitmq: {broker.INSTALL}"]
    return absent + [
        f"{f.suite}: " + ", ".join(f"{name.replace('_', ' ')} {value:,.4g}" for name, value in f.extra.items())
        for f in figures.all()
        if f.suite.startswith(("fleet", "flood", "hub-children", "hub-lanes", "sandbox"))
    ]


def verdict_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    words = {True: "reached", False: "MISSED", None: "not measured"}
    return [
        [
            v.sentence,
            f"{v.sense} {v.bound:g} {v.unit}",
            "" if v.value is None else f"{v.value:,.2f} {v.unit}",
            words[v.reached],
        ]
        for v in verdicts
    ]


def show(run: Run, figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(_caption(run))
    for columns, rows in (
        (FIGURE_COLUMNS, figure_rows(figures)),
        (VERDICT_COLUMNS, verdict_rows(run.verdicts)),
    ):
        table = Table(box=None, pad_edge=False)
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table, "")
    for line in (*commit_rows(figures), *note_rows(figures)):
        console.print(line, highlight=False)


def markdown(run: Run, figures: Figures) -> str:
    return "\n\n".join(
        [
            textwrap.fill(_caption(run), WIDTH),
            _table(FIGURE_COLUMNS, figure_rows(figures)),
            "\n".join(
                textwrap.fill(f"- {line}", WIDTH, subsequent_indent="  ")
                for line in (*commit_rows(figures), *note_rows(figures))
            ),
            _table(VERDICT_COLUMNS, verdict_rows(run.verdicts)),
        ]
    )


def write_readme(run: Run, figures: Figures) -> None:
    text = README.read_text()
    before, rest = text.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    README.write_text(f"{before}{BEGIN}\n\n{markdown(run, figures)}\n\n{END}{after}")


def _caption(run: Run) -> str:
    m, s = run.machine, run.settings
    pgo = "with" if m.pgo else "without"
    return (
        f"{run.at[:10]}: {m.cores} × {m.cpu}, load before {m.load:.2f}; {m.python} {pgo} PGO, SQLite {m.sqlite}, "
        f"a2a-sdk {m.packages['a2a-sdk']}, uvicorn {m.packages['uvicorn']}, grpcio {m.packages['grpcio']}, "
        f"autogen-ext {m.packages['autogen-ext']}, agent-client-protocol {m.packages['agent-client-protocol']}, "
        f"RabbitMQ {m.packages['RabbitMQ']}, aio-pika {m.packages['aio-pika']}; "
        f"{s.seconds:g} s a point, "
        f"median of {s.repeats}."
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _time(microseconds: float) -> str:
    if not microseconds:
        return ""
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1000:.{1 if microseconds < 100_000 else 0}f} ms"
