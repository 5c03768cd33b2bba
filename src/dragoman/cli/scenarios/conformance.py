"""`dragoman conformance hub` and `conformance agent`: try, report, and end with 1 if a clause does not hold."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dragoman.app.datadir import DataDir
from dragoman.cli import arguments, printing
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.options import LOCAL, HubLocation, Output
from dragoman.cli.scenarios.coven import GrpcPort
from dragoman.cli.scenarios.fake_agents import FakeAgents
from dragoman.cli.scenarios.steps import NotTried, Outcome
from dragoman.cli.scenarios.temporary_hub import temporary_hub

app = App(name="conformance", help="Try the protocols' clauses: hub, agent.")

Spoken = Literal["chiffon", "coven", "forge", "agentmsg", "a2acp"]
ALL: tuple[Spoken, ...] = ("chiffon", "coven", "forge", "agentmsg", "a2acp")
DOORS = {"chiffon": "chiffon+http", "agentmsg": "agentmsg+http", "a2acp": "a2acp+http", "coven": "coven"}
"""What an agent's address begins with, by what it speaks."""

ENDS = (Exit.NOT_ALLOWED, Exit.UNREACHABLE)
"""What keeps us from letting anybody in: no clause has been tried then."""

Fresh = Annotated[bool, Parameter(negative=(), help="Against a hub of its own, which ends with the checks.")]


@app.command(usage="Usage: dragoman conformance hub [OPTIONS] [PROTOCOL...]")
def hub(
    *protocols: Annotated[Spoken, Parameter(name="PROTOCOL", help="Only these; all five if none is named.")],
    fresh: Fresh = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Try clauses of the protocols against a running hub: agents are let in, speak by hand, and are put out again."""
    with ExitStack() as after:
        found, data = _hub(fresh, location, after)
        fakes = after.enter_context(FakeAgents(found))
        return _report(_hub_checks(fakes, protocols or ALL, _grpc(found, data)), output, "the hub")


@app.command(usage="Usage: dragoman conformance agent [OPTIONS] -- CMD ARG...")
def agent(
    *command: Annotated[str, Parameter(name="CMD", allow_leading_hyphen=True, help="The program and its arguments.")],
    protocol: Annotated[Spoken, Parameter(help="What it speaks; forge over its standard streams.")] = "forge",
    id: Annotated[str | None, Parameter(name="--id", help="What it calls itself [a fresh name].")] = None,
    work: Annotated[str | None, Parameter(help="The type of work to give it [the first it declares].")] = None,
    input: Annotated[list[str] | None, Parameter(negative=(), help="key=value for that work; may be repeated.")] = None,
    patience: Annotated[float, Parameter(help="Seconds that a task may take.")] = 20.0,
    fresh: Fresh = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Try an agent: it is started, given work, told to stop, and watched.

    One that speaks forge is run by the hub, over its standard streams. Any other is started here, and finds the hub by
    DRAGOMAN_URL, DRAGOMAN_TOKEN and DRAGOMAN_AGENT_ID in its environment.
    """
    from dragoman.cli.scenarios import agent_checks

    if not command:
        raise CommandError(
            Exit.USAGE, "there is no agent to try", next="dragoman conformance agent --fresh -- node agent.js"
        )
    with ExitStack() as after:
        found, data = _hub(fresh, location, after)
        fakes = after.enter_context(FakeAgents(found))
        try:
            scenario = agent_checks.Scenario(
                fakes, protocol, command, work, arguments.read(tuple(input or ())),
                id=id, address=_address(found, protocol, data), patience=patience,
            )  # fmt: skip
        except OSError as error:
            raise CommandError(Exit.USAGE, f"{line(command[0])} cannot be started: {error.strerror}") from None
        after.callback(scenario.close)
        run = (one._replace(protocol=protocol) for one in agent_checks.checks.run(scenario))
        return _report(run, output, "the agent")


def _hub(fresh: bool, location: HubLocation, after: ExitStack) -> tuple[Hub, Path]:
    if fresh:
        return after.enter_context(temporary_hub())
    try:
        return Hub.find(location), location.directory
    except CommandError as failure:
        if failure.code is Exit.UNREACHABLE:
            raise CommandError(
                failure.code, failure.sentence, next="add --fresh (a hub of its own)   ·   dragoman dev"
            ) from failure
        raise


def _grpc(hub: Hub, data: Path) -> GrpcPort | None:
    """Where the hub's gRPC port is, if it is the hub of this directory."""
    here = DataDir(data).whereabouts()
    if here is None or not here.grpc or Hub(here.http, None).url != hub.url:
        return None
    return GrpcPort(here.grpc, here.certificate if here.grpc_tls else None)


def _address(hub: Hub, protocol: str, data: Path) -> str:
    if protocol != "coven":
        return f"{DOORS.get(protocol, 'http')}{hub.url.removeprefix('http')}"
    grpc = _grpc(hub, data)
    if grpc is None:
        raise CommandError(
            Exit.USAGE, "only the hub of this data directory says where its gRPC port is", next="add --fresh"
        )
    return f"coven{'' if grpc.certificate is None else 's'}://{grpc.address}"


def _hub_checks(fakes: FakeAgents, protocols: Iterable[str], grpc: GrpcPort | None) -> Iterator[Outcome]:
    for protocol in protocols:
        module: Any = importlib.import_module(f"dragoman.cli.scenarios.{protocol}")
        try:
            scenario = module.Scenario(fakes, grpc) if protocol == "coven" else module.Scenario(fakes)
        except (NotTried, CommandError) as why:
            if isinstance(why, CommandError) and why.code in ENDS:
                raise
            said = why.sentence if isinstance(why, CommandError) else str(why)
            good = False if isinstance(why, CommandError) else None
            yield from (Outcome(protocol, one.id, one.says, good, said, 0.0) for one in module.checks.checks)
            continue
        try:
            yield from module.checks.run(scenario)
        finally:
            if hasattr(scenario, "close"):
                scenario.close()


def _report(run: Iterable[Outcome], output: Output, whom: str) -> int:
    found: list[Outcome] = []
    for one in run:
        found.append(one)
        if output == "table":
            _show(one, found)
        elif output == "jsonl":
            printing.document(one._asdict(), output)
    bad = [one for one in found if one.good is False]
    untried = sum(one.good is None for one in found)
    if output == "json":
        printing.document({"ok": not bad, "checks": [one._asdict() for one in found]})
    if output == "table":
        held = f"{sum(one.good is True for one in found)} of {printing.count(len(found), 'clause')} hold"
        left = f", {untried} not tried" if untried else ""
        not_held = f", {len(bad)} {'does' if len(bad) == 1 else 'do'} not" if bad else ""
        printing.verdict(not bad, f"{whom}: {held}{left}{not_held}")
        printing.suggest(*(f"docs/protocols/{name}.md" for name in dict.fromkeys(one.protocol for one in bad or found)))
    return Exit.FAILED if bad else Exit.OK


def _show(one: Outcome, before: list[Outcome]) -> None:
    if len(before) == 1 or before[-2].protocol != one.protocol:
        print(one.protocol)
    print(f"  {printing.mark(one.good, sys.stdout)} {one.id.ljust(12)}  {line(one.says)}", flush=True)
    if one.why:
        print(f"    {line(one.why)}", flush=True)
