"""Agents of a hub that is a process of its own: `http.client`, `websockets`, `cryptography` and the document.

Nothing of ours is at their end: keys, seals and associated data are made here anew, from what is written about them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from tests.support.chiffon import Answer, HttpClient
from tests.support.hubproc import PATIENCE, HubProcess, until
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

Json = dict[str, Any]

BROKER = {"agent_id": "protocol-broker-agent", "domain": "a_domain", "version": "1.0.0"}
PROVISION: Json = {
    "intent": "provision_test_dataset",
    "version": "1.0.0",
    "input_schema": {
        "type": "object",
        "properties": {
            "test_scenario_id": {"type": "string"},
            "dataset_type": {"type": "string"},
            "record_count": {"type": "integer", "minimum": 1},
        },
        "required": ["test_scenario_id", "dataset_type"],
        "additionalProperties": False,
    },
    "output_schema": {"type": "object", "required": ["dataset_id"]},
    "required_capabilities": ["read:datasets"],
}
"""What the document's example asks for."""
WANTED: Json = {"test_scenario_id": "scenario-123", "dataset_type": "patient_demographics", "record_count": 1000}


def now(seconds: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def error_of(answer: Answer) -> Json:
    """What an error message says; its form is the document's."""
    told = answer.json
    assert (told["message_type"], told["source_agent"]["agent_id"]) == ("error", BROKER["agent_id"]), told
    return dict(told["payload"]["error"])


def code_of(answer: Answer) -> str:
    return str(error_of(answer)["code"])


# -- keys and seals ----------------------------------------------------------------------------------------------


class Pair:
    """One side's X25519 key."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public_key = b64(self._private.public_key().public_bytes_raw())

    def take(self, grant: Json, bond: Json, me: str) -> bytes:
        """The key that a grant gives: by itself end to end, wrapped otherwise."""
        collaboration, source, target = bond["collaboration_id"], bond["source"], bond["target"]
        theirs = grant["public_key"]
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(unb64(theirs)))
        salt = hashlib.sha256(compact(["a2acp", *sorted((self.public_key, theirs))])).digest()
        info = compact(["a2acp", "A256GCM", collaboration, grant["kid"], source, target])
        key = HKDF(algorithm=SHA256(), length=32, salt=salt, info=info).derive(shared)
        if "wrapped" not in grant:
            return key
        bound = compact(["a2acp", "wrap", collaboration, grant["kid"], me])
        return AESGCM(key).decrypt(unb64(grant["nonce"]), unb64(grant["wrapped"]), bound)


def bound(kid: str, message: Json) -> bytes:
    payload = message["payload"]
    return compact([
        "a2acp", "A256GCM", kid, message["message_id"], message["source_agent"]["agent_id"],
        message["target_agent"]["agent_id"], message["message_type"], message.get("intent"),
        payload.get("contract_id"), payload.get("correlation_id"),
    ])  # fmt: skip


def seal(key: bytes, kid: str, message: Json, content: Any, nonce: bytes | None = None) -> Json:
    """The message with its content shut in."""
    nonce = nonce or os.urandom(12)
    shut = AESGCM(key).encrypt(nonce, compact(content), bound(kid, message))
    sealed = {"alg": "A256GCM", "kid": kid, "nonce": b64(nonce), "ciphertext": b64(shut)}
    security = {**message["security"], "encryption": "aes256"}
    return {**message, "payload": {**message["payload"], **sealed}, "security": security}


def unseal(keys: dict[str, bytes], message: Json) -> Json:
    payload = message["payload"]
    assert message["security"]["encryption"] == "aes256"
    kid = payload["kid"]
    plain = AESGCM(keys[kid]).decrypt(unb64(payload["nonce"]), unb64(payload["ciphertext"]), bound(kid, message))
    return dict(json.loads(plain))


# -- agents ------------------------------------------------------------------------------------------------------


class Plain:
    """One agent. It does what it is told and hides nothing: no retries, no renewed tokens."""

    def __init__(
        self,
        hub: HubProcess,
        id: str,
        domain: str = "a_domain",
        *,
        grants: Sequence[str] = ("read:datasets",),
        version: str = "1.2.3",
        secret: str | None = None,
    ) -> None:
        self.hub = hub
        self.id = id
        self.party = {"agent_id": id, "domain": domain, "version": version}
        self.grants = list(grants)
        if secret is None:
            fields = {"agent_id": id, "protocol": "a2acp", "domain": domain, "capabilities": self.grants}
            made = hub.admin.post("/api/v1/agents", {**fields, "version": version})
            assert made.status == 201, made
            secret = made.json["token"]
        self.secret = secret
        self.mail: list[Json] = []
        self._tokens: dict[tuple[str, str], str] = {}

    @property
    def http(self) -> HttpClient:
        return HttpClient(self.hub.url, self.secret)

    def serves(self, *capabilities: Json) -> Plain:
        answer = self.register(*capabilities)
        assert answer.status == 200, answer
        return self

    def register(self, *capabilities: Json) -> Answer:
        return self.http.post("/a2acp/agents", {**self.party, "capabilities": capabilities})

    # -- tokens

    def wish(self, to: str, **said: Any) -> Json:
        return {"agent_id": self.id, "target_agent_id": to, "requested_capabilities": self.grants, "ttl": 3600, **said}

    def token(self, to: str, **said: Any) -> str:
        """A token for messages to somebody; the usual one is fetched once for each hub."""
        known = self._tokens.get((self.hub.url, to))
        if known is not None and not said:
            return known
        answer = self.http.post("/auth/token", self.wish(to, **said))
        assert answer.status == 200, answer
        token = str(answer.json["token"])
        if not said:
            self._tokens[self.hub.url, to] = token
        return token

    # -- messages

    def message(
        self, kind: str, to: Plain | Json, intent: str | None, payload: Json | None, *, at: float = 0, **changed: Any
    ) -> Json:
        party = to.party if isinstance(to, Plain) else to
        encryption = changed.pop("encryption", "none")
        token = changed.pop("token", None) or self.token(party["agent_id"])
        made = {
            "protocol_version": "1.0",
            "message_id": str(uuid.uuid4()),
            "timestamp": now(at),
            "source_agent": self.party,
            "target_agent": party,
            "message_type": kind,
            "intent": intent,
            "payload": payload,
            "security": {"auth_token": token, "encryption": encryption},
        }
        return {name: value for name, value in {**made, **changed}.items() if value is not None}

    def send(
        self, message: Json | bytes, *, later: bool = False, timeout: float = 2 * PATIENCE, **headers: str
    ) -> Answer:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        said = {"Prefer": "respond-async"} if later else {}
        return HttpClient(self.hub.url).ask("POST", "/a2acp/messages", data, {**said, **headers}, timeout=timeout)

    def say(self, message: Json) -> Json:
        """A message that is taken and answered later, if at all."""
        answer = self.send(message, later=True)
        assert answer.status == 202, answer
        return message

    def refused(self, message: Json | bytes, *, later: bool = True) -> Json:
        answer = self.send(message, later=later)
        assert answer.status >= 400, answer
        return error_of(answer)

    @contextmanager
    def sending(self, message: Json) -> Iterator[Future[Answer]]:
        """A request that waits for its answer, while somebody gives it."""
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(self.send, message)

    # -- the inbox

    def poll(self, wait: float = 0, most: int = 100) -> list[Json]:
        answer = self.http.get(f"/a2acp/messages?wait={wait:g}&max={most}")
        assert answer.status == 200, answer
        return list(answer.json["messages"])

    def ack(self, *polled: Json) -> int:
        answer = self.http.post("/a2acp/ack", {"delivery_ids": [one["delivery_id"] for one in polled]})
        assert answer.status == 200, answer
        return int(answer.json["acknowledged"])

    def hear(self) -> list[Json]:
        """All that waits, acknowledged."""
        while got := self.poll():
            self.ack(*got)
            self.mail += (one["message"] for one in got)
        heard, self.mail = self.mail, []
        return heard

    def hears(self, kind: str, intent: str | None = None, fits: Callable[[Json], bool] | None = None) -> Json:
        """The next of its kind, acknowledged; what else came is kept."""

        def kept() -> Json | None:
            for place, one in enumerate(self.mail):
                if one["message_type"] == kind and intent in (None, one.get("intent")) and (fits is None or fits(one)):
                    return self.mail.pop(place)
            return None

        def fetched() -> Json | None:
            got = self.poll(1)
            self.ack(*got)
            self.mail += (one["message"] for one in got)
            return kept()

        found = kept() or until(fetched, f"{self.id} hears {kind} {intent}")
        assert found is not None
        return found

    # -- contracts

    def initiate(self, target: Plain | str, intent: str, **said: Any) -> Json:
        id = target if isinstance(target, str) else target.id
        payload = {"target_agent_id": id, "requested_intent": intent, **said}
        return self.message("request", BROKER, "initiate_handshake", payload)

    def accept(self, accepted: bool = True, **said: Any) -> Json:
        """The next handshake that is put to it, answered; gives the proposal."""
        proposal = self.hears("request", "accept_handshake")
        payload = {"accepted": accepted, "correlation_id": proposal["payload"]["handshake_id"], **said}
        self.say(self.message("response", BROKER, "accept_handshake", payload))
        return proposal

    def shake(self, target: Plain, intent: str = "provision_test_dataset", **said: Any) -> Bond:
        """Both come to terms, and have their key where there is one. On a busy machine their 5 s may be over before:
        then once more."""
        sealed = said.get("encrypt") or said.get("mode") == "end-to-end" or said.pop("sealed", False)
        ours, theirs = (Pair(), Pair()) if sealed else (None, None)
        for last in (False, False, True):
            self.say(self.initiate(target, intent, **({"public_key": ours.public_key} if ours else {}), **said))
            proposal = target.hears("request", "accept_handshake")["payload"]
            payload = {"accepted": True, "correlation_id": proposal["handshake_id"]}
            payload |= {"public_key": theirs.public_key} if theirs else {}
            answer = target.send(target.message("response", BROKER, "accept_handshake", payload), later=True)
            if answer.status == 202:
                break
            error = self.hears("error", "initiate_handshake")["payload"]["error"]
            assert (error["code"], last) == ("TIMEOUT", False), answer
        told = self.hears("response", "initiate_handshake")["payload"]
        target.hears("event", "accept_handshake", lambda one: one["payload"]["contract_id"] == told["contract_id"])
        bond = Bond(self, target, told["contract"], told["collaboration_id"], {}, (ours, theirs))
        if ours is not None:
            bond.granted(told["key"], 0)
        return bond

    # -- WebSocket

    @contextmanager
    def link(self, **options: Any) -> Iterator[Wire]:
        url = f"{self.hub.url.replace('http', 'ws')}/a2acp/ws"
        headers = {"Authorization": f"Bearer {self.secret}"}
        spoken = [Subprotocol("a2acp.v1")]
        with connect(
            url, subprotocols=spoken, additional_headers=headers, proxy=None, open_timeout=PATIENCE, **options
        ) as socket:
            yield Wire(self, socket)


class Bond(NamedTuple):
    """Two agents and their contract."""

    source: Plain
    target: Plain
    terms: Json
    collaboration: str
    keys: dict[str, bytes]
    pairs: tuple[Pair | None, Pair | None]

    @property
    def id(self) -> str:
        return str(self.terms["contract_id"])

    @property
    def kid(self) -> str:
        return next(reversed(self.keys))

    def granted(self, grant: Json, side: int) -> bytes:
        pair = self.pairs[side]
        assert pair is not None
        parties = {"collaboration_id": self.collaboration, "source": self.source.id, "target": self.target.id}
        key = self.keys[grant["kid"]] = pair.take(grant, parties, (self.source, self.target)[side].id)
        return key

    def request(self, content: Json | None = None, *, thread: str | None = None, **changed: Any) -> Json:
        """A request under the contract, sealed where it has a key."""
        content = WANTED if content is None else content
        around = {"contract_id": self.id, "correlation_id": thread or f"correlation-{uuid.uuid4().hex[:8]}"}
        nonce, clear = changed.pop("nonce", None), changed.pop("clear", not self.keys)
        payload = {**content, **around} if clear else around
        made = self.source.message("request", self.target, self.terms["intent"], payload, **changed)
        return made if clear else seal(self.keys[self.kid], self.kid, made, content, nonce)

    def ask(self, content: Json | None = None, **changed: Any) -> Json:
        """A request that its target has; gives what the target got."""
        thread = self.source.say(self.request(content, **changed))["payload"]["correlation_id"]
        assert thread
        return self.target.hears("request", self.terms["intent"])

    def response(self, work: Json, content: Json, **changed: Any) -> Json:
        around = {"contract_id": self.id, "correlation_id": work["payload"]["correlation_id"]}
        clear = changed.pop("clear", not self.keys)
        payload = {**content, **around} if clear else around
        made = self.target.message("response", self.source, self.terms["intent"], payload, **changed)
        return made if clear else seal(self.keys[self.kid], self.kid, made, content)

    def content(self, message: Json) -> Json:
        """What a message says, without what the protocol puts beside it."""
        if self.keys:
            return unseal(self.keys, message)
        aside = ("contract_id", "correlation_id", "traceparent")
        return {name: value for name, value in message["payload"].items() if name not in aside}


class Wire:
    """A WebSocket."""

    def __init__(self, agent: Plain, socket: ClientConnection) -> None:
        self.agent = agent
        self.socket = socket

    def say(self, message: Json) -> Json:
        self.socket.send(json.dumps(message))
        return message

    def hears(self, kind: str, intent: str | None = None) -> Json:
        while True:
            heard: Json = json.loads(self.socket.recv(timeout=PATIENCE))
            if heard["message_type"] == kind and intent in (None, heard.get("intent")):
                return heard
            self.agent.mail.append(heard)
