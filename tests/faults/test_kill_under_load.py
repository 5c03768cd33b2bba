"""kill -9 at random moments while clients submit, work and collect: judged by the ledger outside.

The seed stands in the test's name, and is printed with what was wrong.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
from tests.support.fleet import Fleet
from tests.support.hubproc import HubProcess, running, until
from tests.support.ledger import Ledger
from tests.support.senders import Senders


def kill_in_a_loop(home: Path, seed: int, kills: int, seconds: float) -> None:
    # Long enough for a busy machine: an agent that is silent for longer loses its task to the next, who does it too.
    hub = HubProcess(home, DRAGOMAN_RULES__IDLE_SECONDS="20").start()
    ledger, rng = Ledger(), random.Random(seed)
    try:
        with Fleet(hub, ledger, seed=seed) as fleet:
            for _ in range(kills):
                before = len(ledger.acknowledged)
                until(lambda: len(ledger.acknowledged) > before or fleet.failures, "traffic")  # noqa: B023
                threading.Event().wait(rng.random() * seconds)  # the moment is what is random
                hub.restart()
            until(lambda: len(ledger.acknowledged) > 20 or fleet.failures, "enough of it")
            fleet.sending.clear()
            until(lambda: not ledger.unanswered or fleet.failures, "every acknowledged task is answered", 120)
            until(lambda: hub.pending == 0 or fleet.failures, "nothing is pending", 60)
        assert fleet.failures == []
        assert len(hub.tasks()) >= len(ledger.acknowledged)
        assert ledger.verdict(hub.dead_letters()) == [], f"seed {seed}"
        assert hub.admin.get("/readyz").status == 200
    finally:
        hub.kill()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_nothing_acknowledged_is_lost_over_random_kills(seed: int, tmp_path: Path) -> None:
    kill_in_a_loop(tmp_path, seed, kills=4, seconds=0.5)


SEEDS = [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 20))]


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_any_protocol_acknowledged_is_lost_in_a_kill(seed: int, tmp_path: Path) -> None:
    """Senders over chiffon, agentmsg, forge, a2acp and the API with files, and a kill after so many of their
    acknowledgments."""
    after = random.Random(seed).randint(100, 600)
    with running(tmp_path) as hub:
        senders = Senders(hub)
        with senders.sending():
            until(lambda: senders.count >= after, f"{after} acknowledgments")
            hub.kill()
        assert all(senders.acknowledged.values())
        hub.start()
        assert senders.lost(float("inf")) == {}, f"seed {seed}"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("SOAK_SEEDS", "5"))))
def test_nothing_acknowledged_is_lost_over_many_random_kills(seed: int, tmp_path: Path) -> None:
    kill_in_a_loop(tmp_path, 1000 + seed, kills=40, seconds=1.0)
