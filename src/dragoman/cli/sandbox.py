"""`dragoman sandbox`: how untrusted code would be held back on this machine, shown by trying."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import Output
from dragoman.cli.errors import Exit
from dragoman.cli.escaping import line
from dragoman.sandbox.levels import SandboxLevels, all_levels
from dragoman.sandbox.model import RUNS, BelowPolicy, Level, Policy, Report, Workload

app = App(name="sandbox", help="Which sandbox holds untrusted code on this machine: check.")

STANDS = {True: "passed", False: "failed", None: "missing"}


@app.command
def check(
    *,
    workload: Annotated[Workload, Parameter(help="What to run: a process, a wasm module, python source.")] = (
        Workload.PROCESS
    ),
    require: Annotated[
        Level, Parameter(help="The least level that must work here; the exit code says whether it does.")
    ] = (Level.BUBBLEWRAP),
    trials: Annotated[bool, Parameter(negative="", help="Show every attempt and its result.")] = False,
    json: Annotated[bool, Parameter(negative="", help="The same as -o json.")] = False,
    output: Output = "table",
) -> int:
    """Try to break out of every sandbox there is, and say which of them hold."""
    form = "json" if json else output
    found = all_levels()
    reports = tuple(report for report in found.reports() if report.level is not Level.NONE)
    if form == "table":
        for report in reports:
            _show(report, trials=trials)
    elif form == "jsonl":
        for report in reports:
            printing.document(_shown(report), form)
    policy = Policy(workload=workload, least=require)
    taken, refusal = _taken(found, policy)
    if form == "json":
        printing.document(
            {
                "ok": refusal is None,
                "workload": workload.value,
                "require": require.value,
                "level": taken and taken.value,
                "rungs": [_shown(report) for report in reports],
            }
        )
    elif form == "table":
        if refusal is None:
            printing.verdict(True, f"an untrusted {workload} runs at level {taken}")
        else:
            printing.verdict(
                False,
                f"an untrusted {workload} would be refused: it has to run at level {require} or above,"
                f" and the strongest here is {refusal.strongest}",
            )
            printing.suggest(line(refusal.remedy))
    return Exit.OK if refusal is None else Exit.FAILED


def _taken(found: SandboxLevels, policy: Policy) -> tuple[Level | None, BelowPolicy | None]:
    try:
        return found.strongest(policy).level, None
    except BelowPolicy as refusal:
        return None, refusal


def _shown(report: Report) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(report)
    return {**shown, "runs": sorted(RUNS[report.level])}


def _show(report: Report, *, trials: bool) -> None:
    standing = report.passed if report.available else None
    refused = sum(probe.refused for probe in report.probes)
    what = (
        f"{STANDS[standing]}, {refused} of {len(report.probes)} attempts refused" if report.probes else STANDS[standing]
    )
    version = f" {report.version}" if report.version else ""
    runs = ", ".join(sorted(RUNS[report.level]))
    print(f"{printing.mark(standing, sys.stdout)} {report.level}{line(version)} ({runs}): {what}")
    if report.why_not:
        print(f"    why: {line(report.why_not)}")
    if report.remedy:
        print(f"    fix: {line(report.remedy)}")
    if trials:
        for probe in report.probes:
            print(f"    {printing.mark(probe.refused, sys.stdout)} {probe.attempt}: {line(probe.saw)}")
