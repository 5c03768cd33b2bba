"""Attacks by a2acp agents: forged and stolen tokens, replays, hostile schemas, other people's contracts, broken seals,
personal data in clear, floods, and borders between domains. Whatever is tried, honest agents are served afterwards.

What such a token or seal is worth alone is shown in `credentials`; here it is brought to a hub's doors.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from dragoman.security.keys import KeyFile, new_key
from tests.conformance.a2acp.plain import (
    BROKER,
    PROVISION,
    WANTED,
    Bond,
    Pair,
    Plain,
    b64,
    code_of,
    compact,
    error_of,
    now,
    seal,
    unb64,
)
from tests.support.chiffon import Door
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until

Json = dict[str, Any]
INTENT = PROVISION["intent"]
CANARY = "canary-4e81bd"
RECORD: Json = {
    "intent": "read_record",
    "input_schema": {"type": "object", "properties": {"patient": {"type": "string"}}, "required": ["patient"]},
    "output_schema": {"type": "object", "required": ["ward"]},
    "pii": True,
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    settings = {"DRAGOMAN_RULES__IDLE_SECONDS": "600", "DRAGOMAN_LOG__LEVEL": "debug"}
    with running(tmp_path_factory.mktemp("hub"), **settings) as hub:
        yield hub


@pytest.fixture(scope="module")
def everybody(hub: HubProcess) -> dict[str, Plain]:
    made = {id: Plain(hub, id) for id in ("ada", "bob", "cid", "eve")}
    for id in ("bob", "cid"):
        made[id].serves(PROVISION, RECORD, {**PROVISION, "intent": "other"}, {"intent": "loose", "input_schema": True})
    return made


@pytest.fixture(scope="module")
def bond(everybody: dict[str, Plain]) -> Bond:
    return everybody["ada"].shake(everybody["bob"])


@pytest.fixture
def cast(everybody: dict[str, Plain]) -> dict[str, Plain]:
    """With nothing unread that was meant for an earlier test."""
    for one in everybody.values():
        one.hear()
    return everybody


@pytest.fixture(autouse=True)
def _quiet(cast: dict[str, Plain]) -> None:
    pass


@pytest.fixture(autouse=True)
def honest(hub: HubProcess) -> Iterator[None]:
    """After each attack two honest agents come to terms and work."""
    yield
    name = uuid.uuid4().hex[:8]
    bond = Plain(hub, f"asks-{name}").shake(Plain(hub, f"does-{name}").serves(PROVISION))
    work = bond.ask()
    bond.target.say(bond.response(work, {"dataset_id": name}))
    assert bond.content(bond.source.hears("response", INTENT)) == {"dataset_id": name}
    assert "Traceback" not in hub.log.read_text()


@pytest.fixture
def trap() -> Iterator[tuple[str, Callable[[], bool]]]:
    """An address that nobody may ever fetch from, and whether somebody did."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        def sprung() -> bool:
            try:
                listener.accept()[0].close()
                return True
            except BlockingIOError:
                return False

        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x", sprung


def audited(hub: HubProcess, agent: Plain) -> list[tuple[str, str]]:
    records: list[Json] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = hub.admin.get(f"/api/v1/audit?principal={agent.id}&limit=500&cursor={cursor}").json
        records, cursor = records + page["records"], page["next"]
    return [(one["action"], one["outcome"]) for one in records]


# -- tokens


def part(value: Any) -> str:
    return b64(value if isinstance(value, bytes) else json.dumps(value).encode())


class Forge:
    """Tokens of the hub's own key that it would never make: what is wrong in them is not the signature."""

    def __init__(self, hub: HubProcess) -> None:
        ring = KeyFile(hub.data / "keys").open(int(time.time()))
        self.key = ring.signing

    def claims(self, **changed: Any) -> Json:
        at = int(time.time())
        whole = {
            "sub": "ada", "iss": "a_domain-auth-service", "aud": "bob", "exp": at + 600, "iat": at,
            "capabilities": ["read:datasets"], "domain": "a_domain", "jti": uuid.uuid4().hex,
        } | changed  # fmt: skip
        return {name: value for name, value in whole.items() if value is not ...}

    def sign(self, head: Any, body: Any, sign: Callable[[bytes], bytes] | None = None) -> str:
        signed = f"{part(head)}.{part(body)}"
        signature = (sign or self.key.material.sign)(signed.encode())  # type: ignore[union-attr]
        return f"{signed}.{b64(signature)}"

    def token(self, head: Json | None = None, **changed: Any) -> str:
        return self.sign({"alg": "EdDSA", "typ": "JWT", "kid": self.key.kid, **(head or {})}, self.claims(**changed))

    @property
    def public(self) -> bytes:
        return self.key.verifier.public_bytes_raw()  # type: ignore[union-attr, no-any-return]


def stranger(forge: Forge, **head: Any) -> str:
    """By a key that the token brings along or points to."""
    other = new_key(int(time.time()))
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": b64(other.verifier.public_bytes_raw())}  # type: ignore[union-attr]
    said = {"alg": "EdDSA", "typ": "JWT", "kid": other.kid, "jwk": jwk, **head}
    return forge.sign(said, forge.claims(), other.material.sign)  # type: ignore[union-attr]


def confused(forge: Forge, secret: bytes, **head: Any) -> str:
    said = {"alg": "HS256", "typ": "JWT", "kid": forge.key.kid, **head}
    return forge.sign(said, forge.claims(), lambda data: hmac.new(secret, data, hashlib.sha256).digest())


def unsigned(forge: Forge, alg: str) -> str:
    return f"{part({'alg': alg, 'typ': 'JWT', 'kid': forge.key.kid})}.{part(forge.claims())}."


