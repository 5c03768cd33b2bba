"""The hub of a scenario: the one that runs, or one for this command alone, in a directory that goes with it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dragoman.cli.arguments import HubLocation
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub

START_SECONDS = 20.0


def hub_for(location: HubLocation, *, fresh: bool, after: ExitStack, fix: str) -> tuple[Hub, Path]:
    """The hub, and its data directory. `fix` is the command to suggest where no hub runs."""
    if fresh:
        return after.enter_context(temporary_hub())
    try:
        return Hub.find(location), location.directory
    except CommandError as failure:
        if failure.code is Exit.UNREACHABLE:
            failure.next = f"{fix}   (a hub of its own)   ·   dragoman dev"
        raise


@contextmanager
def temporary_hub() -> Iterator[tuple[Hub, Path]]:
    """The hub, and its data directory: its keys are ours."""
    with tempfile.TemporaryDirectory(prefix="dragoman-own-") as place:
        data = Path(place, "data")
        command = [sys.executable, "-m", "dragoman.cli", "dev", "--no-demo", "--ready-json"]
        command += ["--port", "0", "--grpc-port", "0"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
        with open(Path(place, "hub.log"), "wb") as log:
            hub = subprocess.Popen(
                [*command, "--data", str(data)], cwd=place, env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        try:
            assert hub.stdout is not None
            readable, _, _ = select.select([hub.stdout], [], [], START_SECONDS)
            first = hub.stdout.readline() if readable else b""
            if not first:
                why = Path(place, "hub.log").read_text("utf-8", "replace").strip().rpartition("\n")[2]
                raise CommandError(
                    Exit.UNREACHABLE, f"the temporary hub did not start: {line(why)}", next="dragoman doctor"
                )
            ready = json.loads(first)
            yield Hub(ready["http"], ready["admin_token"]), data
        finally:
            hub.terminate()
            try:
                hub.wait(START_SECONDS)
            except subprocess.TimeoutExpired:
                hub.kill()
                hub.wait()
