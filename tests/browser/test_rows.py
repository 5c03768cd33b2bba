"""A click anywhere on a row of a list opens it; text, checkboxes, links and the middle button work as elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import go
from tests.e2e.a2acp.speaking import INTENT, Speaker, dataset
from tests.support import chiffon
from tests.support.hubproc import HubProcess, until

Submit = Callable[..., str]


def beside(row: Locator) -> None:
    """Click the right end of a row, where nothing is."""
    box = row.bounding_box()
    assert box is not None
    row.click(position={"x": box["width"] - 6, "y": box["height"] / 2})


def failed_in_the_press(hub: HubProcess, name: str) -> str:
    worker = hub.worker(name, name)
    id: str = hub.admin.post("/api/v1/tasks", {"type": "print", "agent": name}).json["id"]
    while hub.status(id) != "failed":
        for message in worker.take(0.2):
            worker.send(chiffon.error(message, 5005, "no paper is left"))
    return id


def test_a_click_beside_the_name_opens_the_row_of_each_list(page: Page, hub: HubProcess, submit: Submit) -> None:
    id = submit("build", target="row")
    until(lambda: hub.status(id) == "completed", "the task ended")
    failed = failed_in_the_press(hub, "press-row")
    ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
    bob.serve(INTENT)
    with bob.working(dataset(bob)):
        contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
    page.goto(f"{hub.url}/tasks")
    beside(page.locator(f'[data-testid=task-row][data-id="{id}"]'))
    expect(page).to_have_url(f"{hub.url}/tasks/{id}")
    page.go_back()
    expect(page).to_have_url(f"{hub.url}/tasks")
    go(page, "/agents")
    beside(page.locator("[data-testid=agent-row][data-id=builder]"))
    expect(page).to_have_url(f"{hub.url}/agents/builder")
    beside(page.locator(f'.agent-task:has(a[href="/tasks/{id}"])'))
    expect(page).to_have_url(f"{hub.url}/tasks/{id}")
    go(page, "/deadletters")
    beside(
        page.get_by_test_id("deadletter-row").filter(has=page.locator(f'a[href="/tasks/{failed}"]')).locator("p").first
    )
    expect(page.get_by_role("dialog")).to_contain_text("no paper is left")
    page.keyboard.press("Escape")
    go(page, "/contracts")
    page.locator(f'[data-testid=contract-row][data-id="{contract}"] [data-testid=contract-until]').click()
    expect(page.get_by_role("dialog")).to_contain_text("What")
    expect(page).to_have_url(f"{hub.url}/contracts?open={contract}")
    page.keyboard.press("Escape")
    go(page, "/audit")
    beside(page.get_by_test_id("audit-row").first)
    expect(page.get_by_role("dialog")).to_contain_text("Hash of the record before")
    page.keyboard.press("Escape")
    expect(page).to_have_url(f"{hub.url}/audit")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Hash of the record before")


def test_selecting_text_and_checkboxes_do_not_open_a_row(page: Page, hub: HubProcess, submit: Submit) -> None:
    id = submit("build", target="selected")
    page.goto(f"{hub.url}/tasks")
    row = page.locator(f'[data-testid=task-row][data-id="{id}"]')
    row.get_by_role("checkbox").check()
    expect(page).to_have_url(f"{hub.url}/tasks")
    box = row.get_by_test_id("task-status").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 40, middle, steps=5)
    page.mouse.up()
    assert page.evaluate("getSelection().toString().trim()")
    expect(page).to_have_url(f"{hub.url}/tasks")


@pytest.mark.parametrize("where", ["on the link", "beside it"])
@pytest.mark.parametrize("how", ["middle", "Control"])
def test_a_row_opens_in_another_tab_as_a_link_does(
    page: Page, hub: HubProcess, submit: Submit, where: str, how: str
) -> None:
    id = submit("build", target="tab")
    page.goto(f"{hub.url}/tasks")
    row = page.locator(f'[data-testid=task-row][data-id="{id}"]')
    target = row.locator("a").first if where == "on the link" else row.get_by_test_id("task-status")
    with page.context.expect_page() as opened:
        if how == "middle":
            target.click(button="middle")
        else:
            target.click(modifiers=["Control"])
    expect(opened.value).to_have_url(re.compile(f"/tasks/{id}$"))
    expect(page).to_have_url(f"{hub.url}/tasks")