at = time.time
TOKENS: dict[str, tuple[str, Callable[[Forge], str]]] = {
    "alg none": ("signature", lambda f: unsigned(f, "none")),
    "alg None": ("signature", lambda f: unsigned(f, "None")),
    "alg nOnE": ("signature", lambda f: unsigned(f, "nOnE")),
    "alg empty": ("signature", lambda f: unsigned(f, "")),
    "alg none, signed": ("signature", lambda f: f.token({"alg": "none"})),
    "hs256 by the public key": ("signature", lambda f: confused(f, f.public)),
    "hs256 by nothing": ("signature", lambda f: confused(f, b"")),
    "hs256 of a file": ("signature", lambda f: confused(f, b"", kid="../../../../dev/null")),
    "rs256": ("signature", lambda f: f.token({"alg": "RS256"})),
    "kid traversal": ("signature", lambda f: f.token({"kid": "../../keys/signing.json"})),
    "kid sql": ("signature", lambda f: f.token({"kid": "x' OR '1'='1"})),
    "kid address": ("signature", lambda f: f.token({"kid": "http://169.254.169.254/latest"})),
    "kid missing": ("signature", lambda f: f.token({"kid": None})),
    "unknown crit": ("signature", lambda f: f.token({"crit": ["exp2"], "exp2": 1})),
    "empty crit": ("signature", lambda f: f.token({"crit": []})),
    "own jwk": ("signature", lambda f: stranger(f)),
    "own jwk under our kid": ("signature", lambda f: stranger(f, kid=f.key.kid)),
    "duplicate claims": ("signature", lambda f: f.sign(
        {"alg": "EdDSA", "typ": "JWT", "kid": f.key.kid},
        json.dumps(f.claims()).encode()[:-1] + b',"sub":"ada"}')),
    "expired": ("expiration", lambda f: f.token(iat=int(at()) - 900, exp=int(at()) - 61)),
    "from the future": ("expiration", lambda f: f.token(iat=int(at()) + 120, exp=int(at()) + 600)),
    "not before": ("expiration", lambda f: f.token(nbf=int(at()) + 120)),
    "lives for ever": ("expiration", lambda f: f.token(exp=int(at()) + 10**9)),
    "never expires": ("claims", lambda f: f.token(exp=...)),
    "audience of another": ("audience", lambda f: f.token(aud="cid")),
    "audience of the broker": ("audience", lambda f: f.token(aud=BROKER["agent_id"])),
    "audience list": ("claims", lambda f: f.token(aud=["bob"])),
    "audience of many": ("claims", lambda f: f.token(aud=["bob", "cid"])),
    "subject of another": ("subject", lambda f: f.token(sub="eve")),
    "subject of nobody": ("subject", lambda f: f.token(sub="nobody")),
    "subject of the broker": ("subject", lambda f: f.token(sub=BROKER["agent_id"])),
    "domain of another": ("subject", lambda f: f.token(domain="medtronic_poc")),
    "issuer of another": ("issuer", lambda f: f.token(iss="b_domain-auth-service")),
    "issuer almost": ("issuer", lambda f: f.token(iss="a_domain-auth-service ")),
    "capabilities missing": ("claims", lambda f: f.token(capabilities=...)),
    "capabilities none": ("capability", lambda f: f.token(capabilities=[])),
    "not a token": ("signature", lambda f: "x" * 40),
    "huge": ("signature", lambda f: f.token(jti="j" * 9000)),
}  # fmt: skip
LOOSE = {"duplicate claims", "audience list", "audience of many"}
"""What is wrong in two ways at once."""


@pytest.mark.requirement("a2acp-D4", "a2acp-D3", "A2-TOK-4", "A2-TOK-5", "A2-TOK-6", "A2-TOK-8")
@pytest.mark.parametrize("name", list(TOKENS))
def test_a_token_that_is_not_ours_for_this_is_refused(hub: HubProcess, bond: Bond, name: str) -> None:
    rule, make = TOKENS[name]
    forge = Forge(hub)
    good = bond.request(token=forge.token())
    assert bond.source.send(good, later=True).status == 202, "the forge itself is good"
    bond.target.say(bond.response(bond.target.hears("request"), {"dataset_id": "d"}))
    token = make(forge)
    message = bond.request(token=token)
    answer = bond.source.send(message, later=True)
    told = error_of(answer)
    assert (answer.status, told["code"], told["retry_after"]) == (401, "AUTH_FAILED", 0), told
    assert told["details"]["rule"] == rule or name in LOOSE, told
    assert token[-20:] not in json.dumps(told)
    with bond.source.link() as link:
        link.say(bond.request(token=token))
        assert link.hears("error")["payload"]["error"]["code"] == "AUTH_FAILED"
    assert bond.target.hear() == []


@pytest.mark.requirement("a2acp-D4")
@pytest.mark.parametrize("name", ["jku", "x5u"])
def test_no_key_is_fetched_for_a_token(
    hub: HubProcess, bond: Bond, name: str, trap: tuple[str, Callable[[], bool]]
) -> None:
    address, sprung = trap
    for token in (stranger(Forge(hub), **{name: address}), Forge(hub).token({name: address})):
        assert bond.source.refused(bond.request(token=token))["code"] == "AUTH_FAILED"
    assert not sprung()


@pytest.mark.requirement("a2acp/all-D1", "A2-TOK-3")
def test_a_stolen_token_speaks_for_nobody_else(bond: Bond, cast: dict[str, Plain]) -> None:
    eve, token = cast["eve"], bond.source.token("bob")
    asked = {**bond.request(), "source_agent": eve.party}
    assert eve.refused(asked)["details"]["rule"] == "subject"
    answer = eve.send(bond.request(), later=True, Authorization=f"Bearer {eve.secret}")  # her link, ada's message
    assert (answer.status, code_of(answer)) == (401, "AUTH_FAILED")
    with eve.link() as link:
        link.say(bond.request(token=token))
        assert link.hears("error")["payload"]["error"]["code"] == "AUTH_FAILED"
    assert bond.target.hear() == []


