"""What `pip install dragoman` brings is enough for agents and clients; what needs more names the command to run.

A program here finds no package that only an extra brings: an import hook hides them, which is what a fresh environment
with only the wheel and its dependencies looks like to it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.e2e import at_work
from tests.support.hubproc import HubProcess

ROOT = Path(__file__).parents[2]
IMPORTED = {"PyJWT": "jwt", "grpcio": "grpc", "protobuf": "google", "jsonschema-rs": "jsonschema_rs"}
"""Packages that are imported under another name than they are installed."""

HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""

BOTH_SIDES = """
import asyncio, os
from dragoman import Agent, Client, Completed, Output, Task
agent = Agent("light", token=os.environ["AGENT_TOKEN"])

@agent.on("double")
async def double(task: Task, n: int) -> int:
    await task.log("doubling")
    return 2 * n

async def main():
    serving = asyncio.ensure_future(agent.serve(os.environ["THE_URL"]))
    async with Client(os.environ["THE_URL"], token=os.environ["CALLER_TOKEN"], id="caller") as hub:
        for _ in range(200):
            try:
                handle = await hub.submit("double", {"n": 21}, agent="light")
                break
            except Exception:
                await asyncio.sleep(0.02)  # the agent is on its way
        events = [type(event).__name__ async for event in handle.events()]
        print(events[-1], await handle.result())
    agent.stop()
    await serving

asyncio.run(main())
"""


def packages(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [one for extra in extras for one in project["optional-dependencies"][extra]]
    names = {re.split(r"[\[<>=;]", one)[0] for one in named} - {"dragoman"}
    return {IMPORTED.get(name, name.replace("-", "_").lower()) for name in names}


HIDDEN = packages("hub", "coven", "a2acp") | {"grpc_health", "grpc_reflection"}


def run(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"HIDDEN = {HIDDEN!r}\n{HIDE}\n{program}"],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environ}, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "scheme"),
    [
        ("chiffon", "chiffon+ws"),
        ("chiffon", "chiffon+http"),
        ("agentmsg", "agentmsg+ws"),
        ("agentmsg", "agentmsg+http"),
        ("forge", "forge+ws"),
    ],
)
def test_an_agent_and_a_client_work_with_the_light_install(hub: HubProcess, protocol: str, scheme: str) -> None:
    names = {role: f"{role}-{scheme.replace('+', '-')}" for role in ("light", "caller")}
    tokens = {role: at_work.token(hub, name, protocol) for role, name in names.items()}
    program = BOTH_SIDES.replace('"light"', repr(names["light"])).replace('"caller"', repr(names["caller"]))
    url = hub.url.replace("http://", f"{scheme}://")
    done = run(program, THE_URL=url, AGENT_TOKEN=tokens["light"], CALLER_TOKEN=tokens["caller"])
    assert (done.stdout, done.returncode) == ("Completed 42\n", 0), done.stderr


def test_every_public_name_is_there(hub: HubProcess) -> None:
    done = run("import dragoman\nprint(all(getattr(dragoman, name) for name in dragoman.__all__))")
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("extra", ["coven", "a2acp"])
def test_a_protocol_that_needs_more_names_its_extra(extra: str) -> None:
    url = "coven://localhost:1" if extra == "coven" else "a2acp+ws://localhost:1"
    done = run(f"from dragoman import Client\nClient({url!r}, token='t', id='me')")
    assert done.returncode == 1
    assert f"pip install 'dragoman[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["dev", "serve", "task ls"])
def test_a_command_without_the_hub_is_one_sentence(command: str) -> None:
    arguments = ["dragoman", *command.split()]
    done = run(f"import sys\nsys.argv = {arguments!r}\nfrom dragoman.__main__ import main\nsys.exit(main())")
    assert done.returncode == 2
    assert done.stderr == (
        "error: this command needs the hub, and only the SDK is installed. Run: pip install 'dragoman[hub]'\n"
    )


def test_the_fixture_without_the_hub_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(hub): ...\n")
    done = run(f"import pytest\npytest.main(['-q', '--rootdir={tmp_path}', '-p', 'no:asyncio', {str(tmp_path)!r}])")
    assert "the fixture `hub` needs the hub. Run: pip install 'dragoman[hub]'" in done.stdout
    assert "Traceback" not in done.stdout
