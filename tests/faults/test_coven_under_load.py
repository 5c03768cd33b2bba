"""kill -9 of coven agents, and of the hub under them, at random moments under load. Judged from outside."""

from __future__ import annotations

import json
import queue
import random
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.faults.coven_agents import Memory, connected
from tests.support.coven_process import AgentProcess
from tests.support.fleet import BROKEN, Fleet
from tests.support.hubproc import HubProcess, until
from tests.support.ledger import Ledger


class CovenLedger(Ledger):
    """Coven's text has no numbers, and pieces may come together: the order is judged by what was said in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, str] = {}

    def hears(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "work_status":
            return
        super().hears(message)
        with self._lock:
            self.answers[message["payload"]["task_id"]] = message["payload"].get("output", "")


class CovenFleet(Fleet):
    """Chiffon's submitters, coven's workers: processes that are killed, too."""

    def __init__(self, hub: HubProcess, ledger: Ledger, *, seed: int, agents: int = 2) -> None:
        super().__init__(hub, ledger, seed=seed, workers=0, senders=1)
        self.agents: dict[int, AgentProcess] = {}
        for n in range(agents):
            wish = {"agent_id": f"c{n}", "protocol": "coven", "kind": "infra"}
            token = hub.admin.post("/api/v1/agents", wish).json["token"]
            self._threads.append(self._thread(self._stream, n, token))

    def _stream(self, number: int, token: str) -> None:
        memory = Memory()
        while self.running.is_set():
            try:
                socket.create_connection(self.hub.ready["grpc"].split(":")).close()  # a process is dear
                self.agents[number] = agent = connected(self.hub, f"c{number}", token)
                while self.running.is_set():
                    request = agent.work()
                    if memory.does(request):
                        self.ledger.does(request)
                    for piece in (request["content"], " done"):
                        agent.respond(request, text=piece)
                    agent.respond(request, done={})
            except (*BROKEN, AssertionError, queue.Empty, KeyError):
                threading.Event().wait(0.05)
        if number in self.agents:
            self.agents[number].kill()

    def __exit__(self, *_: object) -> None:
        self.running.clear()
        for agent in self.agents.values():
            agent.kill()
        super().__exit__()


def beyond_attempts(hub: HubProcess, ledger: CovenLedger) -> list[str]:
    """What is wrong, but for work that was done once in each of its attempts: an agent that is killed between its work
    and its answer is asked first when it is back, and where it is not, or has its hands full by then, somebody else is.
    """
    tasks = {request: task for task, request in ledger.sent.items()}
    attempts = {request: hub.task(tasks[request])["attempts"] for request, n in ledger.effects.items() if n > 1}
    excused = {f"done {n} times: {request}" for request, n in ledger.effects.items() if n <= attempts.get(request, 1)}
    return [line for line in ledger.verdict(hub.dead_letters()) if line not in excused]


def kill_in_a_loop(home: Path, seed: int, kills: int, seconds: float) -> None:
    settings = {"DRAGOMAN_RULES__IDLE_SECONDS": "5", "DRAGOMAN_RULES__BREAKER_THRESHOLD": "1000"}
    # Only who did the work knows that it did: it has time to be back before somebody else is asked.
    settings["DRAGOMAN_RULES__RETRY_DELAYS_SECONDS"] = "0,4,4,4"
    hub = HubProcess(home, **settings).start()
    ledger, rng = CovenLedger(), random.Random(seed)
    try:
        with CovenFleet(hub, ledger, seed=seed) as fleet:
            for turn in range(kills):
                before = len(ledger.outcomes)
                until(lambda: len(ledger.outcomes) > before or fleet.failures, "traffic")  # noqa: B023
                threading.Event().wait(rng.random() * seconds)  # the moment is what is random
                if turn % 2:
                    rng.choice(list(fleet.agents.values())).process.kill()
                else:
                    hub.restart()
            until(lambda: len(ledger.acknowledged) > 10 or fleet.failures, "enough of it")
            fleet.sending.clear()
            until(lambda: not ledger.unanswered or fleet.failures, "every acknowledged task is answered", 60)
            until(lambda: hub.pending == 0 or fleet.failures, "nothing is pending", 60)
        assert fleet.failures == []
        assert beyond_attempts(hub, ledger) == [], f"seed {seed}"
        for task, said in ledger.answers.items():
            assert said.endswith(" done"), (task, said)
            assert json.loads(said.removesuffix(" done").partition("\n\n")[2]) == hub.task(task)["input"]
    finally:
        hub.kill()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_nothing_acknowledged_is_lost_over_random_kills_of_hub_and_agents(seed: int, tmp_path: Path) -> None:
    kill_in_a_loop(tmp_path, seed, kills=3, seconds=0.3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_nothing_acknowledged_is_lost_over_many_random_kills(seed: int, tmp_path: Path) -> None:
    kill_in_a_loop(tmp_path, 1000 + seed, kills=30, seconds=1.0)