@pytest.mark.requirement("a2acp/all-D1", "a2acp/all-D4")
def test_the_brokers_word_serves_nobody_but_the_broker(bond: Bond, cast: dict[str, Plain]) -> None:
    """Every message of the hub's has a token; its receiver can do nothing with it."""
    work = bond.ask()
    word = work["security"]["auth_token"]
    assert word != bond.source.token("bob")  # the sender's own never travels
    bob = bond.target
    for source, target in (
        (BROKER, bob.party),
        (BROKER, bond.source.party),
        (bob.party, BROKER),
        (bob.party, bob.party),
    ):
        said = bob.message("request", target, "discover_capabilities", {}, token=word, source_agent=source)
        answer = bob.send(said)
        assert code_of(answer) == "AUTH_FAILED", answer
    bob.say(bond.response(work, {"dataset_id": "d"}))


@pytest.mark.requirement("a2acp/all-D1")
@pytest.mark.parametrize("id", [BROKER["agent_id"], "hub", "admin"])
def test_nobody_is_added_under_the_brokers_name(hub: HubProcess, id: str) -> None:
    made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "a2acp", "domain": "a_domain"})
    assert made.status in (400, 409, 422), made


def test_a_new_secret_or_a_removed_agent_voids_every_token(hub: HubProcess, cast: dict[str, Plain]) -> None:
    doomed = Plain(hub, f"doomed-{uuid.uuid4().hex[:6]}")
    token = doomed.token(BROKER["agent_id"])

    def asks(token: str) -> int:
        return doomed.send(doomed.message("request", BROKER, "discover_capabilities", {}, token=token)).status

    assert asks(token) == 200
    fresh = hub.admin.post(f"/api/v1/agents/{doomed.id}/token")
    assert fresh.status < 300, fresh
    assert asks(token) == 401
    doomed.secret = fresh.json["token"]
    token = doomed.token(BROKER["agent_id"], ttl=60)
    assert asks(token) == 200
    assert hub.admin.ask("DELETE", f"/api/v1/agents/{doomed.id}").status < 300
    assert asks(token) == 401


# -- /auth/token


@pytest.mark.requirement("a2acp-D5")
def test_nobody_gets_a_token_of_another_or_without_its_secret(hub: HubProcess, cast: dict[str, Plain]) -> None:
    ada, eve = cast["ada"], cast["eve"]
    chiffon = hub.token("chi", "infra")

    def basic(name: str, secret: str) -> str:
        return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()

    tried = [
        (ada.wish("bob"), f"Bearer {eve.secret}"),
        (ada.wish("bob"), basic("eve", eve.secret)),
        (ada.wish("bob"), basic("ada", eve.secret)),
        (eve.wish("bob"), basic("ada", eve.secret)),
        (ada.wish("bob"), basic("ada", "")),
        (ada.wish("bob"), basic("ada", "0" * 32)),
        (ada.wish("bob"), "Basic !!!"),
        (ada.wish("bob"), "Basic " + "A" * 5000),
        (ada.wish("bob"), f"Bearer {hub.ready['admin_token']}"),
        (ada.wish("bob"), f"Bearer {ada.token('bob')}"),  # a token begets no token
        ({**ada.wish("bob"), "agent_id": "chi"}, f"Bearer {chiffon}"),
        (ada.wish("bob"), None),
    ]
    for wish, said in tried:
        answer = Door(hub.url).post("/auth/token", wish, **({} if said is None else {"Authorization": said}))
        assert answer.status in (401, 403), (said, answer)
        assert code_of(answer) in ("AUTH_FAILED", "SECURITY_POLICY_VIOLATION")
        assert b"eyJ" not in answer.body.split(b'"security"')[0]
    query = f"?agent_id=ada&secret={ada.secret}&access_token={ada.secret}"
    assert Door(hub.url).post(f"/auth/token{query}", ada.wish("bob")).status == 401


@pytest.mark.requirement("a2acp-D5", "A2-TOK-7")
def test_a_token_grants_no_more_than_was_allowed(hub: HubProcess, cast: dict[str, Plain]) -> None:
    eve = cast["eve"]
    wish = eve.wish("bob", requested_capabilities=["admin:all", "read:datasets", "read:datasets.all"])
    token = eve.door.post("/auth/token", wish).json["token"]
    claims = json.loads(unb64(token.split(".")[1]))
    assert claims["capabilities"] == ["read:datasets"]
    for asked in (["admin:all"], ["*"], ["read:*"], ["READ:DATASETS"], ["read:datasets "], ["read:datasets", "*"]):
        answer = eve.door.post("/auth/token", eve.wish("bob", requested_capabilities=asked))
        assert (answer.status, code_of(answer)) == (401, "AUTH_FAILED"), answer
    eve.register({**PROVISION, "required_capabilities": ["admin:all"]})  # what one serves is not what one may
    answer = eve.door.post("/auth/token", eve.wish("bob", requested_capabilities=["admin:all"]))
    assert answer.status == 401
    eve.serves()


@pytest.mark.requirement("a2acp-D4")
@pytest.mark.parametrize("ttl", [0, -1, 86_401, 10**9, 10**30, 1.5, "3600", True, None])
def test_no_token_lives_longer_than_a_day(cast: dict[str, Plain], ttl: Any) -> None:
    eve = cast["eve"]
    answer = eve.door.post("/auth/token", eve.wish("bob", ttl=ttl))
    if ttl is None:
        assert answer.status == 200
        return
    assert (answer.status, code_of(answer)) == (400, "SCHEMA_MISMATCH"), answer


def test_the_published_keys_are_public_ones(hub: HubProcess) -> None:
    keys = Door(hub.url).get("/.well-known/jwks.json").json["keys"]
    assert keys
    assert all(set(key) <= {"kty", "crv", "x", "kid", "alg", "use"} and key["kty"] == "OKP" for key in keys)
    assert all(not (one.stat().st_mode & 0o077) for one in (hub.data / "keys").rglob("*"))


# -- replay


