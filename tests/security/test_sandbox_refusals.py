"""What must not run does not: no sandbox is strong enough, it could not hold what is asked, or the wish makes no
sense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.sandbox.model import Level
from tests.support.children import program, worker
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until
from tests.support.kids import Kids
from tests.support.sandboxes import NOWHERE, must_hold, settings_for


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """One that finds no bubblewrap, and by default wants it."""
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_GRPC_PORT="0", PATH=NOWHERE) as hub:
        yield hub


@pytest.fixture
def kids(hub: HubProcess) -> Kids:
    return Kids(hub)


def ends(kids: Kids, id: str) -> None:
    until(lambda: kids.state(id) in ("stopped", "crashed"), f"{id} ends")


def test_without_a_sandbox_it_is_refused_with_what_to_do(kids: Kids, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    kids.run("loose", *program(f"open({str(ran)!r}, 'w')"), untrusted=True, restart="always",
             allow_files=[f"{tmp_path}:rw"])  # fmt: skip
    until(lambda: kids.state("loose") == "crashed", "it is refused for good, not tried again and again")
    agent = kids.look("loose")
    assert (agent["status"], agent["sandbox"], agent["child"]["pid"]) == ("crashed", None, None)
    said = agent["child"]["last_end"]
    assert said.startswith("refused: a process must run at level bubblewrap or above"), said
    assert "install bubblewrap" in said
    assert [line["text"] for line in kids.log("loose")] == [f"{said}; not started again"]
    shown = dragoman("agent", "show", "loose", hub=kids.hub).out
    assert "install bubblewrap" in shown
    assert "it does not run without one" in shown
    assert not ran.exists()
    waiting = kids.submit("loose")
    assert kids.hub.status(waiting) == "queued"
    kids.run("others", *worker)
    kids.works("others", 1)


def test_the_command_line_fails_and_says_why(hub: HubProcess) -> None:
    said = dragoman("agent", "run", "--untrusted", "--id", "cli", "--", "/bin/true", hub=hub)
    assert (said.code, "install bubblewrap" in said.err) == (1, True)


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"untrusted": True, "privileges": True}, "privileges"),
        ({"untrusted": True, "cwd": "/srv"}, "cwd"),
        ({"untrusted": True, "allow_files": ["relative"]}, "allow_files"),
        ({"untrusted": True, "allow_hosts": ["a b"]}, "allow_hosts"),
        ({"untrusted": True, "limits": {"fuel": 5}}, "limits"),
        ({"untrusted": True, "limits": {"task_seconds": 0}}, "limits"),
        ({"allow_files": ["/srv"]}, "allow_files"),
        ({"allow_hosts": ["example.com"]}, "allow_hosts"),
        ({"limits": {"task_seconds": 5}}, "limits"),
        ({"untrusted": True, "wasm": True, "command": ["agent"]}, "command"),
        ({"untrusted": True, "command": ["/a.wasm"], "allow_hosts": ["example.com"]}, "allow_hosts"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_and_the_field_named(hub: HubProcess, wish: Any, field: str) -> None:
    answer = hub.admin.post("/api/v1/agents", {"agent_id": "x", "protocol": "forge", "command": ["/bin/cat"], **wish})
    assert answer.status == 422, answer
    assert field in (answer.json.get("field") or answer.json["detail"])


@pytest.mark.parametrize("place", ["", "admin.token", "agents", "agents/other"])
def test_the_hubs_own_files_cannot_be_allowed(kids: Kids, tmp_path: Path, place: str) -> None:
    must_hold(Level.BUBBLEWRAP)
    with running(tmp_path / "hub", **settings_for(Level.BUBBLEWRAP)) as hub:
        kids = Kids(hub)
        (hub.data / "agents" / "other").mkdir(parents=True)
        link = tmp_path / "link"
        link.symlink_to(hub.data / place)
        for number, allowed in enumerate((hub.data / place, link, tmp_path / "hub" / ".." / "link")):
            kids.run(f"a{number}", *worker, untrusted=True, allow_files=[str(allowed)])
            ends(kids, f"a{number}")
            assert "is the hub's own" in kids.child(f"a{number}")["last_end"]


def test_what_lies_around_the_hubs_data_can_be_allowed_and_the_data_stays_hidden(tmp_path: Path) -> None:
    must_hold(Level.BUBBLEWRAP)
    (tmp_path / "around").symlink_to(tmp_path)
    with running(tmp_path / "hub", **settings_for(Level.BUBBLEWRAP)) as hub:
        kids = Kids(hub)
        (tmp_path / "known").write_text("known")
        for id, allowed in (("plain", tmp_path), ("linked", tmp_path / "around")):
            look = f"import os; print(open('{tmp_path}/known').read(), os.listdir({str(hub.data)!r}), flush=True)"
            kids.run(id, *program(look), untrusted=True, allow_files=[str(allowed)])
            ends(kids, id)
            assert kids.printed(id) == ["known ['agents']"], kids.child(id)


def test_the_level_follows_the_machine_and_so_does_its_report(tmp_path: Path) -> None:
    for level in (Level.BUBBLEWRAP, Level.LANDLOCK):
        must_hold(level)
    with running(tmp_path / "hub", **settings_for(Level.LANDLOCK) | {"PATH": "/usr/bin:/bin"}) as hub:
        kids = Kids(hub)
        kids.run("w", *worker, untrusted=True, restart="always", capabilities=["python"])
        kids.works("w", 1)
        assert kids.look("w")["sandbox"] == "bubblewrap"
        hub.restart(PATH=NOWHERE)
        kids.works("w", 1)
        assert (kids.look("w")["sandbox"], kids.look("w")["capabilities"]) == ("landlock+seccomp", ["python"])
        task = hub.tasks(agent="w")[0]["id"]
        history = hub.admin.get(f"/api/v1/tasks/{task}?history=1").json["history"]
        assert [e["body"]["sandbox"] for e in history if e["kind"] == "assigned"] == ["landlock+seccomp"]
        hub.restart(PATH=NOWHERE, DRAGOMAN_SANDBOX__MINIMUM="bubblewrap")
        until(lambda: kids.state("w") == "crashed")
        assert kids.look("w")["sandbox"] is None
        hub.restart()
        kids.works("w", 1)


def test_untrusted_agents_of_the_configuration_run_in_a_sandbox(tmp_path: Path) -> None:
    must_hold(Level.BUBBLEWRAP)
    home = tmp_path / "hub"
    (home / "shown").mkdir(parents=True)
    (home / "shown" / "file").write_text("shown")
    (home / "dragoman.toml").write_text(
        '[[agents]]\nid = "c1"\nuntrusted = true\nrestart = "never"\nallow_files = ["shown"]\n'
        f'command = ["/bin/sh", "-c", "cat {home}/shown/file; echo; cat {home}/dragoman.toml; exec sleep 600"]\n'
    )
    with running(home, DRAGOMAN_GRPC_PORT="0") as hub:
        kids = Kids(hub)
        until(lambda: len(kids.printed("c1")) == 2)
        assert kids.printed("c1")[0] == "shown"
        assert "No such file" in kids.printed("c1")[1]
        assert (kids.look("c1")["sandbox"], kids.child("c1")["origin"]) == ("bubblewrap", "config")
