"""Every page at the width of a phone, in light and in dark, and as a screen reader finds it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit, go
from tests.browser.fleet import Fleet
from tests.support.hubproc import HubProcess, until

PAGES = (
    "/", "/inbox", "/tasks", "/tasks/{id}", "/tasks/{id}?step=1", "/tasks/{id}?tab=output", "/tasks/{id}?tab=wire",
    "/tasks/{id}?tab=timeline", "/tasks/{id}?tab=details", "/agents", "/agents/deployer", "/deadletters", "/contracts",
    "/playground", "/wire", "/audit",
)  # fmt: skip

OVERFLOW = """() => {
  const page = document.documentElement;
  const clipped = "svg, pre, .cut, .scroll-x, .sequence-frame";
  const wide = [...document.querySelectorAll("main *")].filter((element) =>
    element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(clipped));
  return [page.scrollWidth - page.clientWidth, wide.map((element) => element.outerHTML.slice(0, 120)).slice(0, 3)];
}"""

FINDINGS = """async (rules) => {
  const found = await axe.run({ resultTypes: ["violations"], ...(rules ? { runOnly: rules } : {}) });
  return found.violations
    .filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).slice(0, 3).join(", ")}`);
}"""


@pytest.fixture(scope="module")
def task(hub: HubProcess, fleet: Fleet) -> str:
    """A task that waits for a person, with a name that is long and cannot be broken."""
    body = {"type": "deploy", "agent": "deployer", "input": {"service": "x" * 300, "ask": True}, "name": "y" * 200}
    id = str(hub.admin.post("/api/v1/tasks", body).json["id"])
    until(lambda: hub.status(id) == "waiting", "the question")
    return id


def of_the_keyboard(page: Page, axe: str, rules: list[str] | None) -> Any:
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    return page.evaluate(FINDINGS, rules)


def of_a_used_link(page: Page, axe: str, rules: list[str] | None) -> Any:
    page.goto("/login/used")
    page.evaluate(axe)
    return page.evaluate(FINDINGS, rules)


def of_the_login(page: Page, axe: str, rules: list[str] | None) -> Any:
    page.context.clear_cookies()
    page.goto("/")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.evaluate(axe)
    return page.evaluate(FINDINGS, rules)


OPENED = {"keyboard": of_the_keyboard, "used link": of_a_used_link, "login": of_the_login}
"""What is on no page of the navigation, in an order in which each can be opened."""


def each(page: Page, task: str, look: Callable[[], Any]) -> dict[str, Any]:
    """What `look` gives for every page."""
    seen = {}
    for path in PAGES:
        go(page, path.format(id=task))
        seen[path] = look()
    return seen


def test_no_page_is_wider_than_a_phone(visit: Visit, task: str) -> None:
    with visit() as visitor:
        page = visitor.page()
        expect(page.get_by_test_id("verdict")).to_be_visible()
        page.set_viewport_size({"width": 390, "height": 844})
        seen = each(page, task, lambda: page.evaluate(OVERFLOW))
    assert seen == {path: [0, []] for path in PAGES}


@pytest.mark.parametrize(("scheme", "rules"), [("light", None), ("dark", ["color-contrast"])], ids=["light", "dark"])
def test_axe_finds_nothing_serious(
    visit: Visit, hub: HubProcess, task: str, scheme: str, rules: list[str] | None
) -> None:
    """In dark, only colours are different."""
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    with visit(color_scheme=scheme, reduced_motion="reduce", base_url=hub.url) as visitor:
        page = visitor.page()
        expect(page.get_by_test_id("verdict")).to_be_visible()
        page.evaluate(axe)
        seen = each(page, task, lambda: page.evaluate(FINDINGS, rules))
        opened = {name: look(page, axe, rules) for name, look in OPENED.items()}
    assert (seen, opened) == ({path: [] for path in PAGES}, {name: [] for name in OPENED})


def test_light_and_dark_are_different_and_follow_the_system(visit: Visit) -> None:
    def colours(page: Page) -> list[int]:
        value: str = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return [int(part) for part in value.removeprefix("rgb(").removesuffix(")").split(",")]

    with visit(color_scheme="light") as visitor:
        page = visitor.page()
        expect(page.get_by_test_id("verdict")).to_be_visible()
        light = colours(page)
        page.emulate_media(color_scheme="dark")
        dark = colours(page)
    assert min(light) > 200
    assert max(dark) < 60