@pytest.mark.requirement("a2acp-D15")
def test_a_message_is_heard_once_and_in_its_time(bond: Bond, cast: dict[str, Plain]) -> None:
    ada, eve = bond.source, cast["eve"]
    asked = bond.request()
    ada.say(asked)
    bond.target.hears("request")
    with ada.link() as link:  # by another way, in another spelling, with another token and time
        for again in (
            asked,
            {**asked, "message_id": asked["message_id"].upper()},
            {**asked, "timestamp": now(), "security": {"auth_token": ada.token("bob", ttl=30)}},
        ):
            assert ada.refused(again)["details"]["reason"] == "replayed"
            link.say(again)
            assert link.hears("error")["payload"]["error"]["details"]["reason"] == "replayed"
    for seconds in (-301, -86_400, 62, 3600):
        told = ada.refused(bond.request(at=seconds))
        assert told["code"] == "AUTH_FAILED", told
    ada.say(bond.request(at=-280))
    ada.say(bond.request(at=50))
    assert len(bond.target.hear()) == 2
    own = eve.message("request", BROKER, "discover_capabilities", {}, message_id=asked["message_id"])
    assert eve.send(own).status == 200  # an id is used up for its sender only


@pytest.mark.requirement("a2acp-D15")
@pytest.mark.parametrize("word", ["discover_capabilities", "initiate_handshake", "cancel", "error"])
def test_every_kind_of_message_is_heard_once(bond: Bond, word: str) -> None:
    ada, bob = bond.source, bond.target
    if word == "discover_capabilities":
        who, said = ada, ada.message("request", BROKER, word, {})
        assert ada.send(said).status == 200
    elif word == "initiate_handshake":
        who, said = ada, ada.initiate(bob, INTENT)
        ada.say(said)
    elif word == "cancel":
        work = bond.request()
        ada.say(work)
        who, said = ada, ada.message("event", bob, word, {"correlation_id": work["payload"]["correlation_id"]})
        ada.say(said)
    else:
        work = bond.ask()
        error = {"code": "INTERNAL_ERROR", "message": "no", "retry_after": 1}
        payload = {"error": error, "correlation_id": work["payload"]["correlation_id"], "contract_id": bond.id}
        who, said = bob, bob.message("error", ada, INTENT, payload)
        bob.say(said)
    told = who.refused(said)
    assert (told["code"], told["details"]["reason"]) == ("AUTH_FAILED", "replayed"), told


@pytest.mark.requirement("a2acp-D15")
def test_a_restart_forgets_no_message(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_RULES__IDLE_SECONDS="600") as hub:
        bond = Plain(hub, "ada").shake(Plain(hub, "bob").serves(PROVISION))
        asked = bond.request()
        discover = bond.source.message("request", BROKER, "discover_capabilities", {})
        bond.source.say(asked)
        assert bond.source.send(discover).status == 200
        hub.restart()
        for message in (asked, discover):
            told = bond.source.refused(message)
            assert (told["code"], told["details"]["reason"]) == ("AUTH_FAILED", "replayed")
        bond.target.hears("request")
        assert bond.target.hear() == []


# -- schemas


def hostile(address: str) -> dict[str, Any]:
    return {
        "remote ref": {"$ref": address},
        "remote ref within": {"properties": {"a": {"$ref": f"{address}#/definitions/a"}}},
        "remote meta schema": {"$schema": address, "type": "object"},
        "file ref": {"$ref": "file:///etc/passwd"},
        "dynamic ref": {"$schema": "https://json-schema.org/draft/2020-12/schema", "$dynamicRef": address},
        "catastrophic regex": {"properties": {"a": {"pattern": "(a+)+$"}}, "patternProperties": {"(a|a)*b(?=x)": True}},
        "endless recursion": {"$ref": "#"},
        "ten thousand choices": {"anyOf": [{"const": n} for n in range(10_000)]},
        "deep": nested(500),
        "no schema": {"type": "nothing"},
    }


def nested(levels: int) -> Any:
    made: Any = True
    for _ in range(levels):
        made = {"not": made}
    return made


@pytest.mark.requirement("A2-SCH-1")
@pytest.mark.parametrize("name", list(hostile("")))
def test_a_hostile_schema_is_refused_or_harmless(
    cast: dict[str, Plain], name: str, trap: tuple[str, Callable[[], bool]]
) -> None:
    address, sprung = trap
    eve, schema = cast["eve"], hostile(address)[name]
    for side in ("input_schema", "output_schema"):
        answer = eve.register({**PROVISION, side: schema})
        assert answer.status in (400, 413, 422), answer
        assert code_of(answer) == "SCHEMA_MISMATCH"
    for side in ("request_schema", "response_schema"):
        told = eve.refused(eve.initiate("bob", "loose", **{side: schema}), later=False)
        assert told["code"] == "SCHEMA_MISMATCH", told
    assert not sprung()


@pytest.mark.requirement("A2-SCH-1")
def test_a_regex_that_could_stall_does_not(cast: dict[str, Plain], hub: HubProcess) -> None:
    name = uuid.uuid4().hex[:6]
    mallory, ada = Plain(hub, f"mallory-{name}"), Plain(hub, f"ada-{name}")
    slow = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|aa)+$"}}, "required": ["a"]}
    answer = mallory.register({"intent": "stall", "input_schema": slow})
    if answer.status != 200:
        assert code_of(answer) == "SCHEMA_MISMATCH"
        return
    bond = ada.shake(mallory, "stall")
    assert ada.send(bond.request({"a": "a" * 5000 + "b"}), timeout=10)  # refused, and soon
    assert hub.admin.get("/livez").status == 200


