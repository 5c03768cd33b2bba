"""A question whose agent is restarted while it waits, over every address an agent of the SDK has.

The agent keeps nothing on a disk. Wanted in every cell: the task is completed with the person's answer within ten
seconds of the agent being back, in the attempt it had, and the person was asked once.

Here hub and agents share a process, and time is the test's. `test_real_agents_over_restarts.py` has the same with real
processes and signals.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman import Agent, Task
from dragoman.testing import Hub

ADDRESSES = (
    ("chiffon", "ws"),
    ("chiffon", "http"),
    ("agentmsg", "ws"),
    ("agentmsg", "http"),
    ("forge", "ws"),
    ("a2acp", "ws"),
    ("a2acp", "http"),
    ("coven", "grpc"),
)
BACK = 10.0
"""Seconds within which an agent that is back must have completed its task."""


def deployer(runs: list[str]) -> Agent:
    agent = Agent("deployer")

    @agent.on("deploy")
    async def deploy(task: Task, place: str) -> dict[str, str]:
        runs.append(place)
        return {"place": place, "said": await task.ask(f"Deploy to {place}?")}

    return agent


@pytest.mark.parametrize("answered", ["away", "back"])
@pytest.mark.parametrize("end", ["kill", "stop", "hub_too"])
@pytest.mark.parametrize(("protocol", "transport"), ADDRESSES, ids=["+".join(one) for one in ADDRESSES])
def test_a_question_outlives_the_agent_that_asked(
    protocol: str, transport: str, end: str, answered: str, tmp_path: Path
) -> None:
    runs: list[str] = []
    with Hub(store="sqlite" if end == "hub_too" else "memory", data=tmp_path) as hub:
        hub.add(deployer(runs), protocol, transport=transport)
        task = hub.submit("deployer", "deploy", {"place": "prod"})
        assert [asked.question for asked in hub.human.asked] == ["Deploy to prod?"]
        hub.clock.advance(20)  # the person thinks
        hub.remove("deployer", kill=end != "stop")
        if end == "hub_too":
            hub.faults.restart_hub()
        hub.clock.advance(2)
        if answered == "away":
            hub.human.answers("yes")
            hub.clock.advance(2)
        hub.add(deployer(runs), protocol, transport=transport)
        if answered == "back":
            hub.clock.advance(BACK)
            assert hub.task(task).status == "waiting"
            hub.human.answers("yes")
        hub.clock.advance(BACK)
        done = hub.task(task)
        assert (done.status, done.result) == ("completed", {"place": "prod", "said": "yes"})
        assert done.attempts == 1
        assert len(hub.human.asked) == 1
        assert runs == ["prod", "prod"]
