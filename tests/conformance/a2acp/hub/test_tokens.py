"""Tokens: who gets one, who may verify it, what it opens."""

from __future__ import annotations

import base64

import pytest
from tests.conformance.a2acp.plain import BROKER, Bond, Plain, code_of, error_of
from tests.support.chiffon import HttpClient
from tests.support.hubproc import HubProcess


@pytest.mark.requirement("A2-TOK-11", "a2acp-D5")
@pytest.mark.parametrize("how", ["basic", "bearer"])
def test_a_token_is_had_with_the_agents_secret_and_is_accepted(
    hub: HubProcess, cast: tuple[Plain, Plain], how: str
) -> None:
    ada, _ = cast
    said = f"Bearer {ada.secret}"
    if how == "basic":
        said = "Basic " + base64.b64encode(f"{ada.id}:{ada.secret}".encode()).decode()
    answer = HttpClient(hub.url).post("/auth/token", ada.wish(BROKER["agent_id"], ttl=600), Authorization=said)
    assert answer.status == 200, answer
    assert set(answer.json) >= {"token", "expires_at"}
    assert answer.json["expires_at"].endswith("Z")
    asked = ada.message("request", BROKER, "discover_capabilities", {}, token=answer.json["token"])
    assert ada.send(asked).status == 200


@pytest.mark.requirement("A2-TOK-2", "A2-TOK-11", "a2acp-D3")
def test_anybody_may_verify_a_token_with_the_published_keys(hub: HubProcess, cast: tuple[Plain, Plain]) -> None:
    import jwt

    ada, bob = cast
    token = ada.token(bob.id, ttl=600)
    keys = jwt.PyJWKSet.from_dict(HttpClient(hub.url).get("/.well-known/jwks.json").json)
    kid = jwt.get_unverified_header(token)["kid"]
    claims = jwt.decode(token, keys[kid], ["EdDSA"], audience=bob.id, issuer="a_domain-auth-service")
    assert {name: claims[name] for name in ("sub", "aud", "domain", "capabilities")} == {
        "sub": ada.id,
        "aud": bob.id,
        "domain": "a_domain",
        "capabilities": ["read:datasets", "write:test_scenarios"],
    }
    assert claims["exp"] - claims["iat"] == 600


@pytest.mark.requirement("A2-TOK-4", "A2-TOK-9", "A2-RTE-2")
def test_a_token_is_checked_before_anything_else_is_looked_at(bond: Bond) -> None:
    good = bond.request()
    other = bond.source.token(bond.target.id, ttl=60)
    head, body, _ = good["security"]["auth_token"].split(".")
    forged = f"{head}.{body}.{other.rpartition('.')[2]}"
    for payload in (good["payload"], {"contract_id": "no such"}, {"nothing": "fits"}):
        told = bond.source.refused({**good, "payload": payload, "security": {"auth_token": forged}})
        assert (told["code"], told["details"]["rule"], told["retry_after"]) == ("AUTH_FAILED", "signature", 0)
    assert bond.target.hear() == []


@pytest.mark.requirement("A2-TOK-7", "A2-RTE-2")
def test_a_token_without_the_capability_does_not_serve(bond: Bond) -> None:
    weak = bond.source.token(bond.target.id, requested_capabilities=["write:test_scenarios"])
    told = bond.source.refused(bond.request(token=weak))
    assert (told["code"], told["details"]["missing"]) == ("AUTH_FAILED", ["read:datasets"])
    assert bond.target.hear() == []


def test_a_wish_for_a_token_is_refused_by_its_field(cast: tuple[Plain, Plain]) -> None:
    ada, bob = cast
    for changed, field in (({"target_agent_id": None}, "target_agent_id"), ({"ttl": 10**9}, "ttl")):
        answer = ada.http.post("/auth/token", ada.wish(bob.id) | changed)
        assert (answer.status, code_of(answer), error_of(answer)["details"]["field"]) == (400, "SCHEMA_MISMATCH", field)