@pytest.mark.requirement("A2-SCH-3")
def test_what_a_refused_payload_held_is_not_repeated(hub: HubProcess, bond: Bond) -> None:
    wrong: list[Json] = [
        {**WANTED, "record_count": CANARY},
        {**WANTED, "dataset_type": {"x": CANARY}},
        {**WANTED, "extra": CANARY},
        {"test_scenario_id": [CANARY]},
    ]
    for content in wrong:
        answer = bond.source.send(bond.request(content), later=True)
        assert code_of(answer) == "CONTRACT_VIOLATION"
        assert CANARY.encode() not in answer.body
    assert CANARY not in hub.log.read_text()
    assert CANARY.encode() not in hub.admin.get("/api/v1/audit?limit=500").body


# -- contracts


@pytest.mark.requirement("A2-CTR-5", "a2acp-D8")
def test_a_contract_is_for_its_parties_its_intent_and_its_target(bond: Bond, cast: dict[str, Plain]) -> None:
    ada, bob, cid, eve = (cast[id] for id in ("ada", "bob", "cid", "eve"))
    payload = {**WANTED, "contract_id": bond.id}
    for who, to, intent in (
        (eve, bob, INTENT),  # somebody else's
        (eve, ada, INTENT),
        (bob, ada, INTENT),  # the other way round
        (ada, cid, INTENT),  # another target
        (ada, bob, "other"),  # another intent
        (ada, bob, "loose"),
        (ada, bob, "nothing such"),
    ):
        told = who.refused(who.message("request", to, intent, payload))
        assert (told["code"], told["retry_after"]) == ("CONTRACT_VIOLATION", 0), (who.id, to.id, intent, told)
    unknown = eve.refused(eve.message("request", bob, INTENT, {**payload, "contract_id": f"contract-{uuid.uuid4()}"}))
    foreign = eve.refused(eve.message("request", bob, INTENT, payload))
    assert unknown["message"] == foreign["message"]  # whether there is one is nobody's business
    assert [one.hear() for one in (ada, bob, cid, eve)] == [[], [], [], []]


@pytest.mark.requirement("A2-CTR-5", "a2acp-D14")
def test_a_terminated_contract_is_over_and_only_its_parties_end_it(cast: dict[str, Plain]) -> None:
    ada, bob, eve = (cast[id] for id in ("ada", "bob", "eve"))
    bond = ada.shake(bob)
    end = {"collaboration_id": bond.collaboration}
    for intent, payload in (
        ("terminate_collaboration", end),
        ("rotate_key", {**end, "public_key": Pair().public_key}),
        ("initiate_handshake", {**end, "target_agent_id": "bob", "requested_intent": INTENT}),
    ):
        told = eve.refused(eve.message("request", BROKER, intent, payload), later=False)
        assert told["code"] == "CAPABILITY_NOT_FOUND", told
    assert bob.send(bob.message("request", BROKER, "terminate_collaboration", end)).status == 200
    told = ada.refused(bond.request())
    assert (told["code"], told["details"]["standing"]) == ("CONTRACT_VIOLATION", "terminated")
    for who in (ada, bob):  # nor does it come back
        said = who.message("request", BROKER, "terminate_collaboration", end)
        assert who.refused(said, later=False)["code"] == "CONTRACT_VIOLATION"


@pytest.mark.requirement("A2-CTR-5", "a2acp-D7")
def test_an_expired_contract_is_over(tmp_path: Path) -> None:
    settings = {"DRAGOMAN_A2ACP__CONTRACT_HOURS": "0.0006", "DRAGOMAN_A2ACP__MESSAGES_PER_COLLABORATION": "0"}
    with running(tmp_path, **settings, DRAGOMAN_A2ACP__MESSAGES_PER_AGENT="0") as hub:
        bond = Plain(hub, "ada").shake(Plain(hub, "bob").serves(PROVISION))
        answers = []

        def over() -> bool:
            answers.append(bond.source.send(bond.request(), later=True))
            return answers[-1].status != 202

        until(over, "it expires")
        told = error_of(answers[-1])
        assert (told["code"], told["details"]["standing"]) == ("CONTRACT_VIOLATION", "expired")


def test_only_the_owner_answers_and_only_the_caller_cancels(bond: Bond, cast: dict[str, Plain]) -> None:
    ada, bob, eve = bond.source, bond.target, cast["eve"]
    asked = bond.request()
    ada.say(asked)
    work = bob.hears("request")
    id, thread = work["payload"]["correlation_id"], asked["payload"]["correlation_id"]
    error = {"code": "INTERNAL_ERROR", "message": "x", "retry_after": 1}
    for name in (id, thread, asked["message_id"]):
        around = {"correlation_id": name, "contract_id": bond.id}
        for kind, intent, payload in (
            ("response", INTENT, {"dataset_id": "eve's", **around}),
            ("response", INTENT, {"dataset_id": "eve's", "correlation_id": name}),
            ("error", INTENT, {"error": error, **around}),
            ("event", "progress", {"percent": 99, **around}),
            ("event", "cancel", around),
        ):
            for to in (ada, bob):
                told = eve.refused(eve.message(kind, to, intent, payload))
                assert told["retry_after"] == 0, told
    assert bob.refused(bob.message("event", ada, "cancel", {"correlation_id": id}))["retry_after"] == 0
    bob.say(bond.response(work, {"dataset_id": "bob's"}))
    told = [one for one in ada.hear() if one["payload"]["correlation_id"] == thread]
    assert [(one["message_type"], bond.content(one)) for one in told] == [("response", {"dataset_id": "bob's"})]


def test_nobody_reads_or_takes_anothers_mail(hub: HubProcess, bond: Bond, cast: dict[str, Plain]) -> None:
    eve = cast["eve"]
    bond.source.say(bond.request())
    [one] = until(lambda: bond.target.poll(1), "it waits")
    assert eve.ack(one) == 0
    assert eve.poll() == []
    for token in (None, "0" * 32, hub.ready["admin_token"], hub.token("chi", "infra"), bond.target.token("ada")):
        for method, path, body in (
            ("GET", "/a2acp/messages?wait=0", None),
            ("POST", "/a2acp/ack", b"{}"),
            ("POST", "/a2acp/agents", b"{}"),
        ):
            answer = Door(hub.url, token).ask(method, path, body)
            assert answer.status in (401, 403), (path, answer)
        with pytest.raises(InvalidStatus) as refused, Plain(hub, "bob", secret=token or "").link():
            pass
        assert refused.value.response.status_code in (401, 403)
    assert bond.target.ack(one) == 1
    bond.target.say(bond.response(one["message"], {"dataset_id": "d"}))


