"""Logging in by a real OpenID Connect provider, which runs beside a whole hub; and what does not get in that way."""

from __future__ import annotations

import asyncio
import base64
import hmac
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
import oidc_provider_mock
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from oidc_provider_mock import User

from dragoman.api.oidc_client import Flow, NotVouched, OidcClient, Provider, ProviderFailed, role_of
from dragoman.app.settings import Server, Settings
from dragoman.app.settings.model import OidcSettings
from dragoman.app.wiring import hub
from dragoman.core.ids import SECOND, Instant
from dragoman.core.model.people import Role

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the provider's own code

USERS = (
    User(sub="u-1", claims={"preferred_username": "ann", "email": "ann@example.org", "role": "operator"}),
    User(sub="u-2", claims={"email": "zoe@example.org", "groups": ["staff", "viewer", "admin"]}),
    User(sub="u-3", claims={"preferred_username": "ann", "role": "admin"}),
)


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with oidc_provider_mock.run_server_in_thread(require_nonce=True, user_claims=USERS) as server:
        yield f"http://localhost:{server.server_port}"


class Site:
    """A hub with a provider, and browsers of people."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.admin = {"Authorization": f"Bearer {token}"}

    def browser(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.url, verify=False, timeout=60, follow_redirects=False)

    async def get(self, path: str) -> Any:
        async with self.browser() as browser:
            return (await browser.get(path, headers=self.admin)).json()


@pytest.fixture
def claim() -> str:
    return "role"


@pytest.fixture
async def site(tmp_path: Path, issuer: str, claim: str) -> AsyncIterator[Site]:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("the client's secret\n")
    settings = Settings(
        data=str(tmp_path / "data"),
        server=Server(port=0, grpc_port=0),
        oidc=OidcSettings(issuer=issuer, client_id="dragoman", client_secret=str(secret), role_claim=claim),
    )
    async with asyncio.timeout(120), hub(settings) as running:
        yield Site(running.serving.url, running.admin_token)


async def to_the_callback(browser: httpx2.AsyncClient, sub: str) -> str:
    """Where the provider sends the browser back to, after the person logged in there."""
    begun = await browser.get("/oidc/login")
    assert begun.status_code == 303
    assert {"HttpOnly", "SameSite=lax", "Path=/oidc/"} <= set(begun.headers["set-cookie"].split("; "))
    answer = await browser.post(begun.headers["location"], data={"sub": sub})
    assert answer.status_code == 302
    return str(answer.headers["location"])


async def test_a_person_logs_in_by_the_provider_and_acts_under_their_name(site: Site) -> None:
    async with site.browser() as browser:
        done = await browser.get(await to_the_callback(browser, "u-1"))
        assert (done.status_code, done.headers["location"], done.headers["cache-control"]) == (303, "/", "no-store")
        assert (await browser.get("/api/v1/me")).json() == {"name": "ann", "role": "operator"}
        changed = await browser.post("/api/v1/tasks", json={"nonsense": 1}, headers={"Dragoman-Request": "1"})
        assert changed.status_code == 422
    [user] = (await site.get("/api/v1/users"))["users"]
    assert (user["name"], user["role"], user["has_token"]) == ("ann", "operator", False)
    records = (await site.get("/api/v1/audit?principal=ann"))["records"]
    done_by_ann = {(record["action"], record["outcome"]) for record in records}
    assert done_by_ann == {("user.login", "accepted"), ("POST /api/v1/tasks", "refused")}


async def test_the_second_login_is_the_same_person(site: Site) -> None:
    for _ in range(2):
        async with site.browser() as browser:
            assert (await browser.get(await to_the_callback(browser, "u-1"))).status_code == 303
    assert len((await site.get("/api/v1/users"))["users"]) == 1


@pytest.mark.parametrize("claim", ["groups"])
async def test_the_highest_role_of_a_list_counts_and_the_name_may_be_the_address(site: Site) -> None:
    async with site.browser() as browser:
        await browser.get(await to_the_callback(browser, "u-2"))
        assert (await browser.get("/api/v1/me")).json() == {"name": "zoe@example.org", "role": "admin"}


async def test_a_person_without_a_role_is_not_let_in(site: Site) -> None:
    async with site.browser() as browser:
        answer = await browser.get(await to_the_callback(browser, "u-2"))
        assert (answer.status_code, "gives this person no role" in answer.text) == (403, True)
        assert (await browser.get("/api/v1/me")).status_code == 401
    assert (await site.get("/api/v1/users"))["users"] == []


@pytest.mark.parametrize("first", ["u-1", None], ids=["of the provider", "added here"])
async def test_the_provider_cannot_give_a_name_that_another_person_has(site: Site, first: str | None) -> None:
    async with site.browser() as browser:
        if first is None:
            await browser.post("/api/v1/users", json={"name": "ann"}, headers=site.admin)
        else:
            await browser.get(await to_the_callback(browser, first))
    async with site.browser() as browser:
        answer = await browser.get(await to_the_callback(browser, "u-3"))
        assert (answer.status_code, answer.json()["kind"]) == (409, "conflict")
        assert (await browser.get("/api/v1/me")).status_code == 401


async def test_a_callback_counts_only_in_the_browser_that_began_and_once(site: Site) -> None:
    async with site.browser() as browser, site.browser() as other:
        back = await to_the_callback(browser, "u-1")
        assert (await other.get(back)).status_code == 401  # no login was begun there
        await to_the_callback(other, "u-1")
        assert (await other.get(back)).status_code == 401  # another one was
        state = parse_qs(urlsplit(back).query)["state"][0]
        assert (await browser.get(f"/oidc/callback?state={state}&code=forged")).status_code == 401
        assert (await browser.get(f"/oidc/callback?state={state}&error=access_denied")).status_code == 401
        assert (await browser.get("/oidc/callback")).status_code == 401
        assert (await browser.get(back)).status_code == 303
        assert (await browser.get(back)).status_code == 401  # the cookie of the flow is gone, and the code was used


async def test_a_hub_without_a_provider_says_so(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path / "data"), server=Server(port=0, grpc_port=0))
    async with asyncio.timeout(120), hub(settings) as running:
        site = Site(running.serving.url, running.admin_token)
        assert await site.get("/api/v1/login") == {"provider": None}
        assert (await site.get("/oidc/login"))["status"] == 404


async def test_the_page_learns_of_the_provider(site: Site, issuer: str) -> None:
    assert await site.get("/api/v1/login") == {"provider": issuer}


# -- ID tokens that do not hold --------------------------------------------------------------------------------------

KEY = RSAKey.generate_key(2048, {"kid": "k"})


class ForgedClient(OidcClient):
    """The provider's answers as a test has them; everything else is what ships."""

    id_token = ""

    async def _get(self, url: str) -> Any:
        if url.endswith("openid-configuration"):
            at = "https://id.example"
            paths = {name: f"{at}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
            return {"issuer": at, **paths}
        return {"keys": [KEY.as_dict(private=False)]}

    def _session(self, redirect_uri: str) -> Any:
        client = self

        class Session:
            async def __aenter__(self) -> Session:
                return self

            async def __aexit__(self, *_: object) -> None: ...

            async def fetch_token(self, *_: object, **__: object) -> dict[str, str]:
                return {"id_token": client.id_token, "access_token": "a"}

        return Session()


FLOW = Flow("state", "the nonce", "verifier", "http://hub/oidc/callback")


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    whole = {"iss": "https://id.example", "aud": "dragoman", "sub": "u", "exp": now + 60, "iat": now, "role": "viewer"}
    whole |= {"nonce": FLOW.nonce, **changes}
    return {name: value for name, value in whole.items() if value is not None}


async def vouched(id_token: str) -> Any:
    client = ForgedClient(Provider("https://id.example", "dragoman"), lambda: Instant(int(time.time()) * SECOND))
    client.id_token = id_token
    return await client.finish(FLOW, "code")


async def test_an_id_token_that_holds_is_taken() -> None:
    found = await vouched(jwt.encode({"alg": "RS256", "kid": "k"}, claims(), KEY))
    assert (found.subject, found.name, found.role) == ("https://id.example#u", "u", Role.VIEWER)


@pytest.mark.parametrize(
    "wrong",
    [
        {"iss": "https://evil.example"}, {"aud": "another"}, {"aud": None}, {"exp": 1}, {"nonce": "another"},
        {"nonce": None}, {"sub": None}, {"sub": ""}, {"sub": 7}, {"iat": 1 << 40},
        {"azp": "another", "aud": ["dragoman", "y"]},
    ],
    ids=str,
)  # fmt: skip
async def test_an_id_token_of_other_claims_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(NotVouched):
        await vouched(jwt.encode({"alg": "RS256", "kid": "k"}, claims(**wrong), KEY))


def keyed_with(secret: bytes) -> str:
    """An ID token that takes the provider's public key for a shared secret. Libraries refuse to make one."""
    parts = [msgspec.json.encode(part) for part in ({"alg": "HS256", "kid": "k"}, claims())]
    text = ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    signature = hmac.digest(secret, text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_an_id_token_of_another_key_or_of_a_shared_secret_is_refused() -> None:
    other = RSAKey.generate_key(2048, {"kid": "k"})
    unsigned = jwt.encode({"alg": "none"}, claims(), OctKey.import_key("x" * 32), algorithms=["none"])
    for forged in (
        jwt.encode({"alg": "RS256", "kid": "k"}, claims(), other),
        keyed_with(KEY.as_pem(private=False)),
        unsigned,
        "",
        "a.b.c",
    ):
        with pytest.raises(NotVouched):
            await vouched(forged)


async def test_a_provider_that_names_another_issuer_or_is_not_there_fails() -> None:
    now = lambda: Instant(int(time.time()) * SECOND)  # noqa: E731
    for client in (
        ForgedClient(Provider("https://other.example", "dragoman"), now),
        OidcClient(Provider("http://127.0.0.1:1", "dragoman"), now),
    ):
        with pytest.raises(ProviderFailed):
            await client.begin("http://hub/oidc/callback")


@pytest.mark.parametrize(
    ("claim", "role"),
    [("admin", Role.ADMIN), (["x", "viewer"], Role.VIEWER), (["viewer", "operator"], Role.OPERATOR), ("king", None),
     (None, None), ([], None), ({"admin": 1}, None), (1, None)],
)  # fmt: skip
def test_the_role_of_a_claim(claim: Any, role: Role | None) -> None:
    assert role_of(claim) is role
