"""A hub beside which the documents' commands are typed, as a reader does."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.hubproc import HubProcess

ROOT = Path(__file__).parents[3]
PATIENCE = 60

AT_THE_END = """trap 'if [ -n "$!" ]; then kill $! || true; wait; fi' EXIT"""
"""What a script left in the background ends with its shell."""


class Terminal:
    """A running hub, and a shell in the directory where it was started."""

    def __init__(self, http: str, grpc: str, directory: Path) -> None:
        self.http = http
        self.grpc = grpc
        self.directory = directory

    def local(self, text: str) -> str:
        """The text with the addresses of this hub in place of the documents' own."""
        text = re.sub(r"(?:localhost|127\.0\.0\.1):8420", self.http.removeprefix("http://"), text)
        return text.replace("localhost:50051", self.grpc)

    def run(self, script: str) -> str:
        """What a shell prints on stdout for these lines."""
        shell = subprocess.Popen(
            ["sh", "-e", "-c", f"{AT_THE_END}\n{self.local(script)}"],
            cwd=self.directory,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            output, errors = shell.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            shell.terminate()
            raise
        assert shell.returncode == 0, errors
        return output


def environment() -> dict[str, str]:
    """The environment of the README's second terminal."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    return clean | {"PATH": f"{Path(sys.executable).parent}:{clean.get('PATH', '')}"}


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """Beside a hub without the demo: what is typed brings its own agents."""
    directory = tmp_path_factory.mktemp("terminal")
    hub = HubProcess(directory, data=directory / ".dragoman")
    hub.settings = {}
    try:
        hub.start()
        yield Terminal(hub.ready["http"], hub.ready["grpc"], directory)
    finally:
        hub.kill()


@pytest.fixture(scope="module")
def demo_terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """`make run` without make, on free ports."""
    directory = tmp_path_factory.mktemp("terminal")
    with (directory / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "dragoman.cli", "dev", "--demo", "--port", "0", "--grpc-port", "0", "--ready-json"],
            cwd=directory,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], PATIENCE)[0], "the hub did not say that it serves"
        ready = json.loads(process.stdout.readline())
        yield Terminal(ready["http"], ready["grpc"], directory)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        process.stdout.close()


@pytest.fixture(scope="session")
def block() -> Callable[[str, str, str], str]:
    """The one block of a document in a language that contains a text."""

    def find(document: str, language: str, containing: str) -> str:
        text = (ROOT / document).read_text()
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
        [found] = [one for one in blocks if containing in one]
        return str(found)

    return find
