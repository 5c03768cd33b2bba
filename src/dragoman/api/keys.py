"""The keys that sign tokens: list them, replace them; and revoke one token. Of a key only its name and its times are
shown, of a token its jti."""

from __future__ import annotations

import enum

import msgspec

from dragoman.api.agents import find_agent
from dragoman.api.bodies import KeyRotationIn, RevocationIn
from dragoman.api.context import PROTOCOL, Call, Context, Plain
from dragoman.api.problems import Next, Problem
from dragoman.core.commands import NoteRead, RevokeToken
from dragoman.core.ids import ADMIN, SECOND, Instant, rfc3339
from dragoman.messages.faults import Kind
from dragoman.protocols.a2acp.types import PROTOCOL as SIGNED_FOR
from dragoman.security.refusals import Refusal
from dragoman.server.a2acp.tokens import AuthService, KeysKept


class Use(enum.StrEnum):
    SIGNS = "signs"
    VERIFIES = "verifies"  # it was replaced, and tokens of its are out there
    SHARED = "shared"  # a secret of the operator's: every holder signs with it


class KeyOut(msgspec.Struct, frozen=True, kw_only=True):
    """`verifies_until` is when the last token that it can have signed expires; None while it signs."""

    kid: str
    algorithm: str
    use: Use
    created_at: str | None
    retired_at: str | None
    verifies_until: str | None


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """The one that signs comes first."""

    keys: tuple[KeyOut, ...]


class Revocation(msgspec.Struct, frozen=True, kw_only=True):
    """`until` is when the token expires anyway."""

    agent_id: str
    jti: str
    until: str


async def list_keys(context: Context, call: Plain) -> KeyList:
    return key_list(service(context))


async def rotate_keys(context: Context, call: Call[None, KeyRotationIn]) -> KeyList:
    """The record is committed first: if the keys cannot be written after that, the refusal is recorded, too."""
    wanted = call.body
    auth = service(context)
    try:
        retiring = auth.authority.ring.signing.kid
        what = "key.distrust" if wanted.distrust else "key.rotate"
        await context.execute(call, NoteRead(principal=ADMIN, protocol=PROTOCOL, what=what, about=retiring))
        await auth.rotate(distrust=wanted.distrust)
    except KeysKept as error:
        raise Problem(
            Kind.CONFLICT, f"the keys stay as they are: {error}", next=Next("correct that, and try again")
        ) from None
    return key_list(auth)


async def revoke_token(context: Context, call: Call[None, RevocationIn]) -> Revocation:
    """One token, which is read here, and neither stored nor shown."""
    from dragoman.protocols.a2acp.types import LONGEST_TTL
    from dragoman.security.keys import LEEWAY

    wanted = call.body
    agent = find_agent(context, call.id)
    if agent.protocol != SIGNED_FOR:
        rotate = f"POST /api/v1/agents/{agent.id}/token"
        raise Problem(
            Kind.CONFLICT,
            f"agent {agent.id!r} speaks {agent.protocol}, which has no signed tokens",
            next=Next(f"give it a new one with {rotate}", rotate, f"dragoman agent token {agent.id}"),
        )
    auth = service(context)
    jti, over = wanted.jti, auth.now + LEEWAY + LONGEST_TTL
    if wanted.token is not None and jti is None:
        claims = auth.authority.read(wanted.token, now=auth.now)
        if isinstance(claims, Refusal):
            raise Problem(Kind.INVALID, f"this token is not valid here: {claims.message}", field="token")
        if claims.sub != agent.id:
            raise Problem(
                Kind.INVALID,
                f"this is not a token of {agent.id}",
                field="token",
                next=Next("name the agent that it belongs to"),
            )
        jti, over = claims.jti, min(claims.exp, over)
        if jti is None:
            raise Problem(Kind.INVALID, "the token has no jti, so it cannot be revoked", field="token")
    elif wanted.token is not None or jti is None:
        raise Problem(Kind.INVALID, "name the token by `token` or by `jti`, not by both", field="jti")
    until = Instant((over + LEEWAY) * SECOND)
    await context.execute(call, RevokeToken(principal=ADMIN, protocol=PROTOCOL, agent=agent.id, jti=jti, until=until))
    return Revocation(agent_id=agent.id, jti=jti, until=rfc3339(until))


def service(context: Context) -> AuthService:
    """The auth service, with its keys at hand."""
    from dragoman.security.keys import KeyProblem  # cryptography is loaded where it is used
    from dragoman.security.private import PrivateFileError

    if context.auth is None:
        raise Problem(Kind.NOT_FOUND, "this hub does not sign tokens")
    try:
        context.auth.authority  # noqa: B018
    except (KeyProblem, PrivateFileError) as error:
        raise Problem(
            Kind.CONFLICT, f"the keys cannot be used: {error}", next=Next("correct that, and try again")
        ) from None
    return context.auth


def key_list(auth: AuthService) -> KeyList:
    now, signing = auth.now, auth.authority.ring.signing.kid
    keys = [key for key in auth.authority.ring if key.verifies_at(now)]
    keys.sort(key=lambda key: (key.kid != signing, -key.created_at))
    return KeyList(
        keys=tuple(
            KeyOut(
                kid=key.kid,
                algorithm=key.algorithm.value,
                use=Use.SIGNS if key.kid == signing else Use.SHARED if key.shared else Use.VERIFIES,
                created_at=_moment(key.created_at or None),
                retired_at=_moment(key.retired_at),
                verifies_until=_moment(key.verifies_until),
            )
            for key in keys
        )
    )


def _moment(seconds: int | None) -> str | None:
    return None if seconds is None else rfc3339(Instant(seconds * SECOND))
