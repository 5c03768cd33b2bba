"""Loads for decisions: what a unit asks for and the cache does not know, in one statement for each kind of lookup."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from dragoman.core.ids import TaskId
from dragoman.core.lookups import Lane, LaneEnd, Lookup
from dragoman.core.model.deliveries import Delivery
from dragoman.core.model.tasks import Task
from dragoman.core.ports import Vault
from dragoman.stores import personal
from dragoman.stores.cache import SHORT, HotCache
from dragoman.stores.postgres.names import written
from dragoman.stores.postgres.queries import FILTERED, OF_TASK, STATEMENTS, can_be, rows_of, values_of
from dragoman.stores.postgres.sessions import Writer
from dragoman.stores.records import delivery_from

if TYPE_CHECKING:
    import asyncpg

Found = dict[Lookup[Any], list[Any]]


class Loader:
    def __init__(self, writer: Writer, hot: HotCache | None, vault: Vault | None) -> None:
        self._writer = writer
        self._cache = hot
        self._vault = vault
        self.loads = 0
        """How many statements asked PostgreSQL for rows of decisions."""

    async def load(self, lookups: Sequence[Lookup[Any]]) -> Mapping[Lookup[Any], Sequence[Any]]:
        hot = self._cache
        found: Found = {}
        missing: list[Lookup[Any]] = []
        for lookup in lookups:
            known = None if hot is None else hot.answer(lookup)
            if known is not None:
                found[lookup] = known
            elif can_be(lookup):
                missing.append(lookup)
            else:
                found[lookup] = []
        if missing and hot is not None:
            missing = await self._lanes(hot, missing, found)
        kinds: dict[type[Any], dict[Lookup[Any], list[Lookup[Any]]]] = {}
        for lookup in missing:
            asked = lookup if hot is None else hot.wider(lookup)
            kinds.setdefault(type(asked), {}).setdefault(asked, []).append(lookup)
        for kind, asked_for in kinds.items():
            for asked, rows in zip(asked_for, await self._rows(kind, list(asked_for)), strict=True):
                if hot is not None:
                    hot.learn(asked, rows)
                for lookup in asked_for[asked]:
                    found[lookup] = rows if lookup is asked else rows[: lookup.most]
        return found

    async def _lanes(self, hot: HotCache, missing: list[Lookup[Any]], found: Found) -> list[Lookup[Any]]:
        """Read all lanes of a task at once: its others are asked for next. Gives what is still missing."""
        tasks = list(dict.fromkeys(lookup.task for lookup in missing if isinstance(lookup, Lane | LaneEnd)))
        if not tasks:
            return missing
        rows = await self._fetch(OF_TASK, [[written(task), SHORT + 1] for task in tasks])
        short: dict[TaskId, list[Delivery]] = {}
        for task, bodies in zip(tasks, rows, strict=True):
            if len(bodies) <= SHORT:
                short[task] = personal.opened([delivery_from(row[-1]) for row in bodies], self._vault)
                hot.learn_deliveries(task, short[task])
        left = []
        for lookup in missing:
            if isinstance(lookup, Lane | LaneEnd) and lookup.task in short:
                found[lookup] = sorted(filter(lookup.matches, short[lookup.task]), key=lookup.order)[: lookup.most]
            else:
                left.append(lookup)
        return left

    async def _rows(self, kind: type[Any], lookups: list[Lookup[Any]]) -> list[list[Any]]:
        found = []
        for lookup, rows in zip(
            lookups, await self._fetch(STATEMENTS[kind], [values_of(lookup) for lookup in lookups]), strict=True
        ):
            given = rows_of(lookup, rows)
            if self._cache is not None and lookup.row is Task and type(lookup) not in FILTERED:
                for task, row in zip(given, rows, strict=True):
                    self._cache.learn_number(task.id, row[-2])
            found.append(personal.opened(given, self._vault) if lookup.row in personal.KEPT else given)
        return found

    async def _fetch(self, sql: str, values: list[list[Any]]) -> list[Sequence[Sequence[Any]]]:
        """The rows of a statement for each list of its values: in one statement, where there are several."""
        self.loads += 1
        if len(values) == 1:
            return [await self._writer.fetch(sql, *values[0])]
        columns = [list(column) for column in zip(*values, strict=True)]
        types = tuple("bigint" if isinstance(column[0], int) else "text" for column in columns)
        found: list[list[Sequence[Any]]] = [[] for _ in values]
        rows: list[asyncpg.Record] = await self._writer.fetch(for_all(sql, types), *columns)
        for row in rows:
            place, *rest = row
            found[place - 1].append(rest)
        return list(found)


@cache
def for_all(sql: str, types: tuple[str, ...]) -> str:
    """The statement for arrays of its values: each row says first for which of them it is."""
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(types, 1))
    names = ", ".join(f"p{n}" for n in range(1, len(types) + 1))
    inner = re.sub(r"\$(\d+)", r"given.p\1", sql)
    return (
        f"SELECT given.place, found.* FROM unnest({arrays}) WITH ORDINALITY AS given ({names}, place)"
        f" CROSS JOIN LATERAL ({inner}) AS found ORDER BY given.place"
    )
