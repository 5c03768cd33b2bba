"""What the README tells people to type, typed: the agent in ten lines and the curl session, against the demo."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
PATIENCE = 60

AT_THE_END = """trap 'if [ -n "$!" ]; then kill $! || true; wait; fi' EXIT"""
"""What was left in the background ends with the shell."""


def block(language: str, containing: str) -> str:
    """The one block of the README in this language that contains this."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    [found] = [text for text in blocks if containing in text]
    return str(found)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """`make run` without make: the address, and the directory it was started in. The port is a free one."""
    here = tmp_path_factory.mktemp("readme")
    with (here / "stderr").open("w") as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "dragoman.cli", "dev", "--demo", "--port", "0", "--grpc-port", "0", "--ready-json"],
            cwd=here,
            env=environ(),
            stdout=subprocess.PIPE,
            stderr=words,
        )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], PATIENCE)[0], "the hub did not say that it serves"
        yield json.loads(process.stdout.readline())["http"], here
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        process.stdout.close()


def environ() -> dict[str, str]:
    """The environment of the README's second terminal."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    return clean | {"PATH": f"{Path(sys.executable).parent}:{clean.get('PATH', '')}"}


def typed(script: str, hub: tuple[str, Path]) -> str:
    """What a shell prints on stdout for these lines."""
    http, here = hub
    script = script.replace("http://127.0.0.1:8420", http)
    shell = subprocess.Popen(
        ["sh", "-e", "-c", f"{AT_THE_END}\n{script}"],
        cwd=here,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, words = shell.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        shell.terminate()
        raise
    assert shell.returncode == 0, words
    return said


def test_the_commands_of_the_second_terminal_work(hub: tuple[str, Path]) -> None:
    said = typed(block("sh", "call infra-1").replace("$PWD/.venv/bin:", ""), hub)
    assert '"steps": 5' in said


def test_the_agent_in_ten_lines_works(hub: tuple[str, Path]) -> None:
    http, here = hub
    agent = block("python", "greeter")
    assert len(agent.strip().splitlines()) <= 10
    (here / "greeter.py").write_text(agent.replace("localhost:8420", http.removeprefix("http://")))
    assert typed(block("sh", "greeter.py"), hub).strip().splitlines()[-1] == "Hello, Ada!"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_session_works(hub: tuple[str, Path]) -> None:
    said = typed(block("sh", "work_request"), hub)
    assert '{"status":"accepted","message_id":"550e8400-e29b-41d4-a716-446655440001"}' in said
    assert '"type":"work_result"' in said
    assert '"status":"success"' in said
    assert said.endswith('{"acknowledged":1}')
