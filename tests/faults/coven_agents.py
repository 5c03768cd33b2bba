"""Coven agents that may be killed at any moment, and what they remember over it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.support.coven_process import AgentProcess
from tests.support.hubproc import HubProcess


class Memory:
    """What an agent remembers over its own death: which requests had their effect."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self._lock = threading.Lock()

    def does(self, request: Mapping[str, Any]) -> bool:
        """Whether it was the first time."""
        with self._lock:
            new = request["request_id"] not in self.effects
            self.effects[request["request_id"]] += new
            return new


def connected(hub: HubProcess, id: str, token: str | None = None) -> AgentProcess:
    return AgentProcess(hub.ready["grpc"], token=token).register(id, "chat")
