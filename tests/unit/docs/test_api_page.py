"""What the pages about the API, people and children tell people to type, typed beside a hub."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

API = "docs/api.md"
OPERATE = "docs/howto/operate.md"
CHILDREN = "docs/howto/child-agents.md"

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

REVIEWER = """
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.type === "notify:shutdown") process.exit(0);
  if (message.type !== "notify:task-assigned") return;
  const { task } = message.payload;
  console.log(`reviewing ${task.payload.file}`);
  console.log(JSON.stringify({
    type: "request:update-task", id: `done-${task.id}`, timestamp: new Date().toISOString(),
    payload: { taskId: task.id, status: "completed", result: { file: task.payload.file } },
  }));
});
"""


@needs_curl
def test_a_task_is_submitted_and_waited_for_with_curl(demo_terminal: Any, block: Any) -> None:
    token, submit, look = block(API, "sh", "admin.token").replace("curl ", "\ncurl -sf ").split("\n\n")
    submit = submit.partition("#")[0].rstrip() + " >task.json"
    look = look.replace("<id>", '$(sed \'s/^{"id":"\\([^"]*\\).*/\\1/\' task.json)')
    done = json.loads(demo_terminal.run(f"{token}\n{submit}\n{look}"))
    assert (done["status"], done["result"]["playbook"]) == ("completed", "site.yml")


@needs_curl
def test_agents_are_added_with_what_they_offer(terminal: Any, block: Any) -> None:
    curl, add, other = block(API, "sh", '"painter"').split("\ndragoman ")
    offers = '[{"intent": "paint", "input_schema": {"type": "object", "required": ["colour"]}, "output_schema": true}]'
    (terminal.directory / "offers.json").write_text(offers)
    read = "export TOKEN=$(cat .dragoman/admin.token)\n"
    show = "dragoman agent show painter -o json >{}.json"
    terminal.run(f"{read}{curl.replace('curl ', 'curl -sf ')}\n{show.format(1)}\ndragoman agent rm painter")
    terminal.run(f"dragoman {add}\n{show.format(2)}\ndragoman {other}")
    first, second = (json.loads((terminal.directory / f"{n}.json").read_text()) for n in (1, 2))
    assert first["offers"] == second["offers"]
    assert [one["intent"] for one in first["offers"]] == ["paint"]


def test_a_person_is_added_logged_in_given_a_role_and_removed(terminal: Any, block: Any) -> None:
    output = terminal.run(block(OPERATE, "sh", "user add ann"))
    assert output.count(f"{terminal.http}/login/") == 2
    assert "viewer" in output


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_child_is_left_to_the_hub_called_and_its_log_read(terminal: Any, block: Any) -> None:
    (terminal.directory / "reviewer.js").write_text(REVIEWER)
    _, start, logs, call = block(CHILDREN, "sh", "reviewer.js").strip().splitlines()
    output = terminal.run(f"{start}\n{call}\n{logs.removesuffix(' -f')}\ndragoman agent rm reviewer")
    assert "src/auth.ts" in output
    assert "reviewing src/auth.ts" in output
