"""What the README tells people to type, typed: the agent in ten lines and the curl session, against the demo."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

README = "README.md"


@pytest.mark.long
def test_the_commands_of_the_second_terminal_work(demo_terminal: Any, block: Any) -> None:
    script = block(README, "sh", "call infra-1")
    assert '"steps": 5' in demo_terminal.run(script.replace("$PWD/.venv/bin:", ""))


def test_the_agent_in_ten_lines_works(terminal: Any, block: Any) -> None:
    agent = block(README, "python", "greeter")
    assert len(agent.strip().splitlines()) <= 10
    (terminal.directory / "greeter.py").write_text(terminal.local(agent))
    assert terminal.run(block(README, "sh", "greeter.py")).strip().splitlines()[-1] == "Hello, Ada!"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_session_works(demo_terminal: Any, block: Any) -> None:
    output = demo_terminal.run(block(README, "sh", "work_request"))
    assert '{"status":"accepted","message_id":"550e8400-e29b-41d4-a716-446655440001"}' in output
    assert '"type":"work_result"' in output
    assert '"status":"success"' in output
    assert output.endswith('{"acknowledged":1}')
