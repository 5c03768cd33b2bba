"""The auth service: whose secret it is, and which tokens a new one voids."""

from __future__ import annotations

from typing import Any

import jwt
import msgspec
import pytest

from dragoman.core.ids import SECOND, AgentId
from dragoman.core.model.agents import Revoked
from dragoman.messages.faults import Refused
from dragoman.protocols.a2acp import codec
from dragoman.security.jwt import Authority
from dragoman.security.keys import KeyRing, new_key
from dragoman.security.tokens import token_hash
from dragoman.server.a2acp.tokens import AuthService

SECRET = b"0123456789abcdef0123456789abcdef"


def test_a_new_secret_voids_our_tokens_and_a_dot_in_a_foreign_id_does_not(client: Any, hub: Any) -> None:
    now = hub.now() // SECOND
    auth = AuthService(hub, client._auth.broker, lambda: Authority(KeyRing([new_key(now)]).with_secret("us", SECRET)))
    ada = hub.known[AgentId("ada")]
    ours = auth.issue(ada, "bob", ("w",), 60).token
    claims = {**jwt.decode(ours, options={"verify_signature": False}), "jti": "build-7.3"}
    theirs = jwt.encode(claims, SECRET, "HS256", headers={"kid": "us"})

    def granted(token: str) -> tuple[str, ...]:
        said = client.message("request", "provision", {}, security={"auth_token": token})
        return auth.verify(codec.decode(msgspec.json.encode(said)), None)[1]

    assert granted(ours) == granted(theirs) == ("w",)
    hub.known[ada.id] = msgspec.structs.replace(ada, token_hash=token_hash("another"))
    with pytest.raises(Refused) as refused:
        granted(ours)
    assert refused.value.fault.facts["rule"] == "revoked"
    assert granted(theirs) == ("w",)  # whoever has the shared secret signs for anybody, at any time


def test_one_token_is_void_and_another_of_the_same_agent_is_not(client: Any, hub: Any) -> None:
    auth = client._auth
    ada = hub.known[AgentId("ada")]
    first, second = (auth.issue(ada, "bob", ("w",), 60).token for _ in range(2))

    def verify(token: str) -> Any:
        said = client.message("request", "provision", {}, security={"auth_token": token})
        return auth.verify(codec.decode(msgspec.json.encode(said)), None)[1]

    assert verify(first) == ("w",)  # and is remembered
    claims = auth.authority.read(first, now=auth.now)
    gone = Revoked(claims.jti, (claims.exp + 60) * SECOND)
    hub.known[ada.id] = msgspec.structs.replace(ada, revoked=(gone,))
    with pytest.raises(Refused) as refused:
        verify(first)
    assert refused.value.fault.facts["rule"] == "revoked"
    assert verify(second) == ("w",)


@pytest.mark.parametrize("id", ["ada", "team:ada", "a:b:c"])
async def test_an_agents_id_may_have_colons_in_http_basic(client: Any, hub: Any, id: str) -> None:
    ada = hub.known[AgentId("ada")]
    hub.known[AgentId(id)] = msgspec.structs.replace(ada, id=AgentId(id), token_hash=token_hash("5ec7e7"))
    wish = {"agent_id": id, "target_agent_id": "bob"}
    answer = await client.http.post("/auth/token", json=wish, auth=(id, "5ec7e7"))
    assert answer.status_code == 200
    assert jwt.decode(answer.json()["token"], options={"verify_signature": False})["sub"] == id
    assert (await client.http.post("/auth/token", json=wish, auth=(id, "5ec7e8"))).status_code == 401
