"""A reader of server-sent events that knows only their format: what came, by number, and where to go on."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PATIENCE = 60.0


class SentEvent(NamedTuple):
    id: int | None
    kind: str
    data: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        return dict(self.data.get("body") or {})


class Reader:
    """One task's events. `read` goes on where the last one broke off, as the format asks: by Last-Event-ID."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.seen: list[SentEvent] = []
        self.ended = False

    @property
    def last(self) -> int:
        return max((event.id for event in self.seen if event.id is not None), default=0)

    def read(self, url: str, token: str, most: int | None = None) -> Reader:
        """Until the task's end, a broken connection, or `most` events."""
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
        headers = {"Authorization": f"Bearer {token}"} | ({"Last-Event-ID": str(self.last)} if self.last else {})
        try:
            connection.request("GET", f"/api/v1/tasks/{self.task}/events", None, headers)
            answer = connection.getresponse()
            assert answer.status == 200, (answer.status, answer.read())
            for count, event in enumerate(frames(answer), 1):
                if event.kind == "end":
                    self.ended = True
                    break
                self.seen.append(event)
                if count == most:
                    break
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        return self

    @property
    def numbers(self) -> list[int]:
        return [event.id for event in self.seen if event.id is not None]

    @property
    def text(self) -> str:
        """Every piece of output, in the order it came."""
        return "".join(str(event.body.get("output", "")) for event in self.seen if event.kind == "progress")


def frames(lines: Any) -> Iterator[SentEvent]:
    id, kind, data = None, "message", b""
    for line in lines:
        field, _, value = line.rstrip(b"\n").partition(b": ")
        if field == b"id":
            id = int(value)
        elif field == b"event":
            kind = value.decode()
        elif field == b"data":
            data += value
        elif line == b"\n":
            if data:
                yield SentEvent(id, kind, json.loads(data))
            id, kind, data = None, "message", b""
