"""What people do on the dashboard, in a real browser, at a real hub with agents of two protocols."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Visit, go
from tests.browser.fleet import QUESTION, REFUSED, Fleet
from tests.support import chiffon
from tests.support.hubproc import HubProcess, until

Submit = Callable[..., str]


def row(page: Page, id: str) -> object:
    return page.locator(f'[data-testid=task-row][data-id="{id}"]')


def test_the_printed_link_logs_a_browser_in_once(hub: HubProcess, visit: Visit) -> None:
    with visit(None) as visitor:
        page = visitor.context.new_page()
        page.goto(hub.ready["login"])
        expect(page.get_by_test_id("verdict")).to_be_visible()
        expect(page.get_by_test_id("connection")).to_have_text("live")
        assert page.url == f"{hub.url}/"
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Or log in with a token")).to_be_visible()
    with visit(None) as visitor:
        page = visitor.context.new_page()
        answer = page.goto(hub.ready["login"])
        assert answer is not None
        assert answer.status == 401
        assert visitor.context.cookies() == []


def test_a_token_logs_in_by_the_form_and_a_wrong_one_does_not(hub: HubProcess, visit: Visit) -> None:
    with visit(None) as visitor:
        page = visitor.page()
        field = page.get_by_label("Or log in with a token")
        field.fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("no token of this hub")
        field.fill(hub.ready["admin_token"])
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_test_id("verdict")).to_be_visible()


def test_the_overview_says_what_waits_and_the_inbox_answers_it(page: Page, hub: HubProcess, submit: Submit) -> None:
    id = submit("deploy", service="web", ask=True)
    expect(page.get_by_test_id("verdict")).to_have_text(re.compile(r"\d+ agents? waits? for you"))
    page.get_by_role("navigation").get_by_role("link", name="Inbox").click()
    question = page.get_by_test_id("question").filter(has_text=QUESTION)
    expect(question).to_contain_text("deployer")
    expect(question.get_by_test_id("answer-option")).to_have_text(["yes", "no"])
    question.get_by_role("textbox", name="Note").fill("after the backup")
    question.get_by_test_id("answer-option").get_by_text("yes").click()
    expect(question).to_have_count(0)
    until(lambda: hub.status(id) == "completed", "the answer reached the agent")


def test_a_question_is_answered_in_own_words_on_the_page_of_its_task(
    page: Page, hub: HubProcess, submit: Submit
) -> None:
    id = submit("name", release="2.4.1")
    page.goto(f"{hub.url}/tasks/{id}")
    question = page.get_by_test_id("question")
    question.get_by_test_id("answer-text").fill("a quiet fix")
    question.get_by_test_id("answer-send").click()
    expect(question).to_have_count(0)
    expect(page.get_by_test_id("task-status")).to_contain_text("completed")
    assert hub.task(id)["result"] == {"release": "2.4.1", "name": "a quiet fix"}


def test_a_failed_task_says_why_shows_its_sequence_and_wire_and_is_retried(page: Page, hub: HubProcess) -> None:
    request = chiffon.work_request({"service": "web", "fails": True}, work_type="deploy", to_agent="deployer")
    assert hub.orchestrator("planner").send(request).status == 202
    page.goto(f"{hub.url}/tasks/{chiffon.task_of(request)}")
    expect(page.get_by_test_id("task-status")).to_contain_text("failed")
    expect(page.get_by_test_id("task-why")).to_contain_text("failed")
    expect(page.locator(".why")).to_contain_text(REFUSED)

    diagram = page.get_by_test_id("task-sequence")
    assert diagram.evaluate("element => element.tagName") == "svg"
    for lane in ("planner", "hub", "deployer"):
        expect(diagram.locator(".seq-head", has_text=lane)).to_have_count(1)
    diagram.get_by_role("button", name=re.compile("failed")).click()
    wire = page.get_by_test_id("task-wire")
    expect(wire.get_by_label("Received")).to_contain_text(REFUSED)
    expect(wire.get_by_label("The hub's form")).to_contain_text(REFUSED)
    expect(wire.get_by_label("Sent")).to_contain_text("work_result")
    expect(page).to_have_url(re.compile("step="))

    page.get_by_test_id("task-retry").click()
    expect(page.get_by_test_id("task-status")).to_contain_text("completed")
    expect(page.get_by_test_id("task-why")).to_contain_text("completed")


def test_a_running_task_is_cancelled(page: Page, hub: HubProcess, submit: Submit) -> None:
    id = submit("deploy", service="web", ask=True)
    page.goto(f"{hub.url}/tasks/{id}")
    expect(page.get_by_test_id("question")).to_be_visible()
    page.get_by_test_id("task-cancel").click()
    expect(page.get_by_test_id("task-status")).to_contain_text("cancelled")
    expect(page.get_by_test_id("question")).to_have_count(0)


def test_a_dead_letter_is_edited_and_redriven(page: Page, hub: HubProcess, submit: Submit) -> None:
    worker = hub.worker("gpu-1", "gpu")
    id = submit("train", "gpu-1", epochs=1000)
    while hub.status(id) != "failed":
        for message in worker.take(0.2):
            worker.send(chiffon.error(message, 5005, "the card has no memory left"))
    page.goto(f"{hub.url}/deadletters")
    letter = page.get_by_test_id("deadletter-row").filter(has_text="no memory left")
    letter.get_by_test_id("deadletter-edit").click()
    dialog = page.get_by_role("dialog")
    text = dialog.get_by_label("Input")
    expect(text).to_have_value(re.compile("1000"))
    text.fill("{")
    dialog.get_by_role("button", name="Redrive").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not JSON")
    text.fill(json.dumps({"epochs": 10}))
    dialog.get_by_role("button", name="Redrive").click()
    expect(dialog).to_have_count(0)
    expect(letter).to_have_count(0)
    again = worker.next()
    assert again["payload"]["parameters"] == {"epochs": 10}
    worker.send(chiffon.work_result(again))
    until(lambda: hub.status(id) == "completed", "redriven with the new input")


def test_filters_are_in_the_address_and_survive_a_reload(page: Page, hub: HubProcess, submit: Submit) -> None:
    one, other = submit("build", target="filters"), submit("deploy", service="filters")
    page.goto(f"{hub.url}/tasks")
    expect(row(page, other)).to_be_visible()
    page.get_by_label("Type", exact=True).fill("build")
    expect(row(page, other)).to_have_count(0)
    page.get_by_label("Status").select_option("completed")
    expect(page).to_have_url(re.compile(r"/tasks\?(?=.*type=build)(?=.*status=completed)"))
    page.reload()
    expect(row(page, one)).to_be_visible()
    expect(row(page, other)).to_have_count(0)
    expect(page.get_by_label("Type", exact=True)).to_have_value("build")
    expect(page.get_by_label("Status")).to_have_value("completed")
    page.get_by_role("button", name="Clear").click()
    expect(row(page, other)).to_be_visible()


def test_what_happens_appears_without_a_reload(page: Page, submit: Submit) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Tasks").click()
    expect(page.get_by_test_id("connection")).to_have_text("live")
    page.evaluate("window.reloaded = false")
    id = submit("build", target="live")
    expect(row(page, id).get_by_test_id("task-status")).to_have_text("completed")
    assert page.evaluate("window.reloaded") is False


def test_a_sequence_grows_while_the_task_runs(page: Page, hub: HubProcess, submit: Submit) -> None:
    id = submit("deploy", service="web", ask=True)
    page.goto(f"{hub.url}/tasks/{id}")
    steps = page.get_by_test_id("task-sequence").locator(".seq-step")
    expect(page.get_by_test_id("question")).to_be_visible()
    before = steps.count()
    page.get_by_test_id("answer-option").get_by_text("yes").click()
    expect(page.get_by_test_id("task-status")).to_contain_text("completed")
    until(lambda: steps.count() > before, "the sequence grew")


def test_the_page_goes_on_after_a_kill_of_the_hub(page: Page, hub: HubProcess, fleet: Fleet, submit: Submit) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Tasks").click()
    connection = page.get_by_test_id("connection")
    expect(connection).to_have_text("live")
    page.evaluate("window.reloaded = false")
    hub.kill()
    expect(connection).to_have_text("reconnecting")
    hub.return_to_its_port()
    expect(connection).to_have_text("live")
    id = submit("build", target="after the restart")
    expect(row(page, id)).to_be_visible()
    fleet.online()
    expect(row(page, id).get_by_test_id("task-status")).to_have_text("completed")
    assert page.evaluate("window.reloaded") is False


def test_the_keyboard_reaches_everything(page: Page, submit: Submit) -> None:
    submit("build", target="keys")
    keys = page.keyboard
    expect(page.get_by_test_id("verdict")).to_be_visible()
    keys.press("g")
    keys.press("t")
    expect(page).to_have_url(re.compile("/tasks$"))
    expect(page.get_by_test_id("task-row").first).to_be_visible()
    keys.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    keys.type("build")
    expect(page).to_have_url(re.compile("q=build"))
    keys.press("Escape")
    expect(page.locator("[data-search]")).not_to_be_focused()
    expect(page.get_by_test_id("task-row").filter(has_text="build").first).to_be_visible()
    keys.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keyboard")
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    keys.press("j")
    current = page.locator("[data-testid=task-row].current")
    expect(current).to_have_count(1)
    id = current.get_attribute("data-id")
    keys.press("Enter")
    expect(page).to_have_url(re.compile(f"/tasks/{id}"))
    keys.press("g")
    keys.press("i")
    expect(page).to_have_url(re.compile("/inbox$"))


def test_keys_pressed_while_a_list_is_read_move_when_its_rows_come(page: Page, submit: Submit) -> None:
    submit("build", target="early")
    submit("build", target="keys")
    go(page, "/tasks")
    keys, rows, held = page.keyboard, page.get_by_test_id("task-row"), list[Route]()
    expect(rows.nth(1)).to_be_visible()
    page.route("**/api/v1/tasks?*", lambda route: held.append(route))
    keys.press("/")
    with page.expect_request("**/api/v1/tasks?*q=build*"):
        keys.type("build")
    keys.press("Escape")
    expect(page.locator("[data-search]")).not_to_be_focused()
    expect(rows).to_have_count(0)
    keys.press("j")
    keys.press("j")
    page.unroute("**/api/v1/tasks?*")  # what is held goes on
    expect(rows.nth(1)).to_have_class(re.compile(r"\bcurrent\b"))
    expect(page.locator("[data-search]")).to_have_value("build")


def test_the_row_of_the_keyboard_stays_the_same_task_when_others_come_above(page: Page, submit: Submit) -> None:
    submit("build", target="below")
    go(page, "/tasks")
    expect(page.get_by_test_id("task-row").first).to_be_visible()
    page.keyboard.press("j")
    current = page.locator("[data-testid=task-row].current")
    expect(current).to_have_count(1)
    id = current.get_attribute("data-id")
    other = submit("build", target="above")
    expect(page.locator(f"[data-testid=task-row][data-id='{other}']")).to_be_visible()
    expect(current).to_have_attribute("data-id", str(id))


def test_the_overview_says_in_one_line_who_leads_a_cluster_and_nothing_on_a_single_hub(page: Page) -> None:
    expect(page.get_by_test_id("verdict")).to_be_visible()
    expect(page.get_by_test_id("cluster")).to_have_count(0)
    nodes = [
        {"name": name, "role": role, "http": "", "last_seen": ""} for name, role in (("a", "leader"), ("b", "standby"))
    ]

    def of_a_node(route: Route) -> None:
        answer = route.fetch()
        cluster = {"realm": "prod", "epoch": 7, "leader": "a", "nodes": nodes}
        route.fulfill(response=answer, json={**answer.json(), "cluster": cluster})

    page.route("**/api/v1/overview*", of_a_node)
    page.reload()
    expect(page.get_by_test_id("cluster")).to_have_text("a leads prod, epoch 7 · b stands by")
