"""Untrusted agents under a real hub: what such a program could try, attack by attack, in every level that this machine
has; and that an honest one works there as anywhere. Skipped where a level does not hold: there the hub refuses to run
them, which is shown in `test_sandbox_refusals.py`.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.sandbox.model import Level
from tests.support.children import DAEMON, PYTHON, program, worker
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until
from tests.support.kids import Kids
from tests.support.sandboxes import marked, must_hold, settings_for

WEAKER = [pytest.mark.soak] if shutil.which("bwrap") else []
"""What this machine has something stronger for is tried in long runs only."""
LEVELS = (Level.BUBBLEWRAP, pytest.param(Level.LANDLOCK, marks=WEAKER))
CANARY = "canary-19c4e7"


@pytest.fixture(scope="module", params=LEVELS, ids=str)
def level(request: pytest.FixtureRequest) -> Level:
    must_hold(request.param)
    return Level(request.param)


@pytest.fixture(scope="module")
def hub(level: Level, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """One with a secret in its environment."""
    with running(tmp_path_factory.mktemp("hub"), TOP_SECRET=CANARY, **settings_for(level)) as hub:
        yield hub


@pytest.fixture
def kids(hub: HubProcess) -> Kids:
    return Kids(hub)


def attack(kids: Kids, id: str, *lines: str, **more: Any) -> list[str]:
    """What an untrusted program printed that tried this, when it has ended."""
    kids.run(id, *program("import os, sys", TRY, *lines), untrusted=True, **more)
    until(lambda: kids.state(id) in ("stopped", "crashed"), "it ends", seconds=60)
    printed = kids.printed(id)
    assert printed, kids.child(id)
    return printed


TRY = """
def attempt(what, deed):
    try:
        print('got', what, deed(), flush=True)
    except BaseException as error:
        print('refused', what, type(error).__name__, flush=True)
"""


def refused(printed: list[str]) -> bool:
    return all(line.startswith("refused ") for line in printed)


# -- what is allowed works: a sandbox in which nothing runs would withstand every attack


def test_an_honest_agent_does_its_task_and_the_level_is_shown_everywhere(kids: Kids, level: Level) -> None:
    kids.run("honest", *worker, untrusted=True)
    task = kids.done(kids.submit("honest", a=1))
    assert (task["status"], task["result"], task["output"]) == ("completed", {"echo": {"a": 1}, "attempt": 1}, "half ")
    assert kids.printed("honest") == ["working on work"]
    assert (kids.look("honest")["untrusted"], kids.look("honest")["sandbox"]) == (True, level)
    history = kids.hub.admin.get(f"/api/v1/tasks/{task['id']}?history=1").json["history"]
    given = [event["body"] for event in history if event["kind"] == "assigned"]
    assert given == [{"agent": "honest", "attempt": 1, "sandbox": level}]
    assert task["sandbox"] == level
    shown = dragoman("agent", "show", "honest", hub=kids.hub)
    assert (shown.code, str(level) in shown.out) == (0, True)


def test_a_trusted_agent_is_in_no_sandbox_and_none_is_claimed(kids: Kids) -> None:
    kids.run("trusted", *worker)
    task = kids.done(kids.submit("trusted"))
    assert (kids.look("trusted")["sandbox"], task["sandbox"]) == (None, None)
    history = kids.hub.admin.get(f"/api/v1/tasks/{task['id']}?history=1").json["history"]
    assert "sandbox" not in next(event["body"] for event in history if event["kind"] == "assigned")


def test_one_that_ends_with_a_task_is_started_again_in_its_sandbox(kids: Kids, level: Level) -> None:
    kids.run("falters", *worker, untrusted=True, restart="on-failure")
    task = kids.done(kids.submit("falters", die=1))
    assert (task["status"], task["result"]["attempt"]) == ("completed", 2)
    assert (kids.child("falters")["restarts"], kids.child("falters")["last_end"]) == (1, "exit code 9")
    assert kids.look("falters")["sandbox"] == level
    assert kids.printed("falters") == ["working on work"] * 2


def test_it_may_open_what_it_was_allowed_and_nothing_beside_it(kids: Kids, tmp_path: Path) -> None:
    for name in ("given", "shared", "beside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    printed = attack(
        kids, "reader",
        f"attempt('given', lambda: open('{tmp_path}/given/file').read())",
        f"attempt('to write', lambda: open('{tmp_path}/given/new', 'w'))",
        f"attempt('shared', lambda: open('{tmp_path}/shared/new', 'w').write('x'))",
        f"attempt('beside', lambda: open('{tmp_path}/beside/file').read())",
        "attempt('home', lambda: open('note', 'w').write('mine'))",
        "attempt('moved', lambda: os.getcwd() == os.environ['HOME'])",
        allow_files=[f"{tmp_path}/given", f"{tmp_path}/shared:rw"],
    )  # fmt: skip
    assert [line.split(" ")[0] for line in printed] == ["got", "refused", "got", "refused", "got", "got"], printed
    assert printed[0] == "got given given"
    assert (tmp_path / "shared" / "new").read_text() == "x"
    assert not (tmp_path / "given" / "new").exists()
    assert (kids.hub.data / "agents" / "reader" / "note").read_text() == "mine"


def test_it_may_connect_to_an_allowed_host_and_to_no_other(kids: Kids, level: Level) -> None:
    with socket.create_server(("127.0.0.1", 0)) as allowed, socket.create_server(("127.0.0.1", 0)) as other:
        hosts = [f"127.0.0.1:{allowed.getsockname()[1]}"]
        ask = """