def test_registering_gives_no_other_name_domain_or_rights(hub: HubProcess, cast: dict[str, Plain]) -> None:
    eve = cast["eve"]
    for changed, status in (
        ({"agent_id": "bob"}, 401),
        ({"agent_id": BROKER["agent_id"]}, 401),
        ({"domain": "medtronic_poc"}, 403),
    ):
        answer = eve.door.post("/a2acp/agents", {**eve.party, **changed, "capabilities": []})
        assert answer.status == status, answer
    answer = eve.door.post("/a2acp/agents", {**eve.party, "capabilities": [], "grants": ["admin:all"], "trusted": True})
    assert answer.json["grants"] == ["read:datasets"]
    assert hub.admin.get("/api/v1/agents/bob").json["domain"] == "a_domain"


def test_a_handshake_is_not_answered_by_a_stranger(cast: dict[str, Plain]) -> None:
    ada, bob, eve = (cast[id] for id in ("ada", "bob", "eve"))
    for one in (ada, bob):
        one.hear()
    ada.say(ada.initiate(bob, INTENT))
    proposal = bob.hears("request", "accept_handshake")
    yes = {"accepted": True, "correlation_id": proposal["payload"]["handshake_id"], "public_key": Pair().public_key}
    for who, source in ((eve, eve.party), (ada, ada.party), (eve, bob.party), (eve, BROKER)):
        said = who.message("response", BROKER, "accept_handshake", yes, source_agent=source)
        assert who.refused(said)["retry_after"] == 0
    assert ada.hear() == []
    bob.say(bob.message("response", BROKER, "accept_handshake", {**yes, "accepted": False}))
    assert ada.hears("error")["payload"]["error"]["code"] == "CONTRACT_VIOLATION"


# -- seals


def flipped(text: str, place: int) -> str:
    data = bytearray(unb64(text))
    data[place] ^= 1
    return b64(bytes(data))


@pytest.fixture
def sealed(cast: dict[str, Plain]) -> Bond:
    for one in cast.values():
        one.hear()
    return cast["ada"].shake(cast["bob"], encrypt=True)


SEALS: dict[str, tuple[str, Callable[[Bond], Json]]] = {
    "ciphertext": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, ciphertext=lambda one: flipped(one, 0))),
    "tag": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, ciphertext=lambda one: flipped(one, -1))),
    "nonce": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, nonce=lambda one: flipped(one, 0))),
    "cut": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, ciphertext=lambda one: one[:32])),
    "algorithm": ("SCHEMA_MISMATCH", lambda b: changed(b, alg=lambda one: "A128GCM")),
    "no algorithm": ("SCHEMA_MISMATCH", lambda b: changed(b, alg=lambda one: None)),
    "wrong key": ("SECURITY_POLICY_VIOLATION", lambda b: b._replace(keys={b.kid: bytes(32)}).request()),
    "unknown key": ("CONTRACT_VIOLATION", lambda b: b._replace(keys={"other": bytes(32)}).request()),
    "other envelope": ("SECURITY_POLICY_VIOLATION", lambda b: {**b.request(), "message_id": str(uuid.uuid4())}),
    "other thread": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, correlation_id=lambda one: "other")),
    "downgraded": ("SECURITY_POLICY_VIOLATION", lambda b: b.request(clear=True)),
    "downgraded in words": ("SECURITY_POLICY_VIOLATION", lambda b: plainly(b.request(), "none")),
    "sealed in words only": ("SCHEMA_MISMATCH", lambda b: plainly(b.request(clear=True), "aes256")),
}


def changed(bond: Bond, **fields: Callable[[str], str | None]) -> Json:
    made = bond.request()
    payload = {**made["payload"], **{name: how(made["payload"][name]) for name, how in fields.items()}}
    return {**made, "payload": {name: value for name, value in payload.items() if value is not None}}


def plainly(message: Json, encryption: str) -> Json:
    return {**message, "security": {**message["security"], "encryption": encryption}}


@pytest.mark.requirement("A2-SEC-2", "a2acp-D12")
@pytest.mark.parametrize("name", list(SEALS))
def test_a_broken_seal_is_refused(sealed: Bond, name: str) -> None:
    code, make = SEALS[name]
    told = sealed.source.refused(make(sealed))
    assert (told["code"], told["retry_after"]) == (code, 0), told
    assert sealed.target.hear() == []


@pytest.mark.requirement("A2-SEC-2", "a2acp-D12")
def test_a_nonce_is_used_once(sealed: Bond) -> None:
    nonce = bytes(range(12))
    sealed.source.say(sealed.request(nonce=nonce))
    told = sealed.source.refused(sealed.request({**WANTED, "record_count": 1}, nonce=nonce))
    assert told["code"] == "SECURITY_POLICY_VIOLATION", told
    assert "nonce" in json.dumps(told)


@pytest.mark.requirement("A2-SEC-2", "a2acp-D12")
def test_a_key_opens_nothing_of_another_collaboration(cast: dict[str, Plain], sealed: Bond) -> None:
    other = cast["ada"].shake(cast["bob"], encrypt=True)
    told = sealed.source.refused(sealed._replace(keys=other.keys).request())
    assert told["code"] == "CONTRACT_VIOLATION"
    assert set(other.keys) != set(sealed.keys)


@pytest.mark.requirement("A2-SEC-2", "A2-PII-1")
def test_a_response_is_not_downgraded_either(sealed: Bond) -> None:
    with sealed.source.sending(sealed.request()) as waiting:
        work = sealed.target.hears("request")
        told = sealed.target.refused(sealed.response(work, {"dataset_id": CANARY}, clear=True))
        assert told["code"] == "SECURITY_POLICY_VIOLATION"
        sealed.target.say(sealed.response(work, {"dataset_id": "d"}))
        assert sealed.content(waiting.result(10).json) == {"dataset_id": "d"}


