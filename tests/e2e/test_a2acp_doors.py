"""A2acp's doors on a real hub: the standard library, `websockets`, PyJWT and `cryptography`, nothing of ours at the
agents' end. Keys are derived and payloads sealed as docs/protocols/a2acp.md says."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.cli import dragoman
from tests.support.hubproc import PATIENCE, HubProcess, running, until

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
        """To whoever asked."""
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
        status, answer = self.ask(BROKER, "initiate_handshake", payload)
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


@pytest.fixture
def pair(hub: HubProcess) -> tuple[Speaker, Speaker]:
    """Two of one domain: who asks, and who serves."""
    ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
    bob.serve(INTENT, RECORD, SLOW)
    return ada, bob


# -- tokens ------------------------------------------------------------------------------------------------------


def test_tokens_are_for_one_receiver_and_verify_with_the_published_keys(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    token = ada.token(bob.id, requested_capabilities=["write:datasets", "read:everything"], ttl=60)
    keys = ada.call("GET", "/.well-known/jwks.json")[1]["keys"]
    key = jwt.PyJWK(next(one for one in keys if one["kid"] == jwt.get_unverified_header(token)["kid"]))
    claims = jwt.decode(token, key.key, algorithms=["EdDSA"], audience=bob.id, issuer="a_domain-auth-service")
    assert claims["exp"] - claims["iat"] == 60
    assert {name: claims[name] for name in ("sub", "aud", "domain", "capabilities")} == {
        "sub": ada.id, "aud": bob.id, "domain": "lab", "capabilities": ["write:datasets"],
    }  # fmt: skip
    basic = f"Basic {base64.b64encode(f'{ada.id}:{ada.secret}'.encode()).decode()}"
    body = {"agent_id": ada.id, "target_agent_id": bob.id}
    assert ada.call("POST", "/auth/token", body, auth=basic)[0] == 200


def test_keys_are_rotated_by_a_command_and_nobody_notices(hub: HubProcess, pair: tuple[Speaker, Speaker]) -> None:
    ada, _ = pair
    before = ada.message("request", BROKER, "discover_capabilities", {})
    old = jwt.get_unverified_header(before["security"]["auth_token"])["kid"]
    said = dragoman("key", "rotate", "-o", "json", hub=hub)
    new = said.json["keys"][0]["kid"]
    published = ada.call("GET", "/.well-known/jwks.json")[1]["keys"]
    assert (said.code, [one["kid"] for one in published[:2]]) == (0, [new, old])
    assert jwt.get_unverified_header(ada.token(BROKER))["kid"] == new
    assert [ada.post(before)[0], ada.ask(BROKER, "discover_capabilities", {})[0]] == [200, 200]
    assert [one["action"] for one in hub.admin.get(f"/api/v1/audit?subject={old}").json["records"]] == ["key.rotate"]
    listed = dragoman("key", "ls", hub=hub)
    assert (new in listed.out, f"✓ {new} signs" in listed.err) == (True, True)


def test_a_token_is_only_for_whoever_has_the_secret_and_is_allowed(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    body = {"agent_id": ada.id, "target_agent_id": bob.id}
    crossed = f"Basic {base64.b64encode(f'{ada.id}:{bob.secret}'.encode()).decode()}"
    for auth, wish, status in (
        (None, body, 401),
        ("Bearer 0123", body, 401),
        ("Basic !!", body, 401),
        (crossed, body, 401),
        (bob.bearer, body, 401),
        (ada.bearer, {**body, "requested_capabilities": ["read:everything"]}, 401),
        (ada.bearer, {**body, "ttl": 10**9}, 400),
        (ada.bearer, {**body, "ttl": 0}, 400),
        (ada.bearer, {"agent_id": ada.id}, 400),
        (ada.bearer, b"{", 400),
    ):
        answered, said = ada.call("POST", "/auth/token", wish, auth=auth)
        assert (answered, code_of_bare(said)) == (status, "AUTH_FAILED" if status == 401 else "SCHEMA_MISMATCH"), said
        assert ada.secret not in json.dumps(said)


def code_of_bare(said: Json) -> str:
    return str(said["payload"]["error"]["code"])


def test_a_message_needs_a_good_token_of_its_own_sender(hub: HubProcess, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    good = ada.token(BROKER)
    head, body, signature = good.split(".")
    claims = json.loads(raw(body))
    forged = b64(compact({**claims, "sub": bob.id}))
    secret = "a" * 32
    for token in (
        "no-token", bob.token(BROKER), ada.token(bob.id), f"{head}.{forged}.{signature}",
        jwt.encode(claims, secret, algorithm="HS256", headers={"kid": json.loads(raw(head))["kid"]}),
        f"{b64(compact({'alg': 'none', 'typ': 'JWT'}))}.{body}.",
        f"{head}.{body}.{signature[:-4]}AAAA",
    ):  # fmt: skip
        status, answer = ada.ask(BROKER, "discover_capabilities", {}, token=token)
        assert (status, code(answer), details(answer)["field"]) == (401, "AUTH_FAILED", "security.auth_token")
        assert token not in json.dumps(answer)
    assert ada.ask(BROKER, "discover_capabilities", {}, token=good)[0] == 200
    spoofed = ada.message("request", BROKER, "discover_capabilities", {})
    spoofed["source_agent"] = {**spoofed["source_agent"], "agent_id": bob.id}
    assert code(ada.post(spoofed)[1]) == "AUTH_FAILED"
    status, answer = ada.post(ada.message("request", BROKER, "discover_capabilities", {}), authorization=bob.bearer)
    assert (status, code(answer)) == (401, "AUTH_FAILED")
    assert hub.admin.post(f"/api/v1/agents/{ada.id}/token", {}).status == 200
    status, answer = ada.ask(BROKER, "discover_capabilities", {}, token=good)
    assert (status, details(answer)["reason"]) == (401, "revoked")


# -- the flow ----------------------------------------------------------------------------------------------------


def test_two_agents_meet_agree_and_work_over_http(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    status, found = ada.ask(BROKER, "discover_capabilities", {"intent": "provision", "agent_id": bob.id})
    (offered,) = found["payload"]["capabilities"]
    assert (status, offered["agent"]["agent_id"], offered["capability"]["input_schema"]) == (200, bob.id, ROWS)
    with bob.working(dataset(bob)) as heard:
        told = ada.shake_hands(bob, "provision", request_schema=ROWS)
        contract = told["contract"]
        assert told["collaboration_id"] == contract["collaboration_id"]
        assert (contract["intent"], contract["security"]["encryption"]) == ("provision", "none")
        wish = {"rows": 3, "contract_id": contract["contract_id"], "correlation_id": "k-1"}
        status, answer = ada.ask(bob, "provision", wish)
        assert (status, answer["message_type"], answer["source_agent"]["agent_id"]) == (200, "response", bob.id)
        said = {name: answer["payload"][name] for name in ("dataset_id", "contract_id", "correlation_id")}
        assert said == {"dataset_id": "d-3", "contract_id": contract["contract_id"], "correlation_id": "k-1"}

        later = ada.message("request", bob, "provision", {**wish, "correlation_id": "k-2"})
        status, answer = ada.post(later, prefer="respond-async")
        assert (status, answer["message_id"]) == (202, later["message_id"])
        assert ada.next("response", "provision")["payload"]["correlation_id"] == "k-2"

        ended = {"collaboration_id": told["collaboration_id"], "reason": "enough"}
        status, answer = ada.ask(BROKER, "terminate_collaboration", ended)
        assert (status, answer["payload"]["by"]) == (200, ada.id)
        assert code(ada.ask(bob, "provision", wish)[1]) == "CONTRACT_VIOLATION"
        kinds = [("event", "accept_handshake"), ("event", "terminate_collaboration")]
        until(lambda: all(kind in [(one["message_type"], one["intent"]) for one in heard] for kind in kinds))
    request = next(one for one in heard if (one["message_type"], one["intent"]) == ("request", "provision"))
    assert request["source_agent"]["agent_id"] == ada.id
    aud = jwt.decode(request["security"]["auth_token"], options={"verify_signature": False})
    assert (aud["sub"], aud["aud"]) == (BROKER, bob.id)


def test_both_sides_are_held_to_the_contract(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    with bob.working(lambda request: bob.response(request, {"dataset_id": 7})) as heard:
        contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
        canary = "Zaphod-Beeblebrox"
        for payload, field in (
            ({"rows": canary, "contract_id": contract}, "payload"),
            ({"rows": 1, "extra": canary, "contract_id": contract}, "payload"),
            ({"rows": 1}, None),
            ({"rows": 1, "contract_id": "contract-nobody-has"}, None),
        ):
            status, answer = ada.ask(bob, "provision", payload)
            assert (status, code(answer), details(answer).get("field")) == (422, "CONTRACT_VIOLATION", field), answer
            assert canary not in json.dumps(answer)
            assert answer["payload"]["error"]["retry_after"] == 0
        assert code(ada.ask(bob, "slow", {"contract_id": contract})[1]) == "CONTRACT_VIOLATION"
        bare = ada.token(bob.id, requested_capabilities=[])
        status, answer = ada.ask(bob, "provision", {"rows": 1, "contract_id": contract}, token=bare)
        assert (status, code(answer), details(answer)["missing"]) == (401, "AUTH_FAILED", ["write:datasets"])
        # the answer is not what was promised
        status, answer = ada.ask(bob, "provision", {"rows": 1, "contract_id": contract})
        assert (status, code(answer), details(answer)["faults"][0]["pointer"]) == (
            422,
            "CONTRACT_VIOLATION",
            "/dataset_id",
        )
    assert len([one for one in heard if one["intent"] == "provision"]) == 1


def test_handshakes_fail_with_their_codes(hub: HubProcess, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    stranger = Speaker(hub, "elsewhere", "write:datasets")
    wish = {"target_agent_id": bob.id, "requested_intent": "provision"}
    for who, changed, told in (
        (ada, {"target_agent_id": "nobody"}, "CAPABILITY_NOT_FOUND"),
        (ada, {"requested_intent": "dance"}, "CAPABILITY_NOT_FOUND"),
        (ada, {"target_version": "2.0.0"}, "SCHEMA_MISMATCH"),
        (ada, {"request_schema": {"type": "object"}}, "SCHEMA_MISMATCH"),
        (ada, {"request_schema": {"$ref": "http://example.com/x"}}, "SCHEMA_MISMATCH"),
        (ada, {"requested_intent": "record"}, "SECURITY_POLICY_VIOLATION"),
        (stranger, {}, "SECURITY_POLICY_VIOLATION"),
        (bob, {"target_agent_id": ada.id}, "CAPABILITY_NOT_FOUND"),
    ):
        answer = who.ask(BROKER, "initiate_handshake", {**wish, **changed})[1]
        assert code(answer) == told, (changed, answer)
    with bob.working(lambda request: None, {"accepted": False, "reason": "not today"}):
        answer = ada.ask(BROKER, "initiate_handshake", wish)[1]
        assert (code(answer), details(answer)["reason"]) == ("CONTRACT_VIOLATION", "not today")


def test_who_does_not_answer_in_time_is_timed_out(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    with bob.working(lambda request: None):
        contract = ada.shake_hands(bob, "slow")["contract"]["contract_id"]
        status, answer = ada.ask(bob, "slow", {"contract_id": contract})
        assert (status, code(answer)) == (504, "TIMEOUT")
        assert answer["payload"]["error"]["retry_after"] >= 1


def test_errors_cancels_and_progress_pass_between_agents(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair

    def fail(request: Json) -> Json:
        payload = {
            "error": {"code": "INTERNAL_ERROR", "message": "no disk", "details": {"disk": "a"}, "retry_after": 7}
        }
        told = bob.response(request, payload)
        return {**told, "message_type": "error"}

    with bob.working(fail):
        contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
        status, answer = ada.ask(bob, "provision", {"rows": 1, "contract_id": contract, "correlation_id": "k"})
        assert (status, code(answer), details(answer)) == (503, "INTERNAL_ERROR", {"disk": "a"})
        assert (answer["payload"]["error"]["retry_after"], answer["payload"]["correlation_id"]) == (7, "k")
    wish = {"rows": 1, "contract_id": contract, "correlation_id": "k-9"}
    assert ada.post(ada.message("request", bob, "provision", wish), prefer="respond-async")[0] == 202
    request = bob.next("request", "provision")
    told = bob.response(request, {"percent": 40, "message": "half"})
    assert bob.post({**told, "message_type": "event", "intent": "progress"})[0] == 202
    heard = ada.next("event", "progress")["payload"]
    assert (heard["percent"], heard["message"], heard["correlation_id"]) == (40, "half", "k-9")
    stop = ada.message("event", bob, "cancel", {"correlation_id": "k-9", "contract_id": contract})
    assert ada.post(stop)[0] == 202
    assert bob.next("event", "cancel")["payload"]["correlation_id"] == request["payload"]["correlation_id"]
    assert code(bob.post(bob.response(request, {"dataset_id": "late"}))[1]) == "CONTRACT_VIOLATION"


# -- what comes twice, late, broken or too often ----------------------------------------------------------------


def test_a_message_counts_once_and_only_in_its_time(hub: HubProcess, pair: tuple[Speaker, Speaker]) -> None:
    ada, _ = pair
    said = ada.message("request", BROKER, "discover_capabilities", {})
    assert ada.post(said)[0] == 200
    status, answer = ada.post(said)
    assert (status, code(answer), details(answer)["reason"]) == (401, "AUTH_FAILED", "replayed")
    changed = {**said, "payload": {"intent": "provision"}}
    assert details(ada.post(changed)[1])["reason"] == "replayed"
    for shift, reason in ((-310, "too_old"), (90, "in_the_future")):
        said = ada.message("request", BROKER, "discover_capabilities", {}, timestamp=now(seconds=shift))
        status, answer = ada.post(said)
        assert (status, details(answer)["reason"]) == (401, reason)
    hub_log = hub.admin.get(f"/api/v1/audit?principal={ada.id}&outcome=refused").json["records"]
    assert len(hub_log) >= 3


def test_a_replay_is_known_after_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
        bob.serve(INTENT)
        with bob.working(dataset(bob)):
            contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
            said = ada.message("request", bob, "provision", {"rows": 1, "contract_id": contract})
            assert ada.post(said)[0] == 200
        hub.restart()
        with bob.working(dataset(bob)) as heard:
            status, answer = ada.post(said)
            assert (status, details(answer)["reason"]) == (401, "replayed")
            status, answer = ada.ask(bob, "provision", {"rows": 2, "contract_id": contract})
            assert (status, answer["payload"]["dataset_id"]) == (200, "d-2")  # contract and signing key are still there
        assert len([one for one in heard if one["intent"] == "provision"]) == 1


def test_what_is_malformed_is_told_by_its_field(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    good = ada.message("request", BROKER, "discover_capabilities", {})
    for changed, status, field in (
        ({"protocol_version": "3.0"}, 422, "protocol_version"),
        ({"message_id": "770g0600-g40d-63f6-c938-668877662222"}, 400, "message_id"),
        ({"timestamp": "2026-01-01T00:00:00"}, 400, "timestamp"),
        ({"message_type": "shout"}, 400, "message_type"),
        ({"intent": None}, 400, "intent"),
        ({"intent": "accept_handshake"}, 400, "payload.handshake_id"),
        ({"payload": {"limit": 0}}, 400, "payload.limit"),
    ):
        answered, answer = ada.post({n: v for n, v in {**good, **changed}.items() if v is not None})
        assert (answered, code_of_bare(answer), details(answer).get("field")) == (status, "SCHEMA_MISMATCH", field)
    for body, limit in ((compact({**good, "payload": {"x": "y" * 900_001}}), 900_000), (b" " * 1_000_001, 1_000_000)):
        answered, answer = ada.call("POST", "/a2acp/messages", body)
        assert (answered, code_of_bare(answer), details(answer)["limit"]) == (413, "SCHEMA_MISMATCH", limit)
    status, answer = ada.ask(bob, "discover_capabilities", {})
    assert (status, code(answer), details(answer)["field"]) == (422, "SCHEMA_MISMATCH", "target_agent.agent_id")
    assert code(ada.ask(BROKER, "dance", {})[1]) == "CAPABILITY_NOT_FOUND"
    schema = ada.call("GET", "/schemas/a2acp.json")[1]
    assert schema["required"] == [
        "protocol_version", "message_id", "timestamp", "source_agent", "target_agent", "message_type",
    ]  # fmt: skip


def test_too_many_in_a_minute_are_told_how_long_to_wait(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_A2ACP__MESSAGES_PER_COLLABORATION="3") as hub:
        ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
        bob.serve(INTENT)
        with bob.working(dataset(bob)):
            contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
            wish = {"rows": 1, "contract_id": contract}
            assert [ada.ask(bob, "provision", wish)[0] for _ in range(3)] == [200, 200, 200]
            status, answer = ada.ask(bob, "provision", wish)
            assert (status, code(answer), details(answer)["scope"]) == (429, "RATE_LIMIT_EXCEEDED", "collaboration")
            assert 1 <= answer["payload"]["error"]["retry_after"] <= 61


# -- personal data -----------------------------------------------------------------------------------------------


def test_personal_data_travels_sealed_and_leaves_no_trace(tmp_path: Path) -> None:
    canary = "Zaphod-Beeblebrox"
    with running(tmp_path) as hub:
        ada, bob = Speaker(hub, "lab"), Speaker(hub, "lab")
        bob.serve(RECORD)
        mine, his = Key(), Key()

        def answer(request: Json) -> Json:
            assert his.open(request) == {"patient": canary}
            return his.seal(bob.response(request, {"seen": canary}))

        with bob.working(answer, {"accepted": True, "public_key": his.public}) as heard:
            told = ada.shake_hands(bob, "record", public_key=mine.public)
            mine.take(told, ada.id)
            until(lambda: any(one["message_type"] == "event" for one in heard))
            his.take(next(one["payload"] for one in heard if one["message_type"] == "event"), bob.id)
            assert (mine.kid, mine.secret) == (his.kid, his.secret)
            contract = told["contract"]["contract_id"]
            wish = {"patient": canary, "contract_id": contract, "correlation_id": "p-1"}
            status, response = ada.post(mine.seal(ada.message("request", bob, "record", wish)))
            assert (status, response["message_type"]) == (200, "response"), response
            assert mine.open(response) == {"seen": canary}

            # in clear, moved, flipped, under a used nonce, under another key
            status, refused = ada.ask(bob, "record", wish)
            assert (status, code(refused)) == (403, "SECURITY_POLICY_VIOLATION")
            sealed = mine.seal(ada.message("request", bob, "record", wish))
            assert code(ada.post({**sealed, "message_id": str(uuid.uuid4())})[1]) == "SECURITY_POLICY_VIOLATION"
            flipped = bytes([raw(sealed["payload"]["ciphertext"])[0] ^ 1]) + raw(sealed["payload"]["ciphertext"])[1:]
            broken = {**sealed, "payload": {**sealed["payload"], "ciphertext": b64(flipped)}}
            assert code(ada.post(broken)[1]) == "SECURITY_POLICY_VIOLATION"
            nonce = os.urandom(12)
            assert ada.post(mine.seal(ada.message("request", bob, "record", wish), nonce))[0] == 200
            again = ada.post(mine.seal(ada.message("request", bob, "record", wish), nonce))[1]
            assert (code(again), details(again)["reason"]) == ("SECURITY_POLICY_VIOLATION", "nonce")
            other = {**sealed["payload"], "kid": "another"}
            assert code(ada.post({**sealed, "payload": other})[1]) == "CONTRACT_VIOLATION"
            wrong = mine.seal(ada.message("request", bob, "record", {"name": canary, "contract_id": contract}))
            misfit = ada.post(wrong)[1]
            assert code(misfit) == "CONTRACT_VIOLATION"
            assert canary not in json.dumps(misfit)

            # a new key; the old one still opens what was on its way
            fresh = Key()
            status, rotated = ada.ask(
                BROKER, "rotate_key", {"collaboration_id": told["collaboration_id"], "public_key": fresh.public}
            )
            assert status == 200, rotated
            fresh.take({**told, **rotated["payload"]}, ada.id)
            until(lambda: any(one["intent"] == "rotate_key" for one in heard))
            his.take({**told, **next(one["payload"] for one in heard if one["intent"] == "rotate_key")}, bob.id)
            assert fresh.kid != mine.kid
            status, response = ada.post(fresh.seal(ada.message("request", bob, "record", wish)))
            assert (status, fresh.open(response)) == (200, {"seen": canary})

        record = hub.admin.get("/api/v1/audit?limit=500").json["records"]
        done = [(one["action"], one["outcome"]) for one in record if one["action"].startswith("pii.")]
        assert ("pii.refused", "refused") in done
        assert ("pii.request", "ok") in done or any(action == "pii.request" for action, _ in done)
        shown = json.dumps(hub.admin.get("/api/v1/tasks?full=1").json) + json.dumps(record)
        assert canary not in shown
        assert canary not in hub.log.read_text()
        assert hub.stop() == 0
    for file in (path for path in hub.data.rglob("*") if path.is_file()):
        assert canary.encode() not in file.read_bytes(), file
        if file.parent.name == "keys":
            assert file.stat().st_mode & 0o077 == 0


def test_end_to_end_only_the_two_can_read(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
        bob.serve(INTENT)
        mine, his = Key(), Key()

        def answer(request: Json) -> Json:
            assert his.open(request) == {"rows": "anything"}
            return his.seal(bob.response(request, {"whatever": 1}))

        with bob.working(answer, {"accepted": True, "public_key": his.public}) as heard:
            told = ada.shake_hands(bob, "provision", public_key=mine.public, mode="end-to-end")
            assert told["contract"]["security"]["validated"] is False
            mine.take(told, ada.id)
            until(lambda: any(one["message_type"] == "event" for one in heard))
            his.take(next(one["payload"] for one in heard if one["message_type"] == "event"), bob.id)
            assert mine.secret == his.secret
            wish = {"rows": "anything", "contract_id": told["contract"]["contract_id"], "correlation_id": "e-1"}
            status, response = ada.post(mine.seal(ada.message("request", bob, "provision", wish)))
            assert (status, mine.open(response)) == (200, {"whatever": 1})
            plain = ada.ask(bob, "provision", wish)[1]
            assert code(plain) == "SECURITY_POLICY_VIOLATION"


# -- the WebSocket -----------------------------------------------------------------------------------------------


class Socket:
    def __init__(self, speaker: Speaker, socket: ClientConnection) -> None:
        self.speaker = speaker
        self.socket = socket
        self.missed: list[Json] = []

    def say(self, message: Json) -> None:
        self.socket.send(json.dumps(message))

    def next(self, kind: str, intent: str | None) -> Json:
        for place, one in enumerate(self.missed):
            if (one["message_type"], one.get("intent")) == (kind, intent):
                return self.missed.pop(place)
        while True:
            one = json.loads(self.socket.recv(PATIENCE))
            if (one["message_type"], one.get("intent")) == (kind, intent):
                return dict(one)
            self.missed.append(one)


@contextmanager
def linked(speaker: Speaker, secret: str | None = None) -> Iterator[Socket]:
    url = f"{speaker.hub.url.replace('http', 'ws')}/a2acp/ws"
    headers = {"authorization": f"Bearer {secret or speaker.secret}"}
    with connect(url, additional_headers=headers, subprotocols=["a2acp.v1"], proxy=None) as socket:  # type: ignore[list-item]
        yield Socket(speaker, socket)


def test_the_same_over_a_websocket(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    with linked(ada) as hers, linked(bob) as his:
        wish = {"target_agent_id": bob.id, "requested_intent": "provision", "correlation_id": "h-1"}
        hers.say(ada.message("request", BROKER, "initiate_handshake", wish))
        offer = his.next("request", "accept_handshake")["payload"]
        decision = {"accepted": True, "correlation_id": offer["handshake_id"]}
        his.say(bob.message("response", BROKER, "accept_handshake", decision))
        told = hers.next("response", "initiate_handshake")["payload"]
        assert told["correlation_id"] == "h-1"
        assert his.next("event", "accept_handshake")["payload"]["contract"] == told["contract"]
        contract = told["contract"]["contract_id"]
        for number in range(5):
            asked = {"rows": number + 1, "contract_id": contract, "correlation_id": f"k-{number}"}
            hers.say(ada.message("request", bob, "provision", asked))
        for number in range(5):
            request = his.next("request", "provision")
            assert request["payload"]["rows"] == number + 1
            his.say(bob.response(request, {"dataset_id": f"d-{number}"}))
            answer = hers.next("response", "provision")["payload"]
            assert (answer["dataset_id"], answer["correlation_id"]) == (f"d-{number}", f"k-{number}")
        said = ada.message("request", bob, "provision", {"rows": "x", "contract_id": contract, "correlation_id": "bad"})
        hers.say(said)
        refused = hers.next("error", "provision")
        assert (code(refused), refused["payload"]["correlation_id"]) == ("CONTRACT_VIOLATION", "bad")
        hers.say(ada.message("request", BROKER, "discover_capabilities", {"agent_id": bob.id}))
        assert hers.next("response", "discover_capabilities")["payload"]["capabilities"][0]["available"] is True
        hers.say(bob.message("request", BROKER, "discover_capabilities", {}))  # another agent's, over her link
        assert code(hers.next("error", "discover_capabilities")) == "AUTH_FAILED"
        hers.socket.send("{")
        assert code_of_bare(hers.next("error", None)) == "SCHEMA_MISMATCH"
        hers.say(
            ada.message("request", BROKER, "terminate_collaboration", {"collaboration_id": told["collaboration_id"]})
        )
        assert hers.next("response", "terminate_collaboration")["payload"]["by"] == ada.id
        assert his.next("event", "terminate_collaboration")["payload"]["by"] == ada.id
    with pytest.raises(InvalidStatus) as refusal, linked(ada, "0" * 32):
        pass
    assert refusal.value.response.status_code == 401
    assert code_of_bare(json.loads(refusal.value.response.body or b"")) == "AUTH_FAILED"


# -- others, and people ------------------------------------------------------------------------------------------


def test_a_domain_asks_another_when_a_person_allows_it(hub: HubProcess) -> None:
    ward = f"ward-{uuid.uuid4().hex[:6]}"
    ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, ward)
    bob.serve(INTENT)
    wish = {"target_agent_id": bob.id, "requested_intent": "provision"}
    assert code(ada.ask(BROKER, "initiate_handshake", wish)[1]) == "SECURITY_POLICY_VIOLATION"

    def dragoman(*words: str) -> Any:
        command = [sys.executable, "-m", "dragoman.cli", *words, "-o", "json"]
        environment = {**os.environ, "DRAGOMAN_URL": hub.url, "DRAGOMAN_TOKEN": hub.ready["admin_token"]}
        run = subprocess.run(command, capture_output=True, env=environment, timeout=PATIENCE, check=True)
        return json.loads(run.stdout)

    dragoman("policy", "allow", "lab", ward)
    assert {"source": "lab", "target": ward, "allow": True, "intents": [], "encrypt": False} in dragoman(
        "policy", "ls"
    )["domains"]
    with bob.working(dataset(bob)):
        told = ada.shake_hands(bob, "provision")
        contract = told["contract"]["contract_id"]
        shown = dragoman("contract", "show", contract)
        assert (shown["standing"], shown["source"]["agent"], shown["target"]["domain"]) == ("active", ada.id, ward)
        assert [one["id"] for one in dragoman("contract", "ls", "--agent", bob.id)["contracts"]] == [contract]
        assert dragoman("contract", "end", told["collaboration_id"], "--reason", "audit")["standing"] == "terminated"
        assert code(ada.ask(bob, "provision", {"rows": 1, "contract_id": contract})[1]) == "CONTRACT_VIOLATION"
    assert ada.next("event", "terminate_collaboration")["payload"]["reason"] == "audit"
    dragoman("policy", "forbid", "lab", ward)
    assert code(ada.ask(BROKER, "initiate_handshake", wish)[1]) == "SECURITY_POLICY_VIOLATION"
    dragoman("policy", "rm", "lab", ward)


def test_people_and_other_protocols_ask_an_a2acp_agent_and_are_asked(
    hub: HubProcess, pair: tuple[Speaker, Speaker]
) -> None:
    ada, bob = pair
    with bob.working(dataset(bob)) as heard:
        task = hub.admin.post("/api/v1/tasks", {"type": "provision", "agent": bob.id, "input": {"rows": 4}}).json
        done = until(lambda: (t := hub.admin.get(f"/api/v1/tasks/{task['id']}").json)["status"] == "completed" and t)
        assert done["result"] == {"dataset_id": "d-4"}
        wrong = hub.admin.post("/api/v1/tasks", {"type": "provision", "agent": bob.id, "input": {"rows": "x"}})
        assert wrong.status == 422, wrong
    (request,) = [one for one in heard if one["intent"] == "provision"]
    assert request["source_agent"]["agent_id"] == BROKER
    assert "contract_id" not in request["payload"]
    offers = [{"intent": "echo", "input_schema": ROWS, "output_schema": True}]
    fields = {"agent_id": f"c-{uuid.uuid4().hex[:6]}", "protocol": "chiffon", "domain": "lab", "offers": offers}
    made = hub.admin.post("/api/v1/agents", fields)
    assert made.status == 201, made
    found = ada.ask(BROKER, "discover_capabilities", {"agent_id": fields["agent_id"]})[1]["payload"]["capabilities"]
    assert [one["capability"]["intent"] for one in found] == ["echo"]


def test_curl_can_do_it(pair: tuple[Speaker, Speaker]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    ada, _ = pair
    said = json.dumps(ada.message("request", BROKER, "discover_capabilities", {"intent": "provision"}))
    command = ["curl", "-sS", "-m", "10", "--data-binary", "@-", f"{ada.hub.url}/a2acp/messages"]
    out = subprocess.run(command, input=said.encode(), capture_output=True, check=True, timeout=PATIENCE).stdout
    assert json.loads(out)["payload"]["capabilities"]
