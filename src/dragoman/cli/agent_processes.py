"""`dragoman agent run`, `logs`, `restart`: agents that the hub runs itself, as child processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from cyclopts import Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, AgentName, Capabilities, HubLocation, Kind, Lines, Output, Role
from dragoman.cli.deadline import Outage
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import block, line
from dragoman.cli.hubclient import Hub
from dragoman.cli.task_view import log_line

PAGE = 500
WAIT = 20.0
"""Seconds that the hub may keep us waiting for the next line."""
OVER = ("stopped", "crashed")
MODULES = (".wasm", ".wat")
LOOPBACK = ("localhost", "127.0.0.1", "::1")

Level = Annotated[Literal["debug", "info", "warn", "error"] | None, Parameter(help="Leave out lines below this level.")]


def run(
    *command: Annotated[str, Parameter(name="CMD", allow_leading_hyphen=True, help="The program and its arguments.")],
    id: Annotated[str | None, Parameter(name="--id", help="Its id [the program's name].")] = None,
    kind: Kind = None,
    role: Role = None,
    capability: Capabilities = None,
    restart: Annotated[
        Literal["never", "on-failure", "always"], Parameter(help="Whether to start it again when it ends.")
    ] = "on-failure",
    env: Annotated[
        list[str] | None,
        Parameter(negative=(), help="NAME=VALUE for its environment, or NAME to pass this shell's value on."),
    ] = None,
    cwd: Annotated[
        Path | None,
        Parameter(
            help="Its working directory, on the hub's machine [this one; for an untrusted agent: one of its own]."
        ),
    ] = None,
    untrusted: Annotated[bool, Parameter(negative=(), help="Run it in a sandbox, or not at all.")] = False,
    allow_file: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help="A file or directory that an untrusted agent may read, or with :rw also write; may be repeated.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        Parameter(negative=(), help="NAME or NAME:PORT that an untrusted agent may connect to; may be repeated."),
    ] = None,
    detach: Annotated[bool, Parameter(negative=(), help="Leave it running under the hub, and return.")] = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Run a program as an agent under the hub: JSON lines on its stdin and stdout, or just text.

    Without --detach its log is shown until Ctrl-C, which stops and removes it.
    """
    if not command:
        raise CommandError(Exit.USAGE, "there is no command to run", next="dragoman agent run -- node agent.js")
    hub = Hub.find(location)
    here = urlsplit(hub.url).hostname in LOOPBACK
    program = _found(command[0], here)
    if here and detach and program is None and (cwd is None or "/" not in command[0]):  # its log is not shown here
        sentence = f"there is no program {line(command[0])} here"
        raise CommandError(Exit.NOT_FOUND, sentence, next="check its name, or give its path")
    held = untrusted or command[0].endswith(MODULES)
    agent = id or f"{re.sub(r'[^A-Za-z0-9]+', '-', Path(command[0]).name).strip('-') or 'agent'}-{os.urandom(3).hex()}"
    body = {
        "agent_id": agent,
        "protocol": "forge",
        "kind": kind,
        "role": role,
        "capabilities": capability or None,
        "command": [program or command[0], *command[1:]],
        "untrusted": untrusted or None,
        "allow_files": [os.path.abspath(place) if here else place for place in allow_file or ()] or None,
        "allow_hosts": allow_host or None,
        "restart": restart,
        "env": dict(map(_variable, env)) if env else None,
        "cwd": str(cwd.absolute()) if cwd is not None else os.getcwd() if here and not held else None,
    }
    hub.post("agents", body={key: value for key, value in body.items() if value is not None})
    if detach:
        if output == "table":
            printing.verdict(True, f"agent {line(agent)} runs under the hub")
            print(line(agent))
            printing.suggest(f"dragoman agent logs {line(agent)} -f", f"dragoman agent rm {line(agent)}")
        else:
            printing.document(hub.get("agents", agent), output)
        return Exit.OK
    printing.verdict(None, f"agent {line(agent)} runs under the hub; Ctrl-C stops it")
    return _attend(hub, agent, output)


