"""The pictures of README.md and the documents: real pages of the demo, taken by Chromium. `make pictures` takes them.

    overview.png, inbox.png                   after some minutes of the demo, so that the plots have a past
    sequence-light.png, sequence-dark.png     one task over all protocols
    sequence.gif                              a smaller one, step by step

They are reduced to a palette: a page has few colours, and a picture in a repository is kept forever.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.browser.conftest import ARGUMENTS, CHROMIUM
from tests.support.chiffon import HttpClient
from tests.support.hubproc import until
from tests.support.nest import die_with_parent

PLACE = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SIZE = {"width": 1440, "height": 900}
NARROW = {"width": 1100, "height": 900}
LARGEST = {".png": 120_000, ".gif": 400_000}
"""Bytes that a picture may have."""

WORK: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("infra-1", "run_playbook", {"playbook": "site.yml"}),
    ("scribe", "write_report", {"topic": "backups"}),
    ("lab", "plan_study", {"ward": "sleep"}),
    ("code-1", "run_tests", {"suite": "unit"}),
    ("editor", "write_notes", {"release": "3.0.0"}),
    ("researcher", "research", {"content": "What do we know about latency?"}),
    ("infra-1", "check_host", {"host": "web-02"}),
)
PAUSE = 4.0
"""Seconds between two pieces of work that are given beside the planner's own."""
FRAME_MS, LAST_FRAME_MS = 700, 4000
EDGE = 6
"""Pixels of the card's lower edge, which would move as the diagram grows."""


@contextmanager
def demo() -> Iterator[dict[str, Any]]:
    """A hub with the demo, as `make run` starts it, on free ports with data of its own."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "dragoman.cli", "dev", "--demo", "--port", "0", "--ready-json"]
        command += ["--data", f"{home}/data"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=home, preexec_fn=die_with_parent)
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.wait(30)


def give(hub: HttpClient, work: tuple[str, str, dict[str, Any]]) -> str:
    agent, type, input = work
    made = hub.post("/api/v1/tasks", {"type": type, "agent": agent, "input": input})
    assert made.status in (201, 202), made
    return str(made.json["id"])


def keep_busy(hub: HttpClient, seconds: float) -> None:
    end = time.monotonic() + seconds
    for number, work in enumerate(itertools.cycle(WORK)):
        if time.monotonic() >= end:
            return
        give(hub, work)
        time.sleep(PAUSE * (0.5 if number // 12 % 3 == 1 else 1.0))


def logged_in(browser: Browser, ready: dict[str, Any], size: Any, scheme: Any) -> Page:
    page = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce").new_page()
    page.goto(ready["http"])
    page.get_by_label("Or log in with a token").fill(ready["admin_token"])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_test_id("verdict")).to_be_visible()
    expect(page.get_by_test_id("connection")).to_have_text("live")
    return page


def palette(image: Image.Image) -> Image.Image:
    """Pillow weighs colours by their area; `kmeans` keeps thin lines of different colours apart."""
    return image.quantize(256, Image.Quantize.MEDIANCUT, kmeans=4, dither=Image.Dither.NONE)


def keep(name: str, png: bytes) -> None:
    palette(Image.open(io.BytesIO(png)).convert("RGB")).save(PLACE / name, optimize=True)


def ship(page: Page, hub: HttpClient) -> str:
    """Answer the demo's question in the inbox, and see its release shipped: one task over all protocols."""
    page.get_by_test_id("question").first.get_by_test_id("answer-option").first.click()
    [id] = [task["id"] for task in hub.get("/api/v1/tasks?type=ship_release").json["tasks"]]
    until(lambda: hub.get(f"/api/v1/tasks/{id}").json["status"] == "completed", "the release")
    return str(id)


def report_of_the_planner(hub: HttpClient) -> str:
    """A finished task that is small enough for a film: chiffon, forge and coven."""
    found = hub.get("/api/v1/tasks?type=write_report&status=completed&limit=100").json["tasks"]
    return str(next(task["id"] for task in found if task["requested_by"] == "planner"))


def zoom_out(page: Page) -> None:
    """Until all lanes fit."""
    frame = page.locator(".sequence-frame")
    while frame.evaluate("frame => frame.scrollWidth > frame.clientWidth"):
        page.get_by_role("button", name="Zoom out").click()


def replay(page: Page, url: str, id: str) -> list[bytes]:
    """The diagram of a task after each of its steps: the page is given the task's sequence up to there."""
    shown, whole = 1, 1

    def shorten(route: Route) -> None:
        nonlocal whole
        answer = route.fetch()
        view = answer.json()
        steps = view["sequence"]["steps"]
        whole = len(steps)
        view["sequence"] |= {"steps": steps[:shown], "running": shown < whole}
        route.fulfill(response=answer, json=view)

    page.route(f"**/api/v1/tasks/{id}/view*", shorten)
    frames = []
    while shown <= whole:
        page.goto(f"{url}/tasks/{id}")
        expect(page.get_by_test_id("task-sequence").locator(".seq-step")).to_have_count(shown)
        frames.append(page.locator(".sequence-frame").screenshot())
        shown += 1
    return frames


def film(pngs: list[bytes]) -> None:
    """The frames on the canvas of the largest, in one palette."""
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png in pngs]
    images = [image.crop((0, 0, image.width, image.height - EDGE)) for image in images]
    size = max(image.width for image in images), max(image.height for image in images)
    colours = palette(images[-1])
    frames = []
    for image in images:
        canvas = Image.new("RGB", size, image.getpixel((size[0] // 2, image.height - 4)))
        canvas.paste(image)
        frames.append(canvas.quantize(palette=colours, dither=Image.Dither.NONE))
    durations = [FRAME_MS] * (len(frames) - 1) + [LAST_FRAME_MS]
    frames[0].save(
        PLACE / "sequence.gif", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True
    )


def take(minutes: float) -> None:
    PLACE.mkdir(exist_ok=True)
    with demo() as ready, sync_playwright() as playwright:
        hub = HttpClient(ready["http"], ready["admin_token"])
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        until(lambda: hub.get("/api/v1/questions?status=open").json["questions"], "the question of the demo")
        keep_busy(hub, minutes * 60)
        page = logged_in(browser, ready, SIZE, "light")
        expect(page.locator(".uplot").first).to_be_visible()
        keep("overview.png", page.screenshot())
        page.goto(f"{hub.url}/inbox")
        expect(page.get_by_test_id("question").first).to_be_visible()
        keep("inbox.png", page.screenshot())
        id = ship(page, hub)
        film(replay(logged_in(browser, ready, NARROW, "light"), hub.url, report_of_the_planner(hub)))
        for scheme in ("light", "dark"):
            page = logged_in(browser, ready, SIZE, scheme)
            page.goto(f"{hub.url}/tasks/{id}")
            expect(page.get_by_test_id("task-sequence")).to_be_visible()
            zoom_out(page)
            keep(f"sequence-{scheme}.png", page.screenshot())
        browser.close()
    for path in sorted(PLACE.iterdir()):
        print(f"{path.name:24} {path.stat().st_size / 1000:6.1f} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Take the pictures of the documents from a running demo.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the demo runs before [10]")
    take(parser.parse_args().minutes)
