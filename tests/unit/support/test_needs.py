"""What tests need of a machine: installed where it may be, and told in one line where it may not."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.needs import NEEDS, Need, install, missing, shortfall

BWRAP, STRACE = Need("bwrap", "bubblewrap", "the sandbox"), Need("strace", "strace", "disks that fail")
UNHELD = "bubblewrap: bwrap is not installed; install bubblewrap (Debian, Fedora, Arch: the package bubblewrap)"


class Machine:
    """A fake apt-get: `answers` to its commands, in their order."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.ran: list[str] = []
        self.said: list[str] = []

    def run(self, command: Sequence[str]) -> bool:
        self.ran.append(" ".join([*command[:2], *(word for word in command if word in ("bubblewrap", "strace"))]))
        return self.answers.pop(0)


def test_what_is_missing_is_installed_by_name_and_told_before() -> None:
    machine = Machine(True)
    install([BWRAP, STRACE], machine.run, machine.said.append, able=True)
    assert machine.ran == ["apt-get install bubblewrap strace"]
    assert machine.said == [
        "bubblewrap is missing, and needed for tests of the sandbox",
        "strace is missing, and needed for tests of disks that fail",
        "installing: apt-get install bubblewrap strace",
    ]


def test_a_machine_whose_lists_are_empty_is_updated_first() -> None:
    machine = Machine(False, True, True)
    install([BWRAP], machine.run, machine.said.append, able=True)
    assert machine.ran == ["apt-get install bubblewrap", "apt-get update", "apt-get install bubblewrap"]
    assert "those tests are skipped" not in machine.said[-1]


def test_what_cannot_be_installed_costs_tests_and_not_the_run() -> None:
    machine = Machine(False, False)
    install([BWRAP], machine.run, machine.said.append, able=True)
    assert machine.ran == ["apt-get install bubblewrap", "apt-get update"]
    assert machine.said[-1] == "that did not work; those tests are skipped"


def test_without_root_or_apt_get_and_where_all_is_there_nothing_is_done() -> None:
    machine = Machine()
    install([BWRAP], machine.run, machine.said.append, able=False)
    install([], machine.run, machine.said.append, able=True)
    assert (machine.ran, machine.said) == ([], [])


def test_one_line_counts_what_was_skipped_and_says_what_to_install() -> None:
    reasons = [UNHELD, UNHELD, "strace is not installed", "not applicable: memory holds anything"]
    assert shortfall(reasons, [BWRAP, STRACE]) == (
        "skipped: 3 for want of bubblewrap strace (apt-get install bubblewrap strace)"
    )
    assert shortfall([*reasons, "this kernel cuts no power"], [BWRAP]) == (
        "skipped: 2 for want of bubblewrap (apt-get install bubblewrap); "
        '2 for other reasons (make test ARGS="-rs" lists them)'
    )
    assert shortfall(["not applicable: memory holds anything"], [BWRAP]) is None
    assert shortfall([], [BWRAP]) is None


def test_what_is_missing_is_looked_for_on_the_path() -> None:
    here, nowhere = Need("sh", "dash", "shells"), Need("no-such-program-anywhere", "none", "nothing")
    assert missing([here, nowhere]) == [nowhere]
    assert len({need.program for need in NEEDS}) == len(NEEDS)
