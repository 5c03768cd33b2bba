"""Who asks the management API: a person with a token, a browser with a session cookie, the holder of the admin token.

    credential                          who
    ----------------------------------  ----------------------------------------------------------
    `Authorization: Bearer`, the hub's  admin
    `Authorization: Bearer`, a person's the person, with their role
    cookie `dragoman_session`           the person that logged in, or admin

The cookie is a signed token: the name, since when the person is there, their `sessions` at the login, and an end. It is
HttpOnly and SameSite=Strict. The signing key follows from the admin token: a restart keeps sessions, a new admin token
ends them. A request that changes something by a cookie must carry the header `Dragoman-Request`, which a page of
another site cannot send, and come from the hub's own origin.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import jwt
import msgspec
from starlette.requests import Request

from dragoman.api.problems import Next, Problem
from dragoman.core.ids import ADMIN, SECOND, Instant
from dragoman.core.model.people import Person, Role
from dragoman.messages.faults import Kind
from dragoman.security.tokens import bearer, same, token_hash
from dragoman.server.asgi import Hosts

COOKIE = "dragoman_session"
HEADER = "dragoman-request"
SESSION_SECONDS = 14 * 24 * 3600
LOGIN_SECONDS = 15 * 60
"""How long a login link counts."""
SAFE = frozenset({"GET", "HEAD"})
ALGORITHM = "HS256"
AUDIENCE = "dragoman-dashboard"


def _sessions_of(person: Person) -> str:
    """Which of a person's sessions count now: those since their last end, and none of a former person of that name."""
    return f"{person.created_at}.{person.sessions}"


class Caller(msgspec.Struct, frozen=True):
    """Who asks. `person` is None for the holder of the admin token."""

    name: str
    role: Role
    by_cookie: bool = False
    person: str | None = None


class Sessions:
    """Issues and reads session cookies. `people` gives the hub's own directory, read at every request."""

    def __init__(self, admin_token: str, people: Callable[[], Mapping[str, Person]], hosts: Hosts) -> None:
        self._admin_hash = token_hash(admin_token)
        self._key = hashlib.sha256(b"dragoman session key\0" + admin_token.encode()).digest()
        self._people = people
        self._hosts = hosts
        self._admin_logins: set[str] = set()

    # -- login links ---------------------------------------------------------------------------------------------------

    def offer_admin_login(self) -> str:
        """The code of a link that logs the administrator in once, as long as this hub runs."""
        code = secrets.token_urlsafe(24)
        self._admin_logins.add(token_hash(code))
        return code

    def take_admin_login(self, code_hash: str) -> bool:
        """Whether the code was offered to the administrator; it counts no second time."""
        if code_hash not in self._admin_logins:
            return False
        self._admin_logins.discard(code_hash)
        return True

    # -- cookies -------------------------------------------------------------------------------------------------------

    def cookie(self, person: Person | None, now: Instant) -> str:
        claims = {
            "aud": AUDIENCE,
            "sub": ADMIN if person is None else person.id,
            "ses": "" if person is None else _sessions_of(person),
            "exp": now // SECOND + SESSION_SECONDS,
        }
        return jwt.encode(claims, self._key, ALGORITHM)

    def signed(self, audience: str, content: Mapping[str, str], seconds: int, now: Instant) -> str:
        """Something else for a browser to keep for a while, and to give back unchanged."""
        return jwt.encode({**content, "aud": audience, "exp": now // SECOND + seconds}, self._key, ALGORITHM)

    def read_signed(self, audience: str, value: str, now: Instant) -> dict[str, str] | None:
        claims = self._read(value, audience, now)
        if claims is None:
            return None
        return {name: text for name, text in claims.items() if name not in ("aud", "exp")}

    def _read(self, value: str, audience: str, now: Instant, *required: str) -> dict[str, Any] | None:
        try:
            claims = jwt.decode(
                value,
                self._key,
                [ALGORITHM],
                audience=audience,
                options={"require": ["exp", *required], "verify_exp": False, "verify_iat": False},
            )
        except jwt.InvalidTokenError:
            return None
        if not isinstance(claims["exp"], int) or claims["exp"] <= now // SECOND:
            return None
        return claims

    def _of_cookie(self, cookie: str, now: Instant) -> Caller | None:
        claims = self._read(cookie, AUDIENCE, now, "sub", "ses")
        if claims is None:
            return None
        name = claims["sub"]
        if name == ADMIN:
            return Caller(ADMIN, Role.ADMIN, by_cookie=True)
        person = self._people().get(name)
        if person is None or _sessions_of(person) != claims["ses"]:
            return None
        return Caller(person.id, person.role, by_cookie=True, person=person.id)

    # -- requests ------------------------------------------------------------------------------------------------------

    def of_token(self, token: str) -> Caller | None:
        hashed = token_hash(token)
        if same(hashed, self._admin_hash):
            return Caller(ADMIN, Role.ADMIN)
        for person in self._people().values():
            if person.token_hash is not None and same(hashed, person.token_hash):
                return Caller(person.id, person.role, person=person.id)
        return None

    def caller(self, request: Request, now: Instant) -> Caller:
        """Raises `Problem` for a request without a valid credential."""
        header = request.headers.get("authorization")
        if header is not None:
            token = bearer(header.encode("latin-1"))
            found = None if token is None else self.of_token(token)
            if found is None:
                raise Problem(Kind.UNAUTHENTICATED, "this is no token of the management API of this hub")
            return found
        cookie = request.cookies.get(COOKIE)
        if cookie is None:
            raise Problem(Kind.UNAUTHENTICATED, "the management API needs the admin token, or a login")
        found = self._of_cookie(cookie, now)
        if found is None:
            raise Problem(
                Kind.UNAUTHENTICATED,
                "this login has ended",
                next=Next("log in again", command="dragoman user login NAME"),
            )
        return found

    def check_site(self, request: Request, caller: Caller) -> None:
        """A browser sends the cookie for pages of other sites, too. Raises `Problem` for a change by cookie that lacks
        the header, which only pages of this hub can send, and for one that comes from another origin."""
        if not caller.by_cookie or request.method in SAFE:
            return
        if HEADER not in request.headers:
            raise Problem(
                Kind.FORBIDDEN,
                "a browser's request that changes something needs the header Dragoman-Request",
                next=Next("send `Dragoman-Request: 1`, or a token instead of the cookie"),
            )
        self.check_origin(request)

    def check_origin(self, request: Request) -> None:
        """Raises `Problem` for a request that a page of another origin makes."""
        origin, host = request.headers.get("origin"), request.headers.get("host")
        if origin is None or (host is not None and urlsplit(origin).netloc == host):
            return
        if not self._hosts.allows(origin.encode("latin-1")):
            raise Problem(
                Kind.FORBIDDEN,
                "this request comes from a page of another site",
                next=Next("open the hub's own page, or add its public name to server.allowed_hosts"),
            )