import socket
from urllib.parse import urlsplit
def through(port):
    proxy = urlsplit(os.environ['HTTPS_PROXY'])
    with socket.create_connection((proxy.hostname, proxy.port), 10) as out:
        out.sendall(b'CONNECT 127.0.0.1:%d HTTP/1.1\\r\\n\\r\\n' % port)
        return out.recv(100).split()[1].decode()
"""
        lines = [f"print(through({end.getsockname()[1]}), flush=True)" for end in (allowed, other)]
        if level is Level.BUBBLEWRAP:
            assert attack(kids, "caller", ask, *lines, allow_hosts=hosts) == ["200", "403"]
            return
        kids.run("caller", *program(ask, *lines), untrusted=True, allow_hosts=hosts)
        until(lambda: kids.state("caller") == "crashed")
        assert "use bubblewrap" in kids.child("caller")["last_end"]


# -- attacks


def test_attack_read_the_hubs_token_store_and_other_agents(kids: Kids) -> None:
    kids.run("victim", *worker, env={"KEY": CANARY})
    token = kids.hub.admin.token
    printed = attack(
        kids, "thief",
        "found = []",
        f"for place, _, files in os.walk({str(kids.hub.data)!r}):",
        "    for name in files:",
        "        try: found.append(open(os.path.join(place, name), 'rb').read().decode('latin-1'))",
        "        except OSError: pass",
        "print('found', found, flush=True)",
        *(
            f"attempt({name!r}, lambda: open({str(kids.hub.data / name)!r}).read())"
            for name in ("admin.token", "hub.json", "hub.sqlite", "brood.id", "agents/victim/../../admin.token")
        ),
        f"attempt('proc', lambda: open('/proc/{kids.hub.pid}/environ').read())",
        f"attempt('root', lambda: open('/proc/{kids.hub.pid}/root{kids.hub.data}/admin.token').read())",
        "attempt('config', lambda: open('/etc/shadow').read())",
        "attempt('parent', lambda: open(f'/proc/{os.getppid()}/environ').read().index('TOP_SECRET'))",
    )  # fmt: skip
    assert printed[0] == "found []"
    assert refused(printed[1:]), printed
    assert token not in str(kids.log("thief"))
    assert CANARY not in str(kids.log("thief"))


def test_attack_find_secrets_in_its_environment_and_descriptors(kids: Kids) -> None:
    printed = attack(
        kids, "looker",
        "print(sorted(os.environ), flush=True)",
        "for number in range(3, 200): attempt(number, lambda: os.fstat(number).st_mode)",
        env={"MINE": "yes"}, pass_env=["DRAGOMAN_TOKEN", "LANG"],
    )  # fmt: skip
    names = set(eval(printed[0]))
    ours = {"MINE", "HOME", "TMPDIR", "PATH", "DRAGOMAN_AGENT_ID", "DRAGOMAN_URL", "DRAGOMAN_DESCENDANT"}
    assert ours <= names
    assert not names & {"TOP_SECRET", "DRAGOMAN_TOKEN", "USER", "LOGNAME", "SHELL"}
    assert refused(printed[1:]), printed


def test_attack_connect_to_the_hub_and_out(kids: Kids) -> None:
    port = int(kids.hub.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        printed = attack(
            kids, "dialler",
            "import socket",
            f"attempt('hub', lambda: socket.create_connection(('127.0.0.1', {port}), 5))",
            f"attempt('host', lambda: socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 5))",
            "attempt('out', lambda: socket.create_connection(('192.0.2.1', 443), 5))",
            "attempt('name', lambda: socket.getaddrinfo('example.com', 443))",
        )  # fmt: skip
        assert refused(printed), printed
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_attack_fork_without_end(kids: Kids) -> None:
    kids.run("bystander", *worker)
    printed = attack(
        kids, "bomb",
        "import time, signal",
        "born = 0",
        "try:",
        "    while born < 5000:",
        "        if os.fork() == 0:",
        "            time.sleep(600)",
        "        born += 1",
        "except OSError: pass",
        "print(born, flush=True)",
        limits={"processes": 20},
    )  # fmt: skip
    assert 0 < int(printed[-1]) <= 25
    kids.works("bystander", 3)


def test_attack_take_all_memory(kids: Kids) -> None:
    printed = attack(
        kids, "glutton",
        "attempt('all', lambda: len(bytearray(100 << 30)))",
        "attempt('much', lambda: len(bytearray(400 << 20)))",
        "attempt('some', lambda: len(bytearray(20 << 20)))",
        limits={"memory_mb": 200},
    )  # fmt: skip
    assert [line.split(" ")[0] for line in printed] == ["refused", "refused", "got"], printed


def test_attack_write_outside(kids: Kids, tmp_path: Path) -> None:
    """Inside, /tmp is its own: what it writes there, under whatever name, is nowhere else."""
    outside = [Path("/etc/f"), Path("/usr/f"), Path("/proc/sys/kernel/core_pattern")]
    in_tmp = [tmp_path / "f", kids.hub.data / "f", kids.hub.data / "agents" / "f", Path("/tmp/f-98763")]
    before = outside[-1].read_text()
    printed = attack(
        kids, "writer",
        *(f"attempt({str(at)!r}, lambda: open({str(at)!r}, 'a').write('x'))" for at in (*outside, *in_tmp)),
    )  # fmt: skip
    assert refused(printed[: len(outside)]), printed
    assert not any(place.exists() for place in (*outside[:-1], *in_tmp))
    assert outside[-1].read_text() == before


def test_attack_leave_a_link_in_its_home_and_follow_it(kids: Kids) -> None:
    printed = attack(
        kids, "linker",
        f"os.symlink({str(kids.hub.data)!r}, 'data')",
        "attempt('follow', lambda: open('data/admin.token').read())",
        "attempt('hard', lambda: os.link('data/admin.token', 'token'))",
    )  # fmt: skip
    assert refused(printed), printed
    assert kids.hub.admin.post("/api/v1/agents/linker/restart", {}).status == 200  # and not after the next start either
    until(lambda: kids.state("linker") == "crashed")


def test_attack_kill_the_hub_its_spawner_and_another_agent(kids: Kids) -> None:
    kids.run("target", *worker)
    numbers = (kids.pid("target"), kids.spawner(), kids.hub.pid)  # its spawner is there when it runs
    printed = attack(kids, "killer", *(f"attempt({pid}, lambda: os.kill({pid}, 9))" for pid in numbers))
    assert refused(printed), printed
    kids.works("target", 1)
    assert kids.spawner() == numbers[1]


def test_attack_gain_privileges_or_look_into_other_processes(kids: Kids) -> None:
    printed = attack(
        kids, "climber",
        "import ctypes, socket",
        "libc = ctypes.CDLL(None, use_errno=True)",
        "def call(*words):",
        "    if libc.syscall(*words) < 0: raise OSError(ctypes.get_errno(), 'no')",
        f"attempt('ptrace', lambda: call(101, 16, {kids.hub.pid}, 0, 0))",
        "attempt('mount', lambda: call(165, b'none', b'/tmp', b'tmpfs', 0, 0))",
        "attempt('unshare', lambda: call(272, 0x10000000))",
        "attempt('raw', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
        f"attempt('mem', lambda: open('/proc/{kids.hub.pid}/mem', 'rb').read(1))",
    )  # fmt: skip
    assert refused(printed), printed


def test_attack_work_without_end(kids: Kids) -> None:
    """The clock of a task is the hub's: an agent that goes on saying that it works is ended all the same."""
    chatter = "print('still at it', flush=True)"
    kids.run(
        "slow", *program("import sys, time", "sys.stdin.readline()", f"while True: {chatter}; time.sleep(.05)"),
        untrusted=True, restart="always", limits={"task_seconds": 0.3},
    )  # fmt: skip
    task = kids.submit("slow")

    def failed() -> list[Any]:
        history = kids.hub.admin.get(f"/api/v1/tasks/{task}?history=1").json["history"]
        return [event["body"]["fault"] for event in history if event["kind"] == "attempt_failed"]

    fault = until(failed)[0]
    assert (fault["kind"], "took longer than 0.3 s" in fault["message"]) == ("timeout", True)
    until(lambda: any("took longer" in line["text"] for line in kids.log("slow") if line["stream"] == "hub"))
    until(lambda: kids.child("slow")["restarts"] >= 1)
    kids.hub.admin.ask("DELETE", "/api/v1/agents/slow")


