"""Agents that play a part in the checks: let in under fresh names, spoken for by plain HTTP, and put out again."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple

from dragoman.cli.errors import CommandError
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import note
from dragoman.cli.scenarios.steps import Unmet

PATIENCE = 10.0
"""Seconds that anything may take to come."""


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise Unmet(f"status {self.status}, and no JSON: {self.body[:200]!r}") from None


class FakeAgent:
    """Somebody with a token at the hub."""

    def __init__(self, hub: Hub, id: str, token: str) -> None:
        self.hub = hub
        self.id = id
        self.token = token

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        told = {
            "Authorization": f"Bearer {self.token}",
            **({} if data is None else {"Content-Type": "application/json"}),
        }
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        return Answer(*self.hub.exchange(method, path, data, {**told, **said}, patience=3 * PATIENCE))

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)


class Inbox:
    """What a player polls: each message is acknowledged, and stays until somebody wants it."""

    def __init__(self, agent: FakeAgent, messages: str, ack: str) -> None:
        self._player = agent
        self._messages, self._ack = messages, ack
        self._held: list[dict[str, Any]] = []

    def poll(self, wait: float) -> None:
        answer = self._player.get(f"{self._messages}?wait={wait:g}&max=50")
        if answer.status != 200:
            raise Unmet(f"a poll was answered with {answer.status}")
        found = answer.json["messages"]
        if found:
            self._player.post(self._ack, {"delivery_ids": [one["delivery_id"] for one in found]})
        self._held += [one["message"] for one in found]

    def next(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The first message like that; raises `Unmet`."""
        until = time.monotonic() + PATIENCE
        while True:
            for place, message in enumerate(self._held):
                if wanted(message):
                    return self._held.pop(place)
            left = until - time.monotonic()
            if left <= 0:
                raise Unmet(f"{what} did not come within {PATIENCE:g} s")
            self.poll(min(left, 5.0))

    def quiet(self, unwanted: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Nothing like that waits."""
        self.poll(0.2)
        if any(map(unwanted, self._held)):
            raise Unmet(f"{what} came")


class FakeAgents:
    """Lets players in; puts all of them out at the end."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._ids: list[str] = []

    def admit(self, protocol: str, part: str, *, id: str | None = None, **more: Any) -> FakeAgent:
        id = id or f"conformance-{part}-{secrets.token_hex(4)}"
        made = self.hub.post("agents", body={"agent_id": id, "protocol": protocol, **more})
        self._ids.append(id)
        return FakeAgent(self.hub, id, str(made["token"]))

    def also_remove(self, id: str) -> None:
        """It came by itself, and is put out like the others."""
        self._ids.append(id)

    def __enter__(self) -> FakeAgents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for id in self._ids:
            try:
                self.hub.delete("agents", id)
            except CommandError as failure:
                note(f"  {id} could not be put out ({failure.sentence}): dragoman agent rm {id}")
        if self._ids:
            self._discard_dead_letters(set(self._ids))

    def _discard_dead_letters(self, gone: set[str]) -> None:
        """What was on its way to one of them is dead now, a moment after it left, and worth nothing to anybody."""
        try:
            for pause in (0.0, 0.1):
                time.sleep(pause)
                for letter in self.hub.get("deadletters", limit=500)["deadletters"]:
                    if letter.get("receiver") in gone:
                        self.hub.post("deadletters", letter["id"], "discard")
        except CommandError as failure:
            note(f"  dead letters may be left ({failure.sentence}): dragoman dlq ls")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def without(message: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name not in names}


def until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise Unmet(f"{what} within {seconds:g} s")
        time.sleep(0.05)
