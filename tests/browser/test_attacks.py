"""Attacks on the dashboard: text that wants to be a script, pages of other sites, and people who may only look.

Every page of a test is checked for script errors, violations of its own policy, dialogs and requests to elsewhere
(`conftest.Visitor`): here, any of them would mean that an attack got through.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Visit, go
from tests.e2e.a2acp.speaking import BROKER, INTENT, Speaker, dataset
from tests.support import chiffon
from tests.support.chiffon import Answer, HttpClient
from tests.support.hubproc import HubProcess, until

ATTACK = (
    "\"'><img src=x onerror=alert(1)><script>alert(2)</script><svg onload=alert(3)>"
    '<a href="javascript:alert(4)">x</a><link rel=stylesheet href=//evil.example/x.css>{{7*7}}'
)
SHORT = '"><img src=//evil.example/x onerror=alert(1)>'
"""For fields with a narrow limit."""

PAGES = (
    "/", "/inbox", "/tasks", "/tasks/{failed}", "/tasks/{failed}?step=0", "/tasks/{failed}?tab=output",
    "/tasks/{failed}?tab=wire", "/tasks/{failed}?tab=timeline", "/tasks/{failed}?tab=details", "/tasks/{asking}",
    "/tasks/{asking}?tab=details", "/agents", "/agents/mallory", "/agents/{spy}", "/playground?agent={spy}",
    "/deadletters", "/contracts", "/playground", "/wire", "/audit",
)  # fmt: skip


def marked(field: str) -> str:
    return f"{field} {ATTACK}"


class Planted:
    """What an agent and a caller left at the hub: the attack in every field that takes text from them."""

    def __init__(self, hub: HubProcess) -> None:
        worker = hub.worker("mallory", "mallory", work_types=[marked("task type"), SHORT], capabilities=[SHORT])
        request = chiffon.work_request(
            {"input": marked("input"), marked("key"): 1}, work_type=marked("task type"), to_agent="mallory",
            x_custom_fields={"extra": marked("extra")},
        )  # fmt: skip
        sent = hub.orchestrator("eve").send(request)
        assert sent.status == 202, sent
        self.failed = chiffon.task_of(request)
        message = worker.next()
        worker.send(chiffon.work_status(message, 40, output=marked("output")))
        failure = {"errors": [marked("log line")], "error_message": marked("error message")}
        worker.send(chiffon.work_result(message, marked("result"), exit_code=1, payload=failure))
        until(lambda: hub.status(self.failed) == "failed", "the failed task")

        body = {
            "type": SHORT, "name": marked("name")[:200], "description": marked("description"), "agent": "mallory",
            "input": {"x": marked("api input")}, "thread": marked("thread")[:200],
        }  # fmt: skip
        made = hub.admin.post("/api/v1/tasks", body)
        assert made.status in (201, 202), made
        self.asking = str(made.json["id"])
        message = worker.next()
        asked = {"question": marked("question"), "options": [SHORT, marked("option")], "timeout_seconds": 600}
        paused = chiffon.work_status(
            message, 50, status="paused", output=marked("step"), x_custom_fields={"question": asked}
        )
        sent = worker.send(paused)
        assert sent.status in (200, 202), sent
        until(lambda: hub.status(self.asking) == "waiting", "the question")

        # What the hub gives up: its reason is the agent's text.
        made = hub.admin.post("/api/v1/tasks", {"type": SHORT, "agent": "mallory", "input": {"x": ATTACK}})
        lost = str(made.json["id"])
        while hub.status(lost) != "failed":
            for message in worker.take(0.2):
                worker.send(chiffon.error(message, 5005, marked("reason"), limit_name=SHORT))

        # An agent that serves an intent, and ends the contract about it.
        schema = {**INTENT["input_schema"], "title": marked("schema")}
        spy, victim = Speaker(hub, "lab"), Speaker(hub, "lab", "write:datasets")
        spy.serve({**INTENT, "description": marked("offer"), "input_schema": schema})
        with spy.working(dataset(spy)):
            told = victim.shake_hands(spy, "provision")
        over = {"collaboration_id": told["collaboration_id"], "reason": marked("end")}
        assert spy.ask(BROKER, "terminate_collaboration", over)[0] == 200
        self.spy, self.contract = spy.id, str(told["contract"]["contract_id"])


@pytest.fixture(scope="module")
def planted(hub: HubProcess) -> Planted:
    return Planted(hub)


def test_text_of_agents_and_callers_is_shown_as_text_everywhere(
    visit: Visit, hub: HubProcess, planted: Planted
) -> None:
    shown = ""
    with visit() as visitor:
        page = visitor.page()
        expect(page.get_by_test_id("verdict")).to_be_visible()
        for path in PAGES:
            go(page, path.format(failed=planted.failed, asking=planted.asking, spy=planted.spy))
            for closed in page.locator("main details:not([open]) > summary").all():
                closed.click()
            shown += page.locator("body").inner_text() + "\n"
            elements = page.evaluate(
                "document.querySelectorAll('main img, main script, main link, main iframe').length"
            )
            assert elements == 0, path
            assert page.evaluate("document.querySelectorAll('a[href^=javascript]').length") == 0, path
        go(page, f"/contracts?open={planted.contract}")
        expect(page.get_by_role("dialog")).to_contain_text("Ended by")
        shown += page.get_by_role("dialog").inner_text() + "\n"
        page.goto(f"{hub.url}/deadletters")
        page.get_by_test_id("deadletter-row").filter(has_text="reason").get_by_test_id("deadletter-edit").click()
        expect(page.get_by_role("dialog")).to_contain_text(marked("reason"))
    texts = ("task type", "output", "result", "name", "description", "question", "option", "reason", "offer", "end")
    for field in texts:
        assert marked(field)[:150] in shown, field
    for field in ("input", "key", "extra", "error message", "log line", "api input", "schema"):
        assert json.dumps(marked(field))[1:150] in shown, field


def test_a_file_of_an_agent_is_never_a_page_of_the_hub(visit: Visit, hub: HubProcess) -> None:
    """A file that says it is HTML is downloaded, not shown: opened in place, its script would act as the person."""
    script = b"<script>alert(document.domain)</script>"
    name = quote('"><img src=x onerror=alert(1)>.html')
    headers = {"Content-Type": "text/html", "Dragoman-File-Name": name}
    made = hub.admin.ask("POST", f"/api/v1/files?name={name}", script, headers)
    assert made.status in (200, 201), made
    task = hub.admin.post("/api/v1/tasks", {"type": SHORT, "agent": "mallory", "attachments": [made.json["id"]]})
    assert task.status in (201, 202), task
    id = task.json["id"]
    with visit() as visitor:
        page = visitor.page(f"/tasks/{id}?tab=output")
        link = page.locator("main a[download]").first
        expect(link).to_contain_text("<img src=x")
        answer = hub.admin.get(str(link.get_attribute("href")))
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/tasks", "/tasks/x", "/inbox", "/audit", "/assets/app.js"])
def test_no_page_may_be_framed_or_sniffed(hub: HubProcess, path: str) -> None:
    headers = hub.admin.get(path).headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/login/used", "/nowhere"])
def test_no_page_about_a_refusal_may_be_framed_or_kept(hub: HubProcess, path: str) -> None:
    headers = hub.admin.get(path, Accept="text/html").headers
    assert headers["content-type"].startswith("text/html")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert (headers["x-frame-options"], headers["cache-control"]) == ("DENY", "no-store")


class Elsewhere:
    """A page of another origin on the same machine, which the person's browser is made to open."""

    def __init__(self, html: str) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(html.encode())

            def log_message(self, *_arguments: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def elsewhere(hub: HubProcess, planted: Planted) -> Iterator[Elsewhere]:
    place = Elsewhere(
        f"""<!doctype html><title>elsewhere</title>
<form id=f method=post action="{hub.url}/api/v1/tasks/{planted.failed}/retry" enctype="text/plain" target=frame>
<input name='{{"x":"' value='"}}'></form><iframe name=frame></iframe><iframe id=framed src="{hub.url}/tasks"></iframe>
<script>
async function attack() {{
  document.getElementById("f").submit();
  const tries = [["no-cors", {{}}], ["cors", {{}}], ["cors", {{ "Dragoman-Request": "1" }}]];
  const results = [];
  for (const [mode, headers] of tries) {{
    try {{
      const answer = await fetch("{hub.url}/api/v1/tasks/{planted.failed}/retry",
        {{ method: "POST", mode, headers, credentials: "include", body: "{{}}" }});
      results.push(answer.type);
    }} catch (error) {{ results.push("refused"); }}
  }}
  try {{ await (await fetch("{hub.url}/api/v1/tasks", {{ credentials: "include" }})).json(); results.push("read"); }}
  catch (error) {{ results.push("unreadable"); }}
  return results;
}}
</script>"""
    )
    yield place
    place.close()


def test_a_page_of_another_origin_changes_and_reads_nothing(
    browser: Browser, hub: HubProcess, planted: Planted, elsewhere: Elsewhere
) -> None:
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(hub.url)
        page.get_by_label("Or log in with a token").fill(hub.ready["admin_token"])
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_test_id("verdict")).to_be_visible()
        before = hub.task(planted.failed)
        answers: list[tuple[str, int]] = []
        context.on("response", lambda answer: answers.append((answer.request.method, answer.status)))
        page.goto(elsewhere.url)
        results = page.evaluate("attack()")
        assert results == ["opaque", "refused", "refused", "unreadable"]
        posts = [status for method, status in answers if method == "POST"]
        assert posts
        assert set(posts) <= {401, 403}, posts
        assert hub.task(planted.failed) == before
        assert "Tasks" not in page.frame_locator("#framed").locator("body").inner_text()
    finally:
        context.close()


