"""`dev`, `serve` and `config`: settings from flags, and what is said when a hub cannot start here."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dragoman.app.datadir import DataDir, Whereabouts
from dragoman.app.settings import Settings
from dragoman.cli.serving import banner

LOGIN = "http://127.0.0.1:8420/login/code-of-a-link"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Settings, dict[str, Any]]]:
    """A process that only notes what it was asked to run."""
    calls: list[tuple[Settings, dict[str, Any]]] = []

    def run(settings: Settings, greet: Any, *, demo: bool) -> int:
        calls.append((settings, {"demo": demo}))
        greet(Whereabouts("http://127.0.0.1:8420", "127.0.0.1:50051", "secret", os.getpid(), login=LOGIN))
        return 0

    process = types.ModuleType("dragoman.app.process")
    process.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dragoman.app.process", process)
    for variable in [name for name in os.environ if name.startswith("DRAGOMAN_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    return calls


def test_dev_hands_its_flags_over_and_says_in_json_when_it_serves(started: Any, run: Any) -> None:
    done = run(
        "dev", "--host", "127.0.0.1", "--port", "0", "--grpc-port", "0", "--data", "here", "--demo", "--ready-json"
    )
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out.splitlines()[0]) == {
        "http": "http://127.0.0.1:8420", "grpc": "127.0.0.1:50051", "data": "here", "admin_token": "secret",
        "login": LOGIN,
    }  # fmt: skip
    settings, how = started[0]
    assert (settings.server.port, settings.server.grpc_port, settings.data) == (0, 0, "here")
    assert how == {"demo": True}


def test_without_ready_json_people_are_greeted_on_stderr(started: Any, run: Any) -> None:
    done = run("dev", "--port", "0", "--grpc-port", "0", "--no-demo")
    assert (done.code, done.out, started[0][1]) == (0, "", {"demo": False})
    assert "dragoman serves at  http://127.0.0.1:8420" in done.err
    assert (LOGIN in done.err, "secret" in done.err) == (True, False)  # also where it is redirected


def test_the_log_of_a_service_has_neither_the_token_nor_a_login_link(started: Any, run: Any) -> None:
    Path("dragoman.toml").write_text("[server]\nport = 0\ngrpc_port = 0\n")  # another hub may have the usual ones
    done = run("serve", "-c", "dragoman.toml")
    assert "dragoman serves at" in done.err
    assert "secret" not in done.err
    assert "/login/" not in done.err


def test_serve_reads_its_file(started: Any, run: Any) -> None:
    Path("production.toml").write_text("[server]\nport = 0\ngrpc_port = 0\ndrain_seconds = 3\n")
    assert run("serve", "-c", "production.toml").code == 0
    assert started[0][0].server.drain_seconds == 3


def test_dragoman_toml_is_read_where_it_lies(started: Any, run: Any) -> None:
    Path("dragoman.toml").write_text('data = "elsewhere"\n[server]\nport = 0\ngrpc_port = 0\n')
    assert run("dev").code == 0
    assert started[0][0].data == "elsewhere"


def test_a_missing_file_is_named_in_the_error(started: Any, run: Any) -> None:
    done = run("serve", "-c", "nowhere.toml")
    assert (done.code, "nowhere.toml: there is no such file" in done.err, started) == (2, True, [])


def test_a_busy_port_is_a_sentence_with_the_fix(started: Any, run: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run("dev", "--demo", "--data", "my data", "--port", str(port))
    assert (done.code, started) == (2, [])
    assert done.err.splitlines() == [
        f"error: port {port} on 127.0.0.1 is taken by another program",
        f"  next: dragoman dev --demo --data 'my data' --port {port + 1}   (or --port 0 for any free one)",
    ]


def test_the_fix_of_a_busy_port_keeps_the_other_options(started: Any, run: Any) -> None:
    """Else the next port that is taken, or the settings that are missing, lead back to where one was."""
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port, taken = free.getsockname()[1], other.getsockname()[1]
        free.close()
        Path("my.toml").write_text("")
        done = run("dev", "-c", "my.toml", "--port", str(port), "--grpc-port", str(taken), "--allow-plain", "--no-demo")
    assert done.err.splitlines()[-1] == (
        f"  next: dragoman dev --config my.toml --allow-plain --port {port} --grpc-port {taken + 1}"
        "   (or --grpc-port 0 for any free one)"
    )


def test_a_port_taken_at_the_last_moment_is_the_same_sentence(
    started: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: Any, **__: Any) -> int:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(sys.modules["dragoman.app.process"], "run", late)
    assert "is taken by another program" in run("dev", "--port", "0").err


def test_an_address_of_another_machine_is_refused(started: Any, run: Any) -> None:
    done = run("dev", "--host", "192.0.2.1", "--port", "8420", "--allow-plain")
    assert (done.code, "cannot listen on 192.0.2.1" in done.err) == (2, True)


def test_plain_ports_that_others_can_reach_are_refused(started: Any, run: Any) -> None:
    done = run("dev", "--host", "0.0.0.0", "--port", "0")
    assert (done.code, started) == (2, [])
    assert "would be spoken without TLS. Make a certificate (dragoman cert --host NAME)" in done.err
    assert run("dev", "--host", "0.0.0.0", "--port", "0", "--allow-plain").code == 0
    assert run("dev", "--host", "0.0.0.0", "--port", "0", "--certificate", "c", "--key", "k").code == 0
    assert [settings.tls.certificate for settings, _ in started] == [None, "c"]


def test_a_second_hub_on_the_same_data_is_refused(started: Any, hub: Any, run: Any, tmp_path: Path) -> None:
    hub.answers["GET /livez"] = (200, {"status": "ok"})
    left = DataDir(tmp_path / ".dragoman")
    left.prepare()
    left.announce(Whereabouts(hub.url, "", "t", os.getpid()))
    done = run("dev", "--port", "0")
    assert (done.code, started) == (4, [])
    assert f"a hub already serves .dragoman at {hub.url} (process {os.getpid()})" in done.err


def test_the_note_of_a_dead_hub_keeps_nobody_out(started: Any, run: Any, tmp_path: Path) -> None:
    left = DataDir(tmp_path / ".dragoman")
    left.prepare()
    left.announce(Whereabouts("http://127.0.0.1:1", "", "t", os.getpid()))
    assert run("dev", "--port", "0").code == 0
    assert len(started) == 1


def test_a_refusal_of_the_store_is_reported(started: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dragoman.stores.sqlite.schema import StoreInUse

    def refuse(*_: Any, **__: Any) -> int:
        raise StoreInUse("d", 7)

    monkeypatch.setattr(sys.modules["dragoman.app.process"], "run", refuse)
    done = run("dev", "--port", "0")
    assert (done.code, "is in use by process 7" in done.err) == (4, True)


def test_wrong_settings_are_all_reported_at_once(started: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_SERVER__PROT", "1")
    Path("dragoman.toml").write_text("[server]\nport = 'x'\n")
    done = run("dev")
    assert (done.code, started) == (2, [])
    assert done.err.splitlines() == [
        "error: the settings are invalid:",
        "  - dragoman.toml: server.port: 'x' does not do: expected `int`, got `str`.",
        "  - environment variable DRAGOMAN_SERVER__PROT: no such setting. Did you mean 'DRAGOMAN_SERVER__PORT'?",
        "  next: correct them, then look: dragoman config show --origin",
    ]


def test_config_show_names_every_origin(started: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("dragoman.toml").write_text("[rules]\nidle_seconds = 60\n")
    monkeypatch.setenv("DRAGOMAN_PORT", "9000")
    told = json.loads(run("config", "show", "--origin", "-o", "json").out)
    assert told["server.port"] == {"value": 9000, "origin": "environment DRAGOMAN_PORT"}
    assert told["rules.idle_seconds"] == {"value": 60.0, "origin": "file dragoman.toml"}
    assert told["server.host"] == {"value": "127.0.0.1", "origin": "default"}
    table = run("config", "show", "--origin")
    assert ["server.port", "9000", "environment", "DRAGOMAN_PORT"] in [row.split() for row in table.out.splitlines()]
    assert "2 of them not the default; file dragoman.toml" in table.err
    plain = [json.loads(row) for row in run("config", "show", "-o", "jsonl").out.splitlines()]
    assert {"setting": "server.port", "value": 9000} in plain


def test_the_banner_has_the_facts_and_a_command_that_works_as_typed() -> None:
    said = banner(http="http://127.0.0.1:8420", data="my data", next="task ls")
    assert "http://127.0.0.1:8420" in said
    assert "dragoman task ls --data 'my data'" in said
    assert "--data" not in banner(http="h", data=".dragoman")
    assert "try next" not in banner(
        http="h", data=".dragoman", demo=True
    )  # their own words say it, when they are there
