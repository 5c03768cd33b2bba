"""`dragoman call --via PROTOCOL`: the same work, through the endpoint that agents of that protocol use.

For a moment the command is an agent: it is added under a fresh name, asks in that protocol, and is removed when the
task is over. So it shows the whole way, not only the hub's inside. Over chiffon it sends one envelope by hand; over the
other protocols the SDK speaks for it. Over a2acp it belongs to the domain of the agent that it asks, has the
capabilities that are needed for that, and makes a contract like any other caller.
"""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dragoman.cli.arguments import HubLocation
from dragoman.cli.deadline import LEAVING, Deadline
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import note

if TYPE_CHECKING:
    from dragoman.sdk.sync import SyncClient

PATIENCE = 5.0
"""Seconds to wait for the hub's last messages about a task that is over."""

UNSUPPORTED = {
    "chiffon": frozenset({"name", "dependencies", "priority", "required_capabilities"}),
    "coven": frozenset({"name", "dependencies", "required_capabilities"}),
    "forge": frozenset[str](),
    "agentmsg": frozenset({"name", "kind"}),
    "a2acp": frozenset({"name", "kind", "dependencies", "priority", "required_capabilities"}),
}
"""Options that a request of this protocol cannot carry."""

CHIFFON = "/api/agent"
VERSION = "1.0"
KIND = "orchestrator"


def require_supported(via: str, body: Mapping[str, Any]) -> None:
    """Refuse options that the protocol cannot carry, before an agent is added."""
    lost = sorted(UNSUPPORTED[via] & body.keys())
    if lost:
        raise CommandError(Exit.USAGE, f"{via} cannot carry {', '.join(lost)}", next="leave out the option, or --via")


class ProtocolCaller:
    """An agent of this protocol, added at once and removed by `leave`."""

    def __init__(
        self, hub: Hub, protocol: str, location: HubLocation, body: Mapping[str, Any], deadline: Deadline
    ) -> None:
        from dragoman.sdk.services import TABLE

        self._admin = hub
        self._deadline = deadline
        self._protocol = protocol
        self._address = hub.agent_address(
            protocol, "ws", location.directory, fix="leave out --via, or run this beside the hub"
        )
        if location.data is not None and hub.url.startswith("https:"):
            os.environ["DRAGOMAN_DATA"] = str(location.data)  # where the SDK finds the hub's certificate
        self.name = f"cli-{secrets.token_hex(4)}"
        self._makes_contracts = TABLE[protocol].makes_contracts
        fitting = _fitting(hub.get("agents", body["agent"]), body["type"]) if self._makes_contracts else {}
        made = hub.post("agents", body={"agent_id": self.name, "protocol": protocol, **fitting})
        self._token = str(made["token"])
        self._client: SyncClient | None = None
        self._asked = ""
        self._body = body

    def submit(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The task that the hub made of it."""
        from dragoman.sdk.errors import DragomanError

        try:
            task = self._asked = self._deadline.bound(lambda: self._ask(body))
        except TimeoutError as error:
            allowed = f"within {self._deadline.seconds:g} s" if self._deadline.seconds is not None else "in time"
            sentence = f"the hub did not take the work over {self._protocol} {allowed}"
            raise CommandError(Exit.TIMEOUT, sentence, next="dragoman task ls") from error
        except DragomanError as error:
            agent = line(body.get("agent") or body.get("kind"))
            raise CommandError(
                Exit.FAILED, line(error), next=f"leave out --via, or see what {agent} does: dragoman agent ls"
            ) from error
        if self._makes_contracts:  # such a caller knows a task by a name of its own
            task = self._admin.get("tasks", principal=self.name)["tasks"][0]["id"]
        found: Mapping[str, Any] = self._admin.get("tasks", task)
        return found

    def _ask(self, body: Mapping[str, Any]) -> str:
        from dragoman.sdk.sync import SyncClient

        given = {"name", "dependencies", "priority", "required_capabilities"} & body.keys()
        options = {name: body[name] for name in given}
        self._client = SyncClient(self._address, token=self._token, id=self.name).__enter__()
        return self._client.submit(body.get("agent") or body.get("kind"), body["type"], body["input"], **options).id

    def leave(self, *, over: bool) -> None:
        """Take what the hub has for us, if the task is `over`, so that no dead letter is left for a removed agent."""
        deadline = Deadline(3 * PATIENCE if over else LEAVING)
        if (client := self._client) is not None:
            try:
                deadline.bound(lambda: self._hang_up(client, over))
            except TimeoutError:
                pass  # its connection ends with this process
        try:
            self._admin.until(Deadline(LEAVING)).delete("agents", self.name)
        except CommandError as failure:  # what the task came to counts more than our own leaving
            note(f"  {self.name} could not be removed ({failure.sentence}): dragoman agent rm {self.name}")

    def _hang_up(self, client: SyncClient, over: bool) -> None:
        from dragoman.sdk.errors import DragomanError

        try:
            if over and self._asked:
                try:
                    client.result(self._asked, timeout=PATIENCE)
                finally:
                    if self._makes_contracts:
                        client.terminate(
                            client.contract(self._body["type"], agent=self._body["agent"]), "asked and answered"
                        )
        except (DragomanError, TimeoutError):
            pass  # the task's own end was printed already
        finally:
            client.__exit__(None, None, None)


def _fitting(agent: Mapping[str, Any], work: str) -> dict[str, Any]:
    """What a caller must be to ask this of an agent."""
    wanted = [offer for offer in agent.get("offers") or () if offer["intent"] == work]
    needed = [name for offer in wanted for name in offer.get("required_capabilities") or ()]
    return {"domain": agent.get("domain"), "capabilities": needed}


class ChiffonCaller:
    """An agent of this protocol, added at once and removed by `leave`."""

    def __init__(self, hub: Hub) -> None:
        self._admin = hub
        self.name = f"cli-{secrets.token_hex(4)}"
        made = hub.post("agents", body={"agent_id": self.name, "protocol": "chiffon", "kind": KIND})
        self._client = hub.under(str(made["token"]))

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
        self._client.ask("POST", "register", body=me, base=CHIFFON)
        self._client.ask("POST", "message", body=envelope, base=CHIFFON)
        found: Mapping[str, Any] = self._admin.get("tasks", task)
        return found

    def leave(self, *, over: bool = True) -> None:
        """Take what the hub has for us, so that no dead letter is left for a removed agent."""
        deadline = Deadline(LEAVING)
        admin, client = self._admin.until(deadline), self._client.until(deadline)
        try:
            while True:
                query = {"wait": 0, "max": 100}
                held = client.ask("GET", "messages", base=CHIFFON, query=query).get("messages") or []
                if not held:
                    break
                ids = [one["delivery_id"] for one in held]
                client.ask("POST", "ack", body={"delivery_ids": ids}, base=CHIFFON)
            admin.delete("agents", self.name)
        except CommandError as failure:  # what the task came to counts more than our own leaving
            note(f"  {self.name} could not be removed ({failure.sentence}): dragoman agent rm {self.name}")
