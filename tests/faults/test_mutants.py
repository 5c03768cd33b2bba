"""A cluster's promises, broken on purpose in the code that ships: each time a named test must fail.

Each row is one small change of a copy of the source, and the test that notices it. `test_epochs` does the same to the
model of PostgreSQL that the simulation runs on. A row whose text is not in the source any more fails, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.postgres import need_postgres

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[2]
SECONDS = 300
FAILED = 1
"""pytest's exit code where tests ran and failed."""


class Mutant(NamedTuple):
    file: str
    honest: str
    broken: str
    caught_by: str


STORE, LINK = "adapters/postgres", "unit/app/cluster"
MUTANTS = {
    "a commit does not check the epoch": Mutant(
        "stores/postgres/functions.py",
        "        WHERE epoch = given_epoch;\n        IF NOT FOUND",
        "        WHERE true;\n        IF NOT FOUND",
        f"{STORE}/test_commits.py::test_a_leader_whose_epoch_is_over_commits_nothing_and_is_fenced_from_then_on",
    ),
    "a message that leaves at most once does not check the epoch": Mutant(
        "stores/postgres/functions.py",
        "FROM lease WHERE epoch = given_epoch FOR SHARE",
        "FROM lease FOR SHARE",
        f"{STORE}/test_commits.py"
        "::test_a_message_that_leaves_at_most_once_is_not_noted_by_a_leader_whose_epoch_is_over",
    ),
    "a commit does not wait for the replica": Mutant(
        "stores/postgres/connection.py",
        "THEN 'remote_apply' ELSE 'on' END",
        "THEN 'remote_apply' ELSE 'local' END",
        f"{STORE}/test_replicas.py::test_nothing_is_acknowledged_while_the_synchronous_replica_does_not_have_it",
    ),
    "the intake acknowledges before it commits": Mutant(
        "app/intake.py",
        "                    await unit.commit(changes)\n",
        "                    for (_, then), said in zip(batch, outcomes): then is None or then(*said)\n"
        "                    await unit.commit(changes)\n",
        "unit/app/test_intake.py::test_what_was_not_committed_is_refused_and_leaves_for_nobody",
    ),
    "a commit in doubt is believed without an epoch": Mutant(
        "stores/postgres/store.py",
        "again = await self._lease.take_again(term.epoch)",
        "again = await self._lease.read()",
        f"{STORE}/test_replicas.py"
        "::test_a_commit_in_doubt_is_not_believed_from_an_epoch_that_the_replica_does_not_have",
    ),
    "an epoch is believed before the replica has it": Mutant(
        "stores/postgres/lease.py",
        "WHERE realm = $1 AND epoch = $2 AND (expires_at",
        "WHERE set_config('synchronous_commit', 'local', true) = 'local' AND realm = $1 AND epoch = $2 AND (expires_at",
        f"{STORE}/test_replicas.py::test_a_new_epoch_is_believed_only_when_the_replica_has_it",
    ),
    "the lease heeds no warning": Mutant(
        "stores/postgres/lease.py",
        "if warnings.came:",
        "if False:",
        f"{STORE}/test_replicas.py::test_an_epoch_whose_wait_for_the_replica_was_cancelled_is_not_believed",
    ),
    "a commit heeds no warning": Mutant(
        "stores/postgres/sessions.py",
        "if warnings.came:",
        "if False:",
        f"{STORE}/test_replicas.py::test_a_commit_whose_wait_for_the_replica_was_cancelled_is_not_acknowledged",
    ),
    "a file heeds no warning": Mutant(
        "stores/postgres/pool.py",
        "if warnings.came:",
        "if False:",
        f"{STORE}/test_replicas.py::test_a_file_whose_wait_for_the_replica_was_cancelled_is_not_acknowledged",
    ),
    "a commit is two statements": Mutant(
        "stores/postgres/store.py",
        "                if await self._writer.write(functions.CALL_COMMIT, given):",
        "                await self._writer.fetch('UPDATE lease SET last_unit = last_unit + 1')\n"
        "                if await self._writer.write(functions.CALL_COMMIT, given):",
        f"{STORE}/test_commits.py::test_a_unit_is_one_statement",
    ),
    "a lease is taken from a leader that lives": Mutant(
        "stores/postgres/lease.py",
        "OR ($6 AND NOT {ALIVE}))",
        "OR $6 OR true)",
        f"{STORE}/test_lease.py::test_a_lease_that_is_held_cannot_be_taken",
    ),
    "a leader that cannot renew its lease leads on": Mutant(
        "app/cluster/election.py",
        "if known.now >= known.sure_until - MARGIN:",
        "if False:",
        f"{LINK}/test_election.py::test_no_node_leads_or_takes_the_lead_that_must_not",
    ),
    "a fenced intake refuses what it has": Mutant(
        "app/intake.py",
        "            except Fenced:\n                raise\n            except StoreFailed as error:\n"
        "                self._observer.failed",
        "            except StoreFailed as error:\n                self._observer.failed",
        "unit/app/test_intake.py::test_a_fenced_intake_neither_acknowledges_nor_refuses",
    ),
    "a node that stepped down acknowledges": Mutant(
        "app/intake.py",
        "            if self.fenced.is_set():\n                return  # it",
        "            if False:\n                return  # it",
        "unit/app/test_intake.py::test_a_node_that_stepped_down_during_a_commit_says_nothing_of_it",
    ),
    "a node answers what its leader did not": Mutant(
        "app/cluster/link/remote_intake.py",
        "        closed = [self._unanswered[number][0] for number in self._closing]\n",
        "        closed = [then for then, _ in self._unanswered.values()]\n",
        f"{LINK}/test_link_ends.py::test_a_command_under_way_when_the_stream_ends_is_neither_accepted_nor_refused",
    ),
    "every node posts to callback URLs": Mutant(
        "app/endpoints.py",
        "posts=leads)",
        "posts=True)",
        "faults/test_cluster.py::test_the_leader_alone_posts_to_a_callback_url_and_the_next_one_goes_on",
    ),
    "time does not go on after the leader before": Mutant(
        "app/cluster/node.py",
        "self._clock.go_on_after(lease.last_instant)",
        "pass",
        "faults/test_cluster.py"
        "::test_time_goes_on_after_a_leader_whose_clock_is_behind_and_one_that_is_far_off_never_leads",
    ),
}


