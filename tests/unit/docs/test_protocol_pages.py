"""The first example of each protocol's page, typed beside a hub."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@needs_curl
def test_an_agent_of_chiffon_in_curl_registers_polls_and_answers(terminal: Any, block: Any) -> None:
    script = block("docs/protocols/chiffon.md", "sh", "work_request")
    register, poll, result = script.split("\ncurl -s ")[1:]
    call = "dragoman call worker build ref=main --detach >id"
    fill = (
        "for id in request_id trace_id task_id; do eval $id=$(grep -o '\"'$id'\":\"[^\"]*' poll | cut -d'\"' -f4); done"
    )
    result = (
        result.replace('"R"', "\"'$request_id'\"").replace('"T"', "\"'$trace_id'\"").replace('"K"', "\"'$task_id'\"")
    )
    result = result.replace("<a new UUID>", "550e8400-e29b-41d4-a716-446655440009")
    head = script.split("\ncurl -s ")[0]
    poll = poll.split("#")[0].strip()
    parts = (head, f"curl -s {register}", call, f"curl -s {poll} >poll", fill, f"curl -s {result}", "cat id")
    output = terminal.run("\n".join(parts))
    assert '"status":"registered"' in output
    assert '{"status":"accepted","message_id":"550e8400-e29b-41d4-a716-446655440009"}' in output
    task = output.strip().splitlines()[-1].rpartition("}")[2]
    assert '"completed"' in terminal.run(f"dragoman task show {task} -o json")


@needs_curl
def test_two_agents_of_agentmsg_in_curl_assign_and_complete_a_task(terminal: Any, block: Any) -> None:
    output = terminal.run(block("docs/protocols/agentmsg.md", "sh", "TASK_ASSIGNMENT"))
    assert output.count('"status":"accepted"') == 2
    assert '"type":"TASK_ASSIGNMENT"' in output
    assert '"type":"TASK_COMPLETE"' in output


@needs_curl
def test_an_agent_of_a2acp_in_curl_discovers_another(terminal: Any, block: Any) -> None:
    output = terminal.run(block("docs/protocols/a2acp.md", "sh", "discover_capabilities"))
    assert '"message_type":"response"' in output
    assert '"agent_id":"datasets"' in output


def test_an_agent_of_forge_in_plain_python_does_a_task(terminal: Any, block: Any) -> None:
    (terminal.directory / "echo.py").write_text(block("docs/protocols/forge.md", "python", "notify:task-assigned"))
    output = terminal.run(block("docs/protocols/forge.md", "sh", "echo.py"))
    assert "".join(output.split()).endswith('{"seen":{"n":1}}')


@needs_curl
def test_a_client_generated_from_covens_proto_file_does_a_task(terminal: Any, block: Any) -> None:
    generate = block("docs/protocols/coven.md", "sh", "grpc_tools").replace("pip install grpcio-tools && ", "")
    (terminal.directory / "painter.py").write_text(
        terminal.local(block("docs/protocols/coven.md", "python", "painter"))
    )
    call = "for i in 1 2 3 4 5; do dragoman call painter chat content=blue && break; done"
    output = terminal.run(
        f"{generate}\npython painter.py &\nuntil dragoman agent show painter >/dev/null; do :; done\n{call}"
    )
    assert output.strip() == "painted"
