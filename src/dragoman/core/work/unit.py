"""The engine's side of a unit of work: what it is fed, what the store must commit, and what the directory learns
then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.ids import HUB
from dragoman.core.lookups import Lookup, Row
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Delivery
from dragoman.core.model.shared_tasks import beginning, step
from dragoman.core.model.state import Change, Changed, Entity, Operation, Registry
from dragoman.core.model.tasks import Task
from dragoman.core.ports import Changes
from dragoman.core.work.notes import Entry, key_of
from dragoman.core.work.writing import Writing


class Work(Writing):
    def feed(self, loaded: Mapping[Lookup[Any], Sequence[Any]]) -> None:
        """What the store answered."""
        self._loaded.update(loaded)
        base = self._base
        for rows in loaded.values():
            for row in rows:
                base[type(row)][key_of(row)] = row

    def begin(self) -> None:
        """A new decision starts; what the ones before did now stands."""
        self._undo.clear()

    def rollback(self) -> None:
        """Undo everything since `begin`, the last first."""
        self._ready.clear()
        while self._undo:
            undo, what, before = self._undo.pop()
            if before is ...:
                undo(what)
            else:
                undo(what, before)

    def changes(self) -> Changes:
        """What the store must commit. The decisions are over: nothing will be undone any more.

        Neither the undo log nor anything else in a unit may refer back to it: it is freed when it is done, not when the
        cycle collector comes by, which would come often then, and find thousands of rows.
        """
        self._undo.clear()
        self._log_tasks()
        added: list[Row] = []
        changed: list[Row] = []
        removed: list[Row] = []
        for entries in self._dirty.values():
            for entry in entries.values():
                if entry.row is None:
                    if entry.base is not None:
                        removed.append(entry.base)
                elif entry.base is None:
                    added.append(entry.row)
                elif entry.row is not entry.base:
                    changed.append(entry.row)
        forget = 0
        if self._log:
            cursor = self.directory.state_cursor + len(self._log)
            self.changed = Changed(cursor=cursor, at=self.now, entries=tuple(self._log))
            added.append(self.changed)
            forget = max(0, cursor - self.rules.state_log)
        return Changes(added=added, changed=changed, removed=removed, audit=self._audit, forget=forget, used=self._used)

    @property
    def passing(self) -> Mapping[str, str]:
        """What leaves at most once: the store notes it before it does."""
        return self._passed

    def _log_tasks(self) -> None:
        """Every step of a task that others can see raises its version and stands in the log, once for the unit."""
        log, versioned = self._log, self._versioned
        for id, entry in self._dirty[Task].items():
            row: Any = entry.row
            base: Any = entry.base
            if row is base or row is None:
                continue
            told = versioned.get(id) if versioned else None
            if base is None:
                patch: dict[str, Any] | None = beginning(row)
                raised = told is not None and step(told, row) is not None
            else:
                patch = step(base, row)
                if patch is None and told is None:
                    continue
                raised = told is None or step(told, row) is not None
            if raised:
                entry.row = row = msgspec.structs.replace(row, version=row.version + 1)
            operation = Operation.CREATE if base is None else Operation.UPDATE
            by = row.origin.principal if base is None else row.owner or HUB
            log.append(Change(operation, Registry.TASK, id, row.version, patch or {}, by, 1))

    def settle(self) -> None:
        """The commit is done: bring the directory up to date."""
        directory = self.directory
        for entry in self._dirty[Agent].values():
            if isinstance(entry.row, Agent):
                directory.put_agent(entry.row)
            elif isinstance(entry.base, Agent):
                directory.drop_agent(entry.base)
        for entry in self._dirty[Task].values():
            self._settle_task(entry)
        for entry in self._dirty[Delivery].values():
            for delivery, times in ((entry.base, -1), (entry.row, 1)):
                if isinstance(delivery, Delivery) and delivery.letter is not None:
                    directory.note_holding(delivery, times)
        for entry in self._dirty[Entity].values():
            if entry.base is not None:
                directory.note_holding(entry.base, -1)
            if entry.row is not None:
                directory.note_holding(entry.row, 1)
            if isinstance(entry.row, Entity):
                directory.put_entity(entry.row)
            elif isinstance(entry.base, Entity):
                directory.drop_entity(entry.base)
        if self.changed is not None:
            directory.state_cursor = self.changed.cursor
        for id in self._heard:
            agent = directory.agents.get(id)
            if agent is not None and agent.converses:
                directory.heard_at[id] = self.now
        for queue, n in self._backlog.items():
            total = directory.backlog.get(queue, 0) + n
            if total > 0:
                directory.backlog[queue] = total
            else:
                directory.backlog.pop(queue, None)
        for session, link in self._links.items():
            if link is None:
                directory.drop_link(session)
            else:
                directory.put_link(link)
                if not link.ordered and not link.awaits:
                    directory.polled_at[link.agent] = self.now
        for session, outgoing in self.outgoing_messages:
            polled = directory.links.get(session)
            if polled is not None and not polled.ordered:  # it has its answer: a poll takes outgoing messages once
                if not polled.awaits:
                    directory.polled_at[outgoing.delivery.receiver] = self.now
                directory.drop_link(session)
        if self._passed:
            directory.note_passed(self._passed)
        if self._used:
            directory.note_used(self._used)
        if self._minutes:
            directory.note_minutes(self._minutes, self.now)
        if self._allowances:
            directory.note_allowances(self._allowances, self.now)
        for key, tally in self._tallies.items():
            if tally is None:
                directory.tallies.pop(key, None)
            else:
                directory.tallies[key] = tally
        if self._audit:
            directory.audit_seq, directory.audit_hash = self._audit[-1].seq, self._audit[-1].hash

    def _settle_task(self, entry: Entry) -> None:
        active = self.directory.active
        base: Any = entry.base
        row: Any = entry.row
        was = base is not None and not base.final
        if was is not (row is not None and not row.final):
            self.directory.note_holding(base if was else row, -1 if was else 1)
        old = None if base is None else base.holder
        new = None if row is None else row.holder
        if old == new:
            return
        id = (row or base).id
        if old is not None and old in active:
            active[old].pop(id, None)
            if not active[old]:
                del active[old]
        if new is not None:
            active.setdefault(new, {})[id] = None
            self.directory.gave_work_to(new)
