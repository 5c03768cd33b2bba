"""One hub, one fleet and one Chromium for the directory; every test has a browser profile of its own.

Whatever a test does, its pages must not break a rule that holds for all: no script error, no violation of the page's
own security policy, no dialog, and no request to another origin than the hub's. `Visitor` counts them; `visit` asserts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from tests.browser.fleet import Fleet
from tests.support.chiffon import HttpClient
from tests.support.hubproc import HubProcess, running

CHROMIUM = shutil.which("chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PATIENCE = 20_000
"""Milliseconds that anything on a page may take on a busy machine."""

VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


GO = """async (path) => {
  history.pushState(null, "", path);
  dispatchEvent(new PopStateEvent("popstate"));
  for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
}"""


def go(page: Page, path: str) -> None:
    """To another view as a click on a link goes there, without loading the page again; until it has read its data."""
    page.evaluate(GO, path)
    expect(page.locator("main h1")).to_be_visible()
    expect(page.get_by_text("Reading…")).to_have_count(0)


@pytest.fixture(scope="package")
def hub(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """After the browser: without one there is nothing to try."""
    with running(tmp_path_factory.mktemp("hub")) as hub:
        yield hub
        assert "Traceback" not in hub.log.read_text()


@pytest.fixture(scope="package")
def fleet(hub: HubProcess) -> Iterator[Fleet]:
    fleet = Fleet(hub)
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


class Visitor:
    """A browser profile, and what its pages did that no page of the dashboard may do."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.foreign: list[str] = []
        self.requests: list[Request] = []
        context.set_default_timeout(PATIENCE)
        context.add_init_script(VIOLATIONS)
        context.on("page", self._watch)
        context.on("request", lambda request: self.requests.append(request))
        context.route(lambda address: not address.startswith((f"{url}/", "data:")), self._block)

    def page(self, path: str = "/") -> Page:
        page = self.context.new_page()
        page.goto(f"{self.url}{path}")
        return page

    def log_in(self, token: str) -> None:
        """By the cookie that the page's own login form gets."""
        answer = HttpClient(self.url).post("/api/v1/login", {"token": token})
        assert answer.status == 204, answer
        name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
        self.context.add_cookies([{"name": name, "value": value, "url": self.url}])

    def check(self) -> None:
        """No page broke a rule."""
        violations = [one for page in self.context.pages for one in page.evaluate("window.violations ?? []")]
        assert (self.errors, self.dialogs, self.foreign, violations) == ([], [], [], [])

    def _watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", self._dismiss)

    def _dismiss(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def _block(self, route: Any) -> None:
        self.foreign.append(route.request.url)
        route.abort()


Visit = Callable[..., Any]


@pytest.fixture
def visit(browser: Browser, hub: HubProcess) -> Visit:
    """`with visit(token) as visitor`: the admin, unless there is a token; None is nobody. Options are Playwright's."""

    @contextmanager
    def visiting(token: str | None = "", **options: Any) -> Iterator[Visitor]:
        context = browser.new_context(viewport={"width": 1440, "height": 900}, **options)
        visitor = Visitor(context, hub.url)
        try:
            if token is not None:
                visitor.log_in(token or hub.ready["admin_token"])
            yield visitor
            visitor.check()
        finally:
            context.close()

    return visiting


@pytest.fixture
def page(visit: Visit, fleet: Fleet) -> Iterator[Page]:
    """The overview, as the admin sees it."""
    with visit() as visitor:
        yield visitor.page()


@pytest.fixture
def submit(hub: HubProcess, fleet: Fleet) -> Callable[..., str]:
    """`submit("build", target="web")` gives an agent work through the API, and gives the id of the task."""

    def submitted(work: str, agent: str | None = None, **input: Any) -> str:
        agent = agent or {"deploy": "deployer"}.get(work, "builder")
        made = hub.admin.post("/api/v1/tasks", {"type": work, "agent": agent, "input": input})
        assert made.status in (201, 202), made
        return str(made.json["id"])

    return submitted
