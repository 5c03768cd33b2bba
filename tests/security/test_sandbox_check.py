"""`dragoman sandbox check`: what it says of this machine, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.cli import sandbox as command
from dragoman.cli.main import main
from dragoman.sandbox.levels import NoSandbox, SandboxLevels
from dragoman.sandbox.model import Level, Probe, Report, Sandbox


@pytest.fixture(autouse=True)
def still_serving() -> None:
    """No hub takes part here."""


class Fake:
    def __init__(self, report: Report) -> None:
        self.level = report.level
        self._report = report

    def self_test(self) -> Report:
        return self._report

    def argv(self, sandbox: Sandbox, command: tuple[str, ...]) -> tuple[str, ...]:
        return command


HELD = Probe(attempt="read a file outside", refused=True, saw="ENOENT")
OPEN = Probe(attempt="trace a process", refused=False, saw="0\x1b[31m")
GOOD = Report.judged(Level.BUBBLEWRAP, "0.8.0", (HELD,), expected=1, remedy="")
BAD = Report.judged(Level.BUBBLEWRAP, "0.8.0", (HELD, OPEN), expected=2, remedy="mend it")
ABSENT = Report.missing(Level.HYPERLIGHT, "the package is not installed", "pip install it")


def stand(monkeypatch: pytest.MonkeyPatch, *reports: Report) -> None:
    found = SandboxLevels((*(Fake(report) for report in reports), NoSandbox()))
    monkeypatch.setattr(command, "all_levels", lambda: found)


def test_a_level_that_holds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand(monkeypatch, GOOD, ABSENT)
    assert main(["sandbox", "check"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "• hyperlight (python): missing",
        "    why: the package is not installed",
        "    fix: pip install it",
        "✓ bubblewrap 0.8.0 (process, python): passed, 1 of 1 attempts refused",
    ]
    assert err == "✓ an untrusted process runs at level bubblewrap\n"


def test_a_level_that_does_not_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand(monkeypatch, BAD)
    assert main(["sandbox", "check", "--trials"]) == 1
    out, err = capsys.readouterr()
    assert "✗ bubblewrap 0.8.0 (process, python): failed, 1 of 2 attempts refused" in out
    assert "    ✗ trace a process: 0\\e[31m" in out
    assert "the strongest here is none" in err
    assert "next: mend it" in err


def test_a_stronger_level_may_be_required(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand(monkeypatch, GOOD, ABSENT)
    assert main(["sandbox", "check", "--workload", "python", "--require", "hyperlight"]) == 1
    assert "the strongest here is bubblewrap" in capsys.readouterr().err


@pytest.mark.parametrize("asked", [["--json"], ["-o", "json"]])
def test_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: list[str]) -> None:
    stand(monkeypatch, GOOD, ABSENT)
    assert main(["sandbox", "check", *asked]) == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {key: said[key] for key in ("ok", "workload", "require", "level")} == {
        "ok": True,
        "workload": "process",
        "require": "bubblewrap",
        "level": "bubblewrap",
    }
    assert [(backend["level"], backend["available"], backend["passed"]) for backend in said["rungs"]] == [
        ("hyperlight", False, False),
        ("bubblewrap", True, True),
    ]


def test_on_this_machine_it_ends_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["sandbox", "check", "--json"])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (0 if said["ok"] else 1)
    for backend in said["rungs"]:
        assert backend["passed"] or (backend["why_not"] and backend["remedy"]), backend["level"]
        assert not backend["passed"] or all(probe["refused"] for probe in backend["trials"])
