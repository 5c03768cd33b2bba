"""A command must not pay for what it does not use: 250 ms is little.

No clock here, since that would only measure the neighbours: what is imported is what takes the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

HEAVY = {
    "apsw", "asyncio", "email", "http.client", "httpx", "httpx2", "importlib.metadata", "jsonschema_rs",
    "markdown_it", "msgspec", "prometheus_client", "rich", "ssl", "starlette", "structlog", "uvicorn", "uvloop",
    "websockets", "dragoman.core", "dragoman.stores", "dragoman.server", "dragoman.sdk", "dragoman.protocols",
}  # fmt: skip
PROBE = (
    "import sys, json\n"
    "from dragoman.cli.main import main\n"
    "code = main(sys.argv[1:])\n"
    "print('\\n' + json.dumps([code, sorted(sys.modules)]))"
)


def imported(*tokens: str, url: str) -> tuple[int, set[str]]:
    environ = {**os.environ, "DRAGOMAN_URL": url, "DRAGOMAN_TOKEN": "t"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *tokens], capture_output=True, text=True, timeout=60, env=environ, check=True
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize(
    "tokens",
    [
        ("task", "ls"), ("task", "ls", "-o", "json"), ("task", "show", "t"), ("agent", "ls"), ("ask", "ls"),
        ("dlq", "ls"), ("audit", "query"), ("call", "a", "w", "--detach"), ("agent", "add", "a", "--protocol", "p"),
    ],
)  # fmt: skip
def test_client_commands_import_nothing_heavy(hub: Any, make_task: Any, tokens: tuple[str, ...]) -> None:
    hub.answers = {
        "GET /api/v1/tasks": (200, {"tasks": [make_task()]}),
        "POST /api/v1/tasks": (202, make_task()),
        "GET /api/v1/tasks/t": (200, make_task()),
        "GET /api/v1/agents": (200, {"agents": []}),
        "GET /api/v1/agents/a": (200, {"id": "a"}),
        "POST /api/v1/agents": (201, {"agent_id": "a", "token": "t"}),
        "GET /api/v1/questions": (200, {"questions": []}),
        "GET /api/v1/deadletters": (200, {"deadletters": []}),
        "GET /api/v1/audit": (200, {"records": []}),
    }
    code, modules = imported(*tokens, url=hub.url)
    assert (code, modules & HEAVY) == (0, set())


def test_help_imports_no_command_and_no_markdown(hub: Any) -> None:
    code, modules = imported("--help", url=hub.url)
    allowed = {"dragoman", *(f"dragoman.cli{name}" for name in ("", ".main", ".errors", ".escaping"))}
    assert (code, {name for name in modules if name.startswith("dragoman")}) == (0, allowed)
    assert modules & (HEAVY - {"rich"}) == set()


def test_translate_runs_the_hubs_decisions_without_what_a_server_needs(hub: Any) -> None:
    code, modules = imported("translate", "chiffon", "forge", "-o", "json", url=hub.url)
    servers = {"apsw", "grpc", "httpx2", "prometheus_client", "rich", "starlette", "structlog", "uvicorn"}
    assert (code, modules & servers) == (0, set())


def test_the_package_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "nonsense"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_doctor_looks_at_keys_without_importing_a_server(hub: Any) -> None:
    _, modules = imported("doctor", url=hub.url)
    servers = {"grpc", "httpx2", "prometheus_client", "starlette", "structlog", "uvicorn", "websockets"}
    assert modules & servers == set()
