"""An a2acp party: tokens, handshakes and keys over HTTP, what others have to say over its WebSocket."""

from __future__ import annotations

import json
import uuid
from abc import abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.bridge.players.a2acp_seal import KeyPair, Seal
from tests.bridge.players.neutral import File, Party, Unsayable
from tests.bridge.players.sockets import JsonSocket

BROKER = {"agent_id": "protocol-broker-agent", "domain": "a_domain", "version": "1.0.0"}
OURS = frozenset({"contract_id", "collaboration_id", "correlation_id", "traceparent"})
"""What the protocol itself puts into a payload."""
LARGEST = 1_000_000

Message = dict[str, Any]


def agent(id: str, domain: str = "default") -> dict[str, str]:
    return {"agent_id": id, "domain": domain, "version": "1.0.0"}


class Refusal(AssertionError):
    """The error that answered a message."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"], error)
        self.error = error

    @property
    def code(self) -> str:
        return str(self.error["code"])


class A2acpParty(Party):
    protocol = "a2acp"
    socket: JsonSocket

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tokens: dict[str, str] = {}
        self._seen: set[str] = set()
        self._pairs: dict[str, KeyPair] = {}
        self._seals: dict[str, Seal] = {}
        self.wire: list[Message] = []
        """Every message as it came, before it was opened."""

    async def connect(self) -> None:
        url = f"{self.stage.ws}/a2acp/ws"
        self.socket = await JsonSocket.open(url, self._heard, subprotocol="a2acp.v1", headers=self.bearer)

    async def leave(self) -> None:
        await self.socket.close()

    # -- out

    async def token_for(self, target: str) -> str:
        """Our word for one receiver."""
        if target not in self._tokens:
            wish = {"agent_id": self.id, "target_agent_id": target, "requested_capabilities": [], "ttl": 600}
            answer = await self.stage.http.post("/auth/token", json=wish, headers=self.bearer)
            assert answer.status_code == 200, answer.text
            self._tokens[target] = answer.json()["token"]
        return self._tokens[target]

    async def message(
        self, kind: str, to: Mapping[str, str], intent: str | None, payload: Mapping[str, Any], *, id: str = ""
    ) -> Message:
        said = {
            "protocol_version": "1.0",
            "message_id": id or str(uuid.uuid4()),
            "timestamp": datetime.now(UTC).isoformat(),
            "source_agent": agent(self.id),
            "target_agent": to,
            "message_type": kind,
            "intent": intent,
            "payload": {name: value for name, value in payload.items() if value is not None or name not in OURS},
            "security": {"auth_token": await self.token_for(to["agent_id"]), "encryption": "none"},
        }
        if kind == "error":
            return said
        seal = self._seals.get(payload.get("contract_id") or "")
        return said if seal is None else seal.shut(said)

    async def post(self, message: Message, *, later: bool = False) -> Any:
        """Send it over HTTP; the answer. Raises `Refusal`."""
        headers = {"Prefer": "respond-async"} if later else {}
        answer = await self.stage.http.post("/a2acp/messages", json=message, headers=headers)
        told = answer.json()
        if answer.status_code not in (200, 202):
            raise Refusal(told["payload"]["error"])
        return told

    async def tell(self, message: Message) -> None:
        """Send it over the WebSocket; if it is refused, `refused` says so."""
        if len(json.dumps(message, ensure_ascii=False).encode()) > LARGEST:
            raise Unsayable("more than a megabyte")
        await self.socket.send(message)

    async def shake_hands(self, with_whom: str, intent: str, **terms: Any) -> Message:
        """The terms on which `with_whom` does it. Raises `Refusal`."""
        pair = KeyPair()
        wish = {"target_agent_id": with_whom, "requested_intent": intent, "public_key": pair.public, **terms}
        told = (await self.post(await self.message("request", BROKER, "initiate_handshake", wish)))["payload"]
        self._keep(told, pair)
        return dict(told["contract"])

    def _keep(self, established: Mapping[str, Any], pair: KeyPair) -> None:
        grant, contract = established.get("key"), established["contract"]
        if grant is not None:
            seal = Seal(grant["kid"], pair.key(grant, contract, self.id))
            self._seals[contract["contract_id"]] = seal

    # -- in

    async def _heard(self, message: Message) -> None:
        self.wire.append(message)
        await self.socket.send({"ack": [message["message_id"]]})
        if message["message_id"] in self._seen:
            return
        self._seen.add(message["message_id"])
        payload = message["payload"]
        if message["security"]["encryption"] == "aes256":
            if payload["contract_id"] not in self._seals:
                await self.unopened(message)
                return
            message = self._seals[payload["contract_id"]].open(message)
        match message["message_type"], message.get("intent"):
            case "request", "accept_handshake":
                await self._accept(payload)
            case "event", "accept_handshake":
                pair = self._pairs.pop(payload["contract"]["collaboration_id"], None)
                if pair is not None:
                    self._keep(payload, pair)
            case "event", "terminate_collaboration" | "rotate_key":
                pass
            case _:
                await self.hear(message, message["payload"])

    async def _accept(self, offer: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {"accepted": True, "correlation_id": offer["correlation_id"]}
        if offer["contract"]["security"]["encryption"] == "aes256":
            pair = self._pairs[offer["contract"]["collaboration_id"]] = KeyPair()
            answer["public_key"] = pair.public
        await self.tell(await self.message("response", BROKER, "accept_handshake", answer))

    async def unopened(self, message: Message) -> None:
        """Say that we have no key for it."""
        words = "what is under a contract of others cannot be read here"
        error = {"code": "SECURITY_POLICY_VIOLATION", "message": words, "details": {}, "retry_after": 0}
        payload = {"error": error, "correlation_id": message["payload"]["correlation_id"]}
        await self.tell(await self.message("error", message["source_agent"], message["intent"], payload))

    @abstractmethod
    async def hear(self, message: Message, payload: Mapping[str, Any]) -> None: ...

    async def fetch(self, ref: Mapping[str, Any]) -> File:
        answer = await self.stage.http.get(ref["url"], headers=self.bearer)
        assert answer.status_code == 200, answer.text
        return File(ref["name"], answer.content)
