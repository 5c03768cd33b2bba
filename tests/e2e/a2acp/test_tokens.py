"""Tokens: who gets them, what for, and what they open."""

from __future__ import annotations

import base64
import json

import jwt

from tests.e2e.a2acp.speaking import BROKER, Speaker, b64, code, code_of_bare, compact, details, raw
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess


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


def test_one_token_is_revoked_by_a_command(hub: HubProcess, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    before = ada.message("request", BROKER, "discover_capabilities", {})
    token = before["security"]["auth_token"]
    jti = jwt.decode(token, options={"verify_signature": False})["jti"]
    said = dragoman("agent", "revoke", ada.id, "-", "-o", "json", hub=hub, stdin=token)
    assert (said.code, said.json["jti"], token in said.out + said.err) == (0, jti, False)
    status, answer = ada.post(before)
    assert (status, details(answer)["rule"]) == (401, "revoked")
    again = ada.message("request", BROKER, "discover_capabilities", {})
    again["security"]["auth_token"] = ada.token(BROKER)
    assert ada.post(again)[0] == 200
    records = hub.admin.get(f"/api/v1/audit?subject={ada.id}").json["records"]
    assert [one["digest"] for one in records if one["action"] == "agent.revoke"] == [jti]
    assert dragoman("agent", "revoke", bob.id, token, hub=hub).code == 2
    assert dragoman("agent", "revoke", bob.id, jti, hub=hub).code == 0  # a name of nothing is harmless


def test_a_token_is_only_for_an_agent_with_the_secret_and_the_permission(pair: tuple[Speaker, Speaker]) -> None:
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