def test_the_cookie_alone_changes_nothing(hub: HubProcess, planted: Planted) -> None:
    """Even from the same site, as another service on the same host would send it: the header is missing."""
    cookie = _cookie(hub, hub.ready["admin_token"])
    path = f"/api/v1/tasks/{planted.failed}/retry"
    assert HttpClient(hub.url).ask("POST", path, b"", {"Cookie": cookie}).status == 403
    for header in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert header.lower() in _login(hub, hub.ready["admin_token"]).headers["set-cookie"].lower()


def test_no_secret_is_in_an_address_a_referrer_the_storage_or_the_log(visit: Visit, hub: HubProcess) -> None:
    login = hub.admin.post("/api/v1/users", {"name": "olga", "role": "operator"}).json["login"]
    code = login.rpartition("/")[2]
    with visit(None) as visitor:
        page = visitor.page(login)
        expect(page.get_by_test_id("connection")).to_have_text("live")
        for path in ("/tasks", "/inbox"):
            page.goto(hub.url + path)
            expect(page.locator("h1").first).to_be_visible()
        cookie = visitor.context.cookies()[0]["value"]
        secrets = (code, cookie, hub.ready["admin_token"])
        assert not any(secret in request.url for request in visitor.requests[1:] for secret in secrets)
        assert [request.headers.get("referer") for request in visitor.requests if "referer" in request.headers] == []
        stored = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie, history.state])")
        assert not any(secret in stored for secret in secrets), stored
        assert page.evaluate("document.cookie") == ""
    log = hub.log.read_text()
    assert not any(secret in log for secret in (*secrets, hub.ready["login"].rpartition("/")[2]))


