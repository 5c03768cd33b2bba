"""What agents keep among themselves."""

from __future__ import annotations

from typing import ClassVar

from dragoman.core.lookups.base import Lookup
from dragoman.core.model.state import Entity


class EntityById(Lookup[Entity], frozen=True, gc=False):
    """A task that agents keep among themselves. What else they share is on the directory."""

    row: ClassVar = Entity
    single: ClassVar = True
    id: str

    def matches(self, row: Entity) -> bool:
        return row.id == self.id
