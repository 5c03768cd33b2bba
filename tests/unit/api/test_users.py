"""The routes about people: what they ask of the core, what they answer, and what they never show."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.test_refusals import assert_problem

from dragoman.core.commands.people import AddPerson, OfferLogin, RemovePerson, SetPersonRole, SetPersonToken
from dragoman.core.ids import ADMIN, SECOND
from dragoman.core.model.people import Person, Role
from dragoman.messages.faults import Kind, new_fault
from dragoman.security.tokens import token_hash

UNTIL = "2026-01-19T04:36:04Z"  # fifteen minutes after `make.now`


@pytest.fixture
def ann(make: Any) -> Person:
    return Person(id="ann", role=Role.OPERATOR, created_at=make.now)


def code_of(told: dict[str, Any]) -> str:
    path, _, code = told["login"].rpartition("/")
    assert (path, len(code)) == ("/login", 32)
    return str(code)


async def test_a_new_person_gets_a_link_whose_code_the_hub_keeps_as_a_hash(world: Any, make: Any, ann: Person) -> None:
    world.intake.script.update({AddPerson: ann, OfferLogin: ann})
    answer = await world.client.post("/api/v1/users", json={"name": "ann", "role": "operator"})
    told = answer.json()
    assert (answer.status_code, told) == (
        201, {"name": "ann", "role": "operator", "login": told["login"], "expires_at": UNTIL},
    )  # fmt: skip
    assert answer.headers["cache-control"] == "no-store"
    until = make.now + 900 * SECOND
    assert world.intake.asked == [
        AddPerson(principal=ADMIN, protocol="api", new=ann),
        OfferLogin(principal=ADMIN, protocol="api", name="ann", login_hash=token_hash(code_of(told)), until=until),
    ]


async def test_every_link_has_another_code(world: Any, ann: Person) -> None:
    world.intake.script[OfferLogin] = ann
    told = [(await world.client.post("/api/v1/users/ann/login")).json() for _ in range(3)]
    assert len({code_of(one) for one in told}) == 3


async def test_a_token_is_shown_once_and_kept_as_a_hash(world: Any, ann: Person) -> None:
    world.intake.script[SetPersonToken] = ann
    answer = await world.client.post("/api/v1/users/ann/token")
    token = answer.json()["token"]
    assert answer.json() == {"name": "ann", "role": "operator", "token": token}
    hashed = token_hash(token)
    assert world.intake.asked == [SetPersonToken(principal=ADMIN, protocol="api", name="ann", token_hash=hashed)]


async def test_people_are_listed_by_name_without_any_hash(world: Any, make: Any) -> None:
    for name, fields in (
        ("zoe", {}),
        ("ann", {"token_hash": "t" * 64, "login_hash": "l" * 64, "last_login": make.now}),
    ):
        world.intake.people[name] = Person(id=name, role=Role.VIEWER, created_at=make.now, **fields)
    answer = await world.client.get("/api/v1/users")
    at = "2026-01-19T04:21:04Z"
    assert answer.json() == {
        "users": [
            {"name": "ann", "role": "viewer", "created_at": at, "last_login": at, "has_token": True},
            {"name": "zoe", "role": "viewer", "created_at": at, "last_login": None, "has_token": False},
        ]
    }


async def test_a_role_is_changed(world: Any, ann: Person) -> None:
    world.intake.script[SetPersonRole] = ann
    answer = await world.client.post("/api/v1/users/ann/role", json={"role": "operator"})
    assert (answer.status_code, answer.json()["role"]) == (200, "operator")
    asked = SetPersonRole(principal=ADMIN, protocol="api", name="ann", role=Role.OPERATOR)
    assert world.intake.asked == [asked]


async def test_a_person_is_removed(world: Any, ann: Person) -> None:
    world.intake.script[RemovePerson] = ann
    answer = await world.client.delete("/api/v1/users/Ann%20Lee")
    assert (answer.status_code, answer.content) == (204, b"")
    assert world.intake.asked == [RemovePerson(principal=ADMIN, protocol="api", name="Ann Lee")]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a" * 101}, "name"),
        ({"name": 7}, "name"),
        ({"name": "ann", "role": "king"}, "role"),
        ({"name": "ann", "token": "x"}, "token"),
    ],
)
async def test_a_malformed_person_is_refused_with_the_field(world: Any, body: Any, field: str) -> None:
    told = assert_problem(await world.client.post("/api/v1/users", json=body), 422, "invalid")
    assert (told["field"], world.intake.asked) == (field, [])


async def test_what_the_core_refuses_is_answered_with_what_to_do(world: Any) -> None:
    missing = new_fault(Kind.NOT_FOUND, "there is no user 'bob'", next="see `dragoman user ls`", field="name")
    world.intake.script.update(dict.fromkeys((RemovePerson, SetPersonToken, SetPersonRole, OfferLogin), missing))
    for method, path, body in (
        ("DELETE", "", None),
        ("POST", "/token", None),
        ("POST", "/login", None),
        ("POST", "/role", {"role": "viewer"}),
    ):
        answer = await world.client.request(method, f"/api/v1/users/bob{path}", json=body)
        told = assert_problem(answer, 404, "not_found")
        assert ("`dragoman user ls`" in told["detail"], told["next"]["command"]) == (True, "dragoman user ls")
    world.intake.script[AddPerson] = new_fault(Kind.CONFLICT, "the name 'bob' is taken", next="choose another")
    taken = assert_problem(await world.client.post("/api/v1/users", json={"name": "bob"}), 409, "conflict")
    assert taken["next"]["command"] == "dragoman user ls"
