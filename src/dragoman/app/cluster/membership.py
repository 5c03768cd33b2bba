"""What this node tells people of its cluster (`api.cluster.Cluster`), and their wish that it hands over the lead."""

from __future__ import annotations

import asyncio

from dragoman.api.cluster import Found, Member
from dragoman.app.cluster.keeper import Following, Keeper, Leading
from dragoman.app.metrics import ClusterFigures
from dragoman.stores.postgres.lease import LeaseTable


class Membership:
    def __init__(self, keeper: Keeper, table: LeaseTable) -> None:
        self._keeper = keeper
        self._table = table
        self.hands_over = asyncio.Event()
        self.refusal: str | None = None
        """Why the leader that there is does not take this node."""

    @property
    def name(self) -> str:
        return self._keeper.place.name

    @property
    def realm(self) -> str:
        return self._table.realm

    @property
    def waiting(self) -> str:
        """Why this node serves nobody, between two terms."""
        match self._keeper.role:
            case Leading(lease):
                return f"{self.name} waits: it begins to lead, in epoch {lease.epoch}"
            case Following(to) if self.refusal is not None:
                return f"{self.name} waits, and does not follow {to.holder}: {self.refusal}"
            case Following(to):
                return f"{self.name} waits: it does not reach {to.holder}, which leads"
            case waiting:
                return f"{self.name} waits: {waiting.why.value}"

    @property
    def serving(self) -> str:
        match self._keeper.role:
            case Leading(lease):
                return f"serving: {self.name} leads, epoch {lease.epoch}"
            case Following(to):
                return f"serving: {self.name} follows {to.holder}, epoch {to.epoch}"
            case waiting:
                return f"{self.name} waits: {waiting.why.value}"

    def figures(self) -> ClusterFigures:
        keeper = self._keeper
        return ClusterFigures(
            leads=isinstance(keeper.role, Leading),
            epoch=0 if keeper.lease is None else keeper.lease.epoch,
            terms=keeper.terms,
            behind=keeper.behind,
        )

    async def found(self) -> Found:
        return await found(self._table)

    def step_down(self) -> bool:
        if not isinstance(self._keeper.role, Leading):
            return False
        self.hands_over.set()
        return True


async def found(table: LeaseTable) -> Found:
    """Raises `StoreFailed`."""
    lease = await table.read()
    return Found(
        realm=lease.realm,
        epoch=lease.epoch,
        leader=lease.holder if lease.now < lease.expires_at else None,
        nodes=[Member(one.name, one.http, one.last_seen) for one in await table.nodes()],
    )
