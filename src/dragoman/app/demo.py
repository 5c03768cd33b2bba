"""The demo beside a hub: its agents are added, started as processes of their own, and stopped with it.

They connect to the hub's endpoints like any other agent, each with a token of its own, except for the scribe, which the
hub runs itself. Tokens are made at every start and reach the processes by their environment, which only their user can
read; the hub keeps hashes. An agent lives no longer than the hub, even if that is killed (`dragoman.demo.__main__`).

Everything goes on at the next start: work that was under way, and the question that waits for a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from dragoman import demo
from dragoman.app import datadir
from dragoman.app.program import program
from dragoman.core.commands import AddAgent, RotateToken, SetDomainPolicy
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.agents import Agent, Profile
from dragoman.core.model.tasks import QuestionStatus
from dragoman.demo.roster import AGENTS, DOMAIN, INFRA, LAB, PLANNER, RECORDS, SCRIBE, DemoAgent
from dragoman.security.tokens import new_token, token_hash
from dragoman.supervisor.spec import ChildSpec
from dragoman.supervisor.supervisor import ChildDeclaration

if TYPE_CHECKING:
    from dragoman.app.wiring import Running

log = structlog.get_logger("dragoman.demo")

BEFORE_THE_PLANNER = tuple(member for member in AGENTS if member is not PLANNER)
CONNECT_SECONDS = 60.0
"""Seconds for all of them to connect, on a slow machine."""
STOP_SECONDS = 3.0
"""Seconds for all of them to stop when asked; then they are ended."""
LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Where to reach a hub on this machine that listens on every address."""


class DemoRefused(Exception):
    """The demo would disturb something real. The sentence ends with what to do."""


@asynccontextmanager
async def demo_agents(running: Running) -> AsyncIterator[None]:
    """The demo runs while this block lasts. A demo that cannot run is no reason to stop the hub."""
    children: list[Process] = []
    running_demo: asyncio.Task[None] | None = None
    try:
        try:
            tokens = await add_agents(running)
            asked = await question_waits(running)
            for member in BEFORE_THE_PLANNER:
                if member is SCRIBE:
                    await run_child(running)
                else:
                    await start(children, member, running, tokens[AgentId(member.id)], asked=asked)
            planner = start(children, PLANNER, running, tokens[AgentId(PLANNER.id)], asked=asked)
            running_demo = asyncio.create_task(_run_demo(running, planner), name="demo")
        except (DemoRefused, OSError) as error:
            log.error("the demo does not play", why=str(error))
        yield
    finally:
        if running_demo is not None:
            running_demo.cancel()
            await asyncio.gather(running_demo, return_exceptions=True)
        await stop(children)


async def add_agents(running: Running) -> dict[AgentId, str]:
    """A fresh token for every demo agent, added where it is not there yet."""
    intake = running.intake
    for member in AGENTS:
        there = intake.agent(AgentId(member.id))
        if there is not None and there.domain != member.domain:
            raise DemoRefused(
                f"there is an agent {member.id!r} that is not the demo's. Start with --no-demo, or with another --data"
            )
    comers = [member for member in AGENTS if member is not SCRIBE]  # a child of the hub needs no token
    tokens = {AgentId(member.id): new_token() for member in comers}
    for member in comers:
        id, hashed = AgentId(member.id), token_hash(tokens[AgentId(member.id)])
        if intake.agent(id) is not None:
            await intake.execute(RotateToken(principal=ADMIN, agent=id, token_hash=hashed))
            continue
        agent = Agent(
            id=id,
            protocol=member.protocol,
            created_at=intake.now(),
            token_hash=hashed,
            kind=member.kind,
            name=member.does,
            domain=member.domain,
            capabilities=member.grants,
        )
        await intake.execute(AddAgent(principal=ADMIN, agent=agent))
        if member is LAB:  # with it comes the policy that lets it ask the records' domain
            await intake.execute(SetDomainPolicy(principal=ADMIN, source=LAB.domain, target=RECORDS.domain))
    return tokens


async def question_waits(running: Running) -> bool:
    """Whether a question of an earlier run still waits for a person: one is enough."""
    open_ones = await running.intake.store.questions(status=QuestionStatus.OPEN)
    return any(question.agent == INFRA.id for question in open_ones)


