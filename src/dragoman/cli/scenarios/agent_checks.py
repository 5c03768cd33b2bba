"""Checks of an agent that a user wrote: does it connect, work, stop, and connect again?

The hub starts it (forge, over its standard streams), or it is started here with `DRAGOMAN_URL` and `DRAGOMAN_TOKEN` in
its environment, as the SDK reads them. It is given work over the management API; what it does is read there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.cli.errors import CommandError
from dragoman.cli.scenarios.fake_agents import FakeAgents, until
from dragoman.cli.scenarios.steps import Checks, NotTried, Unmet, expect
from dragoman.cli.task_view import FINAL

checks: Checks[Scenario] = Checks()
STOP_SECONDS = 5.0
"""Seconds in which an agent stops after SIGTERM."""


class Scenario:
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
def comes(scenario: Scenario) -> None:
    until(scenario.here, "it was not there", scenario.patience)
    scenario.is_here = True


@checks("agent-2", "It declares its work types, or --work names one.")
def says_what_it_does(scenario: Scenario) -> None:
    scenario.needed()
    declared = "it declares no work types (else name some work with --work)"
    until(lambda: scenario.here() and (scenario.work or scenario.look().get("work_types")), declared, scenario.patience)
    types = scenario.look().get("work_types")
    scenario.work = scenario.work or str((types or [""])[0])
    expect(types is None or scenario.work in types, f"it does not do {scenario.work}, but {types}")


@checks("agent-3", "It takes work and ends it, with a result or a reason.")
def works(scenario: Scenario) -> None:
    ended = scenario.ended(scenario.submit())
    expect(ended["status"] in FINAL, f"the task is {ended['status']} after {scenario.patience:g} s")
    expect(ended["attempts"] == 1, f"it took {ended['attempts']} attempts: {str(ended.get('error'))[:200]}")
    if ended["status"] != "completed":
        expect((ended.get("error") or {}).get("message"), "it failed without a reason")


@checks("agent-4", "It does the same again: nothing of the first work is in its way.")
def works_again(scenario: Scenario) -> None:
    first, second = (scenario.ended(scenario.submit()) for _ in range(2))
    expect(first["status"] in FINAL, f"the first task is {first['status']}")
    expect(first["status"] == second["status"], f"one task {first['status']}, the other {second['status']}")


@checks("agent-5", "It stops a task that is cancelled, and is free for the next.")
def lets_go(scenario: Scenario) -> None:
    task = scenario.submit()
    try:
        scenario.hub.post("tasks", task, "cancel")
    except CommandError as failure:  # it was faster
        raise NotTried(f"the task was over before it could be cancelled ({failure.sentence})") from None
    until(lambda: not scenario.look()["current_tasks"], "it still holds a cancelled task", scenario.patience)
    ended = scenario.ended(scenario.submit())
    expect(ended["status"] in FINAL, f"the next task is {ended['status']}")


@checks("agent-6", "Its breaker is closed: it never left the hub waiting.")
def no_failures(scenario: Scenario) -> None:
    scenario.needed()
    breaker = scenario.look()["breaker"]
    expect((breaker["state"], breaker["failures"]) == ("closed", 0), f"{breaker['failures']} failures were counted")


@checks("agent-7", "It stops on SIGTERM, and connects again.")
def comes_again(scenario: Scenario) -> None:
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
