"""An agent that somebody wrote, tried by a hub: does it come, work, end, stop, and come again?

The hub starts it (forge, over its standard streams), or it is started here with `DRAGOMAN_URL` and `DRAGOMAN_TOKEN` in
its environment, as the SDK reads them. It is given work over the management API; what it does is read there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.cli.conformance.cast import Cast, until
from dragoman.cli.conformance.checklist import Checklist, NotTried, Unmet, expect
from dragoman.cli.errors import CommandError

checks: Checklist[Scene] = Checklist("agent")
FINAL = frozenset({"completed", "failed", "cancelled"})
ENOUGH = 5.0
"""Seconds in which an agent that is told to stop has stopped."""


class Scene:
    def __init__(
        self,
        cast: Cast,
        protocol: str,
        command: Sequence[str],
        work: str | None,
        given: Mapping[str, Any],
        *,
        id: str | None,
        address: str,
        patience: float,
    ) -> None:
        self.hub = cast.hub
        self.protocol = protocol
        self.patience = patience
        self.work = work
        self.given = given
        self.there = False
        self.process: subprocess.Popen[bytes] | None = None
        self._command = list(command)
        if protocol == "forge":
            self.id = id or f"conformance-agent-{os.urandom(4).hex()}"
            wish = {"agent_id": self.id, "protocol": "forge", "command": list(command), "cwd": os.getcwd()}
            self.hub.post("agents", body={**wish, "restart": "never"})
            cast.known(self.id)
            return
        player = cast.admit(protocol, "agent", id=id)
        self.id = player.id
        told = {"DRAGOMAN_URL": address, "DRAGOMAN_TOKEN": player.token, "DRAGOMAN_AGENT_ID": player.id}
        self._environment = {**os.environ, **told}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL)

    def look(self) -> dict[str, Any]:
        found: dict[str, Any] = self.hub.get("agents", self.id)
        return found

    def here(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            self.there = False
            raise Unmet(f"its process ended with {self.process.returncode}")
        agent = self.look()
        child = agent.get("child") or {}
        if child.get("state") in ("crashed", "stopped"):
            self.there = False
            raise Unmet(f"its process ended: {child.get('last_end')}")
        return agent["status"] in ("idle", "busy")

    def needed(self) -> None:
        """It must be there for anything else."""
        if not self.there:
            raise NotTried("it is not there")

    def submit(self) -> str:
        self.needed()
        if self.work is None:
            raise NotTried("it does not say what it does; name some work with --work")
        return str(self.hub.post("tasks", body={"type": self.work, "agent": self.id, "input": dict(self.given)})["id"])

    def ended(self, task: str) -> dict[str, Any]:
        told: dict[str, Any] = self.hub.ask(
            "GET", "tasks", task, query={"wait": self.patience}, patience=self.patience + 30
        )
        return told

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(ENOUGH)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@checks("agent-1", "It comes: the hub sees it.")
def comes(scene: Scene) -> None:
    until(scene.here, "it was not there", scene.patience)
    scene.there = True


@checks("agent-2", "It says what it does, or some work was named.")
def says_what_it_does(scene: Scene) -> None:
    scene.needed()
    declared = "it declares no work types (else name some work with --work)"
    until(lambda: scene.here() and (scene.work or scene.look().get("work_types")), declared, scene.patience)
    types = scene.look().get("work_types")
    scene.work = scene.work or str((types or [""])[0])
    expect(types is None or scene.work in types, f"it does not do {scene.work}, but {types}")


@checks("agent-3", "It takes work and ends it, with a result or a reason.")
def works(scene: Scene) -> None:
    told = scene.ended(scene.submit())
    expect(told["status"] in FINAL, f"the task is {told['status']} after {scene.patience:g} s")
    expect(told["attempts"] == 1, f"it took {told['attempts']} attempts: {str(told.get('error'))[:200]}")
    if told["status"] != "completed":
        expect((told.get("error") or {}).get("message"), "it failed without a reason")


@checks("agent-4", "It does the same again: nothing of the first work is in its way.")
def works_again(scene: Scene) -> None:
    first, second = (scene.ended(scene.submit()) for _ in range(2))
    expect(first["status"] in FINAL, f"the first task is {first['status']}")
    expect(first["status"] == second["status"], f"one task {first['status']}, the other {second['status']}")


@checks("agent-5", "It can be told to stop a task, and is free for the next.")
def lets_go(scene: Scene) -> None:
    task = scene.submit()
    try:
        scene.hub.post("tasks", task, "cancel")
    except CommandError as failure:  # it was faster
        raise NotTried(f"the task was over before it could be cancelled ({failure.sentence})") from None
    until(lambda: not scene.look()["current_tasks"], "it still holds a cancelled task", scene.patience)
    told = scene.ended(scene.submit())
    expect(told["status"] in FINAL, f"the next task is {told['status']}")


@checks("agent-6", "Its breaker is closed: it never left the hub waiting.")
def no_failures(scene: Scene) -> None:
    scene.needed()
    breaker = scene.look()["breaker"]
    expect((breaker["state"], breaker["failures"]) == ("closed", 0), f"{breaker['failures']} failures were counted")


@checks("agent-7", "It stops when it is told to, and comes again.")
def comes_again(scene: Scene) -> None:
    scene.needed()
    if scene.process is None:
        scene.hub.ask("POST", "agents", scene.id, "restart", body={}, patience=scene.patience + 30)
    else:
        scene.process.terminate()
        try:
            scene.process.wait(ENOUGH)
        except subprocess.TimeoutExpired:
            raise Unmet(f"it runs {ENOUGH:g} s after SIGTERM") from None
        scene.start()
    until(scene.here, "it did not come again", scene.patience)
    told = scene.ended(scene.submit())
    expect(told["status"] in FINAL, f"its next task is {told['status']} after {scene.patience:g} s")
