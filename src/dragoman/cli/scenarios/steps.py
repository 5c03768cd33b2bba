"""What a check is: a clause, and something to try that raises `Unmet` if the clause does not hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from dragoman.cli.errors import CommandError

S = TypeVar("S")


class Unmet(Exception):
    """A clause does not hold. The sentence says what came instead."""


class NotTried(Exception):
    """It cannot be tried here. The sentence says why."""


class Check(NamedTuple, Generic[S]):
    id: str
    says: str
    run: Callable[[S], None]


class Outcome(NamedTuple):
    """What became of a check: `good` is None for one that could not be tried."""

    protocol: str
    id: str
    says: str
    good: bool | None
    why: str
    seconds: float


class Checks(Generic[S]):
    """The checks of one protocol, in the order in which they are tried: later ones may build on earlier ones."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.checks: list[Check[S]] = []

    def __call__(self, id: str, says: str) -> Callable[[Callable[[S], None]], Callable[[S], None]]:
        def listed(run: Callable[[S], None]) -> Callable[[S], None]:
            self.checks.append(Check(id, says, run))
            return run

        return listed

    def run(self, scenario: S) -> Iterator[Outcome]:
        return run(self.protocol, self.checks, scenario)


def run(protocol: str, checks: Sequence[Check[S]], scenario: S) -> Iterator[Outcome]:
    for check in checks:
        began = time.monotonic()
        good, why = outcome(check, scenario)
        yield Outcome(protocol, check.id, check.says, good, why, time.monotonic() - began)


def outcome(check: Check[S], scenario: S) -> tuple[bool | None, str]:
    try:
        check.run(scenario)
    except Unmet as unmet:
        return False, str(unmet)
    except NotTried as untried:
        return None, str(untried)
    except CommandError as failure:
        return False, failure.sentence
    except TimeoutError as error:
        return False, str(error) or "nothing came in time"
    except OSError as error:
        return False, f"the connection broke: {error}"
    except (KeyError, IndexError, TypeError, ValueError) as error:
        # What came has another form than the document says.
        return False, f"an answer in another form: {type(error).__name__}: {error}"
    return True, ""


def expect(holds: Any, why: str) -> None:
    if not holds:
        raise Unmet(why)


def unmet(why: str) -> NoReturn:
    raise Unmet(why)
