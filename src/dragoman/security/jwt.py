"""Issues and verifies tokens, as a2acp's document, a2acp-D3…D5 and RFC 8725 require.

PyJWT makes and checks the signature. This module makes all other checks, because PyJWT reads the clock itself, takes
the last of two equal claims, and accepts one matching audience among many. In this order:

    1  size, three parts of canonical base64url          7  the signature, by an engine that knows no other algorithm
    2  header: strict JSON, each name once               8  claims: strict JSON, each name once, of the right types
    3  no key in it or behind an address in it           9  issuer, audience (one string), subject, domain
    4  no crit, no b64: we know no extension            10  exp, nbf, iat with 60 s leeway; at most 24 h from iat to exp
    5  typ is JWT
    6  kid is in the ring, and alg is that key's own

The result of steps 1 to 8 never changes while the key is in the ring. It is remembered under the token's hash, since
an agent sends one token with many messages, and verifying costs a hundred times what a lookup does. Steps 6 (the key
may still verify), 9 and 10 are taken every time: a remembered token outlives neither its expiry nor its key. Only valid
tokens are remembered, so a sender without one cannot push others out.

Revocation is checked elsewhere (`server.a2acp.tokens`): a removed agent, a new secret, or a person voids a token.

Times are whole Unix seconds, as in tokens; the caller passes `now`.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import jwt as pyjwt
import msgspec
from msgspec import Meta

from dragoman.protocols.a2acp.types import LONGEST_TTL, MOST_GRANTED, Claims
from dragoman.security.keys import LEEWAY, Algorithm, Key, KeyRing, decode64
from dragoman.security.refusals import Reason, Refusal
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.misfit import misfit

ISSUER = "a_domain-auth-service"
LARGEST = 8192
"""Characters of a token: 64 capabilities of 64 characters fit."""

REMEMBERED = 4096

_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_HEADER = guard.Limits(bytes=1024, depth=4, containers=16)
_PAYLOAD = guard.Limits(bytes=LARGEST, depth=8, containers=64)
_EMBEDDED = ("jku", "jwk", "x5u", "x5c", "x5t", "x5t#S256")
_EXTENSIONS = ("crit", "b64")
_LATEST = 2**53

# Two engines with one algorithm each: no token can make one use the other's.
_ENGINES = {
    algorithm: pyjwt.PyJWS(algorithms=[algorithm.value], options={"enforce_minimum_key_length": True})
    for algorithm in Algorithm
}

Numeric = Annotated[int, Meta(ge=0, le=_LATEST)] | Annotated[float, Meta(ge=0, le=_LATEST)]


class _Wire(Claims, frozen=True, kw_only=True):
    """The claims as they came. Times may have fractions (RFC 7519)."""

    exp: Numeric  # type: ignore[assignment]
    iat: Numeric  # type: ignore[assignment]
    nbf: Numeric | None = None  # type: ignore[assignment]


class Issued(msgspec.Struct, frozen=True, kw_only=True):
    """A fresh token. Its text appears in no representation of this value."""

    token: str
    claims: Claims

    def __repr__(self) -> str:
        return f"Issued(sub={self.claims.sub!r}, aud={self.claims.aud!r}, exp={self.claims.exp})"


class Authority:
    """Signs with the ring's newest key, and verifies with any that still may."""

    def __init__(self, ring: KeyRing, *, issuer: str = ISSUER, remembered: int = REMEMBERED) -> None:
        self.ring = ring
        self.issuer = issuer
        self._room = remembered
        self._good: OrderedDict[bytes, tuple[str, Claims]] = OrderedDict()

    def use(self, ring: KeyRing) -> None:
        """Use another ring from now on. Tokens that the old one verified are verified again."""
        self.ring = ring
        self._good.clear()

    def issue(
        self,
        *,
        subject: str,
        audience: str,
        domain: str,
        capabilities: Sequence[str],
        ttl: int,
        now: int,
        kid: str | None = None,
        jti: str | None = None,
    ) -> Issued | Refusal:
        """A token of `ttl` seconds. `kid` names an HS256 secret to sign with instead of the ring's own key."""
        if not _whole(ttl) or not 1 <= ttl <= LONGEST_TTL:
            return Refusal(Reason.LIFETIME, "ttl")
        key = self.ring.signing if kid is None else self.ring.find(kid, now)
        if key is None or key.retired_at is not None:
            return Refusal(Reason.KEY, "kid")
        claims = Claims(
            sub=subject,
            iss=self.issuer,
            aud=audience,
            exp=now + ttl,
            iat=now,
            nbf=now,
            domain=domain,
            capabilities=tuple(capabilities),
            jti=jti or secrets.token_urlsafe(16),
        )
        try:
            msgspec.convert(msgspec.to_builtins(claims), _Wire)
        except msgspec.ValidationError as error:
            return _misfit(error)
        token = _ENGINES[key.algorithm].encode(
            msgspec.json.encode(claims), key.material, key.algorithm.value, headers={"kid": key.kid}
        )
        if len(token) > LARGEST:
            return Refusal(Reason.TOO_MANY, "requested_capabilities")
        return Issued(token=token, claims=claims)

    def verify(
        self,
        token: object,
        *,
        audience: str,
        now: int,
        subject: str | None = None,
        domain: str | None = None,
    ) -> Claims | Refusal:
        """The claims of a token that is for `audience` and valid now. `subject` and `domain`: whose it must be."""
        if not isinstance(token, str):
            return Refusal(Reason.FORM)
        if len(token) > LARGEST:
            return Refusal(Reason.SIZE)
        mark = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._good.get(mark)
        if known is not None:
            kid, claims = known
            if self.ring.find(kid, now) is None:
                del self._good[mark]
                return Refusal(Reason.KEY, "kid")
            self._good.move_to_end(mark)
        else:
            read = self._read(token, now)
            if isinstance(read, Refusal):
                return read
            kid, claims = read
        refusal = self._judge(claims, audience, now, subject, domain)
        if refusal is not None:
            if refusal.reason is Reason.EXPIRED:
                self._good.pop(mark, None)
            return refusal
        if known is None and self._room:
            self._good[mark] = (kid, claims)
            if len(self._good) > self._room:
                self._good.popitem(last=False)
        return claims

    def read(self, token: str, *, now: int) -> Claims | Refusal:
        """The claims of a token that one of the hub's keys signed, whatever its audience and its times."""
        if len(token) > LARGEST:
            return Refusal(Reason.SIZE)
        read = self._read(token, now)
        return read if isinstance(read, Refusal) else read[1]

    def _read(self, token: str, now: int) -> tuple[str, Claims] | Refusal:
        """Steps 1 to 8."""
        if not _FORM.fullmatch(token):
            return Refusal(Reason.FORM)
        header = _object(token[: token.index(".")], _HEADER)
        if isinstance(header, Refusal):
            return header
        key = self._key(header, now)
        if isinstance(key, Refusal):
            return key
        try:
            payload: bytes = _ENGINES[key.algorithm].decode(token, key.verifier, algorithms=[key.algorithm.value])
        except (pyjwt.InvalidTokenError, ValueError):
            return Refusal(Reason.SIGNATURE)
        body = _strict(payload, _PAYLOAD)
        if isinstance(body, Refusal):
            return body
        try:
            wire = msgspec.convert(body, _Wire)
        except msgspec.ValidationError as error:
            return _misfit(error)
        # Fractions are rounded to the strict side.
        nbf = None if wire.nbf is None else math.ceil(wire.nbf)
        times = {"exp": int(wire.exp), "iat": math.ceil(wire.iat), "nbf": nbf}
        return key.kid, Claims(**{**msgspec.structs.asdict(wire), **times})

    def _key(self, header: dict[str, Any], now: int) -> Key | Refusal:
        """Steps 3 to 6: the key that must have signed."""
        for name in _EMBEDDED:
            if name in header:
                return Refusal(Reason.EMBEDDED_KEY, name)
        for name in _EXTENSIONS:
            if name in header:
                return Refusal(Reason.CRITICAL, name)
        typ = header.get("typ")
        if not isinstance(typ, str) or typ.upper() != "JWT":
            return Refusal(Reason.TYPE, "typ")
        key = self.ring.find(header.get("kid"), now)
        if key is None:
            return Refusal(Reason.KEY, "kid")
        if header.get("alg") != key.algorithm.value:
            return Refusal(Reason.ALGORITHM, "alg")
        return key

    def _judge(
        self,
        claims: Claims,
        audience: str,
        now: int,
        subject: str | None,
        domain: str | None,
    ) -> Refusal | None:
        """Steps 9 and 10."""
        if claims.iss != self.issuer:
            return Refusal(Reason.ISSUER, "iss")
        if claims.aud != audience:
            return Refusal(Reason.AUDIENCE, "aud")
        if subject is not None and claims.sub != subject:
            return Refusal(Reason.SUBJECT, "sub")
        if domain is not None and claims.domain != domain:
            return Refusal(Reason.DOMAIN, "domain")
        if not 0 < claims.exp - claims.iat <= LONGEST_TTL:
            return Refusal(Reason.LIFETIME, "exp")
        if now >= claims.exp + LEEWAY:
            return Refusal(Reason.EXPIRED, "exp")
        if claims.iat > now + LEEWAY:
            return Refusal(Reason.NOT_YET, "iat")
        if claims.nbf is not None and claims.nbf > now + LEEWAY:
            return Refusal(Reason.NOT_YET, "nbf")
        return None