async def start(children: list[Process], member: DemoAgent, running: Running, token: str, *, asked: bool) -> None:
    """One child more, in a session of its own: Ctrl-C in the terminal is for the hub, which says when to stop."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    here = running.whereabouts
    place = address(member.protocol, here.http, here.grpc, grpc_tls=here.grpc_tls)
    environment |= {"DRAGOMAN_URL": place, "DRAGOMAN_TOKEN": token}
    if running.certificates.http is not None:
        environment["SSL_CERT_FILE"] = str(running.certificates.http.files.certificate.absolute())
    if asked and member is PLANNER:
        environment["DRAGOMAN_DEMO_ASKED"] = "1"
    # -P: a file in the working directory must not stand in for a module of the same name.
    arguments = ("-P", "-m", "dragoman.demo", member.name, member.id, str(running.data.path.absolute() / "demo"))
    child = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdin=PIPE, stdout=DEVNULL, env=environment, start_new_session=True
    )
    children.append(child)


async def run_child(running: Running) -> None:
    """The scribe is a program that the hub runs itself: in JavaScript where there is a node, else in Python."""
    there = running.intake.agent(AgentId(SCRIBE.id))
    if there is not None:
        running.children.add(there)
        return
    node = shutil.which("node")
    script = Path(demo.__file__).with_name("scribe.mjs")
    command = (node, str(script)) if node else (sys.executable, "-P", "-m", "dragoman.demo", SCRIBE.name, SCRIBE.id)
    await running.children.admit(
        ChildDeclaration(
            id=SCRIBE.id,
            spec=ChildSpec(command=command, restart="on-failure", grace_seconds=STOP_SECONDS, origin="demo"),
            profile=Profile(kind=SCRIBE.kind, name=SCRIBE.does, domain=DOMAIN),
        )
    )


def address(protocol: str, http: str, grpc: str, *, grpc_tls: bool = False) -> str:
    """The hub's address for an agent beside it."""
    if protocol == "coven":
        host, colon, port = grpc.rpartition(":")
        return f"coven{'s' if grpc_tls else ''}://{LOOPBACK_OF.get(host, host)}{colon}{port}"
    scheme, _, place = http.partition("://")
    host, colon, port = place.rpartition(":")
    secure = "s" if scheme == "https" else ""
    return f"{protocol}+ws{secure}://{LOOPBACK_OF.get(host, host)}{colon}{port}"


async def stop(children: list[Process]) -> None:
    """Ask all of them to stop, and see that they do."""
    living = [child for child in children if child.returncode is None]
    for child in living:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
    ends = [asyncio.ensure_future(child.wait()) for child in living]
    if not ends:
        return
    await asyncio.wait(ends, timeout=STOP_SECONDS)
    for child in living:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
    await asyncio.wait(ends)


async def _run_demo(running: Running, planner: Coroutine[Any, Any, None]) -> None:
    """Once the others are there, have the planner come: what it gives them needs some of them together. Then say what
    there is to see: only then do these commands work."""
    try:
        complete = await _connected(running, BEFORE_THE_PLANNER)
    except asyncio.CancelledError:
        planner.close()
        raise
    try:
        await planner
    except OSError as error:
        log.error("the demo does not play", why=str(error))
        return
    if await _connected(running, (PLANNER,)) and complete:
        sys.stderr.write(next_commands(running.data.path, running.with_login().login) + "\n")


async def _connected(running: Running, parts: Sequence[DemoAgent]) -> bool:
    """Whether these came in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + CONNECT_SECONDS
    while missing := [member.id for member in parts if not running.intake.reachable(AgentId(member.id))]:
        if loop.time() > end:
            log.warning("demo agents did not come", missing=missing)
            return False
        await asyncio.sleep(0.05)
    return True


def next_commands(data: Path, login: str) -> str:
    """What there is to see: a link that logs a browser in once, and a command that works as it stands."""
    here = "" if data == Path(datadir.DEFAULT) else f" --data {shlex.quote(str(data))}"
    protocols = list(dict.fromkeys(member.protocol for member in AGENTS))
    lines = [
        f"  the demo plays      {len(AGENTS)} agents at work over {', '.join(protocols[:-1])} and {protocols[-1]}",
        f"  open the dashboard  {login}",
        f"  try next            {program()} ask ls{here}",
        "",
    ]
    return "\n".join(lines)
