"""The overview: what one answer says of the whole hub."""

from __future__ import annotations

from typing import Any

from dragoman.api.cluster import Found, Member
from dragoman.api.overview import MOST_COSTS, series_out
from dragoman.core.model.series import AgentFigures, Bucket
from dragoman.core.ports import StoreFailed


class Node:
    """A node of a cluster whose database answers, or does not."""

    name = "a"
    serving = "leader, epoch 3"
    answers = True

    async def found(self) -> Found:
        if not self.answers:
            raise StoreFailed("the database does not answer")
        return Found("prod", 3, "a", [Member("a", "http://a", 1.0), Member("b", "http://b", 2.0)])

    def step_down(self) -> bool:
        return True


async def test_the_overview_of_a_node_says_who_leads(world: Any) -> None:
    assert (await world.client.get("/api/v1/overview")).json()["cluster"] is None
    world.context.cluster = node = Node()
    world.context.overviews.clear()
    told = (await world.client.get("/api/v1/overview")).json()["cluster"]
    assert (told["leader"], told["epoch"], [one["role"] for one in told["nodes"]]) == ("a", 3, ["leader", "standby"])
    node.answers = False
    world.context.overviews.clear()
    assert (await world.client.get("/api/v1/overview")).json()["cluster"] is None


def test_costs_are_those_of_the_dearest_agents_in_each_step() -> None:
    agents = {f"a{n}": AgentFigures(completed=1, cost=n / 10) for n in range(10)}
    told = series_out([Bucket(15, 885, agents=agents)], "15m", 900)
    assert list(told.costs) == ["a9", "a8", "a7", "a6", "a5", "a4"]
    assert len(told.costs) == MOST_COSTS
    assert (told.costs["a9"][-2:], sum(told.costs["a9"])) == ((0.9, 0.0), 0.9)
