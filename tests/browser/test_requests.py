"""What a page asks of the hub: one request for a view, and one stream for all of them."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from playwright.sync_api import expect

from tests.browser.conftest import Visit, go
from tests.support.hubproc import HubProcess, until

VIEWS = (
    "/inbox", "/tasks", "/tasks?status=failed&protocol=forge&q=web", "/tasks/{task}", "/agents", "/agents/builder",
    "/deadletters", "/contracts", "/playground", "/wire", "/audit", "/",
)  # fmt: skip

ICON = "/favicon.svg"
"""Under Playwright's routes nothing is kept, and the browser looks for the icon of every address."""


def test_every_view_is_one_request_beside_the_one_stream(
    visit: Visit, hub: HubProcess, submit: Callable[..., str]
) -> None:
    task = submit("build", target="web")
    until(lambda: hub.status(task) == "completed", "the task is over, so nothing changes while views are counted")
    with visit() as visitor:
        page = visitor.page("/")
        expect(page.get_by_test_id("connection")).to_have_text("live")
        expect(page.get_by_test_id("verdict")).to_be_visible()
        streams = [one.url for one in visitor.requests if urlsplit(one.url).path == "/api/v1/events"]
        assert len(streams) == 1
        asked = {}
        for view in VIEWS:
            visitor.requests.clear()
            go(page, view.replace("{task}", task))
            asked[view] = [path for one in visitor.requests if (path := urlsplit(one.url).path) != ICON]
        assert {view: paths for view, paths in asked.items() if len(paths) > 1} == {}
        assert "/api/v1/events" not in [path for paths in asked.values() for path in paths]