def test_a_viewer_sees_no_buttons_and_is_refused_by_hand(visit: Visit, hub: HubProcess, planted: Planted) -> None:
    hub.admin.post("/api/v1/users", {"name": "vera", "role": "viewer"})
    token = hub.admin.post("/api/v1/users/vera/token").json["token"]
    before = hub.task(planted.failed)
    with visit(token) as visitor:
        page = visitor.page(f"/tasks/{planted.failed}")
        expect(page.get_by_test_id("task-why")).to_be_visible()
        expect(page.get_by_text("vera · viewer")).to_be_visible()
        for button in ("task-retry", "task-cancel"):
            expect(page.get_by_test_id(button)).to_have_count(0)
        page.goto(f"{hub.url}/inbox")
        expect(page.get_by_test_id("question").first).to_be_visible()
        for field in ("answer-option", "answer-text", "answer-send"):
            expect(page.locator(f"[data-testid={field}]:enabled")).to_have_count(0)
        page.goto(f"{hub.url}/deadletters")
        expect(page.get_by_test_id("deadletter-row").first).to_be_visible()
        expect(page.locator("[data-testid=deadletter-redrive]:enabled")).to_have_count(0)
        letter = page.get_by_test_id("deadletter-row").first.get_attribute("data-id")
        question = hub.admin.get("/api/v1/questions?status=open").json["questions"][0]["id"]
        changes = (
            f"/tasks/{planted.failed}/retry", f"/tasks/{planted.asking}/cancel", f"/deadletters/{letter}/redrive",
            f"/questions/{question}/answer", "/tasks", "/agents", "/users", "/bulk/tasks",
            f"/contracts/{planted.contract}/renew", f"/tasks/{planted.asking}/handover",
        )  # fmt: skip
        by_hand = """async (paths) => {
          const statuses = [];
          for (const path of paths) {
            const headers = { "Content-Type": "application/json", "Dragoman-Request": "dashboard" };
            statuses.push((await fetch(`/api/v1${path}`, { method: "POST", headers, body: "{}" })).status);
          }
          return statuses;
        }"""
        assert page.evaluate(by_hand, changes) == [403] * len(changes)
    assert hub.task(planted.failed) == before
    assert HttpClient(hub.url, token).post(f"/api/v1/tasks/{planted.failed}/retry").status == 403


def _login(hub: HubProcess, token: str) -> Answer:
    return HttpClient(hub.url).post("/api/v1/login", {"token": token})


def _cookie(hub: HubProcess, token: str) -> str:
    return _login(hub, token).headers["set-cookie"].partition(";")[0]
