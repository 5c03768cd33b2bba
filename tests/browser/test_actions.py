"""What a person can do on each page, clicked through: contracts, agents, handing over, dead letters, the inbox with
several questions, files, the live wire, the audit record, the playground."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit, go
from tests.browser.fleet import QUESTION
from tests.e2e.a2acp.speaking import INTENT, Speaker, code, dataset
from tests.support import chiffon
from tests.support.hubproc import HubProcess, until

Submit = Callable[..., str]


def newest_audit(hub: HubProcess, action: str) -> dict[str, str]:
    records = hub.admin.get(f"/api/v1/audit/view?action={action}").json["records"]
    return dict(records[0])


def reached(hub: HubProcess, id: str, status: str) -> None:
    until(lambda: hub.status(id) == status, f"{id} is {status}")


# -- contracts -------------------------------------------------------------------------------------------------------


def test_a_contract_is_read_renewed_and_ended_under_the_persons_name(visit: Visit, hub: HubProcess) -> None:
    hub.admin.post("/api/v1/users", {"name": "orla", "role": "operator"})
    token = hub.admin.post("/api/v1/users/orla/token").json["token"]
    ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
    bob.serve(INTENT)
    with bob.working(dataset(bob)):
        told = ada.shake_hands(bob, "provision")
    id = told["contract"]["contract_id"]
    with visit(token) as visitor:
        page = visitor.page("/contracts")
        row = page.locator(f'[data-testid=contract-row][data-id="{id}"]')
        row.get_by_role("button", name="Terms").click()
        terms = page.get_by_role("dialog")
        expect(terms.get_by_label("Input schema")).to_contain_text("rows")
        expect(terms.get_by_label("Output schema")).to_contain_text("dataset_id")
        expect(terms.get_by_test_id("contract-violations")).to_contain_text("Both sides kept to it")
        expect(page).to_have_url(re.compile("open=contract-"))
        terms.get_by_role("button", name="Close").click()

        _, wrong = ada.ask(bob, "provision", {"rows": "many", "contract_id": id})
        assert code(wrong) == "CONTRACT_VIOLATION"
        ada.ask(bob, "nothing-agreed", {"rows": 1})  # refused as well, and no matter of this contract
        row.get_by_role("button", name="Terms").click()
        violations = terms.get_by_test_id("contract-violation")
        expect(violations).to_have_count(1)
        expect(violations).to_contain_text("does not fit the input schema")
        expect(violations).to_contain_text(ada.id)
        terms.get_by_role("button", name="Close").click()

        row.get_by_test_id("contract-renew").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="1 week").click()
        dialog.get_by_role("button", name="Renew the contract").click()
        expect(dialog).to_have_count(0)
        expect(row.get_by_test_id("contract-until")).to_have_text(re.compile("[67] d left"))
        record = newest_audit(hub, "contract.renew")
        assert (record["principal"], record["subject"]) == ("orla", told["collaboration_id"])
        event = ada.next("event", "accept_handshake")
        assert event["payload"]["contract"]["expires_at"] > told["contract"]["expires_at"]

        row.get_by_test_id("contract-renew").click()
        dialog.get_by_label("How long from now").fill("1")
        dialog.get_by_role("button", name="Renew the contract").click()
        expect(page.get_by_text("renew it for longer")).to_be_visible()
        dialog.get_by_role("button", name="Close").click()

        row.get_by_test_id("contract-end").click()
        dialog.get_by_label("Reason").fill("the study is over")
        dialog.get_by_role("button", name="End the contract").click()
        expect(row).to_contain_text("terminated")
        expect(row.get_by_test_id("contract-renew")).to_have_count(0)
    record = newest_audit(hub, "contract.end")
    assert record["principal"] == "orla"
    assert ada.next("event", "terminate_collaboration")["payload"]["reason"] == "the study is over"


# -- agents ----------------------------------------------------------------------------------------------------------


def test_an_agent_is_added_paused_given_a_token_and_removed(page: Page, hub: HubProcess) -> None:
    page.goto(f"{hub.url}/agents")
    page.get_by_role("button", name="Add an agent").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Id", exact=True).fill("temp-1")
    dialog.get_by_label("Protocol").select_option("chiffon")
    dialog.get_by_role("button", name="Add", exact=True).click()
    expect(dialog.locator("code.token")).to_have_text(re.compile("^[0-9a-f]{32}$"))
    first = dialog.locator("code.token").inner_text()
    dialog.get_by_role("button", name="Close").click()
    page.get_by_test_id("agent-row").filter(has_text="temp-1").get_by_role("link").click()
    page.get_by_test_id("agent-pause").click()
    expect(page.locator("h1")).to_contain_text("paused")
    assert hub.admin.get("/api/v1/agents/temp-1").json["paused"] is True
    page.get_by_test_id("agent-resume").click()
    expect(page.locator("h1")).not_to_contain_text("paused")
    page.get_by_role("button", name="New token").click()
    expect(dialog.locator("code.token")).not_to_have_text(first)
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Remove").click()
    dialog.get_by_role("button", name="Remove the agent").click()
    expect(page).to_have_url(re.compile("/agents$"))
    assert hub.admin.get("/api/v1/agents/temp-1").status == 404


def test_an_agents_page_shows_what_it_can_do_and_when_it_was_connected(page: Page, hub: HubProcess) -> None:
    bob = Speaker(hub, "lab")
    bob.serve({**INTENT, "description": "Makes a data set."})
    go(page, f"/agents/{bob.id}")
    capabilities = page.get_by_test_id("agent-capabilities")
    capabilities.get_by_text("provision").click()
    expect(capabilities.get_by_label("What provision takes")).to_contain_text("rows")
    expect(capabilities.get_by_label("What provision gives")).to_contain_text("dataset_id")
    expect(page.get_by_test_id("agent-connections")).to_contain_text("no lasting connection")
    go(page, "/agents/deployer")
    expect(page.get_by_test_id("agent-connections").get_by_text("connected", exact=True).first).to_be_visible()


# -- tasks -----------------------------------------------------------------------------------------------------------


def test_a_task_is_paused_resumed_and_handed_to_another_agent(page: Page, hub: HubProcess) -> None:
    one, other = hub.worker("smith-1", "smith"), hub.worker("smith-2", "smith")
    made = hub.admin.post("/api/v1/tasks", {"type": "forge_key", "agent": "smith-1", "input": {"size": 3}})
    id = made.json["id"]
    message = one.next()
    one.send(chiffon.work_status(message, 10))
    until(lambda: hub.status(id) == "running", "the work has begun")
    page.goto(f"{hub.url}/tasks/{id}")
    page.get_by_test_id("task-pause").click()
    expect(page.get_by_test_id("task-status")).to_contain_text("held")
    page.get_by_test_id("task-resume").click()
    expect(page.get_by_test_id("task-status")).not_to_contain_text("held")
    page.get_by_test_id("task-handover").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Agent").select_option("smith-2")
    dialog.get_by_role("button", name="Hand over").click()
    expect(dialog).to_have_count(0)
    again = other.next()
    assert again["payload"]["parameters"]["size"] == 3
    other.send(chiffon.work_result(again))
    expect(page.get_by_test_id("task-status")).to_contain_text("completed")
    expect(page.get_by_test_id("task-sequence")).to_contain_text("smith-2")


def test_a_file_of_a_task_is_downloaded_from_its_page(page: Page, hub: HubProcess, tmp_path: Path) -> None:
    made = hub.admin.ask("POST", "/api/v1/files?name=notes.txt", b"three monitors", {"Content-Type": "text/plain"})
    body = {"type": "build", "agent": "builder", "input": {"target": "x"}, "attachments": [made.json["id"]]}
    id = hub.admin.post("/api/v1/tasks", body).json["id"]
    page.goto(f"{hub.url}/tasks/{id}?tab=output")
    with page.expect_download() as download:
        page.get_by_role("link", name="notes.txt").click()
    download.value.save_as(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_bytes() == b"three monitors"


def test_tasks_are_retried_in_bulk_and_the_filters_are_copied_as_a_command(
    page: Page, hub: HubProcess, submit: Submit
) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ids = [submit("deploy", service=f"bulk-{n}", fails=True) for n in range(2)]
    for id in ids:
        reached(hub, id, "failed")
    page.goto(f"{hub.url}/tasks?status=failed&type=deploy")
    for id in ids:
        page.locator(f'[data-testid=task-row][data-id="{id}"]').get_by_role("checkbox").check()
    page.get_by_role("button", name="Copy as CLI").click()
    expect(page.get_by_text("Copied:")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "dragoman task ls --status failed --type deploy"
    page.get_by_role("toolbar").get_by_role("button", name="Retry").click()
    for id in ids:
        reached(hub, id, "completed")


# -- dead letters ----------------------------------------------------------------------------------------------------


def test_dead_letters_stand_by_reason_and_are_discarded_together(page: Page, hub: HubProcess) -> None:
    worker = hub.worker("press-1", "press")
    ids = [hub.admin.post("/api/v1/tasks", {"type": "print", "agent": "press-1"}).json["id"] for _ in range(2)]
    while any(hub.status(id) != "failed" for id in ids):
        for message in worker.take(0.2):
            worker.send(chiffon.error(message, 5005, "the ink is out"))
    page.goto(f"{hub.url}/deadletters")
    letters = page.get_by_test_id("deadletter-row").filter(has_text="the ink is out")
    expect(letters).to_have_count(2)
    for letter in letters.all():
        letter.get_by_role("checkbox").check()
    page.get_by_role("toolbar").get_by_role("button", name="Discard").click()
    expect(letters).to_have_count(0)
    assert [hub.status(id) for id in ids] == ["failed", "failed"]


# -- the inbox -------------------------------------------------------------------------------------------------------


def test_several_questions_get_one_answer_with_a_note(page: Page, hub: HubProcess, submit: Submit) -> None:
    ids = [submit("deploy", service=f"together-{n}", ask=True) for n in range(2)]
    for id in ids:
        reached(hub, id, "waiting")
    page.goto(f"{hub.url}/inbox")
    for id in ids:
        question = page.get_by_test_id("question").filter(has=page.locator(f'a[href="/tasks/{id}"]'))
        expect(question).to_contain_text(QUESTION)
        expect(question).to_contain_text("asked for by admin")
        question.get_by_role("checkbox").check()
    together = page.get_by_test_id("answer-together")
    together.get_by_label("Note").fill("the window is open")
    together.get_by_role("button", name="Answer all: yes").click()
    for id in ids:
        reached(hub, id, "completed")
        asked = hub.admin.get(f"/api/v1/questions?task={id}").json["questions"]
        assert [(one["answer"], one["note"]) for one in asked] == [("yes", "the window is open")]


def test_the_inbox_is_answered_by_the_keyboard(page: Page, hub: HubProcess, submit: Submit) -> None:
    id = submit("deploy", service="keys", ask=True)
    until(lambda: hub.status(id) == "waiting", "it asks")
    page.goto(f"{hub.url}/inbox")
    expect(page.get_by_test_id("question").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(".question.current")).to_have_count(1)
    page.keyboard.press("x")
    expect(page.locator(".question.current").get_by_role("checkbox")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/tasks/"))
    hub.admin.post(f"/api/v1/tasks/{id}/cancel")


# -- the live wire, the audit record, the playground -----------------------------------------------------------------


def test_the_live_wire_is_held_and_goes_on(page: Page, hub: HubProcess, submit: Submit) -> None:
    page.get_by_role("navigation").get_by_role("link", name="Live wire").click()
    expect(page.get_by_test_id("connection")).to_have_text("live")
    first = submit("build", target="before the pause")
    of = '[data-testid=wire-row][data-task="{}"]'
    expect(page.locator(of.format(first)).first).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    second = submit("build", target="while it is held")
    until(lambda: hub.status(second) == "completed", "the second one")
    expect(page.get_by_text("not shown")).to_be_visible()
    expect(page.locator(of.format(second))).to_have_count(0)
    page.get_by_role("button", name="Go on").click()
    expect(page.locator(of.format(second)).first).to_be_visible()
    page.get_by_label("Protocol").select_option("forge")
    expect(page.get_by_text("No message fits these filters")).to_be_visible()


def test_a_list_draws_its_rows_as_it_is_scrolled(page: Page, hub: HubProcess) -> None:
    for _ in range(100):  # each is an audit record
        assert chiffon.HttpClient(hub.url).post("/api/v1/login", {"token": hub.ready["admin_token"]}).status == 204
    page.goto(f"{hub.url}/audit")
    frame = page.locator(".list-frame")
    rows = frame.get_by_role("row")
    expect(rows.first).to_be_visible()
    first = rows.first.get_attribute("aria-rowindex")
    frame.evaluate("frame => frame.scrollTop = frame.scrollHeight")
    expect(rows.first).not_to_have_attribute("aria-rowindex", str(first))
    last = frame.evaluate("frame => frame.parentElement.getAttribute('aria-rowcount')")
    expect(frame.locator(f'[aria-rowindex="{last}"]')).to_be_visible()


def test_the_audit_record_is_filtered_and_exported(page: Page, hub: HubProcess, tmp_path: Path) -> None:
    page.goto(f"{hub.url}/audit")
    expect(page.get_by_test_id("audit-verdict")).to_contain_text("is whole")
    page.get_by_label("Action").fill("agent.add")
    expect(page).to_have_url(re.compile("action=agent.add"))
    rows = page.locator(".list-row")
    expect(rows.first).to_contain_text("agent.add")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    download.value.save_as(tmp_path / "audit.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert {line["action"] for line in lines} == {"agent.add"}


def test_the_playground_sends_as_a_protocol_and_saves_the_request_for_elsewhere(page: Page, hub: HubProcess) -> None:
    page.goto(f"{hub.url}/playground?agent=builder&work=build&as=agentmsg")
    page.get_by_test_id("playground-input").fill('{"target": "from the playground"}')
    page.get_by_test_id("playground-send").click()
    reply = page.get_by_test_id("playground-reply")
    expect(reply).to_contain_text("completed")
    for name, inside in (("cli", "dragoman call"), ("curl", "curl"), ("python", "import")):
        part = page.get_by_test_id(f"playground-as-{name}")
        expect(part).to_contain_text(inside)
        with page.expect_download() as download:
            part.get_by_role("button", name="Save").click()
        assert inside in Path(download.value.path()).read_text()
    page.get_by_test_id("playground-input").fill("{}")
    page.get_by_role("button", name="As in the last such task").click()
    expect(page.get_by_test_id("playground-input")).to_have_value(re.compile("from the playground"))


# -- what does not count ---------------------------------------------------------------------------------------------


def test_a_used_login_link_is_a_page_that_says_what_to_do(visit: Visit, hub: HubProcess) -> None:
    with visit(None) as visitor:
        page = visitor.context.new_page()
        answer = page.goto(f"{hub.url}/login/not-a-code-of-this-hub")
        assert answer is not None
        assert answer.status == 401
        expect(page.get_by_role("heading")).to_have_text("This login link does not count any more")
        expect(page.get_by_text("dragoman user login NAME")).to_be_visible()
        page.get_by_role("link", name="Open the dashboard").click()
        expect(page.get_by_label("Or log in with a token")).to_be_visible()


def test_a_viewer_reads_on_each_page_why_there_are_no_buttons(visit: Visit, hub: HubProcess, submit: Submit) -> None:
    hub.admin.post("/api/v1/users", {"name": "victor", "role": "viewer"})
    token = hub.admin.post("/api/v1/users/victor/token").json["token"]
    id = submit("build", target="seen by a viewer")
    with visit(token) as visitor:
        page = visitor.page()
        expect(page.get_by_test_id("verdict")).to_be_visible()
        paths = ("/inbox", "/tasks", f"/tasks/{id}", "/agents", "/agents/builder", "/deadletters", "/contracts")
        for path in (*paths, "/playground"):
            go(page, path)
            expect(page.get_by_test_id("view-only")).to_contain_text("You are a viewer")


def test_the_keyboard_walks_through_dead_letters_and_inspects_one(page: Page, hub: HubProcess) -> None:
    worker = hub.worker("kiln-1", "kiln")
    id = hub.admin.post("/api/v1/tasks", {"type": "fire", "agent": "kiln-1", "input": {"degrees": 900}}).json["id"]
    while hub.status(id) != "failed":
        for message in worker.take(0.2):
            worker.send(chiffon.error(message, 5005, "the kiln is cold"))
    page.goto(f"{hub.url}/deadletters")
    expect(page.get_by_test_id("deadletter-row").first).to_be_visible()
    page.keyboard.press("j")
    current = page.locator("[data-testid=deadletter-row].current")
    expect(current).to_have_count(1)
    page.keyboard.press("x")
    expect(current.get_by_role("checkbox")).to_be_checked()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Redrive with this input")
