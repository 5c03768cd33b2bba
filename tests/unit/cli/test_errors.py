"""How commands end: exit codes, error sentences, and where the hub is looked for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman.app.datadir import DataDir, Whereabouts
from dragoman.cli.errors import CommandError
from dragoman.cli.hubclient import Hub


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 2), (401, 4), (403, 4), (404, 3), (409, 4), (413, 2), (422, 2), (429, 5), (500, 5), (503, 5), (504, 6)],
)
def test_the_hubs_status_becomes_the_exit_code(hub: Any, run: Any, status: int, code: int) -> None:
    hub.answers["GET /api/v1/tasks"] = (status, {"detail": "so it is. Do that.", "field": "limit"})
    ran = run("task", "ls")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.splitlines()[0] == "error: so it is. Do that. (field limit)"


def test_chiffons_own_refusals_are_shown_too(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/tasks"] = (422, {"type": "error", "payload": {"error_message": "Invalid message"}})
    assert run("task", "ls").err == "error: Invalid message\n  next: dragoman task ls --help\n"


@pytest.mark.parametrize(
    ("status", "problem", "said", "next"),
    [
        (
            404,
            {
                "message": "no task '7f'",
                "detail": "No task '7f'. List them with GET /api/v1/tasks.",
                "next": {"text": "list them with GET /api/v1/tasks", "command": "dragoman task ls"},
            },
            "no task '7f'",
            "dragoman task ls",
        ),
        (
            422,
            {"reason": "invalid_query", "message": "expected `int` >= 1", "field": "limit"},
            "--limit: expected `int` >= 1",
            "dragoman task show --help",
        ),
        (
            422,
            {"reason": "invalid_body", "message": "expected `str`", "field": "input"},
            "input: expected `str`",
            "dragoman task show --help",
        ),
        (
            422,
            {"message": "this hub does not speak 'x'", "field": "protocol", "next": {"text": "use one of: forge"}},
            "this hub does not speak 'x' (field protocol)",
            "use one of: forge",
        ),
        (
            409,
            {"message": "it is done", "next": {"text": "look", "command": "dragoman task show 7f\x1b"}},
            "it is done",
            "dragoman task show 7f\\e",
        ),
        (
            404,
            {
                "reason": "no_route",
                "message": "there is no such address",
                "next": {"text": "look at GET /openapi.json"},
            },
            "the server at this URL does not have this address",
            "check --hub / DRAGOMAN_URL",
        ),
        (
            401,
            {"message": "this is not the admin token", "next": {"text": "send the admin token"}},
            "this is not the admin token",
            "set DRAGOMAN_TOKEN to the hub's admin token (it is in admin.token of its data directory)",
        ),
    ],
)
def test_errors_of_the_api_name_commands_on_the_command_line(
    hub: Any, run: Any, status: int, problem: Any, said: str, next: str
) -> None:
    hub.answers["GET /api/v1/tasks/7f"] = (status, problem)
    assert run("task", "show", "7f").err == f"error: {said}\n  next: {next}\n"


def test_a_wrong_token_says_where_the_right_one_is(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/tasks"] = (401, {"detail": "this is not the admin token of this hub."})
    assert "next: set DRAGOMAN_TOKEN to the hub's admin token" in run("task", "ls").err


@pytest.mark.parametrize(
    "tokens",
    [
        ("bogus",),
        ("--status", "failed", "task", "ls"),
        ("task", "ls", "--bogus"),
        ("agent", "add"),
        ("task", "ls", "-o", "xml"),
        ("task", "ls", "--status", "bogus"),
        ("call", "a", "b", "--timeout", "-1"),
        ("call", "a", "b", "--timeout", "0"),
        ("tail", "-n", "-1", "--for", "0"),
        ("agent", "logs", "w1", "-n", "-1"),
    ],
)
def test_a_usage_error_is_2_and_leads_to_the_help(hub: Any, run: Any, tokens: tuple[str, ...]) -> None:
    ran = run(*tokens)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert ran.err.rstrip().endswith("--help")


def test_an_unreachable_hub_is_exit_code_5(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:  # by somebody who does not listen: nobody else can
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        ran = run("task", "ls", "--hub", f"http://127.0.0.1:{port}")
    assert ran.code == 5
    assert f"no hub answers at http://127.0.0.1:{port} (Connection refused)" in ran.err
    assert "dragoman dev" in ran.err


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("ftp://x", "http://127.0.0.1:8420"),
        ("http://", "http://127.0.0.1:8420"),
        ("http://x:port", "--help"),
        ("stdio:", "http://127.0.0.1:8420"),
        ("chiffon+ws://:secret@h:1", "http://h:1"),
        ("agentmsg+https://h:1", "https://h:1"),
    ],
)
def test_a_url_that_is_none_is_2(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("task", "ls", "--hub", url)
    assert (ran.code, ran.err.splitlines()[-1].rpartition(" ")[2]) == (2, meant)


def test_a_name_that_nobody_has_leads_to_the_address_and_not_to_a_hub_here(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def nobody(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", nobody)
    ran = run("task", "ls", "--hub", "http://hub.example:8420")
    assert (ran.code, "see that a hub runs there" in ran.err, "dragoman dev" in ran.err) == (5, True, False)


def test_something_else_at_the_address_is_5(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/tasks"] = (200, b"<html>hello</html>")
    ran = run("task", "ls")
    assert (ran.code, "is not a Dragoman hub" in ran.err) == (5, True)


@pytest.mark.parametrize("said", [b"\x00\x01 nonsense\r\n\r\n", b""], ids=["nonsense", "nothing"])
def test_bytes_that_are_no_http_are_5_and_may_be_tls(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(said)

        thread = threading.Thread(target=babble, daemon=True)
        thread.start()
        place = f"127.0.0.1:{server.getsockname()[1]}"
        ran = run("task", "ls", "--hub", place)
        assert (ran.code, f"if it speaks TLS: --hub https://{place}" in ran.err) == (5, True)
        thread.join(timeout=5)


def test_an_answer_that_never_comes_is_6() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # it is connected to, but nobody answers
        hub = Hub(f"http://127.0.0.1:{server.getsockname()[1]}", None)
        with pytest.raises(CommandError) as stopped:
            hub.ask("GET", "tasks", patience=0.05)
    assert stopped.value.code == 6


# -- where the hub is


def test_the_hub_is_found_by_what_dev_left(hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DRAGOMAN_URL")
    monkeypatch.delenv("DRAGOMAN_TOKEN")
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": []})
    for directory, tokens in ((".dragoman", ()), ("other", ("--data", "other"))):
        left = DataDir(tmp_path / directory)
        left.prepare()
        left.announce(Whereabouts(hub.url, "127.0.0.1:1", directory, os.getpid()))
        assert run("task", "ls", *tokens).code == 0
        assert hub.asked[-1].headers["authorization"] == f"Bearer {directory}"


def test_without_any_trace_of_a_hub_it_is_5(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("task", "ls")
    assert ran.code == 5
    assert ran.err.startswith("error: no hub is running in .dragoman\n  next: start one with: dragoman dev")


def test_the_hub_to_start_is_the_one_that_was_looked_for(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "start one with: dragoman dev --data 'my data'   (or" in run("task", "ls", "--data", "my data").err


def test_a_hub_that_died_is_named_as_such(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    left = DataDir(".dragoman")
    left.prepare()
    left.announce(Whereabouts("http://127.0.0.1:1", "", "t", 2**22 + 1))  # above the largest pid
    ran = run("task", "ls")
    assert (ran.code, "has ended (process 4194305)" in ran.err) == (5, True)


def test_the_local_token_is_sent_to_no_other_hub(
    hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DRAGOMAN_TOKEN")
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": []})
    left = DataDir(tmp_path / ".dragoman")
    left.prepare()
    left.announce(Whereabouts("http://127.0.0.1:1", "", "local-secret", os.getpid()))
    run("task", "ls")
    assert "authorization" not in hub.asked[-1].headers
    left.announce(Whereabouts(hub.url + "/", "", "local-secret", os.getpid()))
    run("task", "ls")
    assert hub.asked[-1].headers["authorization"] == "Bearer local-secret"


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    script = f"{sys.executable} -m dragoman.cli config show -o jsonl | head -n 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (json.loads(done.stdout)["setting"], done.stderr) == ("data", "")


def test_a_full_disk_is_one_sentence_without_a_traceback(tmp_path: Path) -> None:
    script = f"{sys.executable} -m dragoman.cli config show > /dev/full"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-2:]) == (
        2,
        ["error: cannot read or write stdout: No space left on device", "  next: dragoman doctor"],
    )


def test_a_closed_stdout_loses_nothing_in_silence(tmp_path: Path) -> None:
    """It was exit code 0 with the data gone."""
    script = f"{sys.executable} -m dragoman.cli config show >&-"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-2:]) == (
        2,
        ["error: cannot read or write stdout: Bad file descriptor", "  next: dragoman doctor"],
    )
