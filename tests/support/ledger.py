"""The outside judge: what clients were told, what agents did, and whether the two agree after healing.

Nothing here asks the hub what it believes. Clients write down what they sent, what was acknowledged to them, what
they were given and what they did; `verdict` holds it all against the claim (docs/reliability.md):

    lost        acknowledged ⊆ answered ∪ given up, once nothing is pending
    inverted    what an agent reported about a task arrives in the order it was reported
    doubled     one effect per request, one outcome per task
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from tests.support.chiffon import task_of

RESULT = 1_000_000
"""The place of an outcome in its lane: after every status."""


class Ledger:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self.sent: dict[str, str] = {}  # task → request id
        self.acknowledged: set[str] = set()
        self.effects: Counter[str] = Counter()  # by request id, counted where the work is done
        self.reported: dict[str, list[int]] = defaultdict(list)  # by task: numbers the hub took with 202
        self.received: dict[str, list[int]] = defaultdict(list)  # by task: numbers in the order of first arrival
        self.outcomes: dict[str, set[str]] = defaultdict(set)  # by task: message ids of outcomes
        self._unanswered: set[str] = set()

    # -- what the orchestrator writes down

    def sends(self, request: Mapping[str, Any]) -> None:
        with self._lock:
            self.sent[task_of(request)] = request["request_id"]

    def was_acknowledged(self, request: Mapping[str, Any]) -> None:
        with self._lock:
            task = task_of(request)
            self.acknowledged.add(task)
            if task not in self.outcomes:
                self._unanswered.add(task)

    def hears(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            payload = message["payload"]
            task = payload.get("task_id") or message["x_custom_fields"]["task_id"]
            number = payload["step"]["number"] if message["type"] == "work_status" else RESULT
            if number == RESULT:
                self.outcomes[task].add(message["message_id"])
                self._unanswered.discard(task)
                self._answered.notify_all()
            if number not in self.received[task]:  # at least once: the same again is no news
                self.received[task].append(number)

    # -- what agents write down

    def does(self, request: Mapping[str, Any]) -> None:
        with self._lock:
            self.effects[request["request_id"]] += 1

    def was_taken(self, status: Mapping[str, Any]) -> None:
        with self._lock:
            self.reported[task_of(status)].append(status["payload"]["step"]["number"])

    def wait_for_answers(self, most: int, seconds: float) -> bool:
        """Until at most so many acknowledged tasks are unanswered; False if that takes longer."""
        with self._answered:
            return self._answered.wait_for(lambda: len(self._unanswered) <= most, seconds)

    # -- the judgment

    @property
    def unanswered(self) -> set[str]:
        with self._lock:
            return set(self._unanswered)

    def verdict(self, given_up: set[str]) -> list[str]:
        """Everything that is wrong; call when the hub says that nothing is pending."""
        with self._lock:
            wrong = [f"lost: {task}" for task in self.acknowledged - set(self.outcomes) - given_up]
            wrong += [
                f"lost a report: {task}"
                for task in self.outcomes
                if set(self.reported[task]) - set(self.received[task])
            ]
            wrong += [f"inverted: {task} {order}" for task, order in self.received.items() if order != sorted(order)]
            wrong += [f"done {n} times: {request}" for request, n in self.effects.items() if n > 1]
            wrong += [f"{len(ids)} outcomes: {task}" for task, ids in self.outcomes.items() if len(ids) > 1]
            done = {task for task, request in self.sent.items() if self.effects[request]}
            wrong += [f"answered but not done: {task}" for task in set(self.outcomes) - done - given_up]
            return wrong
