"""Forged, stolen and overreaching tokens."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.a2acp.plain import BROKER, PROVISION, Bond, Plain, code_of, error_of, unb64
from tests.security.a2acp.forging import Forge, confused, stranger, unsigned
from tests.support.chiffon import HttpClient
from tests.support.hubproc import HubProcess

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
    answer = eve.send(bond.request(), later=True, Authorization=f"Bearer {eve.secret}")  # her connection, ada's message
    assert (answer.status, code_of(answer)) == (401, "AUTH_FAILED")
    with eve.link() as link:
        link.say(bond.request(token=token))
        assert link.hears("error")["payload"]["error"]["code"] == "AUTH_FAILED"
    assert bond.target.hear() == []


@pytest.mark.requirement("a2acp/all-D1", "a2acp/all-D4")
def test_a_token_of_the_broker_is_of_no_use_to_its_receiver(bond: Bond, cast: dict[str, Plain]) -> None:
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


@pytest.mark.requirement("a2acp/all-D1", "a2acp-D3")
def test_a_refusal_carries_a_token_for_its_proven_sender_and_never_for_the_agent_that_the_message_names(
    cast: dict[str, Plain],
) -> None:
    eve, bob = cast["eve"], cast["bob"]

    def audience(told: dict[str, Any]) -> tuple[str, str]:
        claims = json.loads(unb64(told["security"]["auth_token"].split(".")[1]))
        return claims["aud"], told["target_agent"]["agent_id"]

    as_bob = eve.message("request", BROKER, "discover_capabilities", {}, token="no.such.token", source_agent=bob.party)
    broken = {**as_bob, "message_id": "none"}
    for said in (as_bob, broken):
        assert audience(eve.send(said).json) == ("unknown", "bob")  # a stranger that calls itself bob
    with eve.link() as link:
        for said in (as_bob, broken):
            link.say(said)
            assert audience(link.hears("error")) == ("eve", "eve")
    own = eve.message("request", BROKER, "discover_capabilities", {"limit": 0})
    with eve.link() as link:
        link.say(own)
        assert audience(link.hears("error")) == ("eve", "eve")


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


@pytest.mark.requirement("a2acp-D5")
def test_no_agent_gets_a_token_of_another_or_without_its_secret(hub: HubProcess, cast: dict[str, Plain]) -> None:
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
        answer = HttpClient(hub.url).post("/auth/token", wish, **({} if said is None else {"Authorization": said}))
        assert answer.status in (401, 403), (said, answer)
        assert code_of(answer) in ("AUTH_FAILED", "SECURITY_POLICY_VIOLATION")
        assert b"eyJ" not in answer.body.split(b'"security"')[0]
    query = f"?agent_id=ada&secret={ada.secret}&access_token={ada.secret}"
    assert HttpClient(hub.url).post(f"/auth/token{query}", ada.wish("bob")).status == 401


@pytest.mark.requirement("a2acp-D5", "A2-TOK-7")
def test_a_token_grants_no_more_than_was_allowed(hub: HubProcess, cast: dict[str, Plain]) -> None:
    eve = cast["eve"]
    for asked in (["admin:all", "read:datasets", "read:datasets.all"], ["read:datasets", "*"]):
        token = eve.http.post("/auth/token", eve.wish("bob", requested_capabilities=asked)).json["token"]
        claims = json.loads(unb64(token.split(".")[1]))
        assert claims["capabilities"] == ["read:datasets"]
    for asked in (["admin:all"], ["*"], ["read:*"], ["READ:DATASETS"], ["read:datasets "]):
        answer = eve.http.post("/auth/token", eve.wish("bob", requested_capabilities=asked))
        assert (answer.status, code_of(answer)) == (401, "AUTH_FAILED"), answer
    eve.register({**PROVISION, "required_capabilities": ["admin:all"]})  # what one serves is not what one may
    answer = eve.http.post("/auth/token", eve.wish("bob", requested_capabilities=["admin:all"]))
    assert answer.status == 401
    eve.serves()


@pytest.mark.requirement("a2acp-D4")
@pytest.mark.parametrize("ttl", [0, -1, 86_401, 10**9, 10**30, 1.5, "3600", True, None])
def test_no_token_lives_longer_than_a_day(cast: dict[str, Plain], ttl: Any) -> None:
    eve = cast["eve"]
    answer = eve.http.post("/auth/token", eve.wish("bob", ttl=ttl))
    if ttl is None:
        assert answer.status == 200
        return
    assert (answer.status, code_of(answer)) == (400, "SCHEMA_MISMATCH"), answer


def test_the_published_keys_are_public_ones(hub: HubProcess) -> None:
    keys = HttpClient(hub.url).get("/.well-known/jwks.json").json["keys"]
    assert keys
    assert all(set(key) <= {"kty", "crv", "x", "kid", "alg", "use"} and key["kty"] == "OKP" for key in keys)
    assert all(not (one.stat().st_mode & 0o077) for one in (hub.data / "keys").rglob("*"))