@pytest.mark.requirement("A2-SEC-3")
@pytest.mark.parametrize("key", ["A" * 43, b64(bytes(31) + b"\x00"), "x", "", b64(bytes([1]) + bytes(31))])
def test_a_key_of_small_order_is_no_key(cast: dict[str, Plain], key: str) -> None:
    told = cast["ada"].refused(cast["ada"].initiate("bob", INTENT, encrypt=True, public_key=key))
    assert told["code"] == "SCHEMA_MISMATCH", told


# -- personal data


@pytest.mark.requirement("A2-PII-1", "A2-PII-3", "a2acp-D13")
def test_personal_data_in_clear_is_refused_and_on_record(hub: HubProcess, cast: dict[str, Plain]) -> None:
    ada, bob = cast["ada"], cast["bob"]
    bond = ada.shake(bob, "read_record", sealed=True)
    before = audited(hub, ada).count(("pii.refused", "refused"))
    bare = ada.message("request", bob, "read_record", {"patient": CANARY})
    assert ada.refused(bare)["code"] == "SECURITY_POLICY_VIOLATION"  # without a contract
    assert ada.refused(bond.request({"patient": CANARY}, clear=True))["code"] == "SECURITY_POLICY_VIOLATION"
    with ada.link() as link:
        link.say(bond.request({"patient": CANARY}, clear=True))
        assert link.hears("error", "read_record")["payload"]["error"]["code"] == "SECURITY_POLICY_VIOLATION"
    until(lambda: audited(hub, ada).count(("pii.refused", "refused")) == before + 3, "each attempt is on record")
    work = bond.ask({"patient": "x"})
    told = bob.refused(bond.response(work, {"ward": CANARY}, clear=True))
    assert told["code"] == "SECURITY_POLICY_VIOLATION"
    assert ("pii.refused", "refused") in audited(hub, bob)
    bob.say(bond.response(work, {"ward": 1}))


@pytest.mark.requirement("A2-PII-3", "a2acp-D13")
def test_personal_data_shows_nowhere(hub: HubProcess, cast: dict[str, Plain]) -> None:
    """In a result, an error, a progress, a dead letter; in the API, the events, the logs, and in every file."""
    ada, bob = cast["ada"], cast["bob"]
    for one in (ada, bob):
        one.hear()
    bond = ada.shake(bob, "read_record", sealed=True)
    secret = f"secret-{uuid.uuid4().hex[:8]}"

    def around(work: Json) -> Json:
        return {"correlation_id": work["payload"]["correlation_id"], "contract_id": bond.id}

    done, failed, broken, open_ = (bond.ask({"patient": f"{secret} {n}"}) for n in range(4))
    progress = bob.message("event", ada, "progress", around(done))
    bob.say(seal(bond.keys[bond.kid], bond.kid, progress, {"percent": 5, "message": secret, "output": secret}))
    bob.say(bond.response(done, {"ward": secret, "output": secret}))
    error = {"code": "INTERNAL_ERROR", "message": secret, "details": {"patient": secret}, "retry_after": 1}
    bob.say(bob.message("error", ada, "read_record", {"error": error, **around(failed)}))
    assert secret not in json.dumps(bob.refused(bond.response(broken, {"wrong": secret})))
    told = [ada.hears("response", "read_record"), ada.hears("error"), ada.hears("error")]
    assert bond.content(told[0])["ward"] == secret
    assert secret not in json.dumps([*told, *ada.hear()])
    shown = ["/tasks?limit=500", "/deadletters", "/audit?limit=500", "/contracts", "/questions", "/agents"]
    for work in (done, failed, broken, open_):
        id = work["payload"]["correlation_id"]
        shown += [f"/tasks/{id}", f"/tasks/{id}?history=1", f"/tasks/{id}/why"]
        assert secret not in dragoman("task", "show", id, hub=hub).out
    for path in shown:
        assert secret.encode() not in hub.admin.get(f"/api/v1{path}").body, path
    for work in (done, failed, broken):
        events = hub.admin.get(f"/api/v1/tasks/{work['payload']['correlation_id']}/events")
        assert events.body
        assert secret.encode() not in events.body
    for path in ("/metrics", "/"):
        assert secret.encode() not in hub.admin.get(path).body
    assert secret not in hub.log.read_text()
    for file in (one for one in hub.data.rglob("*") if one.is_file()):
        assert secret.encode() not in file.read_bytes(), file


# -- secrets


@pytest.mark.requirement("a2acp/all-D4")
def test_no_credential_is_kept_or_shown(hub: HubProcess, bond: Bond) -> None:
    asked = bond.request()
    bond.source.say(asked)
    work = bond.target.hears("request")
    bond.target.say(bond.response(work, {"dataset_id": "d"}))
    canaries = [asked["security"]["auth_token"].rpartition(".")[2], bond.source.secret, bond.target.secret]
    id = work["payload"]["correlation_id"]
    told = [hub.admin.get(f"/api/v1/tasks/{id}?history=1").body, hub.admin.get("/api/v1/audit?limit=500").body]
    told += [hub.log.read_bytes(), json.dumps(work).encode()]
    told += [one.read_bytes() for one in hub.data.rglob("*") if one.is_file()]
    for canary in canaries:
        assert not [one for one in told if canary.encode() in one], canary


# -- domains


