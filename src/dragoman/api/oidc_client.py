"""An OpenID Connect provider as the hub asks it: where to send a browser, and whom a code stands for.

authlib does the OAuth exchange and joserfc the signatures. Both are imported at the first login, because most hubs have
no provider.
"""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import msgspec

from dragoman.core.ids import SECOND, Instant
from dragoman.core.model.people import RANK, Role

SCOPE = "openid profile email"
KEPT_SECONDS = 3600.0
"""How long the provider's description and keys are kept."""
PATIENCE = 10.0
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519")
"""Signatures with a public key only: never `none`, never a shared secret."""
LEEWAY = 60
LONGEST_SUBJECT = 255
NAMES = ("preferred_username", "email", "sub")
"""Where the name of a new person comes from: the first of these that the ID token has."""


class Provider(msgspec.Struct, frozen=True):
    """What the settings say of it."""

    issuer: str
    client_id: str
    client_secret: str | None = None
    role_claim: str = "role"
    public_url: str | None = None


class Flow(msgspec.Struct, frozen=True):
    """One login under way. The browser keeps it, signed, until the provider sends it back."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str


class Vouched(msgspec.Struct, frozen=True):
    """Whom the provider vouches for."""

    subject: str
    name: str
    role: Role | None


class ProviderFailed(Exception):
    """The provider cannot be reached, or does not answer as OpenID Connect says. The text names what is wrong, and
    nothing of what was sent."""


class NotVouched(Exception):
    """The provider does not stand for this login: a wrong or used code, or an ID token that does not hold."""


class _Metadata(msgspec.Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class OidcClient:
    def __init__(self, provider: Provider, now: Callable[[], Instant]) -> None:
        self.provider = provider
        self._now = now
        self._metadata: tuple[float, _Metadata] | None = None
        self._keys: tuple[float, Any] | None = None  # Any: joserfc's KeySet

    async def begin(self, redirect_uri: str) -> tuple[str, Flow]:
        """The address to send the browser to, and what must be known when it comes back."""
        flow = Flow(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48), redirect_uri)
        metadata = await self._described()
        async with self._session(redirect_uri) as session:
            url, _ = session.create_authorization_url(
                metadata.authorization_endpoint, state=flow.state, nonce=flow.nonce, code_verifier=flow.verifier
            )
        return str(url), flow

    async def finish(self, flow: Flow, code: str) -> Vouched:
        """Exchange the code for an ID token, and check it."""
        import httpx2
        from authlib.common.errors import AuthlibBaseError

        metadata = await self._described()
        try:
            async with self._session(flow.redirect_uri) as session:
                token = await session.fetch_token(metadata.token_endpoint, code=code, code_verifier=flow.verifier)
        except AuthlibBaseError as error:
            raise NotVouched(f"the provider refused the code ({error.error})") from None
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise ProviderFailed(f"the token endpoint failed ({type(error).__name__})") from None
        given = token.get("id_token")
        if not isinstance(given, str):
            raise NotVouched("the provider sent no ID token")
        return self._vouched(await self._checked(given, token, flow, metadata))

    def _vouched(self, claims: Mapping[str, Any]) -> Vouched:
        sub = claims["sub"]
        if not isinstance(sub, str) or not 0 < len(sub) <= LONGEST_SUBJECT:
            raise NotVouched("the subject of the ID token is no text of 1 to 255 characters")
        name = next(value for field in NAMES if isinstance(value := claims.get(field), str) and value)
        return Vouched(f"{self.provider.issuer}#{sub}", name, role_of(claims.get(self.provider.role_claim)))

    async def _checked(
        self, given: str, token: Mapping[str, Any], flow: Flow, metadata: _Metadata
    ) -> Mapping[str, Any]:
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            try:
                decoded = jwt.decode(given, await self._key_set(metadata), algorithms=list(ALGORITHMS))
            except (JoseError, ValueError):  # a key that is new there
                decoded = jwt.decode(given, await self._key_set(metadata, again=True), algorithms=list(ALGORITHMS))
            options = {
                "iss": {"essential": True, "value": metadata.issuer},
                "aud": {"essential": True, "value": self.provider.client_id},
            }
            params = {"nonce": flow.nonce, "client_id": self.provider.client_id, "access_token": token["access_token"]}
            claims = CodeIDToken(decoded.claims, decoded.header, options, params)
            claims.validate(now=self._now() // SECOND, leeway=LEEWAY)
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise NotVouched(f"the ID token does not hold ({type(error).__name__})") from None
        return dict(decoded.claims)

    # -- what the provider says of itself ------------------------------------------------------------------------------

    async def _described(self) -> _Metadata:
        if self._metadata is None or time.monotonic() - self._metadata[0] > KEPT_SECONDS:
            url = f"{self.provider.issuer}/.well-known/openid-configuration"
            try:
                found = msgspec.convert(await self._get(url), _Metadata)
            except msgspec.ValidationError:
                raise ProviderFailed("its description lacks what OpenID Connect asks for") from None
            if found.issuer.rstrip("/") != self.provider.issuer:
                raise ProviderFailed("it names another issuer than the settings")
            self._metadata = time.monotonic(), found
        return self._metadata[1]

    async def _key_set(self, metadata: _Metadata, *, again: bool = False) -> Any:
        from joserfc.jwk import KeySet

        if again or self._keys is None or time.monotonic() - self._keys[0] > KEPT_SECONDS:
            self._keys = time.monotonic(), KeySet.import_key_set(await self._get(metadata.jwks_uri))
        return self._keys[1]

    async def _get(self, url: str) -> Any:
        import httpx2

        try:
            async with httpx2.AsyncClient(timeout=PATIENCE, follow_redirects=False, verify=self._trusted) as client:
                answer = await client.get(url)
                answer.raise_for_status()
                return answer.json()
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise ProviderFailed(f"{url} cannot be read ({type(error).__name__})") from None

    def _session(self, redirect_uri: str) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        of = self.provider
        return AsyncOAuth2Client(
            of.client_id,
            of.client_secret,
            scope=SCOPE,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_basic" if of.client_secret else "none",
            timeout=PATIENCE,
            verify=self._trusted,
        )

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        """The CAs of the system, read once: that takes tens of milliseconds, in which the hub does nothing else."""
        import httpx2

        return httpx2.create_ssl_context()


def role_of(claim: Any) -> Role | None:
    """The highest role that the claim names, alone or in a list."""
    named = claim if isinstance(claim, list) else [claim]
    roles = [Role(one) for one in named if isinstance(one, str) and one in {role.value for role in Role}]
    return max(roles, key=RANK.__getitem__, default=None)
