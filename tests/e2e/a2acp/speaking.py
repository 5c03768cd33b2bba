"""Agents of the standard library and `cryptography`, nothing of ours. Keys are derived and payloads sealed
as docs/protocols/a2acp.md says."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.support.hubproc import PATIENCE, HubProcess, until

BROKER = "protocol-broker-agent"

ROWS = {
    "type": "object",
    "properties": {"rows": {"type": "integer", "minimum": 1}},
    "required": ["rows"],
    "additionalProperties": False,
}

DATASET = {"type": "object", "properties": {"dataset_id": {"type": "string"}}, "required": ["dataset_id"]}

INTENT = {
    "intent": "provision", "version": "1.0.0", "input_schema": ROWS, "output_schema": DATASET,
    "required_capabilities": ["write:datasets"],
}  # fmt: skip

RECORD = {
    "intent": "record", "input_schema": {"type": "object", "required": ["patient"]}, "output_schema": True, "pii": True
}  # fmt: skip

SLOW = {"intent": "slow", "input_schema": True, "timeout_seconds": 0.5}

Json = dict[str, Any]


def now(**shift: float) -> str:
    return (datetime.now(UTC) + timedelta(**shift)).isoformat().replace("+00:00", "Z")


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Speaker:
    """An agent that knows the document and nothing else."""

    def __init__(self, hub: HubProcess, domain: str = "lab", *grants: str, id: str | None = None) -> None:
        self.hub = hub
        self.domain = domain
        self.id = id or f"a-{uuid.uuid4().hex[:8]}"
        fields = {"agent_id": self.id, "protocol": "a2acp", "domain": domain, "version": "1.0.0"}
        made = hub.admin.post("/api/v1/agents", {**fields, "capabilities": list(grants)})
        assert made.status == 201, made
        self.secret: str = made.json["token"]
        self.grants = grants

    # -- HTTP

    def call(
        self, method: str, path: str, body: Any = None, *, auth: str | None = None, **headers: str
    ) -> tuple[int, Any]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if auth is not None:
            given["authorization"] = auth
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = Request(f"{self.hub.url}{path}", data=data, method=method, headers=given)
        try:
            with urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            return error.code, json.loads(error.read())

    @property
    def bearer(self) -> str:
        return f"Bearer {self.secret}"

    def token(self, to: str, **wish: Any) -> str:
        body = {"agent_id": self.id, "target_agent_id": to, "requested_capabilities": list(self.grants), **wish}
        status, answer = self.call("POST", "/auth/token", body, auth=self.bearer)
        assert status == 200, answer
        return str(answer["token"])

    def serve(self, *capabilities: Json) -> Json:
        body = {"agent_id": self.id, "domain": self.domain, "version": "1.0.0", "capabilities": list(capabilities)}
        status, answer = self.call("POST", "/a2acp/agents", body, auth=self.bearer)
        assert status == 200, answer
        return dict(answer)

    def message(self, kind: str, to: Any, intent: str | None, payload: Json, **replaced: Any) -> Json:
        target = to if isinstance(to, str) else to.id
        domain = "a_domain" if isinstance(to, str) else to.domain
        said: Json = {
            "protocol_version": "1.0",
            "message_id": str(uuid.uuid4()),
            "timestamp": now(),
            "source_agent": {"agent_id": self.id, "domain": self.domain, "version": "1.0.0"},
            "target_agent": {"agent_id": target, "domain": domain, "version": "1.0.0"},
            "message_type": kind,
            "intent": intent,
            "payload": payload,
            "security": {"auth_token": replaced.pop("token", None) or self.token(target), "encryption": "none"},
        }
        said |= replaced
        return {name: value for name, value in said.items() if value is not None}

    def post(self, message: Json, **headers: str) -> tuple[int, Json]:
        return self.call("POST", "/a2acp/messages", message, **headers)

    def ask(self, to: Any, intent: str, payload: Json, **replaced: Any) -> tuple[int, Json]:
        return self.post(self.message("request", to, intent, payload, **replaced))

    def poll(self, wait: float = 2) -> list[Json]:
        status, answer = self.call("GET", f"/a2acp/messages?wait={wait:g}", auth=self.bearer)
        assert status == 200, answer
        found = answer["messages"]
        if found:
            ids = [one["delivery_id"] for one in found]
            status, known = self.call("POST", "/a2acp/ack", {"delivery_ids": ids}, auth=self.bearer)
            assert status == 200, known
        return [one["message"] for one in found]

    def next(self, kind: str, intent: str) -> Json:
        found: list[Json] = []

        def look() -> bool:
            found.extend(one for one in self.poll(1) if (one["message_type"], one.get("intent")) == (kind, intent))
            return bool(found)

        until(look, f"{kind} {intent}")
        return found[0]

    # -- a part to play in the background

    @contextmanager
    def working(self, answer: Callable[[Json], Json | None], decision: Json | None = None) -> Iterator[list[Json]]:
        """Accepts every proposal and answers every request, until the block ends."""
        heard: list[Json] = []
        done = threading.Event()
        trouble: list[BaseException] = []

        def work() -> None:
            try:
                while not done.is_set():
                    for one in self.poll(0.2):
                        heard.append(one)
                        self._react(one, answer, decision or {"accepted": True})
            except BaseException as error:
                trouble.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield heard
        finally:
            done.set()
            thread.join(PATIENCE)
        assert not trouble, trouble

    def _react(self, one: Json, answer: Callable[[Json], Json | None], decision: Json) -> None:
        if one["message_type"] != "request":
            return
        correlation = one["payload"]["correlation_id"]
        if one["intent"] == "accept_handshake":
            said = self.message("response", BROKER, "accept_handshake", {**decision, "correlation_id": correlation})
        else:
            made = answer(one)
            if made is None:
                return
            said = made
        status, told = self.post(said)
        assert status in (202, 401, 422), told

    def response(self, request: Json, payload: Json, **replaced: Any) -> Json:
        """To the agent that asked."""
        source = request["source_agent"]
        around = {
            name: request["payload"][name] for name in ("contract_id", "correlation_id") if name in request["payload"]
        }
        said = self.message("response", source["agent_id"], request["intent"], {**payload, **around}, **replaced)
        said["target_agent"] = source
        return said

    # -- terms

    def shake_hands(self, target: Speaker, intent: str, **wish: Any) -> Json:
        payload = {"target_agent_id": target.id, "requested_intent": intent, **wish}
        for _ in range(3):  # its 5 s may be over on a busy machine
            status, answer = self.ask(BROKER, "initiate_handshake", payload)
            if answer["message_type"] == "response" or code(answer) != "TIMEOUT":
                break
        assert (status, answer["message_type"]) == (200, "response"), answer
        return dict(answer["payload"])


class Key:
    """One side's keys of a collaboration, by the book."""

    def __init__(self) -> None:
        self.private = X25519PrivateKey.generate()
        self.public = b64(self.private.public_key().public_bytes_raw())
        self.kid = ""
        self.secret = b""

    def take(self, told: Json, me: str) -> None:
        grant, contract = told["key"], told["contract"]
        parties = [contract[side]["agent_id"] for side in ("source_agent", "target_agent")]
        shared = self.private.exchange(X25519PublicKey.from_public_bytes(raw(grant["public_key"])))
        salt = hashlib.sha256(compact(["a2acp", *sorted((self.public, grant["public_key"]))])).digest()
        info = compact(["a2acp", "A256GCM", told["collaboration_id"], grant["kid"], *parties])
        derived = HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(shared)
        self.kid, self.secret = grant["kid"], derived
        if "wrapped" in grant:
            bound = compact(["a2acp", "wrap", told["collaboration_id"], grant["kid"], me])
            self.secret = AESGCM(derived).decrypt(raw(grant["nonce"]), raw(grant["wrapped"]), bound)

    def bound(self, message: Json) -> bytes:
        payload = message["payload"]
        return compact([
            "a2acp", "A256GCM", self.kid, message["message_id"], message["source_agent"]["agent_id"],
            message["target_agent"]["agent_id"], message["message_type"], message.get("intent"),
            payload.get("contract_id"), payload.get("correlation_id"),
        ])  # fmt: skip

    def seal(self, message: Json, nonce: bytes | None = None) -> Json:
        """The message with its payload sealed."""
        clear = {n: v for n, v in message["payload"].items() if n in ("contract_id", "correlation_id")}
        inside = {n: v for n, v in message["payload"].items() if n not in clear}
        nonce = nonce or os.urandom(12)
        ciphertext = AESGCM(self.secret).encrypt(nonce, compact(inside), self.bound(message))
        sealed = {"alg": "A256GCM", "kid": self.kid, "nonce": b64(nonce), "ciphertext": b64(ciphertext), **clear}
        return {**message, "payload": sealed, "security": {**message["security"], "encryption": "aes256"}}

    def open(self, message: Json) -> Json:
        assert message["security"]["encryption"] == "aes256", message
        payload = message["payload"]
        plain = AESGCM(self.secret).decrypt(raw(payload["nonce"]), raw(payload["ciphertext"]), self.bound(message))
        return dict(json.loads(plain))


def code(answer: Json) -> str:
    assert answer["message_type"] == "error", answer
    assert answer["payload"]["error"]["correlation_id"] == answer["payload"]["correlation_id"]
    return str(answer["payload"]["error"]["code"])


def details(answer: Json) -> Json:
    return dict(answer["payload"]["error"]["details"])


def dataset(worker: Speaker) -> Callable[[Json], Json]:
    return lambda request: worker.response(request, {"dataset_id": f"d-{request['payload']['rows']}"})


def code_of_bare(said: Json) -> str:
    return str(said["payload"]["error"]["code"])
