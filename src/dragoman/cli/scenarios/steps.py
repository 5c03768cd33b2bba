"""A scenario is a list of steps: each does something at the hub, and raises `Unmet` if what comes is not what it wants.

    of `conformance`    a step is a check of one clause; one that fails does not end the others
    of `play`           a step is a message that is sent or expected; the first that fails ends the play

An outcome is shown as a line or two for a person, or a record in JSON (`printing.Report`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from dragoman.cli.errors import CommandError

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