def logs(
    id: AgentName,
    /,
    *,
    lines: Annotated[Lines, Parameter(help=f"How many of the newest lines, at most {PAGE}.")] = 100,
    level: Level = None,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative=(), help="Follow: print new lines as they come.")
    ] = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Show what an agent printed."""
    hub = Hub.find(location)
    page = hub.get("agents", id, "logs", tail=max(1, min(lines, PAGE)), level=level)
    if output == "json" and not follow:
        printing.document(page)
        return
    for one in page["logs"]:
        _show(one, output)
    if follow:
        if "child" not in hub.get("agents", id):
            raise CommandError(
                Exit.USAGE, f"agent {line(id)} is not run by the hub: what it prints stays where it runs",
                next="dragoman tail",
            )  # fmt: skip
        for one in _follow(hub, id, str(page["next"] or 0), level):
            _show(one, output)


def restart(id: AgentName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Restart an agent that the hub runs."""
    agent = Hub.find(location).ask("POST", "agents", id, "restart", body={}, patience=120.0)
    printing.done(agent, output, f"agent {line(id)} was restarted", f"dragoman agent logs {line(id)} -f")


def _found(program: str, here: bool) -> str | None:
    """The program that this shell would start, if the hub is on this machine: its own PATH may be another."""
    if here and program.endswith(MODULES):
        return os.path.abspath(program)
    found = shutil.which(program) if here else None
    return os.path.abspath(found) if found else None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name in os.environ:
        return name, os.environ[name]
    raise CommandError(
        Exit.USAGE, f"{line(name)} is not set here, so it cannot be passed on", next="write --env NAME=VALUE"
    )


def _attend(hub: Hub, agent: str, output: Output) -> int:
    """Show its log until it ends or the person stops this command; then remove it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for one in _follow(hub, agent, "0", None):
            _show(one, output)
        child: Mapping[str, Any] = hub.get("agents", agent).get("child") or {}
        hub.delete("agents", agent)
    except KeyboardInterrupt:
        hub.delete("agents", agent)
        printing.verdict(True, f"agent {line(agent)} is asked to end; its unfinished work went back to the queue")
        raise
    crashed = child.get("state") == "crashed"
    printing.verdict(not crashed, f"agent {line(agent)} ended: {line(child.get('last_end'))}")
    return Exit.FAILED if crashed else Exit.OK


def _follow(hub: Hub, agent: str, after: str, level: str | None) -> Iterator[Mapping[str, Any]]:
    """Lines as they come, until its process has ended for good. A hub that is away for a moment is waited for."""
    outage = Outage()
    while True:
        try:
            # Asked before the lines are, so that the last lines of an ended one are not missed.
            over = (hub.get("agents", agent).get("child") or {}).get("state") in OVER
            page = hub.ask(
                "GET", "agents", agent, "logs",
                query={"after": after, "limit": PAGE, "wait": 0 if over else WAIT, "level": level}, patience=WAIT + 30,
            )  # fmt: skip
            outage.ended()
        except CommandError as failure:
            outage.wait(failure)
            continue
        yield from page["logs"]
        after = page["next"]
        if over and not page["logs"]:
            return


def _show(one: Mapping[str, Any], output: Output) -> None:
    if output != "table":
        printing.document(one, "jsonl")
        return
    stream, level = one.get("stream"), one.get("level")
    kind, text = str(one.get("kind") or "log"), str(one.get("text") or "")
    if kind == "log":
        print(f"{line(one.get('at'))} {log_line(stream, level, text)}", flush=True)
        return
    head, _, output_ = text.partition("\n")  # an event of a task: which task, which event, and its output
    task = f"…{str(one['task_id'])[-4:]}  " if one.get("task_id") else ""
    sentence = " · ".join(part for part in (kind.replace("_", " "), head) if part)
    print(f"{line(one.get('at'))} {log_line(stream, level, task + sentence)}", flush=True)
    if output_:
        print("\n".join(f"    {each}" for each in block(output_).rstrip("\n").split("\n")), flush=True)
