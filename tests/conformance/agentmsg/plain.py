"""Agents of a hub that is a process of its own: `http.client`, `websockets` and the document, and nothing of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from tests.conformance.agentmsg import words
from tests.support.chiffon import Answer, HttpClient
from tests.support.hubproc import PATIENCE, HubProcess, until
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol


class Plain:
    """One agent. It does what it is told and hides nothing: no retries, no automatic acknowledgment over a link."""

    def __init__(self, hub: HubProcess, id: str, token: str | None = None, **fields: Any) -> None:
        self.hub = hub
        self.id = id
        if token is None:
            made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "agentmsg", **fields})
            assert made.status == 201, made
            token = made.json["token"]
        self.token = token

    def message(self, type: str, to: str, payload: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        return words.message(self.id, type, to, payload, metadata.pop("at", None) or words.now(), **metadata)

    # -- HTTP

    @property
    def http(self) -> HttpClient:
        return HttpClient(self.hub.url, self.token)

    def post(self, path: str, body: Any) -> Answer:
        return self.http.post(f"/agentmsg{path}", body)

    def get(self, path: str) -> Answer:
        return self.http.get(f"/agentmsg{path}")

    def send(self, message: Any) -> Answer:
        return self.post("/messages", message)

    def say(self, type: str, to: str, payload: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        """A message that is accepted."""
        message = self.message(type, to, payload, **metadata)
        answer = self.send(message)
        assert answer.status == 202, answer
        return message

    def refused(self, type: str, to: str, payload: dict[str, Any], **metadata: Any) -> tuple[int, dict[str, Any]]:
        answer = self.send(self.message(type, to, payload, **metadata))
        assert answer.status >= 400, answer
        return answer.status, dict(answer.json)

    def poll(self, wait: float = 0, most: int = 100) -> list[dict[str, Any]]:
        answer = self.get(f"/messages?wait={wait:g}&max={most}")
        assert answer.status == 200, answer
        return list(answer.json["messages"])

    def ack(self, *polled: dict[str, Any]) -> int:
        answer = self.post("/ack", {"delivery_ids": [one["delivery_id"] for one in polled]})
        assert answer.status == 200, answer
        return int(answer.json["acknowledged"])

    def hear(self) -> list[dict[str, Any]]:
        """All that waits, acknowledged."""
        heard: list[dict[str, Any]] = []
        while got := self.poll():
            self.ack(*got)
            heard += (one["message"] for one in got)
        return heard

    def hears(self, type: str) -> dict[str, Any]:
        """The next of a type; it and whatever came before it are acknowledged."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            got = self.poll(2, 1)
            self.ack(*got)
            found.extend(one["message"] for one in got if one["message"]["type"] == type)
            return bool(found)

        until(look, type)
        return found[0]

    def works(self, boss: Plain, task: str, **fields: Any) -> dict[str, Any]:
        boss.say("TASK_ASSIGNMENT", self.id, words.assignment(task, **fields))
        return self.hears("TASK_ASSIGNMENT")

    def task(self, name: str) -> dict[str, Any]:
        answer = self.get(f"/state/TASK/{quote(name)}")
        assert answer.status == 200, answer
        return dict(answer.json["value"])

    # -- WebSocket

    @contextmanager
    def link(self, **options: Any) -> Iterator[Wire]:
        url = f"{self.hub.url.replace('http', 'ws')}/agentmsg/ws"
        headers = {"Authorization": f"Bearer {self.token}"}
        spoken = [Subprotocol("agentmsg.v1")]
        with connect(
            url, subprotocols=spoken, additional_headers=headers, proxy=None, open_timeout=PATIENCE, **options
        ) as socket:
            yield Wire(self, socket)


class Wire:
    """A WebSocket. What came and was not asked for is kept in `heard`."""

    def __init__(self, agent: Plain, socket: ClientConnection) -> None:
        self.agent = agent
        self.socket = socket
        self.heard: list[dict[str, Any]] = []

    def say(self, type: str, to: str, payload: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        message = self.agent.message(type, to, payload, **metadata)
        self.socket.send(json.dumps(message))
        return message

    def ack(self, *messages: dict[str, Any]) -> None:
        ids = [one["id"] for one in messages]
        self.say("ACK", "hub", {"message_ids": ids} if len(ids) > 1 else {}, correlation_id=ids[0])

    def hears(self, type: str, about: str | None = None) -> dict[str, Any]:
        while True:
            heard: dict[str, Any] = json.loads(self.socket.recv(timeout=PATIENCE))
            self.heard.append(heard)
            if heard["type"] == type and about in (None, heard["metadata"].get("correlation_id")):
                return heard

    def acked(self, *said: dict[str, Any]) -> None:
        """Until the hub has acknowledged these, by one ACK or several."""
        waiting = {one["id"] for one in said}
        while waiting:
            ack = self.hears("ACK")
            waiting -= {ack["metadata"]["correlation_id"], *ack["payload"].get("message_ids", ())}

    def settled(self) -> None:
        """Until the hub has heard all that was said here: it answers a question at once, in its turn."""
        mark = self.say("STATE_QUERY", "hub", {"entity_type": "POLICY"})
        self.hears("STATE_QUERY", mark["id"])
