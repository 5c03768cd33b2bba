"""Who asks: tokens, cookies and login links; and what a page of another site cannot do with a browser's cookie."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from tests.unit.api.test_refusals import assert_problem

from dragoman.api.routes import MANAGEMENT
from dragoman.api.sessions import ALGORITHM, AUDIENCE, COOKIE, SESSION_SECONDS, Sessions
from dragoman.core.commands import Cancel
from dragoman.core.commands.people import EndSessions, LogIn, RecordLogin
from dragoman.core.ids import ADMIN, SECOND, Instant
from dragoman.core.model.people import Person, Role
from dragoman.messages.faults import Fault, Kind
from dragoman.security.tokens import token_hash
from dragoman.server.asgi import Hosts

NOW = 1_768_796_464_000_000  # as `make.now`
ANN_TOKEN = "a11" * 10
CHANGES = {"Dragoman-Request": "1"}


@pytest.fixture
def ann(world: Any, make: Any) -> Person:
    return person(world, make, "ann", Role.OPERATOR, token_hash=token_hash(ANN_TOKEN), sessions=3)


def person(world: Any, make: Any, name: str, role: Role, **fields: Any) -> Person:
    made = Person(id=name, role=role, created_at=make.now, **fields)
    world.intake.people[name] = made
    return made


def cookie(world: Any, make: Any, person: Person | None) -> dict[str, str]:
    return {"Cookie": f"{COOKIE}={world.context.sessions.cookie(person, make.now)}"}


def address(path: str) -> str:
    for part in ("id", "name", "file", "code"):
        path = path.replace(f"{{{part}}}", "x")
    return path


# -- who it is -------------------------------------------------------------------------------------------------------


async def test_a_token_and_a_cookie_say_who_asks(world: Any, make: Any, ann: Person) -> None:
    asks = {
        "the admin token": {"Authorization": f"Bearer {make.token}"},
        "a person's token": {"Authorization": f"Bearer {ANN_TOKEN}"},
        "a person's cookie": cookie(world, make, ann),
        "the administrator's cookie": cookie(world, make, None),
    }
    seen = {how: (await world.stranger.get("/api/v1/me", headers=headers)).json() for how, headers in asks.items()}
    admin = {"name": "admin", "role": "admin"}
    named = {"name": "ann", "role": "operator"}
    assert seen == {
        "the admin token": admin, "a person's token": named, "a person's cookie": named,
        "the administrator's cookie": admin,
    }  # fmt: skip


async def test_a_wrong_token_is_not_saved_by_a_good_cookie(world: Any, make: Any, ann: Person) -> None:
    headers = {**cookie(world, make, ann), "Authorization": "Bearer wrong"}
    assert_problem(await world.stranger.get("/api/v1/me", headers=headers), 401, "unauthenticated")


async def test_the_role_is_that_of_the_person_now_not_that_of_the_login(world: Any, make: Any, ann: Person) -> None:
    headers = cookie(world, make, ann)
    person(world, make, "ann", Role.VIEWER, sessions=ann.sessions)
    assert (await world.stranger.get("/api/v1/me", headers=headers)).json()["role"] == "viewer"


# -- roles -----------------------------------------------------------------------------------------------------------

MANAGED = [route for route in MANAGEMENT if isinstance(route.auth, Role)]


def lower(than: Role) -> list[Role]:
    return [role for role in Role if not role.includes(than)]


@pytest.mark.parametrize(
    ("route", "role"),
    [(route, role) for route in MANAGED for role in lower(route.auth)],
    ids=lambda one: one.value if isinstance(one, Role) else f"{one.method} {one.path}",
)
async def test_a_lower_role_than_the_routes_is_refused(world: Any, make: Any, route: Any, role: Role) -> None:
    headers = {**cookie(world, make, person(world, make, "ann", role)), **CHANGES}
    answer = await world.stranger.request(route.method, address(route.path), headers=headers, content=b"not json")
    told = assert_problem(answer, 403, "forbidden")
    assert told["message"] == f"this needs the role {route.auth.value}, and ann has the role {role.value}"
    assert told["next"]["command"] == f"dragoman user role NAME {route.auth.value}"
    assert world.intake.asked == []
    noted = [(note.person, note.what) for note in world.intake.noted]
    assert noted == ([] if route.method == "GET" else [("ann", f"{route.method} {route.path}")])


def test_a_viewer_may_change_nothing_and_an_operator_nothing_about_the_hub() -> None:
    """The table of routes, read as a whole: what changes something needs an operator, and these an admin."""
    changing = {f"{route.method} {route.path}": route.auth for route in MANAGEMENT if route.method != "GET"}
    for_viewers = {name for name, role in changing.items() if role in (None, Role.VIEWER)}
    assert for_viewers == {"POST /api/v1/login", "POST /api/v1/logout"}
    about_the_hub = ("/api/v1/users", "/api/v1/keys", "/api/v1/backup", "/api/v1/policies")
    about_agents = ("/token", "/revoke", "POST /api/v1/agents", "DELETE /api/v1/agents/{id}")
    for name, role in changing.items():
        if name.partition(" ")[2].startswith(about_the_hub) or name.endswith(about_agents):
            assert role is Role.ADMIN, name
    readable = {route.path for route in MANAGEMENT if route.method == "GET" and route.auth is Role.ADMIN}
    assert readable == {"/api/v1/users", "/api/v1/keys"}


async def test_what_a_person_does_carries_their_name(world: Any, make: Any, ann: Person) -> None:
    task = make.task()
    await world.put(task)
    world.intake.script[Cancel] = task
    headers = {"Authorization": f"Bearer {ANN_TOKEN}"}
    assert (await world.stranger.post(f"/api/v1/tasks/{task.id}/cancel", headers=headers)).status_code == 200
    [command] = world.intake.asked
    assert (command.principal, command.person) == (ADMIN, "ann")
    refused = await world.stranger.post("/api/v1/tasks", headers=headers, json={"nonsense": 1})
    assert (refused.status_code, [note.person for note in world.intake.noted]) == (422, ["ann"])


# -- cookies that count no more ---------------------------------------------------------------------------------------


def forged(key: bytes, **claims: Any) -> str:
    whole = {"aud": AUDIENCE, "sub": "ann", "ses": f"{NOW}.3", "exp": 1 << 40, **claims}
    return jwt.encode({name: value for name, value in whole.items() if value is not None}, key, ALGORITHM)


def unsigned(claims: dict[str, Any]) -> str:
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


async def refuses(world: Any, value: str) -> bool:
    answer = await world.stranger.get("/api/v1/me", headers={"Cookie": f"{COOKIE}={value}"})
    if answer.status_code == 401:
        assert answer.json()["kind"] == "unauthenticated"
        assert len(value) < 9 or value not in answer.text
    return bool(answer.status_code == 401)


async def test_a_forged_cookie_is_none(world: Any, make: Any, ann: Person) -> None:
    key = world.context.sessions._key
    good = world.context.sessions.cookie(ann, make.now)
    assert not await refuses(world, good)
    assert not await refuses(world, forged(key))  # as the hub makes them
    head, claims, signature = good.split(".")
    other = base64.urlsafe_b64encode(json.dumps({"sub": "admin", "aud": AUDIENCE, "exp": 1 << 40, "ses": 0}).encode())
    for value in (
        "", "x", "a.b.c", forged(b"another key" * 4), forged(make.token.encode()), unsigned({"sub": "admin"}),
        unsigned({"sub": "admin", "aud": AUDIENCE, "exp": 1 << 40, "ses": 0}),
        f"{head}.{other.rstrip(b'=').decode()}.{signature}", f"{head}.{claims}.",
        f"{head}.{claims}.{signature[:-4]}AAAA",
    ):  # fmt: skip
        assert await refuses(world, value), value


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "agents"}, {"aud": None}, {"sub": None}, {"exp": None}, {"ses": None}, {"sub": "bob"},
        {"ses": f"{NOW}.2"}, {"ses": f"{NOW}.4"}, {"ses": 3}, {"exp": 1}, {"exp": "soon"}, {"sub": ["ann"]},
        {"sub": {}}, {"sub": 7},
    ],
    ids=str,
)  # fmt: skip
async def test_a_cookie_of_other_claims_is_none(world: Any, ann: Person, claims: dict[str, Any]) -> None:
    assert await refuses(world, forged(world.context.sessions._key, **claims))


async def test_a_cookie_ends_after_fourteen_days(world: Any, make: Any, ann: Person) -> None:
    for age, ended in ((SESSION_SECONDS - 1, False), (SESSION_SECONDS, True)):
        value = world.context.sessions.cookie(ann, Instant(make.now - age * SECOND))
        assert await refuses(world, value) is ended


async def test_a_cookie_ends_with_the_person_and_with_their_sessions(world: Any, make: Any, ann: Person) -> None:
    value = world.context.sessions.cookie(ann, make.now)
    person(world, make, "ann", Role.ADMIN, sessions=ann.sessions + 1)  # a new token, or logged out everywhere
    assert await refuses(world, value)
    del world.intake.people["ann"]
    assert await refuses(world, value)


async def test_another_person_of_the_same_name_does_not_revive_a_cookie(world: Any, make: Any) -> None:
    value = world.context.sessions.cookie(person(world, make, "ann", Role.VIEWER), make.now)
    world.intake.people["ann"] = Person(id="ann", role=Role.ADMIN, created_at=Instant(make.now + 1))
    assert await refuses(world, value)


def test_a_new_admin_token_ends_every_session_and_a_restart_none(make: Any) -> None:
    ann = Person(id="ann", role=Role.VIEWER, created_at=make.now)
    first, again, other = (Sessions(token, lambda: {"ann": ann}, Hosts()) for token in ("one", "one", "two"))
    for person in (ann, None):
        value = first.cookie(person, make.now)
        assert again._of_cookie(value, make.now) is not None
        assert other._of_cookie(value, make.now) is None


async def test_a_removed_persons_token_is_none(world: Any, ann: Person) -> None:
    del world.intake.people["ann"]
    answer = await world.stranger.get("/api/v1/me", headers={"Authorization": f"Bearer {ANN_TOKEN}"})
    assert_problem(answer, 401, "unauthenticated")


# -- pages of other sites --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "route",
    [route for route in MANAGED if route.method != "GET"],
    ids=lambda route: f"{route.method} {route.path}",
)
async def test_a_change_by_cookie_needs_the_header(world: Any, make: Any, route: Any) -> None:
    answer = await world.stranger.request(
        route.method, address(route.path), headers=cookie(world, make, None), content=b"{}"
    )
    assert "Dragoman-Request" in assert_problem(answer, 403, "forbidden")["message"]
    assert world.intake.asked == []


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://hub:81", "http://hub.evil.example", "null", "hub", ""]
)
async def test_a_change_by_cookie_from_another_origin_is_refused(world: Any, make: Any, origin: str) -> None:
    headers = {**cookie(world, make, None), **CHANGES, "Origin": origin}
    answer = await world.stranger.post("/api/v1/tasks", headers=headers, json={"type": "a"})
    assert "another site" in assert_problem(answer, 403, "forbidden")["message"]
    assert world.intake.asked == []


async def test_a_change_by_cookie_from_the_hubs_own_page_is_taken(world: Any, make: Any, ann: Person) -> None:
    headers = {**cookie(world, make, ann), **CHANGES, "Origin": "http://hub"}
    assert (await world.stranger.post("/api/v1/logout", headers=headers)).status_code == 204


async def test_a_token_needs_no_header_because_no_browser_sends_it_by_itself(world: Any, ann: Person) -> None:
    headers = {"Authorization": f"Bearer {ANN_TOKEN}", "Origin": "https://ci.example"}
    assert (await world.stranger.post("/api/v1/logout", headers=headers)).status_code == 204


async def test_a_page_of_another_site_does_not_log_a_browser_in(world: Any, make: Any) -> None:
    headers = {"Origin": "https://evil.example"}
    answer = await world.stranger.post("/api/v1/login", json={"token": make.token}, headers=headers)
    assert_problem(answer, 403, "forbidden")
    assert "set-cookie" not in answer.headers


async def test_no_answer_lets_another_site_read_it(world: Any, make: Any) -> None:
    for method, path in (("GET", "/api/v1/me"), ("OPTIONS", "/api/v1/tasks"), ("GET", "/")):
        headers = {**cookie(world, make, None), "Origin": "https://evil.example"}
        answer = await world.stranger.request(method, path, headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("name", ["token", "access_token", "code", COOKIE])
async def test_a_credential_in_the_query_is_none(world: Any, make: Any, ann: Person, name: str) -> None:
    for value in (make.token, ANN_TOKEN, world.context.sessions.cookie(ann, make.now)):
        assert_problem(await world.stranger.get("/api/v1/me", params={name: value}), 401, "unauthenticated")


# -- logging in and out ----------------------------------------------------------------------------------------------


def flags(answer: Any) -> set[str]:
    value, *rest = answer.headers["set-cookie"].split("; ")
    assert value.startswith(f"{COOKIE}=")
    return {one.lower() for one in rest}


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_cookie_is_for_this_site_and_not_for_scripts(world: Any, make: Any, scheme: str) -> None:
    world.intake.script[RecordLogin] = None
    answer = await world.stranger.post(f"{scheme}://hub/api/v1/login", json={"token": make.token})
    assert (answer.status_code, answer.content) == (204, b"")
    secure = {"secure"} if scheme == "https" else set()
    assert flags(answer) == {"httponly", "samesite=strict", "path=/", f"max-age={SESSION_SECONDS}"} | secure
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")


async def test_a_login_by_token_is_recorded_under_the_persons_name(world: Any, make: Any, ann: Person) -> None:
    world.intake.script[RecordLogin] = ann
    answer = await world.stranger.post("/api/v1/login", json={"token": ANN_TOKEN})
    assert answer.status_code == 204
    assert world.intake.asked == [RecordLogin(principal=ADMIN, protocol="api", person="ann")]
    headers = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    assert (await world.stranger.get("/api/v1/me", headers=headers)).json()["name"] == "ann"


async def test_a_login_by_a_wrong_token_is_a_strangers_refusal(world: Any) -> None:
    answer = await world.stranger.post("/api/v1/login", json={"token": "wrong-token"})
    assert_problem(answer, 401, "unauthenticated")
    [note] = world.intake.noted
    assert (note.principal, note.person, note.what) == ("anonymous", None, "POST /api/v1/login")
    assert "wrong-token" not in f"{note}{answer.text}"


async def test_a_persons_link_logs_in_and_goes_on_to_an_address_without_the_code(
    world: Any, make: Any, ann: Person
) -> None:
    world.intake.people["ann"] = Person(
        id="ann", role=ann.role, created_at=ann.created_at, sessions=3, login_hash=token_hash("the-code")
    )
    world.intake.script[LogIn] = ann
    answer = await world.stranger.get("/login/the-code")
    assert (answer.status_code, answer.headers["location"], answer.content) == (303, "/", b"")
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert {"httponly", "samesite=strict"} <= flags(answer)
    hashed = token_hash("the-code")
    assert world.intake.asked == [LogIn(principal=ADMIN, protocol="api", person="ann", login_hash=hashed)]
    world.intake.script[LogIn] = Fault(kind=Kind.UNAUTHENTICATED, message="this login link was used already")
    again = await world.stranger.get("/login/the-code")  # used in the meantime
    assert_problem_without(again, "the-code")


def assert_problem_without(answer: Any, code: str) -> None:
    assert (answer.status_code, answer.json()["instance"]) == (401, "/login/{code}")
    assert (code in answer.text, "set-cookie" in answer.headers) == (False, False)


async def test_the_link_that_the_hub_prints_logs_the_administrator_in_once(world: Any) -> None:
    world.intake.script[RecordLogin] = None
    code = world.context.sessions.offer_admin_login()
    first = await world.stranger.get(f"/login/{code}")
    assert first.status_code == 303
    headers = {"Cookie": first.headers["set-cookie"].partition(";")[0]}
    assert (await world.stranger.get("/api/v1/me", headers=headers)).json() == {"name": "admin", "role": "admin"}
    assert_problem_without(await world.stranger.get(f"/login/{code}"), code)


async def test_a_wrong_link_is_a_strangers_refusal(world: Any, ann: Person) -> None:
    for code in ("wrong-code", "x" * 5000, "%00", "None"):
        answer = await world.stranger.get(f"/login/{code}")
        assert_problem_without(answer, code)
        assert answer.json()["next"]["command"] == "dragoman user login NAME"
    assert world.intake.asked == []
    assert {(note.principal, note.what) for note in world.intake.noted} == {("anonymous", "GET /login/{code}")}
    assert "wrong-code" not in str(world.intake.noted)


async def test_a_logout_removes_the_cookie_and_everywhere_ends_all_sessions(world: Any, make: Any, ann: Person) -> None:
    world.intake.script[EndSessions] = ann
    headers = {**cookie(world, make, ann), **CHANGES}
    here = await world.stranger.post("/api/v1/logout", headers=headers)
    assert (here.status_code, world.intake.asked) == (204, [])
    assert {"max-age=0", "httponly", "samesite=strict"} <= flags(here)
    assert (await world.stranger.post("/api/v1/logout?everywhere=1", headers=headers)).status_code == 204
    assert world.intake.asked == [EndSessions(principal=ADMIN, protocol="api", person="ann", name="ann")]


async def test_a_browser_that_opens_a_used_link_gets_a_page_that_says_what_to_do(world: Any) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = await world.stranger.get("/login/wrong-code", headers=browser)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "used already or is too old" in answer.text
    assert "dragoman user login NAME" in answer.text
    assert ("wrong-code" in answer.text, "set-cookie" in answer.headers) == (False, False)


async def test_a_mistyped_address_is_a_page_for_a_browser_and_a_problem_for_a_script(world: Any) -> None:
    page = await world.stranger.get('/taskz"><script>alert(1)</script>', headers={"Accept": "text/html"})
    assert (page.status_code, "There is no such page" in page.text, "alert" in page.text) == (404, True, False)
    assert (await world.stranger.get("/taskz")).json()["status"] == 404
    below_the_api = await world.stranger.get("/api/v1/tasks", headers={"Accept": "text/html"})
    assert below_the_api.json()["status"] == 401
