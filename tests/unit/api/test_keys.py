"""The keys that sign tokens, for people: looked at, replaced, distrusted. Never shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.app.keys import SigningKeys
from dragoman.app.settings import A2acpSettings, Settings
from dragoman.core.commands import NoteRead
from dragoman.core.ids import SECOND, rfc3339
from dragoman.protocols.a2acp.types import LONGEST_TTL, Agent
from dragoman.security.keys import LEEWAY
from dragoman.security.refusals import Refusal
from dragoman.server.a2acp.tokens import AuthService

BROKER = Agent(agent_id="protocol-broker-agent", domain="a_domain", version="1.0.0")


@pytest.fixture
def auth(world: Any, make: Any, tmp_path: Path) -> AuthService:
    tmp_path.chmod(0o700)
    secret = tmp_path / "hs256"
    secret.touch(mode=0o600)
    secret.write_text("0123456789abcdef" * 4)
    keys = SigningKeys(Settings(data=str(tmp_path), a2acp=A2acpSettings(hs256_secret=str(secret), hs256_kid="ours")))
    auth = AuthService(world.intake, BROKER, lambda: keys.authority(make.now // SECOND), keys.rotate)
    world.context.auth = auth
    world.intake.script[NoteRead] = None
    return auth


def good(auth: AuthService, token: str) -> bool:
    return not isinstance(auth.authority.verify(token, audience="bob", now=auth.now), Refusal)


async def test_a_new_key_signs_and_the_old_one_verifies_until_its_tokens_are_over(
    world: Any, make: Any, auth: AuthService
) -> None:
    [old, shared] = (await world.client.get("/api/v1/keys")).json()["keys"]
    assert (old["use"], old["created_at"], old["verifies_until"]) == ("signs", rfc3339(make.now), None)
    assert (shared["kid"], shared["algorithm"], shared["use"]) == ("ours", "HS256", "shared")
    before = auth.token_for("bob")
    told = (await world.client.post("/api/v1/keys/rotate")).json()["keys"]
    assert [key["use"] for key in told] == ["signs", "verifies", "shared"]
    assert (told[1]["kid"], told[1]["retired_at"]) == (old["kid"], rfc3339(make.now))
    assert told[1]["verifies_until"] == rfc3339(make.now + (LONGEST_TTL + LEEWAY) * SECOND)
    assert [key["kid"] for key in auth.published()["keys"]] == [told[0]["kid"], old["kid"]]
    after = auth.token_for("bob")
    assert (before == after, good(auth, before), good(auth, after)) == (False, True, True)
    assert world.intake.asked == [NoteRead(principal="admin", protocol="api", what="key.rotate", about=old["kid"])]


async def test_what_a_distrusted_key_signed_is_void_at_once(world: Any, auth: AuthService) -> None:
    before = auth.token_for("bob")
    told = (await world.client.post("/api/v1/keys/rotate", json={"distrust": True})).json()["keys"]
    assert [key["use"] for key in told] == ["signs", "shared"]
    assert (good(auth, before), good(auth, auth.token_for("bob"))) == (False, True)
    assert world.intake.asked[0].what == "key.distrust"


async def test_keys_that_cannot_be_written_stay_and_the_error_says_so(
    world: Any, auth: AuthService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = auth.token_for("bob")
    (tmp_path / "keys" / "signing.json").chmod(0o644)
    answer = await world.client.post("/api/v1/keys/rotate")
    assert (answer.status_code, "chmod 600" in answer.json()["detail"]) == (409, True)
    assert auth.token_for("bob") == before
    assert [noted.what for noted in world.intake.noted] == ["POST /api/v1/keys/rotate"]


async def test_a_misspelt_wish_rotates_nothing_and_strangers_see_nothing(world: Any, auth: AuthService) -> None:
    signing = auth.authority.ring.signing.kid
    assert (await world.client.post("/api/v1/keys/rotate", json={"distrusted": True})).status_code == 422
    assert (await world.stranger.post("/api/v1/keys/rotate")).status_code == 401
    assert (await world.stranger.get("/api/v1/keys")).status_code == 401
    assert auth.authority.ring.signing.kid == signing
    world.context.auth = None
    assert (await world.client.get("/api/v1/keys")).status_code == 404