class Copy:
    """The package once more, and tests that run on it."""

    def __init__(self, home: Path) -> None:
        self.package = home / "dragoman"
        shutil.copytree(ROOT / "src/dragoman", self.package, ignore=shutil.ignore_patterns("__pycache__"))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DRAGOMAN_"))}
        self._environment = {**kept, "PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, test: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", f"tests/{test}", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"],
            cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def is_used(self) -> bool:
        which = "import dragoman; print(dragoman.__path__[0])"
        done = subprocess.run(
            [sys.executable, "-c", which], env=self._environment, capture_output=True, text=True, timeout=SECONDS
        )
        return Path(done.stdout.strip()) == self.package


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    need_postgres()
    made = Copy(tmp_path_factory.mktemp("mutants"))
    assert made.is_used()
    yield made
    shutil.rmtree(made.package)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_promise_is_noticed(name: str, copy: Copy) -> None:
    mutant = MUTANTS[name]
    file = copy.package / mutant.file
    honest = file.read_text()
    assert honest.count(mutant.honest) == 1, "the source has changed: change the row"
    file.write_text(honest.replace(mutant.honest, mutant.broken))
    try:
        code, said = copy.run(mutant.caught_by)
    finally:
        file.write_text(honest)
    assert code == FAILED, said


@pytest.mark.parametrize("test", sorted({mutant.caught_by for mutant in MUTANTS.values()}))
def test_the_honest_source_passes(test: str, copy: Copy) -> None:
    code, said = copy.run(test)
    assert code == 0, said