def grant(asked: Sequence[str], allowed: Collection[str]) -> tuple[str, ...] | Refusal:
    """The capabilities that are both asked for and allowed, in the order asked (a2acp-D5). An agent that asks for none
    gets none, which is enough for discovery and handshakes; one that asks for some, none of them allowed, is refused.
    There are no wildcards: a person who reads a list of grants must see what it grants."""
    granted = tuple(name for name in dict.fromkeys(asked) if name in allowed)
    if asked and not granted:
        return Refusal(Reason.CAPABILITY, "requested_capabilities", tuple(dict.fromkeys(asked))[:MOST_GRANTED])
    if len(granted) > MOST_GRANTED:
        return Refusal(Reason.TOO_MANY, "requested_capabilities")
    return granted


def _whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _object(segment: str, limits: guard.Limits) -> dict[str, Any] | Refusal:
    try:
        data = decode64(segment)
    except ValueError:
        return Refusal(Reason.FORM)
    return _strict(data, limits)


def _strict(data: bytes, limits: guard.Limits) -> dict[str, Any] | Refusal:
    try:
        tree = guard.check(data, limits)
    except RemoteProtocolError:
        return Refusal(Reason.JSON)
    return tree if isinstance(tree, dict) else Refusal(Reason.JSON)


def _misfit(error: msgspec.ValidationError) -> Refusal:
    """Which claim does not fit. msgspec's sentence is not passed on: it may quote names out of the token."""
    name = misfit(error).field.partition("[")[0]
    field = name if name in _Wire.__struct_fields__ else None
    return Refusal(Reason.AUDIENCE if field == "aud" else Reason.CLAIM, field)
