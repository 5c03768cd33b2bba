"""`dragoman agent`: who may speak to the hub."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, AgentName, Capabilities, HubLocation, Kind, Output, Role, offers
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import Column, col

app = App(
    name="agent", help="Add agents, or run them: add, run, ls, show, logs, pause, resume, restart, rm, token, revoke."
)
app.command(
    "dragoman.cli.agent_processes:run",
    name="run",
    help="Run a program as an agent under the hub.",
    usage="Usage: dragoman agent run [OPTIONS] -- CMD ARG...",
)
app.command("dragoman.cli.agent_processes:logs", name="logs", help="Show what an agent printed.")
app.command("dragoman.cli.agent_processes:restart", name="restart", help="Restart an agent that the hub runs.")

COLUMNS = (
    col("id"),
    col("protocol"),
    col("kind", spare=True),
    col("status"),
    col("sandbox", rare=True),
    Column("tasks", lambda agent: len(agent.get("current_tasks") or ()), right=True),
    Column("breaker", lambda agent: _breaker(agent.get("breaker"))),
    Column("seen", lambda agent: printing.age(agent.get("last_seen")), spare=True),
)

AMISS = frozenset({"offline", "crashed", "stopped", "unhealthy"})
PAST = 5
"""How many of an agent's former reports, and of its errors, are shown; the API has more."""


@app.command
def add(
    id: AgentName,
    /,
    *,
    protocol: Annotated[str, Parameter(help="Its protocol: chiffon, coven, forge, agentmsg or a2acp.")],
    kind: Kind = None,
    domain: Annotated[
        str | None, Parameter(help="The domain that it belongs to; policies are about domains (a2acp).")
    ] = None,
    version: Annotated[str | None, Parameter(help="Its own version, for example 1.2.0.")] = None,
    capability: Capabilities = None,
    role: Role = None,
    offer: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help="Work for which a2acp agents may make a contract with it, whatever its own protocol is: an intent,"
            " a JSON object with its schemas, or @file.json; may be repeated.",
        ),
    ] = None,
    untrusted: Annotated[
        bool,
        Parameter(negative=(), help="Mark it as untrusted. (The hub runs untrusted agents in a sandbox: agent run.)"),
    ] = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Add an agent. Its token is printed once; the hub keeps only its hash."""
    body = {
        "agent_id": id,
        "protocol": protocol,
        "kind": kind,
        "domain": domain,
        "version": version,
        "role": role,
        "capabilities": capability or None,
        "offers": [one for text in offer or () for one in offers(text)] or None,
        "untrusted": untrusted or None,
    }
    made = Hub.find(location).post("agents", body={key: value for key, value in body.items() if value is not None})
    _credential(made, output, f"agent {line(id)} may now speak {line(protocol)}; its token, shown this once:")


@app.command
def token(id: AgentName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Give an agent a new token. The old one ends at once, and so do its connections."""
    made = Hub.find(location).post("agents", id, "token")
    _credential(made, output, f"agent {line(id)} has a new token, shown this once:")


