"""Shell completion: a script that the shell itself accepts, and that knows our commands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_knows_commands_and_options_and_its_shell_accepts_it(run: Any, tmp_path: Path, shell: str) -> None:
    ran = run("completion", shell)
    assert ran.code == 0
    for word in ("redrive", "translate", "--since", "--hub"):
        assert word in ran.out
    program = shutil.which(shell)
    if program is not None:
        script = tmp_path / "script"
        script.write_text(ran.out)
        said = subprocess.run([program, "-n", str(script)], capture_output=True, text=True, timeout=60, check=False)
        assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_a_command(run: Any, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(run("completion", "bash").out)
    ask = (
        f"source {script}; COMP_WORDS=(dragoman task re); COMP_CWORD=2; COMP_LINE='dragoman task re';"
        "COMP_POINT=${#COMP_LINE}; $(complete -p dragoman | sed 's/.*-F \\([^ ]*\\).*/\\1/') dragoman re task;"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    said = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60, check=False)
    assert {"retry", "resume"} <= {word.strip() for word in said.stdout.split()}, said


def test_the_shell_is_the_one_that_is_used_and_another_one_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert run("completion").out.startswith("# Fish completion")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    ran = run("completion")
    assert (ran.code, "bash, zsh or fish" in ran.err) == (2, True)


def test_it_is_installed_where_the_shell_looks_for_it(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    ran = run("completion", "fish", "--install")
    assert ran.code == 0
    [made] = tmp_path.rglob("dragoman*")
    assert str(made) in ran.err
