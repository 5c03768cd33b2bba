"""Children in a cluster: each node runs those that were added at it, and leaves those of other nodes alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.nodes import FollowedWorld

from dragoman.core.model.agents import Agent, Profile
from dragoman.supervisor.spawner_client import SpawnerClient
from dragoman.supervisor.spec import ChildSpec, spec_of
from dragoman.supervisor.supervisor import ChildDeclaration, Supervisor


def declared(id: str) -> ChildDeclaration:
    return ChildDeclaration(id=id, spec=ChildSpec(command=("true",)), env={}, profile=Profile())


async def test_each_node_starts_the_children_that_were_added_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, str]] = []

    async def nothing_left(spawner: SpawnerClient) -> Sequence[int]:
        return ()

    def start(children: Supervisor, agent: Agent) -> None:
        started.append((children._node, agent.id))

    monkeypatch.setattr(SpawnerClient, "sweep", nothing_left)
    monkeypatch.setattr(Supervisor, "add", start)
    world = await FollowedWorld().start()

    def supervisor(hub: Any, node: str) -> Supervisor:
        made: Any = lambda *_: None  # noqa: E731 - no child starts here
        return Supervisor(hub, data=tmp_path / node, session=made, task=made, node=node)

    leader, follower = supervisor(world.leader, "n1"), supervisor(world.intake, "n2")
    await leader.admit(declared("one"))
    await follower.admit(declared("two"))
    assert [(agent.id, spec.node) for agent in world.intake.agents() if (spec := spec_of(agent))] == [
        ("one", "n1"),
        ("two", "n2"),
    ]
    started.clear()
    both = [declared("three")]  # the same file of settings lies at both nodes
    await leader.start(both)
    await follower.start(both)
    await world.settle()
    await follower.start()  # nor does it remove what only the other one declares
    assert sorted(set(started)) == [("n1", "one"), ("n1", "three"), ("n2", "two")]
    assert {agent.id for agent in world.leader.agents()} == {"one", "two", "three"}
    await world.stop()
