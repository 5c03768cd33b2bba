"""Chiffon clients that share nothing with the hub: http.client, `websockets` and the document.

They do what they are told and hide nothing: no retries, no reconnects, no automatic acknowledgment. Whatever the hub
says is kept as it came.
"""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect

TIME = "2026-01-19T04:21:04Z"
PATIENCE = 60.0


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The payload of an `error` envelope."""
        assert self.json["type"] == "error", self
        return dict(self.json["payload"])

    @property
    def code(self) -> int:
        return int(self.error["error_code"])


class HttpClient:
    """One token at one hub over HTTP. `keep` keeps the connection between requests."""

    def __init__(self, url: str, token: str | None = None, *, keep: bool = False) -> None:
        self.url = url
        self.token = token
        self._keep = keep
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float = PATIENCE,
    ) -> Answer:
        """One request, one answer, or OSError / HTTPException as it happened."""
        connection = self._connection or http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=timeout)
        self._connection = connection if self._keep else None
        sent = {"Content-Type": "application/json"} if body is not None else {}
        if self.token is not None:
            sent["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, body, {**sent, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        except BaseException:
            self.close()
            raise
        finally:
            if not self._keep:
                connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, headers, timeout=2 * PATIENCE)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.ask("POST", path, json.dumps({} if body is None else body).encode(), headers)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Party(HttpClient):
    """Somebody who speaks chiffon."""

    def __init__(self, url: str, token: str, id: str, kind: str, *, keep: bool = False) -> None:
        super().__init__(url, token, keep=keep)
        self.id = id
        self.kind = kind

    def send(self, message: Mapping[str, Any]) -> Answer:
        return self.post("/api/agent/message", message)

    def poll(self, wait: float = 0, most: int = 100) -> list[dict[str, Any]]:
        """What waits: `[{"delivery_id":…, "message":…}]`."""
        answer = self.get(f"/api/agent/messages?wait={wait:g}&max={most}")
        assert answer.status == 200, answer
        return list(answer.json["messages"])

    def ack(self, *deliveries: Mapping[str, Any]) -> Answer:
        answer = self.post("/api/agent/ack", {"delivery_ids": [d["delivery_id"] for d in deliveries]})
        assert answer.status == 200, answer
        return answer

    def take(self, wait: float = PATIENCE, most: int = 100) -> list[dict[str, Any]]:
        """Poll and acknowledge; the messages."""
        got = self.poll(wait, most)
        if got:
            self.ack(*got)
        return [d["message"] for d in got]

    def next(self, wait: float = PATIENCE) -> dict[str, Any]:
        """One message, acknowledged."""
        got = self.take(wait, 1)
        assert got, f"nothing for {self.id} within {wait:g} s"
        return got[0]

    def register(self, **fields: Any) -> Answer:
        body = {"agent_id": self.id, "agent_type": self.kind, "supported_versions": ["1.0"], "work_types": []}
        return self.post("/api/agent/register", {**body, **fields})

    def websocket(self, *, receipts: bool = False, **options: Any) -> Socket:
        url = self.url.replace("http://", "ws://") + "/api/agent/ws" + ("?receipts=1" if receipts else "")
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        given: dict[str, Any] = {
            "subprotocols": ["chiffon.v1"],
            "additional_headers": headers,
            "open_timeout": PATIENCE,
            "max_size": None,
            "compression": None,
            "legacy": True,
        }
        return Socket(connect(url, **(given | options)))


class Socket:
    """A WebSocket with JSON frames."""

    def __init__(self, raw: ClientConnection) -> None:
        self.raw = raw

    def send(self, message: Any) -> None:
        self.raw.send(json.dumps(message))

    def recv(self, timeout: float = PATIENCE) -> dict[str, Any]:
        return dict(json.loads(self.raw.recv(timeout)))

    def ack(self, *messages: Mapping[str, Any]) -> None:
        self.send({"ack": [m["x_custom_fields"]["delivery_id"] for m in messages]})

    def close(self) -> None:
        self.raw.close()

    def cut(self) -> None:
        """Gone without a word, as when a process is killed."""
        self.raw.socket.close()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Orchestrator(Party):
    def __init__(self, url: str, token: str, id: str = "boss", *, keep: bool = False) -> None:
        super().__init__(url, token, id, "orchestrator", keep=keep)

    def submit(self, message: Mapping[str, Any] | None = None, **fields: Any) -> tuple[dict[str, Any], Answer]:
        """A request and its answer."""
        sent = dict(message or work_request(**fields))
        return sent, self.send(sent)


class Worker(Party):
    def work(self, wait: float = PATIENCE) -> dict[str, Any]:
        """The next work request, acknowledged."""
        message = self.next(wait)
        assert message["type"] == "work_request", message
        return message


def new_id() -> str:
    return str(uuid.uuid4())


def envelope(
    type: str, payload: Mapping[str, Any], about: Mapping[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A whole message. With `about` it answers that one."""
    about = about or {}
    message = {
        "protocol_version": "1.0",
        "message_id": new_id(),
        "from_agent": about.get("to_agent", "orchestrator"),
        "to_agent": "orchestrator" if about else "infra",
        "timestamp": TIME,
        "trace_id": about.get("trace_id", new_id()),
        "request_id": about.get("request_id", new_id()),
        "type": type,
        "payload": dict(payload),
        "x_custom_fields": {},
    }
    return message | fields


def work_request(
    parameters: Mapping[str, Any] | None = None,
    *,
    work_type: str = "run_playbook",
    hints: Mapping[str, Any] | None = None,
    task_id: str | None = None,
    **fields: Any,
) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "task_id": task_id or new_id(),
        "work_type": work_type,
        "parameters": dict(parameters or {"playbook": "deploy_kuma.yml"}),
    }
    if hints is not None:
        payload["hints"] = dict(hints)
    return envelope("work_request", payload, **fields)


def task_of(request: Mapping[str, Any]) -> str:
    return str(request["payload"]["task_id"])


def work_status(
    request: Mapping[str, Any],
    percent: int = 50,
    *,
    number: int = 1,
    output: str = "",
    status: str = "running",
    **f: Any,
) -> dict[str, Any]:
    chunk = {"output_chunk": f.pop("output_chunk")} if "output_chunk" in f else {}
    step = {"number": number, "name": f"step {number}", "output": output, **chunk}
    payload = {"task_id": task_of(request), "status": status, "progress_percent": percent, "step": step}
    return envelope("work_status", payload, request, **f)


def work_result(request: Mapping[str, Any], output: str = "done", exit_code: int = 0, **fields: Any) -> dict[str, Any]:
    payload = {
        "task_id": task_of(request),
        "status": "failed" if exit_code else "success",
        "exit_code": exit_code,
        "output": output,
        "resources_used": {"duration_seconds": 1, "gpu_vram_mb": 0, "cpu_time_ms": 10},
        **fields.pop("payload", {}),
    }
    return envelope("work_result", payload, request, **fields)


def error(request: Mapping[str, Any], code: int, message: str = "no", **context: Any) -> dict[str, Any]:
    payload = {"error_code": code, "error_message": message, "error_context": context}
    return envelope("error", payload, request, x_custom_fields={"task_id": task_of(request)})


def kinds(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(m["type"]) for m in messages]
