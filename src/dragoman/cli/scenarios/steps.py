"""A scenario is a list of steps: each does something at the hub, and raises `Unmet` if what comes is not what it wants.

    of `conformance`    a step is a check of one clause; one that fails does not end the others
    of `play`           a step is a message that is sent or expected; the first that fails ends the play

An outcome is shown as a line or two for a person, or a record in JSON (`printing.Report`). A scenario runs at the hub
that there is, or at one for this command alone, in a directory that goes with it (`hub_for`).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from dragoman.cli.arguments import HubLocation
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub

S = TypeVar("S")


class Unmet(Exception):
    """It is not as it must be. The sentences say what came instead."""

    def __init__(self, *sentences: str, message: Any = None) -> None:
        super().__init__(*sentences)
        self.message = message


class NotTried(Exception):
    """It cannot be tried here. The sentence says why."""


class Step(NamedTuple, Generic[S]):
    """`run` takes the scenario and returns what there is to show of it."""

    id: str
    says: str
    run: Callable[[S], Any]


class Outcome(NamedTuple):
    """What became of a step: `good` is None for one that could not be tried, `shown` what it returned."""

    id: str
    says: str
    good: bool | None
    why: tuple[str, ...] = ()
    shown: Any = None
    seconds: float = 0.0


def run(steps: Iterable[Step[S]], scenario: S, *, until_failure: bool = False) -> Iterator[Outcome]:
    """The outcome of each step, in their order: later ones may build on earlier ones. With `until_failure`, a hub that
    cannot be asked any more is raised as `CommandError`; else it is a failure of the step."""
    for step in steps:
        began = time.monotonic()
        good, why, shown = _attempt(step, scenario, until_failure)
        yield Outcome(step.id, step.says, good, why, shown, time.monotonic() - began)
        if until_failure and not good:
            return


def _attempt(step: Step[S], scenario: S, strict: bool) -> tuple[bool | None, tuple[str, ...], Any]:
    try:
        return True, (), step.run(scenario)
    except Unmet as unmet:
        return False, unmet.args, unmet.message
    except NotTried as reason:
        return None, reason.args, None
    except CommandError as failure:
        if strict:
            raise
        return False, (failure.sentence,), None
    except TimeoutError as error:
        return False, (str(error) or "nothing came in time",), None
    except OSError as error:
        return False, (f"the connection broke: {error}",), None
    except (KeyError, IndexError, TypeError, ValueError) as error:
        # What came has another form than the document says.
        return False, (f"an answer in another form: {type(error).__name__}: {error}",), None


class Checks(Generic[S]):
    """The steps of one protocol, collected by a decorator: `@checks("CH-VER-1", "An agent says …")`."""

    def __init__(self) -> None:
        self.steps: list[Step[S]] = []

    def __call__(self, id: str, says: str) -> Callable[[Callable[[S], None]], Callable[[S], None]]:
        def listed(run: Callable[[S], None]) -> Callable[[S], None]:
            self.steps.append(Step(id, says, run))
            return run

        return listed


def expect(holds: Any, why: str) -> None:
    if not holds:
        raise Unmet(why)


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