@pytest.mark.requirement("a2acp-D19")
def test_a_border_is_closed_until_a_person_opens_it(hub: HubProcess, cast: dict[str, Plain]) -> None:
    name = uuid.uuid4().hex[:6]
    here, there = f"here-{name}", f"there-{name}"
    source, target = Plain(hub, f"s-{name}", here), Plain(hub, f"t-{name}", there).serves(PROVISION)
    asked = source.initiate(target, INTENT)
    assert source.refused(asked, later=False)["code"] == "SECURITY_POLICY_VIOLATION"
    lied = {**source.initiate(target, INTENT), "source_agent": {**source.party, "domain": there}}
    assert source.refused(lied, later=False)["code"] == "AUTH_FAILED"
    state = {"operation": "UPDATE", "entity_type": "POLICY", "entity_id": "policy",
             "changes": {"domains": [{"source": "*", "target": "*"}]}, "version": 1}  # fmt: skip
    assert source.door.post("/agentmsg/state", state).status in (401, 403)
    assert source.door.post("/api/v1/policies/domains", {"source": here, "target": there}).status in (401, 403, 404)
    assert dragoman("policy", "allow", there, here, hub=hub).code == 0  # the other way round is another way
    assert source.refused(source.initiate(target, INTENT), later=False)["code"] == "SECURITY_POLICY_VIOLATION"
    assert dragoman("policy", "allow", here, there, hub=hub).code == 0
    assert source.shake(target).terms["target_agent"]["domain"] == there
    assert target.hear() == []


@pytest.mark.requirement("a2acp-D19")
def test_a_border_that_is_closed_again_holds_for_contracts_that_stand(hub: HubProcess) -> None:
    name = uuid.uuid4().hex[:6]
    here, there = f"here-{name}", f"there-{name}"
    source, target = Plain(hub, f"s-{name}", here), Plain(hub, f"t-{name}", there).serves(PROVISION)
    assert dragoman("policy", "allow", here, there, hub=hub).code == 0
    bond = source.shake(target)
    assert dragoman("policy", "forbid", here, there, hub=hub).code == 0
    told = source.refused(bond.request())
    assert told["code"] == "SECURITY_POLICY_VIOLATION", told
    assert target.hear() == []


# -- malformed


FRAMES: dict[str, bytes] = {
    "nothing": b"",
    "no object": b"[]",
    "nested": b'{"payload":' + b"[" * 400_000 + b"]" * 400_000 + b"}",
    "nan": b'{"payload":{"a":NaN}}',
    "huge number": b'{"payload":{"a":' + b"9" * 100_000 + b"}}",
    "twice": b'{"message_id":"a","message_id":"b"}',
    "lone surrogate": b'{"payload":{"a":"\\ud800"}}',
    "not utf-8": b'{"a":"\xff"}',
    "too large": b'{"payload":{"a":"' + b"x" * 1_000_000 + b'"}}',
}


@pytest.mark.requirement("a2acp/all-D3", "a2acp-D10")
@pytest.mark.parametrize("name", list(FRAMES))
def test_hostile_json_is_refused_at_every_door(cast: dict[str, Plain], name: str) -> None:
    eve, frame = cast["eve"], FRAMES[name]
    for path in ("/a2acp/messages", "/a2acp/agents", "/auth/token", "/a2acp/ack"):
        answer = eve.door.ask("POST", path, frame)
        assert answer.status in (400, 413), (path, answer)
        assert code_of(answer) == "SCHEMA_MISMATCH"
        assert CANARY.encode() not in answer.body
    if name != "too large":
        with eve.link() as link:
            link.socket.send(frame.decode("latin-1") if name == "not utf-8" else frame.decode())
            assert link.hears("error")["payload"]["error"]["code"] in ("SCHEMA_MISMATCH", "AUTH_FAILED")


@pytest.mark.requirement("a2acp-D10", "A2-SIZ-1", "A2-SIZ-2")
def test_sizes_are_held_to_the_byte(cast: dict[str, Plain]) -> None:
    ada, bob = cast["ada"], cast["bob"]
    bond = ada.shake(bob, "loose")

    def sized(payload: int) -> Json:
        made = bond.request({"a": ""}, thread="size")
        rest = len(compact(made["payload"]))
        return {**made, "payload": {**made["payload"], "a": "x" * (payload - rest)}}

    assert ada.send(compact(sized(900_000)), later=True).status == 202
    told = ada.refused(compact(sized(900_001)))
    assert (told["code"], told["details"]["limit"]) == ("SCHEMA_MISMATCH", 900_000)
    whole = sized(100_000)
    over = {**whole, "extra": "x" * (1_000_001 - len(compact({**whole, "extra": ""})))}
    told = ada.refused(compact(over))
    assert (told["code"], told["details"]["limit"]) == ("SCHEMA_MISMATCH", 1_000_000)
    work = bob.hears("request", "loose")
    bob.say(bond.response(work, {"ok": True}))


# -- floods


@pytest.mark.requirement("A2-LIM-1", "a2acp-D16")
def test_a_flood_is_held_by_whatever_door_it_comes(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_A2ACP__MESSAGES_PER_AGENT="20") as hub:
        eve, bob = Plain(hub, "eve"), Plain(hub, "bob").serves(PROVISION)
        said = [eve.send(eve.initiate("bob", INTENT), later=True).status for _ in range(25)]
        assert said == [202] * 20 + [429] * 5
        for _ in range(2):  # a new connection is not a new agent, nor is a new token
            with eve.link() as link:
                fresh = {"auth_token": eve.token(BROKER["agent_id"], ttl=60)}
                link.say(eve.initiate("bob", INTENT) | {"security": fresh})
                told = link.hears("error")["payload"]["error"]
                assert told["code"] == "RATE_LIMIT_EXCEEDED"
                assert told["retry_after"] >= 1
        assert bob.send(bob.initiate("eve", "nothing such")).status == 404  # others are served


@pytest.mark.requirement("A2-LIM-1", "a2acp-D16")
def test_what_is_refused_counts_too(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_A2ACP__MESSAGES_PER_AGENT="20") as hub:
        eve = Plain(hub, "eve")
        said = [eve.send(eve.initiate("bob", "nothing such")).status for _ in range(25)]
        assert said == [404] * 20 + [429] * 5
