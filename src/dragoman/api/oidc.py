"""Logging in by an OpenID Connect provider: the authorization code flow, with PKCE, state and nonce.

    browser    GET /oidc/login       → to the provider, with a cookie that has state, nonce and code verifier
    provider   GET /oidc/callback    → the hub exchanges the code, checks the ID token, and sets the session cookie

The cookie of the flow is signed like a session and counts for ten minutes. It is SameSite=Lax, because the browser
comes back from another site.
"""

from __future__ import annotations

import hmac

import msgspec
import structlog
from starlette.responses import RedirectResponse, Response

from dragoman.api.bodies import CallbackQuery
from dragoman.api.context import PROTOCOL, Call, Context, Plain
from dragoman.api.oidc_client import Flow, NotVouched, OidcClient, ProviderFailed, Vouched
from dragoman.api.problems import Next, Problem
from dragoman.api.users import with_cookie
from dragoman.core.commands.people import LogInByProvider
from dragoman.core.ids import ADMIN
from dragoman.core.model.people import Person
from dragoman.messages.faults import Kind, Refused, refuse

log = structlog.get_logger("dragoman.api")

COOKIE = "dragoman_oidc"
CALLBACK = "/oidc/callback"
FLOW_SECONDS = 600
AGAIN = Next("log in again", "GET /oidc/login")


class LoginWays(msgspec.Struct, frozen=True, kw_only=True):
    """How a browser may log in beside links and tokens. `provider` is the issuer of the identity provider."""

    provider: str | None


async def show_ways(context: Context, call: Plain) -> LoginWays:
    return LoginWays(provider=None if context.oidc is None else context.oidc.provider.issuer)


async def begin(context: Context, call: Plain) -> Response:
    client = _client(context)
    base = client.provider.public_url or str(call.request.base_url)
    try:
        url, flow = await client.begin(f"{base.rstrip('/')}{CALLBACK}")
    except ProviderFailed as error:
        raise _failed(error) from None
    response = RedirectResponse(url, status_code=303)
    response.set_cookie(
        COOKIE,
        context.sessions.signed(COOKIE, msgspec.to_builtins(flow), FLOW_SECONDS, context.intake.now()),
        max_age=FLOW_SECONDS,
        path="/oidc/",
        secure=call.request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    response.headers["Cache-Control"] = "no-store"
    return response


async def finish(context: Context, call: Call[CallbackQuery, None]) -> Response:
    client = _client(context)
    kept = context.sessions.read_signed(COOKIE, call.request.cookies.get(COOKIE, ""), context.intake.now())
    given = call.query
    if kept is None or not hmac.compare_digest(kept["state"].encode(), given.state.encode()):
        raise Problem(Kind.UNAUTHENTICATED, "this login was not begun in this browser, or too long ago", next=AGAIN)
    if given.code is None:
        raise Problem(Kind.UNAUTHENTICATED, "the identity provider did not log this person in", next=AGAIN)
    try:
        vouched = await client.finish(msgspec.convert(kept, Flow), given.code)
    except NotVouched as error:
        raise Problem(Kind.UNAUTHENTICATED, f"the login does not hold: {error}", next=AGAIN) from None
    except ProviderFailed as error:
        raise _failed(error) from None
    command = LogInByProvider(
        principal=ADMIN,
        protocol=PROTOCOL,
        person=_recorded_as(context, vouched),
        vouched=vouched.subject,
        name=vouched.name,
        role=vouched.role,
    )
    person: Person = await context.intake.execute(command)
    response = with_cookie(context, call, person, RedirectResponse("/", status_code=303))
    response.delete_cookie(COOKIE, path="/oidc/", httponly=True, samesite="lax")
    return response


def _recorded_as(context: Context, vouched: Vouched) -> str | None:
    """Whose login it is in the audit record: nobody's by name, where the name is another's."""
    people = context.intake.people
    known = next((one.id for one in people.values() if one.subject == vouched.subject), None)
    return known or (None if vouched.name in people else vouched.name)


def _client(context: Context) -> OidcClient:
    if context.oidc is None:
        raise Problem(
            Kind.NOT_FOUND, "this hub has no identity provider", next=Next("set oidc.issuer and oidc.client_id")
        )
    return context.oidc


def _failed(error: ProviderFailed) -> Refused:
    log.warning("the identity provider failed", why=str(error))
    return refuse(Kind.UNAVAILABLE, "the identity provider does not answer as it should", next="see the hub's log")
