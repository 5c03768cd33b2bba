"""`dragoman conformance hub` and `conformance agent`: try, report, and end with 1 if a clause does not hold."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from dragoman.cli import arguments, printing
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.scenarios.fake_agents import FakeAgents, until
from dragoman.cli.scenarios.steps import Checks, NotTried, Outcome, Unmet, expect, hub_for, run
from dragoman.cli.task_view import FINAL

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
    if not command:
        raise CommandError(
            Exit.USAGE, "the agent's command is missing", next="dragoman conformance agent --fresh -- node agent.js"
        )
    with ExitStack() as after:
        found, data = hub_for(location, fresh=fresh, after=after, fix="add --fresh")
        fakes = after.enter_context(FakeAgents(found))
        try:
            scenario = AgentScenario(
                fakes, protocol, command, work, arguments.read(tuple(input or ())),
                id=id, address=found.agent_address(protocol, "http", data, fix="add --fresh"), patience=patience,
            )  # fmt: skip
        except OSError as error:
            raise CommandError(Exit.USAGE, f"{line(command[0])} cannot be started: {error.strerror}") from None
        after.callback(scenario.close)
        outcomes = ((protocol, outcome) for outcome in run(checks.steps, scenario))
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


# -- checks of an agent -------------------------------------------------------------------------------------------

checks: Checks[AgentScenario] = Checks()
STOP_SECONDS = 5.0
"""Seconds in which an agent stops after SIGTERM."""


class AgentScenario:
    """An agent that a user wrote. The hub starts it (forge, over its standard streams), or it is started here with
    `DRAGOMAN_URL` and `DRAGOMAN_TOKEN` in its environment. It is given work over the management API."""

    def __init__(
        self,
        fakes: FakeAgents,
        protocol: str,
        command: Sequence[str],
        work: str | None,
        given: Mapping[str, Any],
        *,
        id: str | None,
        address: str,
        patience: float,
    ) -> None:
        self.hub = fakes.hub
        self.protocol = protocol
        self.patience = patience
        self.work = work
        self.given = given
        self.is_here = False
        self.process: subprocess.Popen[bytes] | None = None
        self._command = list(command)
        if protocol == "forge":
            self.id = id or f"conformance-agent-{os.urandom(4).hex()}"
            request = {"agent_id": self.id, "protocol": "forge", "command": list(command), "cwd": os.getcwd()}
            self.hub.post("agents", body={**request, "restart": "never"})
            fakes.also_remove(self.id)
            return
        agent = fakes.admit(protocol, "agent", id=id)
        self.id = agent.id
        variables = {"DRAGOMAN_URL": address, "DRAGOMAN_TOKEN": agent.token, "DRAGOMAN_AGENT_ID": agent.id}
        self._environment = {**os.environ, **variables}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL)

    def look(self) -> dict[str, Any]:
        found: dict[str, Any] = self.hub.get("agents", self.id)
        return found

    def here(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            self.is_here = False
            raise Unmet(f"its process ended with {self.process.returncode}")
        agent = self.look()
        child = agent.get("child") or {}
        if child.get("state") in ("crashed", "stopped"):
            self.is_here = False
            raise Unmet(f"its process ended: {child.get('last_end')}")
        return agent["status"] in ("idle", "busy")

    def needed(self) -> None:
        """It must be there for anything else."""
        if not self.is_here:
            raise NotTried("it is not there")

    def submit(self) -> str:
        self.needed()
        if self.work is None:
            raise NotTried("it does not say what it does; name some work with --work")
        return str(self.hub.post("tasks", body={"type": self.work, "agent": self.id, "input": dict(self.given)})["id"])

    def ended(self, task: str) -> dict[str, Any]:
        ended: dict[str, Any] = self.hub.ask(
            "GET", "tasks", task, query={"wait": self.patience}, patience=self.patience + 30
        )
        return ended

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@checks("agent-1", "It connects: the hub sees it.")
def comes(scenario: AgentScenario) -> None:
    until(scenario.here, "it was not there", scenario.patience)
    scenario.is_here = True


@checks("agent-2", "It declares its work types, or --work names one.")
def says_what_it_does(scenario: AgentScenario) -> None:
    scenario.needed()
    declared = "it declares no work types (else name some work with --work)"
    until(lambda: scenario.here() and (scenario.work or scenario.look().get("work_types")), declared, scenario.patience)
    types = scenario.look().get("work_types")
    scenario.work = scenario.work or str((types or [""])[0])
    expect(types is None or scenario.work in types, f"it does not do {scenario.work}, but {types}")


@checks("agent-3", "It takes work and ends it, with a result or a reason.")
def works(scenario: AgentScenario) -> None:
    ended = scenario.ended(scenario.submit())
    expect(ended["status"] in FINAL, f"the task is {ended['status']} after {scenario.patience:g} s")
    expect(ended["attempts"] == 1, f"it took {ended['attempts']} attempts: {str(ended.get('error'))[:200]}")
    if ended["status"] != "completed":
        expect((ended.get("error") or {}).get("message"), "it failed without a reason")


@checks("agent-4", "It does the same again: nothing of the first work is in its way.")
def works_again(scenario: AgentScenario) -> None:
    first, second = (scenario.ended(scenario.submit()) for _ in range(2))
    expect(first["status"] in FINAL, f"the first task is {first['status']}")
    expect(first["status"] == second["status"], f"one task {first['status']}, the other {second['status']}")


@checks("agent-5", "It stops a task that is cancelled, and is free for the next.")
def lets_go(scenario: AgentScenario) -> None:
    task = scenario.submit()
    try:
        scenario.hub.post("tasks", task, "cancel")
    except CommandError as failure:  # it was faster
        raise NotTried(f"the task was over before it could be cancelled ({failure.sentence})") from None
    until(lambda: not scenario.look()["current_tasks"], "it still holds a cancelled task", scenario.patience)
    ended = scenario.ended(scenario.submit())
    expect(ended["status"] in FINAL, f"the next task is {ended['status']}")


@checks("agent-6", "Its breaker is closed: it never left the hub waiting.")
def no_failures(scenario: AgentScenario) -> None:
    scenario.needed()
    breaker = scenario.look()["breaker"]
    expect((breaker["state"], breaker["failures"]) == ("closed", 0), f"{breaker['failures']} failures were counted")


@checks("agent-7", "It stops on SIGTERM, and connects again.")
def comes_again(scenario: AgentScenario) -> None:
    scenario.needed()
    if scenario.process is None:
        scenario.hub.ask("POST", "agents", scenario.id, "restart", body={}, patience=scenario.patience + 30)
    else:
        scenario.process.terminate()
        try:
            scenario.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise Unmet(f"it runs {STOP_SECONDS:g} s after SIGTERM") from None
        scenario.start()
    until(scenario.here, "it did not come again", scenario.patience)
    ended = scenario.ended(scenario.submit())
    expect(ended["status"] in FINAL, f"its next task is {ended['status']} after {scenario.patience:g} s")
