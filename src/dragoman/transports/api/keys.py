"""The keys that sign tokens: look at them, replace them. Of a key only its name and its times are told."""

from __future__ import annotations

import enum

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.core.commands import NoteRead
from dragoman.core.errors import Kind
from dragoman.core.ids import ADMIN, SECOND, Instant, rfc3339
from dragoman.transports.a2acp.tokens import AuthService, KeysKept
from dragoman.transports.api.bodies import KeyRotationIn, read_body
from dragoman.transports.api.desk import Desk
from dragoman.transports.api.endpoint import respond
from dragoman.transports.api.problems import Problem
from dragoman.transports.api.tasks import PROTOCOL


class Use(enum.StrEnum):
    SIGNS = "signs"
    VERIFIES = "verifies"  # it was replaced, and tokens of its are out there
    SHARED = "shared"  # a secret of the operator's: whoever has it signs


class KeyOut(msgspec.Struct, frozen=True, kw_only=True):
    """`verifies_until` is when the last token that it can have signed is over; None while it signs."""

    kid: str
    algorithm: str
    use: Use
    created_at: str | None
    retired_at: str | None
    verifies_until: str | None


class KeyList(msgspec.Struct, frozen=True, kw_only=True):
    """The one that signs comes first."""

    keys: tuple[KeyOut, ...]


async def listing(desk: Desk, request: Request) -> Response:
    return respond(200, told(service(desk)))


async def rotate(desk: Desk, request: Request) -> Response:
    """The record is committed first: if the keys cannot be written after that, the refusal is recorded, too."""
    wish = await read_body(desk, request, KeyRotationIn, optional=True)
    auth = service(desk)
    try:
        retiring = auth.authority.ring.signing.kid
        what = "key.distrust" if wish.distrust else "key.rotate"
        await desk.intake.ask(NoteRead(principal=ADMIN, protocol=PROTOCOL, what=what, about=retiring))
        await auth.rotate(distrust=wish.distrust)
    except KeysKept as error:
        raise Problem(Kind.CONFLICT, f"the keys stay as they are: {error}", next="Mend that, and try again.") from None
    return respond(200, told(auth))


def service(desk: Desk) -> AuthService:
    """The auth service, with its keys at hand."""
    from dragoman.security.keys import KeyProblem  # cryptography is loaded where it is used
    from dragoman.security.private import PrivateFileError

    if desk.auth is None:
        raise Problem(Kind.NOT_FOUND, "this hub signs no tokens")
    try:
        desk.auth.authority  # noqa: B018
    except (KeyProblem, PrivateFileError) as error:
        raise Problem(Kind.CONFLICT, f"the keys cannot be used: {error}", next="Mend that, and try again.") from None
    return desk.auth


def told(auth: AuthService) -> KeyList:
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
