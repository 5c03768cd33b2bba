"""The overview: what one answer says of the whole hub."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.api.cluster import Found, Member
from dragoman.api.overview import MOST_COSTS, series_out
from dragoman.api.series import Series
from dragoman.core.ids import SECOND, Instant
from dragoman.core.model.series import AgentFigures, Bucket
from dragoman.core.model.tasks import Event, EventKind
from dragoman.core.ports import Changes, StoreFailed
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Failure, Result


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


class Seen:
    """The hub's series, told of finished tasks."""

    def __init__(self) -> None:
        self.series = Series(lambda: Instant(900 * SECOND), lambda agent: "chiffon", lambda: 0)

    def cost(self, make: Any, result: Result | Failure) -> float:
        kind = EventKind.COMPLETED if isinstance(result, Result) else EventKind.FAILED
        task = make.task(owner="painter")
        event = Event(task=task.id, seq=9, at=task.created_at, kind=kind, body=msgspec.Raw(msgspec.json.encode(result)))
        before = self._counted()
        self.series.committed(Changes(added=(event,), changed=(task,)))
        return self._counted() - before

    def _counted(self) -> float:
        return self.series._open.of_agent("painter").cost


@pytest.mark.parametrize(
    ("result", "cost"),
    [
        (Result(result="done", usage={"cost_usd": 0.25, "tokens_used": 9}), 0.25),
        (Failure(fault=Fault(kind=Kind.WORK_FAILED, message="no"), usage={"cost_usd": 1}), 1.0),
        (Result(result="done"), 0.0),
        (Result(result={"cost_usd": 5}), 0.0),
        (Result(result="done", usage={"cost_usd": "much"}), 0.0),
        (Result(result="done", usage={"cost_usd": -3}), 0.0),
    ],
)
def test_what_an_agent_says_its_work_cost_is_counted_also_without_a_budget(
    make: Any, result: Result | Failure, cost: float
) -> None:
    assert Seen().cost(make, result) == cost