def test_attack_claim_another_level_or_other_files(kids: Kids, level: Level) -> None:
    """What an agent says of itself does not touch how it is run."""
    say = {
        "type": "request:register", "id": "r1", "timestamp": "2026-01-01T00:00:00Z",
        "payload": {"name": "nice", "sandbox": "hyperlight", "details": {"child": {"command": ["sh"]}},
                    "child": {"sandbox": "hyperlight"}},
    }  # fmt: skip
    kids.run("liar", *program("import json, sys", f"print(json.dumps({say!r}), flush=True)", "sys.stdin.read()"),
             untrusted=True)  # fmt: skip
    until(lambda: kids.look("liar")["name"] == "nice" or kids.log("liar"))
    assert kids.look("liar")["sandbox"] == level
    assert kids.child("liar")["command"][0] == PYTHON[0]


# -- what it leaves behind


HIDES = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve('/bin/sleep', ['sleep', sys.argv[1]], {})
    os._exit(0)
os.wait()
print('left', flush=True)
sys.stdin.read()
"""
"""Leaves a process behind that has its own session, and no mark in its environment."""


def brood(kids: Kids, seconds: str) -> None:
    kids.run("hider", *PYTHON, HIDES, seconds, untrusted=True, grace_seconds=0.1)
    until(lambda: kids.printed("hider") == ["left"], "it left something behind")
    until(lambda: marked(seconds))


def test_a_removed_one_leaves_nothing_however_well_it_hid(kids: Kids) -> None:
    brood(kids, "98761.5")
    assert kids.hub.admin.ask("DELETE", "/api/v1/agents/hider").status == 204
    until(lambda: not marked("98761.5"), "all of it dies")


def test_killing_the_hub_leaves_nothing(level: Level, tmp_path: Path) -> None:
    with running(tmp_path / "hub", **settings_for(level)) as hub:
        brood(Kids(hub), "98762.5")
        kids = Kids(hub)
        kids.run("daemon", *PYTHON, DAEMON + "sys.stdin.read()", "note", "98762.5", untrusted=True)
        until((hub.data / "agents" / "daemon" / "note").exists)
        hub.kill()
        until(lambda: not marked("98762.5"), "all of it dies")
        hub.start()
        until(lambda: kids.look("hider")["sandbox"] == level, "and comes back in its sandbox")
