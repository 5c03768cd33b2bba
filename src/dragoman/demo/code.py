"""A coding agent: reviews changes and runs test suites. Written as plain functions: they run in threads."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dragoman import Agent, SyncTask
from dragoman.demo import roster

SUITES = {"unit": (412, 0.25), "integration": (58, 0.5)}
"""Suite → (tests in it, seconds for a fifth of them)."""

REMARKS = (
    "src/billing/invoice.py:88: the total is rounded before tax is added",
    "src/billing/invoice.py:120: this branch is never taken, `currency` is checked above",
    "tests/test_invoice.py: no test has more than one line item",
)


def run(id: str, state_dir: Path | None) -> None:
    agent = Agent(id, kind=roster.CODE.kind, version="0.9.2", concurrency=4, state_dir=state_dir, grace=0.5)

    @agent.on("review_change", timeout=120)
    def review_change(task: SyncTask, change: int) -> dict[str, Any]:
        """Read a change and say what could be better."""
        for number, remark in enumerate(REMARKS, start=1):
            time.sleep(0.6)
            task.progress(30 * number, f"file {number} of {len(REMARKS)}", output=remark + "\n")
            task.used(tokens=len(remark), cost_usd=0.012)
        return {"change": change, "verdict": "changes requested", "remarks": len(REMARKS)}

    @agent.on("run_tests", timeout=300)
    def run_tests(task: SyncTask, suite: str) -> dict[str, Any]:
        """Run a test suite."""
        if suite not in SUITES:
            raise task.reject(f"there is no suite {suite!r} here; there are {', '.join(SUITES)}")
        count, seconds = SUITES[suite]
        for fifth in range(1, 6):
            time.sleep(seconds)
            task.progress(fifth * 19, f"{suite} tests", output=f"{count * fifth // 5} of {count} passed\n")
        return {"suite": suite, "passed": count, "failed": 0}

    agent.run()
