"""People: who may use the management API and the dashboard, how they log in, and who is asking."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response

from dragoman.api.bodies import LoginIn, LogoutQuery, Nothing, RoleIn, UserIn
from dragoman.api.context import PROTOCOL, Call, Context, Plain
from dragoman.api.problems import Next, Problem
from dragoman.api.sessions import COOKIE, LOGIN_SECONDS, SESSION_SECONDS
from dragoman.core.commands.people import (
    AddPerson,
    EndSessions,
    LogIn,
    OfferLogin,
    RecordLogin,
    RemovePerson,
    SetPersonRole,
    SetPersonToken,
)
from dragoman.core.ids import ADMIN, SECOND, Instant, rfc3339
from dragoman.core.model.people import Person, Role
from dragoman.messages.faults import Kind
from dragoman.security.tokens import new_token, token_hash


class Me(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: Role


class UserOut(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: Role
    created_at: str
    last_login: str | None
    has_token: bool


class UserList(msgspec.Struct, frozen=True, kw_only=True):
    users: tuple[UserOut, ...]


class LoginOut(msgspec.Struct, frozen=True, kw_only=True):
    """`login` is a path of this hub that logs a browser in once, until `expires_at`."""

    name: str
    role: Role
    login: str
    expires_at: str


class UserToken(msgspec.Struct, frozen=True, kw_only=True):
    """The token is shown once; the hub keeps its hash."""

    name: str
    role: Role
    token: str


def user_out(person: Person) -> UserOut:
    return UserOut(
        name=person.id,
        role=person.role,
        created_at=rfc3339(person.created_at),
        last_login=None if person.last_login is None else rfc3339(person.last_login),
        has_token=person.token_hash is not None,
    )


async def show_me(context: Context, call: Plain) -> Me:
    assert call.caller is not None
    return Me(name=call.caller.name, role=call.caller.role)


async def list_users(context: Context, call: Plain) -> UserList:
    people = sorted(context.intake.people.values(), key=lambda person: person.id)
    return UserList(users=tuple(map(user_out, people)))


async def add_user(context: Context, call: Call[None, UserIn]) -> LoginOut:
    new = Person(id=call.body.name, role=call.body.role, created_at=context.intake.now())
    await context.execute(call, AddPerson(principal=ADMIN, protocol=PROTOCOL, new=new))
    return await _offer_login(context, call, new.id)


async def remove_user(context: Context, call: Plain) -> None:
    await context.execute(call, RemovePerson(principal=ADMIN, protocol=PROTOCOL, name=_name(call)))


async def set_user_role(context: Context, call: Call[None, RoleIn]) -> UserOut:
    command = SetPersonRole(principal=ADMIN, protocol=PROTOCOL, name=_name(call), role=call.body.role)
    person: Person = await context.execute(call, command)
    return user_out(person)


async def new_user_token(context: Context, call: Call[None, Nothing]) -> UserToken:
    token = new_token(context.realm)
    command = SetPersonToken(principal=ADMIN, protocol=PROTOCOL, name=_name(call), token_hash=token_hash(token))
    person: Person = await context.execute(call, command)
    return UserToken(name=person.id, role=person.role, token=token)


async def new_login(context: Context, call: Call[None, Nothing]) -> LoginOut:
    return await _offer_login(context, call, _name(call))


async def _offer_login(context: Context, call: Call[None, Any], name: str) -> LoginOut:
    code = secrets.token_urlsafe(24)
    until = Instant(context.intake.now() + LOGIN_SECONDS * SECOND)
    command = OfferLogin(principal=ADMIN, protocol=PROTOCOL, name=name, login_hash=token_hash(code), until=until)
    person: Person = await context.execute(call, command)
    return LoginOut(name=person.id, role=person.role, login=f"/login/{code}", expires_at=rfc3339(until))


def _name(call: Call[None, Any]) -> str:
    return str(call.request.path_params["name"])


USED_LINK = "this login link was used already or is too old"
NEW_LINK = Next("make a new one", command="dragoman user login NAME")


# -- logging in ------------------------------------------------------------------------------------------------------


async def log_in_by_link(context: Context, call: Plain) -> Response:
    """The code is in the path only until here: the browser goes on to a page without it."""
    code_hash = token_hash(str(call.request.path_params["code"])[:200])
    person: Person | None = None
    if context.sessions.take_admin_login(code_hash):
        await context.intake.execute(RecordLogin(principal=ADMIN, protocol=PROTOCOL))
    else:
        name = next((one.id for one in context.intake.people.values() if one.login_hash == code_hash), None)
        if name is None:  # a stranger's request: it counts as one in the audit record
            raise Problem(Kind.UNAUTHENTICATED, USED_LINK, next=NEW_LINK)
        command = LogIn(principal=ADMIN, protocol=PROTOCOL, person=name, login_hash=code_hash)
        person = await context.intake.execute(command)
    return with_cookie(context, call, person, RedirectResponse("/", status_code=303))


async def log_in_by_token(context: Context, call: Call[None, LoginIn]) -> Response:
    context.sessions.check_origin(call.request)
    caller = context.sessions.of_token(call.body.token)
    if caller is None:
        raise Problem(Kind.UNAUTHENTICATED, "this is no token of this hub", field="token")
    command = RecordLogin(principal=ADMIN, protocol=PROTOCOL, person=caller.person)
    person: Person | None = await context.intake.execute(command)
    return with_cookie(context, call, person, Response(status_code=204))


def with_cookie(context: Context, call: Call[Any, Any], person: Person | None, response: Response) -> Response:
    response.set_cookie(
        COOKIE,
        context.sessions.cookie(person, context.intake.now()),
        max_age=SESSION_SECONDS,
        path="/",
        secure=call.request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


async def log_out(context: Context, call: Call[LogoutQuery, Nothing]) -> Response:
    """The browser forgets its cookie; with `everywhere`, every session of the person ends."""
    assert call.caller is not None
    if call.query.everywhere and call.caller.person is not None:
        await context.execute(call, EndSessions(principal=ADMIN, protocol=PROTOCOL, name=call.caller.person))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response
