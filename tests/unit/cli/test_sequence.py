"""The sequence of a task, drawn in a terminal and as an SVG: whole drawings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dragoman.cli.sequence import as_svg, in_terminal

SVG = Path(__file__).with_name("sequence.svg")


def step(number: int, second: float, kind: str, source: str, target: str, protocol: str | None, **more: Any) -> Any:
    at = f"2026-01-19T04:21:{4 + second:06.3f}Z"
    return {"n": number, "seq": number, "task": "t-0001", "at": at, "until": at, "count": 1, "kind": kind,
            "source": source, "target": target, "protocol": protocol, "text": "", "lost": [], **more}  # fmt: skip


DEADLINE = {"feature": "deadline", "how": "lost", "why": "coven has no field for it"}
MODEL: dict[str, Any] = {
    "trace_id": "5" * 32,
    "task_id": "t-0001",
    "running": False,
    "participants": [
        {"id": "planner", "kind": "caller", "protocol": "chiffon"},
        {"id": "lint", "kind": "agent", "protocol": "forge"},
        {"id": "hub", "kind": "hub", "protocol": None},
        {"id": "mux-1", "kind": "agent", "protocol": "coven"},
        {"id": "person", "kind": "person", "protocol": None},
    ],
    "steps": [
        step(1, 0, "submitted", "planner", "hub", "chiffon"),
        step(2, 0.002, "assigned", "hub", "mux-1", "coven", text="attempt 1", lost=[DEADLINE]),
        step(3, 0.01, "progress", "mux-1", "hub", "coven", text="50 %", count=3, until="2026-01-19T04:21:05.200Z"),
        step(4, 1.3, "submitted", "mux-1", "hub", "coven", task="t-0002"),
        step(5, 1.31, "assigned", "hub", "lint", "forge", task="t-0002", text="attempt 1"),
        step(6, 1.4, "asked", "lint", "person", "forge", task="t-0002", text="Restart <prod>?"),
        step(7, 9.5, "answered", "hub", "lint", None, task="t-0002", text="yes"),
        step(8, 9.6, "completed", "lint", "mux-1", "forge", task="t-0002"),
        step(9, 9.7, "attempt_failed", "mux-1", "hub", "coven", text="connection closed"),
        step(10, 9.8, "released", "hub", "hub", None, text="retry in 2 s"),
        step(11, 12, "assigned", "hub", "mux-1", "coven", text="attempt 2"),
        step(12, 13, "completed", "mux-1", "planner", "coven"),
    ],
}
WIDE = """
               planner          lint             hub            mux-1          person
               chiffon          forge                           coven          person
  +0.000          │────────── submitted ─────────▶┃               │               │       …0001
  +0.002          │               │               ┃── assigned ──▶█               │       attempt 1 · ◇ loses deadline
  +0.010          │               │               ┃◀ progress ×3 ╌█               │       50 %
  +1.300          │               │               ┃◀─ submitted ──█               │       …0002
  +1.310          │               █◀─ assigned ───┃               █               │       attempt 1
  +1.400          │               █┄┄┄┄ asked ┄┄┄▶┃┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▶│       Restart <prod>?
   8.1 s ⋮        │               █               ┃               █               │
  +9.500          │               █◀┄ answered ┄┄┄┃               █               │       yes
  +9.600          │               █── completed ─▶┃──────────────▶█               │
  +9.700          │               │               ┃◀ attempt fa… ─█               │       connection closed
  +9.800          │               │               ◆ released      │               │       retry in 2 s
   2.2 s ⋮        │               │               ┃               │               │
 +12.000          │               │               ┃── assigned ──▶█               │       attempt 2
 +13.000          │◀──────────────────────────────┃◀─ completed ──█               │
"""
NARROW = """
              planner        lint           hub          mux-1        person
              chiffon        forge                       coven        person
  +0.000         │──── submitted · …0001 ───▶┃             │             │
  +0.002         │             │             ┃─ assigned… ▶█             │
  +0.010         │             │             ┃◀ progress… ╌█             │
  +1.300         │             │             ┃◀ submitte… ─█             │
  +1.310         │             █◀ assigned… ─┃             █             │
  +1.400         │             █┄┄┄┄┄┄┄┄┄┄┄┄▶┃┄ asked · Restart <prod>? ▶│
   8.1 s ⋮       │             █             ┃             █             │
  +9.500         │             █◀ answered… ┄┃             █             │
  +9.600         │             █─ completed ▶┃────────────▶█             │
  +9.700         │             │             ┃◀ attempt… ──█             │
  +9.800         │             │             ◆ released ·… │             │
   2.2 s ⋮       │             │             ┃             │             │
 +12.000         │             │             ┃─ assigned… ▶█             │
 +13.000         │◀──────────────────────────┃◀ completed ─█             │
"""


def test_it_is_drawn_with_lanes_and_what_each_step_says() -> None:
    assert in_terminal(MODEL, 120, colours=False) == WIDE.strip("\n").splitlines()


def test_it_fits_a_narrow_terminal_or_says_that_it_does_not() -> None:
    lines = in_terminal(MODEL, 80, colours=False)
    assert lines == NARROW.strip("\n").splitlines()
    assert max(map(len, lines)) <= 80
    assert in_terminal(MODEL, 60, colours=False) is None


def test_each_arrow_has_the_colour_of_its_protocol() -> None:
    lines = in_terminal(MODEL, 120, colours=True)
    assert lines is not None
    assert (
        lines[2] == "  \x1b[90m+0.000          │\x1b[34m────────── \x1b[0msubmitted "
        "\x1b[34m─────────▶\x1b[90m┃               │               │       …0001\x1b[0m"
    )


def test_the_svg_is_whole_and_loads_nothing() -> None:
    drawn = as_svg(MODEL)
    assert drawn == SVG.read_text(encoding="utf-8")
    ElementTree.fromstring(drawn)
    assert "prefers-color-scheme:dark" in drawn
    assert "Restart &lt;prod&gt;?" in drawn
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")


def test_what_agents_write_cannot_break_the_svg() -> None:
    evil = '</text><script>alert(1)</script>\x00\ud800"\uffff'
    steps = [step(1, 0, "submitted", evil, "hub", evil, text=evil), step(2, 0, "noted", "hub", "hub", None, text=evil)]
    caller = {"id": evil, "kind": "caller", "protocol": evil}
    model = {**MODEL, "participants": [caller, MODEL["participants"][2]], "steps": steps}
    found = ElementTree.fromstring(as_svg(model))
    assert not [one for one in found.iter() if one.tag.endswith("script")]


def test_trace_draws_what_the_hub_says(
    hub: Any, run: Any, make_task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    told = {"trace_id": "5" * 32, "task_id": "t-0001", "tasks": [make_task(steps=[])], "left_out": 0}
    hub.answers["GET /api/v1/tasks/t-0001/trace"] = (200, told)
    hub.answers["GET /api/v1/tasks/t-0001/sequence"] = (200, MODEL)
    assert run("trace", "t-0001", "--sequence").out.splitlines()[1:] == WIDE.strip("\n").splitlines()
    assert json.loads(run("trace", "t-0001", "--sequence", "-o", "json").out) == MODEL
    file = tmp_path / "task.svg"
    ran = run("trace", "t-0001", "--svg", str(file))
    assert (ran.code, ran.out, file.read_text()) == (0, "", SVG.read_text())
    assert run("trace", "t-0001", "--svg", "-").out == SVG.read_text()
    assert run("trace", "t-0001", "--svg", str(tmp_path)).code == 2
