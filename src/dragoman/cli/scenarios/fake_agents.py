"""Agents that exist for one scenario: added to the hub, spoken for by plain HTTP, and removed again.

    a request that is answered at once     `FakeAgent.post`
    a request whose answer may take long   `FakeAgent.post_in_background`; the answer goes to the agent's inbox
    messages of the hub                    `FakeAgent.inbox`, which polls while a step waits for a message

At the end nothing is left that a person would have to look after (`FakeAgents.__exit__`).
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import note
from dragoman.cli.scenarios.steps import Unmet
from dragoman.cli.task_view import FINAL

PATIENCE = 10.0
"""Seconds that a message may take to come."""
ANSWER_SECONDS = 60.0
"""Seconds for the answer to a request: longer than the hub makes a caller wait."""
POLL_SECONDS = 5.0
INBOXES = {"chiffon": "/api/agent", "agentmsg": "/agentmsg", "a2acp": "/a2acp"}
"""Protocol → below which path its agents poll."""


NO_HEADERS: Mapping[str, str] = MappingProxyType({})


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
    """An agent with a token at the hub."""

    def __init__(self, hub: Hub, id: str, token: str, protocol: str = "") -> None:
        self.hub = hub
        self.id = id
        self.token = token
        self.inbox = Inbox(self, INBOXES.get(protocol, ""))

    def get(self, path: str) -> Answer:
        return self._ask("GET", path, None, {"Authorization": f"Bearer {self.token}"})

    def post(self, path: str, body: Any, *, bearer: bool = True, headers: Mapping[str, str] = NO_HEADERS) -> Answer:
        """A body that is bytes is sent as it is."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        credential = {"Authorization": f"Bearer {self.token}"} if bearer else {}
        return self._ask("POST", path, data, {"Content-Type": "application/json", **credential, **headers})

    def _ask(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Answer:
        return Answer(*self.hub.exchange(method, path, data, headers, patience=ANSWER_SECONDS))

    def post_in_background(self, send: Callable[[], dict[str, Any] | None]) -> None:
        """Send a request without waiting for it. What `send` returns is put into the inbox when it is there."""

        def run() -> None:
            try:
                self.inbox.add(send())
            except Exception as error:
                self.inbox.add(error)

        self.inbox.expect_answer()
        threading.Thread(target=run, daemon=True).start()


class Inbox:
    """What an agent received: each message is acknowledged, and stays until a step wants it."""

    def __init__(self, agent: FakeAgent, base: str) -> None:
        self._agent = agent
        self._base = base
        self._held: list[dict[str, Any]] = []
        self._error: Exception | None = None
        self._unanswered = 0
        self._changed = threading.Condition()

    def expect_answer(self) -> None:
        """A request in the background will be answered by `add`."""
        with self._changed:
            self._unanswered += 1

    def add(self, answer: dict[str, Any] | Exception | None) -> None:
        """The answer to a request in the background, if it is a message. On any thread."""
        with self._changed:
            self._unanswered -= 1
            if isinstance(answer, Exception):
                self._error = answer
            elif answer is not None:
                self._held.append(answer)
            self._changed.notify_all()

    def keep(self, message: dict[str, Any]) -> None:
        """The answer to a request that was waited for."""
        self._held.append(message)

    def poll(self, wait: float) -> bool:
        """Take and acknowledge what the hub has for this agent. Whether there was anything."""
        answer = self._agent.get(f"{self._base}/messages?wait={wait:g}&max=50")
        if answer.status != 200:
            problem = f"a poll of {line(self._agent.id)} was answered with {answer.status}"
            raise CommandError(Exit.UNREACHABLE, problem, next="dragoman doctor")
        found = answer.json["messages"]
        if found:
            self._agent.post(f"{self._base}/ack", {"delivery_ids": [one["delivery_id"] for one in found]})
        self._held += [one["message"] for one in found]
        return bool(found)

    def find(self, wanted: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE) -> dict[str, Any] | None:
        """The first message like that, which leaves the inbox; None if it does not come in time."""
        end, looked = time.monotonic() + seconds, 0
        while True:
            for place in range(looked, len(self._held)):
                if wanted(self._held[place]):
                    return self._held.pop(place)
            looked = len(self._held)
            left = end - time.monotonic()
            if left <= 0:
                return None
            # An answer may come by the request in the background, which a long poll would not notice.
            if self._unanswered:
                with self._changed:
                    if self._error is None and len(self._held) == looked:
                        self._changed.wait(0.05)
                self.poll(0)
            else:
                self.poll(min(left, POLL_SECONDS))
            if self._error is not None:
                raise self._error

    def next(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The first message like that; raises `Unmet`."""
        found = self.find(wanted)
        if found is None:
            raise Unmet(f"{what} did not come within {PATIENCE:g} s")
        return found

    def quiet(self, unwanted: Callable[[dict[str, Any]], bool], what: str) -> None:
        """Nothing like that waits."""
        self.poll(0.2)
        if any(map(unwanted, self._held)):
            raise Unmet(f"{what} came")

    def rest(self) -> list[dict[str, Any]]:
        """Everything that came and that no step wanted."""
        while self._base and self.poll(0):
            pass
        return self._held

    def remove(self, message: dict[str, Any]) -> None:
        self._held.remove(message)


class FakeAgents:
    """Adds agents; at the end removes them, and all that they left at the hub: unfinished tasks, contracts, messages
    that no agent took, dead letters."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._agents: dict[str, FakeAgent | None] = {}
        self._older: set[str] = set()

    def admit(self, protocol: str, part: str, *, id: str | None = None, **more: Any) -> FakeAgent:
        if id is not None:  # an agent of that name may have been here before
            self._older |= {dead["id"] for dead in self._dead_letters({id})}
        id = id or f"conformance-{part}-{secrets.token_hex(4)}"
        made = self.hub.post("agents", body={"agent_id": id, "protocol": protocol, **more})
        agent = self._agents[id] = FakeAgent(self.hub, id, str(made["token"]), protocol)
        return agent

    def also_remove(self, id: str) -> None:
        """An agent that the hub itself started."""
        self._agents[id] = None

    def __enter__(self) -> FakeAgents:
        return self

    def __exit__(self, *exc: object) -> None:
        self._attempt(self._end_work, "tasks or contracts may be left", "dragoman task ls")
        for id in self._agents:
            self._attempt(partial(self.hub.delete, "agents", id), f"{id} was not removed", f"dragoman agent rm {id}")
        if self._agents:
            self._attempt(self._discard_dead_letters, "dead letters may be left", "dragoman dlq ls")

    def _attempt(self, clear: Callable[[], Any], left: str, command: str) -> None:
        try:
            clear()
        except CommandError as failure:  # how the scenario went counts more
            note(f"  {left} ({failure.sentence}): {command}")

    def _end_work(self) -> None:
        for id in self._agents:
            for task in list(self.hub.pages("tasks", principal=id)):
                if task["status"] not in FINAL:
                    self._end("tasks", task["id"], "cancel")
            for contract in list(self.hub.pages("contracts", agent=id)):
                if contract["standing"] == "active":
                    self._end("contracts", contract["id"], "end")
        for agent in self._agents.values():
            if agent is not None:
                agent.inbox.rest()

    def _end(self, *path: str) -> None:
        try:
            self.hub.post(*path, body={"reason": "the scenario is over"})
        except CommandError as failure:
            if failure.code is not Exit.NOT_ALLOWED:  # it ended by itself meanwhile
                raise

    def _discard_dead_letters(self) -> None:
        """What was on its way to one of them is dead now, or a moment after its removal."""
        for pause in (0.0, 0.1):
            time.sleep(pause)
            for dead in list(self._dead_letters(self._agents.keys())):
                if dead["id"] not in self._older:
                    self.hub.post("deadletters", dead["id"], "discard")

    def _dead_letters(self, ids: Collection[str]) -> Iterator[Mapping[str, Any]]:
        """Of what is for one of these agents, or was asked by one."""
        asked = {task["id"] for id in ids for task in self.hub.pages("tasks", principal=id)}
        return (one for one in self.hub.pages("deadletters") if one["receiver"] in ids or one["task_id"] in asked)


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
