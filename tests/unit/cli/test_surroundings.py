"""Where a command is typed: what the directory, the environment and the streams leave open."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.app.datadir import DataDir, Whereabouts
from dragoman.cli.main import main


def left(directory: Path, hub: Any, token: str) -> None:
    found = DataDir(directory)
    found.prepare()
    found.announce(Whereabouts(hub.url, "127.0.0.1:1", token, os.getpid()))


def test_the_hub_of_the_settings_file_beside_it_is_found(
    hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("DRAGOMAN_URL", "DRAGOMAN_TOKEN"):
        monkeypatch.delenv(variable)
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": []})
    (tmp_path / "dragoman.toml").write_text('data = "kept"\n[server]\nport = 0\n')
    left(tmp_path / "kept", hub, "by-file")
    assert run("task", "ls").code == 0
    assert hub.asked[-1].headers["authorization"] == "Bearer by-file"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(tmp_path / "dragoman.toml"))
    assert run("task", "ls").code == 0
    left(elsewhere / "named", hub, "by-name")
    monkeypatch.setenv("DRAGOMAN_DATA", "named")
    assert run("task", "ls").code == 0
    assert hub.asked[-1].headers["authorization"] == "Bearer by-name"


@pytest.mark.parametrize("text", ["data =", "data = 1", "", "[server]\nport = 1"])
def test_a_settings_file_that_names_no_directory_leaves_the_usual_one(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dragoman.toml").write_text(text)
    assert "no hub is running in .dragoman\n" in run("task", "ls").err


def test_a_variable_that_is_set_to_nothing_is_not_set(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("URL", "TOKEN", "DATA", "CONFIG", "PORT", "RULES__IDLE_SECONDS"):
        monkeypatch.setenv(f"DRAGOMAN_{variable}", "")
    assert run("config", "show").err.startswith("✓")
    assert "no hub is running in .dragoman\n" in run("task", "ls").err


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_stream_that_is_closed_is_no_error(hub: Any, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": []})
    monkeypatch.setattr(sys, stream, None)
    assert main(["task", "ls"]) == 0