@app.command
def revoke(
    id: AgentName,
    token: Annotated[
        str, Parameter(help="The signed token, or its jti; - reads it from stdin.", allow_leading_hyphen=True)
    ],
    /,
    *,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Void one signed token of an agent (a2acp). Its secret stays good, and so do its other tokens."""
    named = sys.stdin.read().strip() if token == "-" else token
    which = "token" if named.startswith("eyJ") and named.count(".") == 2 else "jti"
    void = Hub.find(location).post("agents", id, "revoke", body={which: named})
    printing.done(
        void,
        output,
        f"token {line(void['jti'])} of {line(id)} is void",
        f"dragoman audit query --subject {line(id)}",
        f"dragoman agent token {line(id)}",
    )


def _credential(made: dict[str, str], output: Output, sentence: str) -> None:
    if output == "table":
        printing.verdict(True, sentence)
        print(line(made["token"]))
        printing.suggest(f"dragoman agent show {line(made['agent_id'])}")
    else:
        printing.document({"agent_id": made["agent_id"], "token": made["token"]}, output)


@app.command
def ls(
    *,
    kind: Annotated[str | None, Parameter(help="Only agents of this kind.")] = None,
    protocol: Annotated[str | None, Parameter(help="Only agents of this protocol.")] = None,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """List the agents."""
    answer = Hub.find(location).get("agents", kind=kind, protocol=protocol)
    page = printing.Listing(answer, "agents", COLUMNS, output)
    there = sum(agent.get("status") != "offline" for agent in page.items)
    shown = [f"dragoman agent show {line(agent['id'])}" for agent in page.items[:1]]
    counted = f"{page.count('agent')}, {there} here now"
    page.end(True if page.items else None, counted, *(shown or ["dragoman agent add NAME --protocol chiffon"]))


PENDING = (("letters", "direct message"), ("state_entities", "shared task"))


@app.command
def show(id: AgentName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Show one agent: its state, what it can do, what it works on."""
    agent = Hub.find(location).get("agents", id)
    if printing.as_data(agent, output):
        return
    status = agent.get("status")
    state = printing.colored(line(status), sys.stdout)
    print(f"{printing.mark(status not in AMISS, sys.stdout)} agent {line(agent.get('id'))}  {state}")
    tasks = agent.get("current_tasks") or []
    printing.facts(
        [
            ("protocol", " ".join(str(agent[key]) for key in ("protocol", "protocol_version") if agent.get(key))),
            *((name, agent.get(name)) for name in ("kind", "role", "name", "domain", "version", "capabilities")),
            ("work types", agent.get("work_types")),
            ("offers", [one.get("intent") for one in agent.get("offers") or ()]),
            ("trusted", "no" if agent.get("untrusted") else None),
            ("sandbox", _sandbox(agent)),
            ("breaker", _breaker(agent.get("breaker"))),
            *_process(agent.get("child")),
            *_reported(agent.get("reported")),
            ("seen", f"{printing.age(agent.get('last_seen'))} ago" if agent.get("last_seen") else "never"),
            ("pending", _pending(agent.get("pending"))),
            ("tasks", tasks),
        ]
    )
    _past(agent.get("reported"))
    if tasks:
        printing.suggest(f"dragoman task show {line(tasks[0])}")
    elif agent.get("child"):
        printing.suggest(f"dragoman agent logs {line(id)} -f", f"dragoman agent restart {line(id)}")
    elif status == "offline":
        printing.suggest(f"start it with its token (a new one: dragoman agent token {line(id)})")
    else:
        printing.suggest(f"dragoman call {line(id)} WORK key=value")


@app.command
def rm(id: AgentName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Remove an agent. Its unfinished work goes back to the queue."""
    answer = Hub.find(location).delete("agents", id)
    printing.done(
        answer or {"agent_id": id, "removed": True},
        output,
        f"agent {line(id)} is removed; its unfinished work went back to the queue",
        "dragoman agent ls",
    )


@app.command
def pause(id: AgentName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Give an agent no new work. It finishes what it has."""
    agent = Hub.find(location).post("agents", id, "pause")
    left = len(agent.get("current_tasks") or ())
    has = f"; it still has {printing.count(left, 'task')}" if left else ""
    printing.done(
        agent, output, f"agent {line(id)} is paused and gets no new work{has}", f"dragoman agent resume {line(id)}"
    )


@app.command
def resume(id: AgentName, /, *, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Give a paused agent work again."""
    agent = Hub.find(location).post("agents", id, "resume")
    printing.done(agent, output, f"agent {line(id)} gets work again", f"dragoman agent show {line(id)}")


def _pending(held: object) -> str | None:
    """What its quotas count."""
    if not isinstance(held, dict):
        return None
    parts = [printing.count(held.get("bytes", 0), "byte")]
    parts += [printing.count(held[key], word) for key, word in PENDING if held.get(key)]
    return ", ".join(parts)


def _process(child: object) -> list[tuple[str, object]]:
    """What is known of an agent that the hub runs."""
    if not isinstance(child, dict):
        return []
    return [
        ("process", f"{child['state']}, process {child['pid']}" if child.get("pid") else child.get("state")),
        ("command", shlex.join(map(str, child.get("command") or ()))),
        ("directory", child.get("cwd")),
        ("allowed", [*(child.get("allow_files") or ()), *(child.get("allow_hosts") or ())]),
        ("environment", child.get("env")),
        ("restart", child.get("restart")),
        ("restarts", child.get("restarts") or None),
        ("last end", child.get("last_end")),
    ]


def _reported(report: object) -> list[tuple[str, object]]:
    """What an agent reported of itself, if it did."""
    if not isinstance(report, dict):
        return []
    status = report.get("status") or {}
    return [
        ("says", f"{_status_line(status)}  ({printing.age(report.get('at'))} ago)"),
        ("next available", status.get("next_available")),
        ("usage", status.get("resource_usage")),
        ("health", status.get("health_metrics")),
    ]


def _status_line(status: Mapping[str, Any]) -> str:
    """A status in a line; what is as good as it can be is left out."""
    parts = [str(status.get("state"))]
    if status.get("error_rate"):
        parts.append(f"{status['error_rate'] * 100:g} % errors")
    if status.get("capability_level", 100) != 100:
        parts.append(f"{status['capability_level']:g} % capable")
    if status.get("avg_response_time_ms"):
        parts.append(f"answers in {status['avg_response_time_ms']:g} ms")
    return ", ".join(parts)


def _past(report: object) -> None:
    """Its former reports, and its last errors."""
    if not isinstance(report, dict):
        return
    for title, entries, words in (
        ("history", report.get("history"), _status_line),
        ("errors", report.get("errors"), lambda one: f"{one.get('severity')}: {one.get('message')}"),
    ):
        if entries:
            print(f"  {title}:")
            for one in entries[-PAST:]:
                print(f"    {line(one.get('at'))}  {line(words(one))}")


def _sandbox(agent: Mapping[str, Any]) -> str | None:
    """The level in force, for an agent that the hub runs; an untrusted one without any does not run."""
    if agent.get("sandbox") or not (agent.get("untrusted") and agent.get("child")):
        return agent.get("sandbox")
    return "none: it does not run without one"


def _breaker(breaker: object) -> str:
    """`closed` is the ordinary state, an open one says until when."""
    if isinstance(breaker, dict):
        state = str(breaker.get("state") or "closed")
        return f"{state} until {breaker['until']}" if breaker.get("until") else state
    return str(breaker or "closed")


def must_exist(hub: Hub, name: str, *, only_kind: bool = False) -> str:
    """Whether `name` is an agent's id ("agent") or a kind ("kind"). Neither: `CommandError`, with what there is."""
    try:
        if not only_kind:
            hub.get("agents", name)
            return "agent"
    except CommandError as failure:
        if failure.code is not Exit.NOT_FOUND:
            raise
    agents = hub.get("agents").get("agents") or []
    if any(agent.get("kind") == name for agent in agents):
        return "kind"
    kinds = sorted({agent["kind"] for agent in agents if agent.get("kind")})
    names = [agent["id"] for agent in agents]
    import difflib  # only for who is lost

    close = difflib.get_close_matches(name, kinds if only_kind else [*names, *kinds], n=1)
    there = f"agents: {_some(names)}; kinds: {_some(kinds)}"
    add = f"dragoman agent add {'ID --kind ' if only_kind else ''}{line(name)} --protocol chiffon"
    raise CommandError(
        Exit.NOT_FOUND,
        f"there is no {'' if only_kind else 'agent and no '}kind of agent called {line(name)} ({line(there)})",
        next=f"did you mean {line(close[0])}? If not: {add}" if close else add,
    )


def _some(names: list[str], most: int = 8) -> str:
    """The first of them, and that there are more if there are."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more]) or "none"
