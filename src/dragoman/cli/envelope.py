"""`dragoman call --via chiffon`: the same work, but through the front door that agents use.

For a moment the command is a chiffon orchestrator of its own: it is let in under a fresh name, sends one envelope,
takes its notices as any client must, and is put out again. So it shows the whole road, not only the hub's inside.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dragoman.cli.deadline import LEAVING, Deadline
from dragoman.cli.errors import CommandError
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import note

DOOR = "/api/agent"
VERSION = "1.0"
KIND = "orchestrator"


class ChiffonCaller:
    """Let in at once, put out by `leave`."""

    def __init__(self, hub: Hub) -> None:
        self._admin = hub
        self.name = f"cli-{secrets.token_hex(4)}"
        made = hub.post("agents", body={"agent_id": self.name, "protocol": "chiffon", "kind": KIND})
        self._door = hub.under(str(made["token"]))

    def submit(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The task that the hub made of it."""
        pinned = body.get("agent")
        kind = self._admin.get("agents", str(pinned)).get("kind") if pinned else body["kind"]
        task = str(uuid.uuid4())
        envelope = {
            "protocol_version": VERSION,
            "message_id": str(uuid.uuid4()),
            "from_agent": KIND,
            "to_agent": kind or pinned,
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "trace_id": str(uuid.uuid4()),
            "request_id": str(uuid.uuid4()),
            "type": "work_request",
            "payload": {"task_id": task, "work_type": body["type"], "parameters": body["input"], "hints": {}},
            "x_custom_fields": {"agent_id": pinned} if pinned else {},
        }
        me = {"agent_id": self.name, "agent_type": KIND, "supported_versions": [VERSION], "work_types": []}
        self._door.ask("POST", "register", body=me, base=DOOR)
        self._door.ask("POST", "message", body=envelope, base=DOOR)
        found: Mapping[str, Any] = self._admin.get("tasks", task)
        return found

    def leave(self, *, over: bool = True) -> None:
        """Take what was sent to us, so that nothing is left behind for a name that nobody has any more."""
        deadline = Deadline(LEAVING)
        admin, door = self._admin.until(deadline), self._door.until(deadline)
        try:
            while True:
                query = {"wait": 0, "max": 100}
                held = door.ask("GET", "messages", base=DOOR, query=query).get("messages") or []
                if not held:
                    break
                ids = [one["delivery_id"] for one in held]
                door.ask("POST", "ack", body={"delivery_ids": ids}, base=DOOR)
            admin.delete("agents", self.name)
        except CommandError as failure:  # what the task came to counts more than our own leaving
            note(f"  {self.name} could not be put out ({failure.sentence}): dragoman agent rm {self.name}")
