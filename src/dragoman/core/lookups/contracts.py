"""What agents agreed on."""

from __future__ import annotations

from typing import ClassVar

from dragoman.core.ids import AgentId, Instant
from dragoman.core.lookups.base import Lookup
from dragoman.core.model.contracts import Contract, Standing


class ContractById(Lookup[Contract], frozen=True, gc=False):
    row: ClassVar = Contract
    single: ClassVar = True
    id: str

    def matches(self, row: Contract) -> bool:
        return row.id == self.id


class Terms(Lookup[Contract], frozen=True, gc=False):
    """The contracts of a collaboration, the newest first."""

    row: ClassVar = Contract
    collaboration: str
    limit: int = 8

    def matches(self, row: Contract) -> bool:
        return row.collaboration == self.collaboration

    def order(self, row: Contract) -> tuple[int, str]:
        return (-row.created_at, row.id)


class Bound(Lookup[Contract], frozen=True, gc=False):
    """The contracts of one agent, on either side, that came about until a time and are not over at another, in the
    order in which they will be."""

    row: ClassVar = Contract
    agent: AgentId
    at: Instant
    until: Instant
    limit: int

    def matches(self, row: Contract) -> bool:
        return self.agent in row.parties and row.at(self.at) is Standing.ACTIVE and row.created_at <= self.until

    def order(self, row: Contract) -> tuple[int, str]:
        return (row.expires_at, row.id)


class Agreed(Lookup[Contract], frozen=True, gc=False):
    """Contracts of before a time, however they stand, the oldest first, from behind a place on."""

    row: ClassVar = Contract
    since: Instant
    after: str
    before: Instant
    limit: int

    def matches(self, row: Contract) -> bool:
        return (self.since, self.after) < (row.created_at, row.id) and row.created_at < self.before

    def order(self, row: Contract) -> tuple[int, str]:
        return (row.created_at, row.id)
