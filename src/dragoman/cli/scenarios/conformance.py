"""`dragoman conformance hub` and `conformance agent`: try, report, and end with 1 if a clause does not hold."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dragoman.cli import arguments, printing
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.scenarios.fake_agents import FakeAgents
from dragoman.cli.scenarios.steps import NotTried, Outcome, hub_for, run

app = App(name="conformance", help="Check a hub or an agent against the protocols: hub, agent.")

Spoken = Literal["chiffon", "coven", "forge", "agentmsg", "a2acp"]
ALL: tuple[Spoken, ...] = ("chiffon", "coven", "forge", "agentmsg", "a2acp")
ENDS = (Exit.NOT_ALLOWED, Exit.UNREACHABLE)
"""With these, no agent could be added: no clause has been checked then."""

Fresh = Annotated[bool, Parameter(negative=(), help="Use a temporary hub, which ends with the checks.")]


@app.command(usage="Usage: dragoman conformance hub [OPTIONS] [PROTOCOL...]")
def hub(
    *protocols: Annotated[Spoken, Parameter(name="PROTOCOL", help="Only these; all five if none is named.")],
    fresh: Fresh = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Check a running hub against clauses of the protocols, by fake agents that are added and removed again."""
    with ExitStack() as after:
        found, data = hub_for(location, fresh=fresh, after=after, fix="add --fresh")
        fakes = after.enter_context(FakeAgents(found))
        return _report(_hub_checks(fakes, protocols or ALL, data), output, "the hub")


@app.command(usage="Usage: dragoman conformance agent [OPTIONS] -- CMD ARG...")
def agent(
    *command: Annotated[str, Parameter(name="CMD", allow_leading_hyphen=True, help="The program and its arguments.")],
    protocol: Annotated[Spoken, Parameter(help="Its protocol; forge is spoken over its standard streams.")] = "forge",
    id: Annotated[str | None, Parameter(name="--id", help="Its id [a fresh one].")] = None,
    work: Annotated[str | None, Parameter(help="The type of work to give it [the first that it declares].")] = None,
    input: Annotated[list[str] | None, Parameter(negative=(), help="key=value for that work; may be repeated.")] = None,
    patience: Annotated[float, Parameter(help="Seconds that a task may take.")] = 20.0,
    fresh: Fresh = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> int:
    """Check an agent: it is started, given work, and stopped.

    One that speaks forge is run by the hub, over its standard streams. Any other is started here, and finds the hub by
    DRAGOMAN_URL, DRAGOMAN_TOKEN and DRAGOMAN_AGENT_ID in its environment.
    """
    from dragoman.cli.scenarios import agent_checks

    if not command:
        raise CommandError(
            Exit.USAGE, "the agent's command is missing", next="dragoman conformance agent --fresh -- node agent.js"
        )
    with ExitStack() as after:
        found, data = hub_for(location, fresh=fresh, after=after, fix="add --fresh")
        fakes = after.enter_context(FakeAgents(found))
        try:
            scenario = agent_checks.Scenario(
                fakes, protocol, command, work, arguments.read(tuple(input or ())),
                id=id, address=found.agent_address(protocol, "http", data, fix="add --fresh"), patience=patience,
            )  # fmt: skip
        except OSError as error:
            raise CommandError(Exit.USAGE, f"{line(command[0])} cannot be started: {error.strerror}") from None
        after.callback(scenario.close)
        outcomes = ((protocol, outcome) for outcome in run(agent_checks.checks.steps, scenario))
        return _report(outcomes, output, "the agent")


def _hub_checks(fakes: FakeAgents, protocols: Iterable[str], data: Path) -> Iterator[tuple[str, Outcome]]:
    for protocol in protocols:
        module: Any = importlib.import_module(f"dragoman.cli.scenarios.{protocol}")
        try:
            scenario = (
                module.Scenario(fakes, fakes.hub.whereabouts(data)) if protocol == "coven" else module.Scenario(fakes)
            )
        except (NotTried, CommandError) as reason:
            if isinstance(reason, CommandError) and reason.code in ENDS:
                raise
            good = False if isinstance(reason, CommandError) else None
            yield from ((protocol, Outcome(one.id, one.says, good, (str(reason),))) for one in module.checks.steps)
            continue
        try:
            yield from ((protocol, outcome) for outcome in run(module.checks.steps, scenario))
        finally:
            if hasattr(scenario, "close"):
                scenario.close()


def _report(outcomes: Iterable[tuple[str, Outcome]], output: Output, whom: str) -> int:
    report, count, failed = printing.Report(output), Counter[bool | None](), []
    protocols: dict[str, None] = {}
    for protocol, one in outcomes:
        protocols[protocol] = None
        count[one.good] += 1
        failed += [protocol] if one.good is False else []
        why = "; ".join(one.why)
        first = f"  {printing.mark(one.good, sys.stdout)} {one.id.ljust(12)}  {line(one.says)}"
        record = {"protocol": protocol, "id": one.id, "says": one.says, "good": one.good, "why": why}
        report.add(protocol, [first, *([f"    {line(why)}"] if why else [])], {**record, "seconds": one.seconds})
    report.end("checks", ok=not failed)
    if output == "table":
        held = f"{count[True]} of {printing.count(count.total(), 'clause')} hold"
        left = f", {count[None]} not tried" if count[None] else ""
        not_held = f", {len(failed)} {'does' if len(failed) == 1 else 'do'} not" if failed else ""
        printing.verdict(not failed, f"{whom}: {held}{left}{not_held}")
        printing.suggest(*(f"docs/protocols/{name}.md" for name in dict.fromkeys(failed or protocols)))
    return Exit.FAILED if failed else Exit.OK
