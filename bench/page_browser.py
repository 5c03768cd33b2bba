"""What a reader of the dashboard sees, in a real Chromium through Playwright, with a large store behind the page.

page-open      from the navigation to the first paint, and to the first row that answers a key
page-views     requests of each view beside the stream
page-scroll    frames while a long list scrolls, beside those of an empty page
page-change    from the commit of a change to the page showing it, under a stream of other events
page-heap      the page's heap after forced collections, in the middle and at the end of such a stream
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec
from playwright.sync_api import Browser, BrowserContext, CDPSession, sync_playwright

from bench import procs
from bench.figures import Figure, Settings, percentile
from bench.hub import Bystanders, uuid4
from bench.load import Order
from bench.page import OPENED, Reader, stored

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
EVENTS_A_TASK = 3
EVENTS_A_SECOND = 1000
PROBES = 30
VIEWS = (
    "/", "/inbox", "/tasks", "/tasks/{task}", "/agents", "/agents/ops-chiffon", "/deadletters", "/contracts",
    "/playground", "/wire", "/audit",
)  # fmt: skip

FRAMES = """(seconds) => new Promise((resolve) => {
  const list = document.querySelector(".list-frame");
  let frames = 0, step = 400;
  const begun = performance.now();
  const next = (now) => {
    frames += 1;
    if (list) {
      if (list.scrollTop + list.clientHeight >= list.scrollHeight - 1) step = -400;
      if (list.scrollTop <= 0) step = 400;
      list.scrollTop += step;
    }
    if (now - begun < 1000 * seconds) requestAnimationFrame(next);
    else resolve(frames / (now - begun) * 1000);
  };
  requestAnimationFrame(next);
})"""
TO_THE_END = """([wanted, seconds]) => new Promise((resolve) => {
  const list = document.querySelector(".list-frame"), begun = performance.now();
  const rows = () => Number(document.querySelector("[aria-rowcount]").getAttribute("aria-rowcount"));
  const next = (now) => {
    list.scrollTop = list.scrollHeight;
    if (rows() >= wanted || now - begun > 1000 * seconds) resolve(rows());
    else requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})"""
SEEN = """window.seen = {};
new MutationObserver(() => {
  for (const row of document.querySelectorAll("[data-testid=task-row]"))
    if (["cancelled", "failed"].includes(row.dataset.status)) window.seen[row.dataset.id] ??= Date.now();
}).observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});"""
GO = """async (path) => {
  history.pushState(null, "", path);
  dispatchEvent(new PopStateEvent("popstate"));
}"""


def measure(settings: Settings) -> Iterable[Figure]:
    minutes = float(os.environ.get("MINUTES", "0.5" if settings.quick else "10"))
    tasks = 20_000 if settings.quick else OPENED
    with stored(settings, tasks) as (proc, ready), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield opened(browser, ready, 3 if settings.quick else 10)
        yield views(browser, ready)
        yield scrolled(browser, ready, tasks, settings, minutes)
        with busy(proc, ready, 60 * minutes + 120) as rate:
            yield changed(browser, ready, rate)
            yield heap(browser, ready, rate, minutes)
        browser.close()


def context_of(browser: Browser, ready: dict[str, Any]) -> BrowserContext:
    """Somebody who is logged in."""
    import http.client

    place = urlsplit(ready["http"])
    connection = http.client.HTTPConnection(place.hostname or "", place.port)
    body = msgspec.json.encode({"token": ready["admin_token"]})
    connection.request("POST", "/api/v1/login", body, {"content-type": "application/json"})
    name, _, value = (connection.getresponse().headers["set-cookie"] or "").partition(";")[0].partition("=")
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(60_000)
    context.add_cookies([{"name": name, "value": value, "url": ready["http"]}])
    return context


def opened(browser: Browser, ready: dict[str, Any], turns: int) -> Figure:
    """Each time with a new profile, so that nothing is cached."""
    paints, answers = [], []
    for _ in range(turns):
        context = context_of(browser, ready)
        page = context.new_page()
        page.goto(f"{ready['http']}/tasks", wait_until="commit")
        page.locator("[data-testid=task-row]").first.wait_for()
        page.keyboard.press("j")
        page.locator(".tasks-grid.current").wait_for()
        answers.append(page.evaluate("performance.now()"))
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        context.close()
    print(
        f"  first paints {[round(one) for one in paints]}, interactive {[round(one) for one in answers]}",
        file=sys.stderr,
    )
    extra = {"paint_ms": statistics.median(paints), "interactive_ms": statistics.median(answers)}
    return Figure(suite="page-open", operations=turns, extra=extra)


def views(browser: Browser, ready: dict[str, Any]) -> Figure:
    """From view to view, as a click on a link goes."""
    context = context_of(browser, ready)
    page = context.new_page()
    page.goto(f"{ready['http']}/tasks")
    task = page.locator("[data-testid=task-row]").first.get_attribute("data-id")
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    most = 0
    for view in VIEWS:
        asked.clear()
        page.evaluate(GO, view.replace("{task}", task or ""))
        page.wait_for_timeout(1000)
        own = [url for url in asked if "/api/" in url and "/api/v1/events" not in url]
        most = max(most, len(own))
        print(f"  {view}: {len(own)} {' '.join(urlsplit(url).path for url in own)}", file=sys.stderr)
    context.close()
    return Figure(suite="page-views", operations=len(VIEWS), extra={"most": float(most)})


def scrolled(browser: Browser, ready: dict[str, Any], rows: int, settings: Settings, minutes: float) -> Figure:
    """Rows come a hundred at a time, as the end comes near: first all of them, then the list is scrolled."""
    context = context_of(browser, ready)
    page, empty = context.new_page(), context.new_page()
    page.bring_to_front()
    page.goto(f"{ready['http']}/tasks")
    page.locator("[data-testid=task-row]").first.wait_for()
    there = page.evaluate(TO_THE_END, [rows, min(600.0, 60 * minutes)])
    tools = context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    shares, found, spent = [], [], []
    for _ in range(max(3, settings.repeats)):
        page.bring_to_front()
        before = used(tools)
        found.append(page.evaluate(FRAMES, settings.seconds))
        spent.append(1000 * (used(tools) - before) / max(1.0, found[-1] * settings.seconds))
        empty.bring_to_front()
        shares.append(found[-1] / empty.evaluate(FRAMES, settings.seconds))
    context.close()
    extra = {
        "ratio": statistics.median(shares),
        "frames": statistics.median(found),
        "cpu_ms": statistics.median(spent),
        "rows": float(there),
    }
    return Figure(suite="page-scroll", operations=len(shares), extra=extra)


def used(tools: CDPSession) -> float:
    """CPU seconds of the page's main thread."""
    metrics = {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


@contextmanager
def busy(proc: procs.Proc, ready: dict[str, Any], seconds: float) -> Iterator[Callable[[], float]]:
    """Tasks that make a thousand events a second, as far as the machine does; gives the rate of events of the hub."""
    options = {**Bystanders.cast(proc, ready, 4, 4), "size": 700, "rate": EVENTS_A_SECOND / EVENTS_A_TASK}
    order = Order(
        scenario="bench.page_load:PacedWs", options=options, suite="busy", in_flight=32, seconds=seconds, warmup=0
    )
    with procs.python("bench.load", msgspec.json.encode(order).decode()):
        began = time.monotonic()

        def finished() -> float:
            reader = Reader(ready)  # a connection that rested for a minute is closed
            try:
                return float(reader.get("/overview")["counts"]["completed"])
            finally:
                reader.close()

        before = finished()

        def rate() -> float:
            return EVENTS_A_TASK * (finished() - before) / (time.monotonic() - began)

        yield rate


def changed(browser: Browser, ready: dict[str, Any], rate: Callable[[], float]) -> Figure:
    """A person cancels tasks that nobody took; the hub says when that was committed, and the page when it showed it."""
    context = context_of(browser, ready)
    page = context.new_page()
    page.goto(f"{ready['http']}/tasks?type={submit(ready, PROBES)}")
    page.locator("[data-testid=task-row]").nth(min(PROBES, 15) - 1).wait_for()
    page.evaluate(SEEN)
    rows = page.locator("[data-testid=task-row][data-status=queued]").all()
    ids = [row.get_attribute("data-id") or "" for row in rows][:PROBES]
    for id in ids:
        with contextlib.suppress(RuntimeError):  # the hub gave it up meanwhile, which is a change as good
            ask(ready, f"/tasks/{id}/cancel")
        page.wait_for_timeout(150)
    page.wait_for_function("(ids) => ids.every((id) => window.seen[id])", arg=ids)
    seen = page.evaluate("window.seen")
    reader = Reader(ready)
    committed = {id: datetime.fromisoformat(reader.get(f"/tasks/{id}")["updated_at"]).timestamp() * 1000 for id in ids}
    reader.close()
    late = sorted(seen[id] - committed[id] for id in ids)
    context.close()
    return Figure(
        suite="page-change",
        p50=1000 * percentile(late, 0.5),
        p99=1000 * percentile(late, 0.99),
        operations=len(late),
        extra={"p50_ms": percentile(late, 0.5), "p90_ms": percentile(late, 0.9), "events": rate()},
    )


def heap(browser: Browser, ready: dict[str, Any], rate: Callable[[], float], minutes: float) -> Figure:
    context = context_of(browser, ready)
    page = context.new_page()
    page.goto(f"{ready['http']}/")
    tools = context.new_cdp_session(page)
    page.wait_for_timeout(min(30_000, 15_000 * minutes))  # what a view keeps at most is there by then
    sizes = []
    for _ in range(12):
        page.wait_for_timeout(60_000 * minutes / 12)
        tools.send("HeapProfiler.collectGarbage")
        sizes.append(tools.send("Runtime.getHeapUsage")["usedSize"] / 1e6)
    print(f"  heap {[round(one, 2) for one in sizes]} MB", file=sys.stderr)
    context.close()
    first, last = statistics.median(sizes[:4]), statistics.median(sizes[-4:])
    extra = {"ratio": last / first, "mb": last, "minutes": minutes, "events": rate()}
    return Figure(suite="page-heap", operations=len(sizes), extra=extra)


def submit(ready: dict[str, Any], count: int) -> str:
    """Tasks for an agent that never comes; gives their type."""
    kind = f"nobody-{uuid4()[:8]}"
    ask(ready, "/agents", {"agent_id": kind, "protocol": "chiffon", "kind": kind})
    for n in range(count):
        ask(ready, "/tasks", {"type": kind, "kind": kind, "input": {"n": n}})
    return kind


def ask(ready: dict[str, Any], path: str, body: Any = None) -> Any:
    import http.client

    place = urlsplit(ready["http"])
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    headers = {"authorization": f"Bearer {ready['admin_token']}", "content-type": "application/json"}
    connection.request("POST", f"/api/v1{path}", msgspec.json.encode(body or {}), headers)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status >= 300:
        raise RuntimeError(f"{path}: {answer.status} {said[:300]!r}")
    return msgspec.json.decode(said)
