"""The nodes of a cluster: who leads, in which epoch, and handing the lead over.

`Cluster` is what a node knows of its cluster (`app.cluster.node`); a hub that is no node has none, and its routes say
so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from dragoman.api.bodies import Nothing
from dragoman.api.context import Call, Context, Plain
from dragoman.api.problems import Next, Problem
from dragoman.core.ids import Instant, rfc3339
from dragoman.messages.faults import Kind

Part = Literal["leader", "standby"]


class NodeOut(msgspec.Struct, frozen=True):
    """A node. `last_seen`: when it last showed that it runs, by PostgreSQL's clock."""

    name: str
    role: Part
    http: str
    last_seen: str


class ClusterOut(msgspec.Struct, frozen=True):
    """`leader` is null while no node leads."""

    realm: str
    epoch: int
    leader: str | None
    nodes: Sequence[NodeOut]


class Member(msgspec.Struct, frozen=True):
    name: str
    http: str
    last_seen: float
    """Seconds since 1970."""


class Found(msgspec.Struct, frozen=True):
    """What PostgreSQL says of a realm."""

    realm: str
    epoch: int
    leader: str | None
    nodes: Sequence[Member]


def shown(found: Found) -> ClusterOut:
    def part(name: str) -> Part:
        return "leader" if name == found.leader else "standby"

    return ClusterOut(
        realm=found.realm,
        epoch=found.epoch,
        leader=found.leader,
        nodes=[
            NodeOut(one.name, part(one.name), one.http, rfc3339(Instant(int(one.last_seen * 1e6))))
            for one in found.nodes
        ],
    )


class Cluster(Protocol):
    @property
    def name(self) -> str:
        """This node's."""
        ...

    @property
    def realm(self) -> str: ...

    @property
    def serving(self) -> str:
        """What `/readyz` says while all is well: which part this node has, and in which epoch."""
        ...

    async def found(self) -> Found:
        """Raises `StoreFailed`."""
        ...

    def step_down(self) -> bool:
        """Have this node end its lead in order; another takes it. False where it does not lead."""
        ...


async def show(context: Context, call: Plain) -> ClusterOut:
    return shown(await _of(context).found())


async def step_down(context: Context, call: Call[None, Nothing]) -> ClusterOut:
    cluster = _of(context)
    found = await cluster.found()
    if not cluster.step_down():
        where = next((node.http for node in found.nodes if node.name == found.leader), None)
        raise Problem(
            Kind.CONFLICT,
            f"{cluster.name} does not lead; {found.leader} does" if found.leader else "no node leads now",
            next=Next(f"ask {where}" if where else "ask again in a moment", command="dragoman cluster step-down"),
        )
    return shown(found)


def _of(context: Context) -> Cluster:
    cluster: Cluster | None = context.cluster
    if cluster is None:
        raise Problem(
            Kind.NOT_FOUND,
            "this hub is not a node of a cluster",
            next=Next("start one with `dragoman serve --store postgresql://… --node NAME`"),
        )
    return cluster
