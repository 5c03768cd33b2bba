"""People at a hub's dashboard, from outside: links, cookies and tokens, tried again, forged, stolen or found."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from tests.security.test_secrets_and_traces import everything_kept
from tests.support.chiffon import Answer, HttpClient
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running

CHANGES = {"Dragoman-Request": "1"}


def cookie_of(answer: Answer) -> str:
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    assert name == "dragoman_session"
    return value


class Browser:
    """Sends its cookie with everything, as a browser does."""

    def __init__(self, hub: HubProcess, cookie: str) -> None:
        self.cookie = cookie
        self._door = HttpClient(hub.url)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        sent = {"Cookie": f"dragoman_session={self.cookie}", **headers}
        return self._door.ask(method, path, None if body is None else json.dumps(body).encode(), sent)


def logged_in(hub: HubProcess, name: str, role: str) -> tuple[Browser, str]:
    """A person with a role, logged in by their link, and the code of the link."""
    link = hub.admin.post("/api/v1/users", {"name": name, "role": role}).json["login"]
    return Browser(hub, cookie_of(HttpClient(hub.url).get(link))), link.rpartition("/")[2]


def records(hub: HubProcess, principal: str) -> list[tuple[str, str]]:
    found = hub.admin.get(f"/api/v1/audit?limit=500&principal={principal}").json["records"]
    return [(record["action"], record["outcome"]) for record in found]


def test_no_login_code_cookie_or_token_of_a_person_is_found_in_any_log_row_or_answer(hub: HubProcess) -> None:
    browser, code = logged_in(hub, "canary-ann", "admin")
    printed = hub.ready["login"].rpartition("/")[2]
    admin = Browser(hub, cookie_of(HttpClient(hub.url).get(f"/login/{printed}")))
    token = hub.admin.post("/api/v1/users/canary-ann/token").json["token"]
    by_token = cookie_of(HttpClient(hub.url).post("/api/v1/login", {"token": token}))
    unused = hub.admin.post("/api/v1/users/canary-ann/login").json["login"].rpartition("/")[2]
    wrong = "wrong-code-feedfacefeedface"
    seen: list[str] = []
    for answer in (
        HttpClient(hub.url).get(f"/login/{code}"),  # used
        HttpClient(hub.url).get(f"/login/{printed}"),
        HttpClient(hub.url).get(f"/login/{wrong}"),
        HttpClient(hub.url).post("/api/v1/login", {"token": wrong}),
        HttpClient(hub.url).get(f"/api/v1/me?token={token}"),
        browser.ask("GET", "/api/v1/me"),  # the token ended it
        admin.ask("POST", "/api/v1/tasks", {"type": token}),  # without the header
        admin.ask("POST", f"/api/v1/users/{unused}/login", {}, **CHANGES),
    ):
        assert answer.status in (401, 403, 404), answer
        seen.append(answer.body.decode())
    for path in ("/api/v1/users", "/api/v1/audit?limit=500", "/api/v1/audit/view", "/api/v1/overview", "/metrics", "/"):
        answer = admin.ask("GET", path)
        assert answer.status == 200, path
        seen.append(answer.body.decode())
    for command in (("user", "ls", "-o", "json"), ("audit", "query", "-o", "json"), ("doctor",)):
        said = dragoman(*command, hub=hub)
        seen += [said.out, said.err]

    named = unused  # as a name it was asked for: that is in the record, as any name is
    secrets = [code, printed, token, browser.cookie, admin.cookie, by_token, wrong]
    text = json.dumps(seen)
    assert [secret for secret in secrets if secret in text] == []
    for place, data in everything_kept(hub).items():
        assert [secret for secret in secrets if secret.encode() in data] == [], place
    assert named.encode() not in hub.log.read_bytes()
    with sqlite3.connect(f"file:{hub.data / 'hub.sqlite'}?mode=ro", uri=True) as store:
        [(kept,)] = store.execute("SELECT body FROM person WHERE id = 'canary-ann'").fetchall()
    assert set(json.loads(kept)) >= {"token_hash", "login_hash"}
    assert [secret for secret in (*secrets, unused) if secret in kept] == []


def test_a_login_link_is_good_once_also_after_the_hub_was_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(tmp_path_factory.mktemp("killed")) as hub:
        first, second = (
            hub.admin.post("/api/v1/users", {"name": name, "role": "viewer"}).json["login"] for name in ("ann", "bob")
        )
        browser = Browser(hub, cookie_of(HttpClient(hub.url).get(first)))
        printed = hub.ready["login"]
        hub.kill()
        hub.start()
        assert HttpClient(hub.url).get(first).status == 401
        assert HttpClient(hub.url).get(second).status == 303
        assert HttpClient(hub.url).get(second).status == 401
        assert HttpClient(hub.url).get(f"/login/{printed.rpartition('/')[2]}").status == 401  # it was for that hub only
        again = Browser(hub, browser.cookie)
        assert again.ask("GET", "/api/v1/me").json == {"name": "ann", "role": "viewer"}  # a restart ends no session


def test_a_viewer_changes_nothing_and_the_record_names_them(hub: HubProcess) -> None:
    hub.worker("viewed", "viewed")
    browser, _ = logged_in(hub, "vera", "viewer")
    assert browser.ask("GET", "/api/v1/agents/viewed").status == 200
    for method, path, body in (
        ("POST", "/api/v1/tasks", {"type": "x", "agent": "viewed"}),
        ("POST", "/api/v1/agents", {"agent_id": "mine", "protocol": "chiffon"}),
        ("DELETE", "/api/v1/agents/viewed", None),
        ("POST", "/api/v1/users/vera/role", {"role": "admin"}),
        ("POST", "/api/v1/users/vera/token", {}),
        ("POST", "/api/v1/keys/rotate", {}),
        ("POST", "/api/v1/backup", {"path": "/tmp/stolen"}),
    ):
        answer = browser.ask(method, path, body, **CHANGES)
        assert (answer.status, answer.json["kind"]) == (403, "forbidden"), path
        assert "vera has the role viewer" in answer.json["detail"]
    assert hub.admin.get("/api/v1/agents/viewed").status == 200
    done = records(hub, "vera")
    assert done.count(("user.login", "accepted")) == 1
    assert ("POST /api/v1/tasks", "refused") in done
    assert {outcome for action, outcome in done if action != "user.login"} == {"refused"}


def test_an_operator_acts_on_work_under_their_name_and_not_on_the_hub(hub: HubProcess) -> None:
    hub.worker("worked", "worked")
    browser, _ = logged_in(hub, "olga", "operator")
    task = browser.ask("POST", "/api/v1/tasks", {"type": "x", "agent": "worked"}, **CHANGES).json["id"]
    assert browser.ask("POST", f"/api/v1/tasks/{task}/cancel", {}, **CHANGES).json["status"] == "cancelled"
    assert browser.ask("DELETE", "/api/v1/agents/worked", None, **CHANGES).status == 403
    assert {("task.submit", "accepted"), ("task.cancel", "accepted")} <= set(records(hub, "olga"))


def test_a_page_of_another_site_gets_nothing_by_the_cookie_of_a_visitor(hub: HubProcess) -> None:
    browser, _ = logged_in(hub, "carl", "admin")
    evil = {"Origin": "https://evil.example"}
    for headers in ({}, evil, {**evil, **CHANGES}, {"Origin": "null", **CHANGES}):
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
            answer = browser.ask("POST", "/api/v1/users", {"name": "mallory"}, **{"Content-Type": kind, **headers})
            assert answer.status == 403, headers
    preflight = browser.ask(
        "OPTIONS", "/api/v1/users", None, **evil, **{"Access-Control-Request-Headers": "dragoman-request"}
    )
    assert not [name for name in preflight.headers if name.startswith("access-control")]
    assert "mallory" not in hub.admin.get("/api/v1/users").body.decode()


def test_removal_and_a_new_token_end_a_session_at_once(hub: HubProcess) -> None:
    browser, _ = logged_in(hub, "rita", "operator")
    assert browser.ask("GET", "/api/v1/me").status == 200
    hub.admin.post("/api/v1/users/rita/token")
    assert browser.ask("GET", "/api/v1/me").status == 401
    browser = Browser(hub, cookie_of(HttpClient(hub.url).get(hub.admin.post("/api/v1/users/rita/login").json["login"])))
    assert browser.ask("GET", "/api/v1/me").status == 200
    assert hub.admin.ask("DELETE", "/api/v1/users/rita").status == 204
    assert browser.ask("GET", "/api/v1/me").status == 401
    hub.admin.post("/api/v1/users", {"name": "rita", "role": "admin"})  # another rita
    assert browser.ask("GET", "/api/v1/me").status == 401


def test_guessing_links_fills_no_ones_record(hub: HubProcess) -> None:
    before = len(records(hub, "admin"))
    for number in range(60):
        assert HttpClient(hub.url).get(f"/login/guess-{number}").status == 401
    assert len(records(hub, "admin")) == before
    assert len([one for one in records(hub, "anonymous") if one[0] == "GET /login/{code}"]) <= 21
