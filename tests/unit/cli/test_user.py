"""`dragoman user`: what it asks of the hub, what it prints, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

OFFER = {"name": "ann", "role": "operator", "login": "/login/the-code", "expires_at": "2026-01-19T04:36:04Z"}
ANN = {"name": "ann", "role": "operator", "created_at": "2026-01-19T04:21:04Z", "last_login": None, "has_token": True}


def test_add_prints_only_the_link_on_stdout(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/users"] = (201, OFFER)
    ran = run("user", "add", "ann", "--role", "operator")
    assert (ran.code, ran.out) == (0, f"{hub.url}/login/the-code\n")
    assert ran.err.startswith("✓ ann is operator")
    assert "it counts once, until 2026-01-19T04:36:04Z" in ran.err
    assert hub.asked[0].body == {"name": "ann", "role": "operator"}


def test_a_person_is_a_viewer_unless_another_role_is_given(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/users"] = (201, {**OFFER, "role": "viewer"})
    assert run("user", "add", "ann").code == 0
    assert hub.asked[0].body == {"name": "ann", "role": "viewer"}


@pytest.mark.parametrize("command", [("add", "ann"), ("login", "ann")])
def test_a_program_gets_the_whole_link(hub: Any, run: Any, command: tuple[str, ...]) -> None:
    hub.answers["POST /api/v1/users"] = hub.answers["POST /api/v1/users/ann/login"] = (200, OFFER)
    ran = run("user", *command, "-o", "json")
    assert (ran.code, json.loads(ran.out)) == (0, {**OFFER, "login": f"{hub.url}/login/the-code"})


def test_another_link_for_another_browser(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/users/ann/login"] = (200, OFFER)
    ran = run("user", "login", "ann")
    assert (ran.code, ran.out) == (0, f"{hub.url}/login/the-code\n")


def test_a_token_is_shown_once_and_alone_on_stdout(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/users/ann/token"] = (200, {"name": "ann", "role": "operator", "token": "ab" * 16})
    ran = run("user", "token", "ann")
    assert (ran.code, ran.out) == (0, "ab" * 16 + "\n")
    assert "✓ the token of ann, shown this once" in ran.err


def test_a_role_is_changed(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/users/ann/role"] = (200, {**ANN, "role": "viewer"})
    ran = run("user", "role", "ann", "viewer")
    assert (ran.code, hub.asked[0].body, "✓ ann is viewer" in ran.err) == (0, {"role": "viewer"}, True)


@pytest.mark.parametrize(
    "command", [("add", "ann", "--role", "king"), ("role", "ann", "king"), ("role", "ann"), ("rm",)]
)
def test_a_role_that_does_not_exist_and_a_missing_name_are_not_left_to_the_hub(
    hub: Any, run: Any, command: tuple[str, ...]
) -> None:
    assert (run("user", *command).code, hub.asked) == (2, [])


def test_ls_shows_roles_tokens_and_logins(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/users"] = (200, {"users": [ANN, {**ANN, "name": "bob", "has_token": False}]})
    ran = run("user", "ls")
    heading, ann, bob = ran.out.splitlines()
    assert heading.split() == ["NAME", "ROLE", "TOKEN", "LAST", "LOGIN"]
    assert (ann.split(), bob.split()) == (["ann", "operator", "yes", "never"], ["bob", "operator", "no", "never"])
    assert "2 users" in ran.err


def test_no_people_yet_is_said_with_the_next_command(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/users"] = (200, {"users": []})
    ran = run("user", "ls")
    assert (ran.code, ran.err.rstrip().endswith("next: dragoman user add NAME --role operator")) == (0, True)


def test_rm(hub: Any, run: Any) -> None:
    hub.answers["DELETE /api/v1/users/ann"] = (204, None)
    ran = run("user", "rm", "ann")
    assert (ran.code, "✓ ann is removed" in ran.err) == (0, True)


def test_a_hostile_name_does_nothing_to_the_terminal_or_the_address(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/users"] = (200, {"users": [{**ANN, "name": "\x1b[31mann"}]})
    assert "\x1b" not in run("user", "ls").out
    before = len(hub.asked)
    assert run("user", "rm", "../agents/deployer").code != 0
    assert [one.path for one in hub.asked[before:]] == []


def test_a_refusal_is_a_sentence_and_an_exit_code(hub: Any, run: Any) -> None:
    detail = "This needs the role admin, and ann has the role viewer. Ask an admin for the role."
    hub.answers["POST /api/v1/users"] = (403, {"title": "Not allowed", "detail": detail, "kind": "forbidden"})
    ran = run("user", "add", "bob")
    assert (ran.code, "this needs the role admin, and ann has the role viewer" in ran.err.lower()) == (4, True)
