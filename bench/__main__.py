"""`python -m bench`: run the suites, print one table, keep the JSON.

python -m bench                   everything, about half an hour
python -m bench coven forge       only these suites
python -m bench --quick           one short run of each point: to see that it works, not to quote
python -m bench --only sqlite     one suite (may be repeated)
python -m bench --write-readme    also put the figures into bench/README.md
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from bench import report
from bench.figures import Figure, Figures, Settings
from bench.targets import judge

SUITES = {
    "peer": "bench.peer_a2a:measure",
    "echo": "bench.raw_echo:measure",
    "sqlite": "bench.raw_sqlite:measure",
    "hub": "bench.hub:measure",
    "frugality": "bench.frugality:measure",
    "growth": "bench.growth:measure",
    "coven": "bench.coven:measure",
    "forge": "bench.forge:measure",
    "fleet": "bench.fleet:measure",
    "flood": "bench.flood:measure",
    "rabbitmq": "bench.peer_rabbitmq:measure",
    "agentmsg": "bench.agentmsg:measure",
    "amqp": "bench.amqp:measure",
    "lanes": "bench.lanes:measure",
    "tokens": "bench.tokens:measure",
    "a2acp": "bench.a2acp:measure",
    "sandbox": "bench.sandbox:measure",
    "nodes": "bench.nodes:measure",
    "postgres": "bench.postgres:measure",
    "page": "bench.page:measure",
    "cluster": "bench.cluster:measure",
}
"""Name → `measure(settings) -> Iterable[Figure]`. `coven` and `forge` bring their own peers and raw limits."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ours, a peer and the raw limit.")
    parser.add_argument("--quick", action="store_true", help="one short run of each point")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these suites: " + ", ".join(SUITES))
    parser.add_argument("--only", action="append", choices=SUITES, metavar="NAME", help="the same, one by one")
    parser.add_argument("--seconds", type=float, help="length of a point (4)")
    parser.add_argument("--repeats", type=int, help="runs of a point, the median counts (3)")
    parser.add_argument("--data", default="", help="directory on a real disk for durable files")
    parser.add_argument("--messages", type=int, help="the backlog of `lanes` (1,000,000; quick: 20,000)")
    parser.add_argument("--lanes", type=int, help="how many lanes it lies in (10,000; quick: 200)")
    parser.add_argument("--write-readme", action="store_true", help="replace the figures in bench/README.md")
    asked = parser.parse_args()
    names = [*asked.names, *(asked.only or ())] or list(SUITES)
    if unknown := [name for name in names if name not in SUITES]:
        parser.error(f"no suite {unknown[0]!r}; there are {', '.join(SUITES)}")

    settings = Settings(data=os.path.abspath(asked.data) if asked.data else "")
    if asked.quick:
        settings = msgspec.structs.replace(settings, seconds=1.5, warmup=0.5, repeats=1, quick=True)
        settings = msgspec.structs.replace(settings, messages=20_000, lanes=200)
    if asked.seconds:
        settings = msgspec.structs.replace(settings, seconds=asked.seconds)
    if asked.repeats:
        settings = msgspec.structs.replace(settings, repeats=asked.repeats)

    if asked.messages:
        settings = msgspec.structs.replace(settings, messages=asked.messages)
    if asked.lanes:
        settings = msgspec.structs.replace(settings, lanes=asked.lanes)

    machine = report.machine()
    figures = Figures()
    for name in names:
        for figure in _suite(name)(settings):
            figures.add(figure)
            print(f"  {figure.suite} at {figure.in_flight}: {figure.rate:,.0f}/s", file=sys.stderr)

    run = report.Run(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine,
        # Where the files were is nobody's business but this machine's.
        settings=msgspec.structs.replace(settings, data=""),
        figures=figures.all(),
        verdicts=judge(figures),
    )
    report.show(run, figures)
    path = report.write_json(run)
    print(f"written: bench/results/{path.name}", file=sys.stderr)
    if asked.write_readme:
        report.write_readme(run, figures)
    return 1 if any(figure.errors for figure in figures.all()) else 0


def _suite(name: str) -> Callable[[Settings], Iterable[Figure]]:
    module, _, function = SUITES[name].partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    sys.exit(main())
