"""Clients under way while the hub is killed under them: threads that submit, work and collect, and never give up.

Each goes on after any broken connection, as the document asks: the same message with the same ids again. Agents
remember results by request id (their memory survives: it is not they who are tested). What they were told and did
stands in the `Ledger`.
"""

from __future__ import annotations

import http.client
import random
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.chiffon import Answer, Orchestrator, Party, Worker, work_request, work_result, work_status
from tests.support.hubproc import HubProcess
from tests.support.ledger import Ledger

BROKEN = (OSError, http.client.HTTPException, ValueError)
TAKEN, GONE = 202, (404, 409)


class Fleet:
    """Started on entering; `drained` tells when everything acknowledged was answered."""

    most_unanswered = 1_000_000
    """Senders wait while more tasks than this are unanswered."""

    def __init__(self, hub: HubProcess, ledger: Ledger, *, seed: int, workers: int = 2, senders: int = 2) -> None:
        self.hub = hub
        self.ledger = ledger
        self.sending = threading.Event()
        self.running = threading.Event()
        self.failures: list[str] = []
        self._random = random.Random(seed)
        hub.token("boss", "orchestrator")
        for n in range(workers):
            hub.worker(f"i{n}", limits={"max_concurrent": 20})
        self._threads = [
            *(self._thread(self._submit, seed * 100 + n) for n in range(senders)),
            *(self._thread(self._work, n) for n in range(workers)),
            self._thread(self._collect),
        ]

    def _thread(self, run: Callable[..., None], *args: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                run(*args)
            except Exception as error:
                self.failures.append(f"{run.__name__}: {error!r}")

        return threading.Thread(target=guarded, daemon=True)

    def __enter__(self) -> Fleet:
        self.sending.set()
        self.running.set()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.sending.clear()
        self.running.clear()
        for thread in self._threads:
            thread.join(60)

    def where(self) -> list[str]:
        """Where each thread is, for a run that does not end."""
        frames = sys._current_frames()
        return [
            "".join(traceback.format_stack(frames[thread.ident])[-4:]) if thread.ident in frames else "ended"
            for thread in self._threads
            if thread.ident is not None
        ]

    def _again(self, party: Party, message: Mapping[str, Any], give_up: Callable[[], bool]) -> Answer | None:
        """Send until the hub answers."""
        while not give_up():
            try:
                party.url = self.hub.url
                answer = party.send(message)
            except BROKEN:
                threading.Event().wait(0.02)
                continue
            if answer.status != 503:
                return answer
            party.close()  # a cluster has other nodes
            threading.Event().wait(0.02)
        return None

    def _submit(self, seed: int) -> None:
        rng = random.Random(seed)
        boss = Orchestrator(self.hub.url, self.hub.token("boss", "orchestrator"), keep=True)
        while self.sending.is_set():
            if not self.ledger.wait_for_answers(self.most_unanswered, 0.5):
                continue
            request = work_request({"n": rng.getrandbits(64)})
            self.ledger.sends(request)
            answer = self._again(boss, request, lambda: not self.sending.is_set())
            if answer is None:
                return
            assert answer.status == TAKEN, answer
            self.ledger.was_acknowledged(request)
            if rng.random() < 0.1:  # a client that is not sure asks again
                again = self._again(boss, request, lambda: not self.sending.is_set())
                assert again is None or again.status == TAKEN, again

    def _work(self, number: int) -> None:
        id = f"i{number}"
        agent = Worker(self.hub.url, self.hub.token(id, "infra"), id, "infra", keep=True)
        results: dict[str, dict[str, Any]] = {}
        while self.running.is_set():
            for delivery in self._poll(agent):
                request = delivery["message"]
                if request["type"] != "work_request":
                    continue
                if request["request_id"] not in results:
                    self.ledger.does(request)
                    results[request["request_id"]] = work_result(
                        request, output=str(request["payload"]["parameters"].get("n", "well"))
                    )
                    for number in (1, 2):
                        status = work_status(request, number * 30, number=number)
                        answer = self._again(agent, status, lambda: not self.running.is_set())
                        if answer is not None and answer.status == TAKEN:
                            self.ledger.was_taken(status)
                answer = self._again(agent, results[request["request_id"]], lambda: not self.running.is_set())
                assert answer is None or answer.status in (TAKEN, *GONE), answer

    def _collect(self) -> None:
        boss = Orchestrator(self.hub.url, self.hub.token("boss", "orchestrator"), keep=True)
        while self.running.is_set():
            for delivery in self._poll(boss):
                self.ledger.hears(delivery["message"])

    def _poll(self, party: Party) -> list[dict[str, Any]]:
        """What waits. It counts as received before it is acknowledged: the answer to that may get lost."""
        got: list[dict[str, Any]] = []
        try:
            party.url = self.hub.url
            got = party.poll(wait=0.5, most=50)
            if got:
                party.ack(*got)
        except BROKEN:
            party.close()
            threading.Event().wait(0.02)
        return got
