"""How a user's program ends that caught nothing: our errors in one sentence, theirs with their own frames."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.sdk import program

AGENT = """
from dragoman import Agent, Task
agent = Agent("deployer")
{declared}
async def run(task: Task, playbook: str) -> dict:
    return {{}}
agent.run({url})
"""


def ended(tmp_path: Path, program: str, **environment: str) -> list[str]:
    """What a program prints on stderr until it ends with 1."""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done
    return done.stderr.splitlines()


@pytest.mark.parametrize(
    ("declared", "url", "sentence", "place"),
    [
        ('@agent.on("x", timeout=-1)', "", "the timeout of x is -1", 'line 4: @agent.on("x", timeout=-1)'),
        ('@agent.on("x")', "'nonsense://h'", "'nonsense://h' is not an address", "line 7: agent.run('nonsense://h')"),
        ('@agent.on("x")', "'chiffon+ws://h'", "agent 'deployer' has no token", "line 7: agent.run('chiffon+ws://h')"),
        ('@agent.on("x")', "", "no hub: pass an address", "line 7: agent.run()"),
    ],
)
def test_an_error_of_ours_is_one_sentence_and_the_line_it_is_about(
    tmp_path: Path, declared: str, url: str, sentence: str, place: str
) -> None:
    said, at = ended(tmp_path, AGENT.format(declared=declared, url=url))
    assert said.startswith(f"error: {sentence}")
    assert at == f"  at program.py, {place}"


def test_a_hub_that_is_not_there_is_one_sentence_to_a_caller_too(tmp_path: Path) -> None:
    program = (
        'from dragoman import SyncClient\nwith SyncClient("chiffon+ws://127.0.0.1:9", token="t", id="c") as hub:\n'
    )
    said, at = ended(tmp_path, program + '    hub.call("a", "b")\n')
    assert said.startswith("error: no link to the hub: chiffon+ws://127.0.0.1:9")
    assert at.startswith("  at program.py, line 2: with SyncClient(")


OWN = """
import asyncio
from dragoman import Agent, Client
from dragoman.sdk.client import Client
class Backend:
    async def open(self): pass
    async def close(self): pass
    async def cancel(self, task, reason): raise ValueError("theirs")
async def main():
    async with Client(backend=Backend()) as hub:
        await hub.cancel("t")
asyncio.run(main())
"""


def test_an_error_of_the_users_keeps_its_traceback_without_our_frames(tmp_path: Path) -> None:
    said = ended(tmp_path, OWN)
    assert (said[0], said[-1]) == ("Traceback (most recent call last):", "ValueError: theirs")
    files = [line.split('"')[1] for line in said if line.startswith('  File "')]
    assert {Path(file).name for file in files} == {"program.py"}
    whole = ended(tmp_path, OWN, DRAGOMAN_TRACEBACK="1")
    assert any(os.path.join("dragoman", "sdk", "client.py") in line for line in whole)


def test_a_program_that_catches_our_errors_is_not_changed(tmp_path: Path) -> None:
    tried = "from dragoman import Agent, DragomanError\ntry:\n    Agent('x y')\n"
    assert ended(tmp_path, tried + "except DragomanError:\n    raise SystemExit(1)") == []


def test_a_hook_of_another_library_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*_: object) -> None: ...

    monkeypatch.setattr(sys, "excepthook", other)
    program.install_excepthook()
    assert sys.excepthook is other


def test_a_bug_of_ours_is_shown_whole() -> None:
    ours = {"__name__": "bug"}
    exec(compile("def bug():\n    raise KeyError('ours')\n", program.OURS + "bug.py", "exec"), ours)
    with pytest.raises(KeyError) as raised:
        ours["bug"]()  # type: ignore[operator]
    assert program.user_frames(raised.value.__traceback__) is raised.value.__traceback__
