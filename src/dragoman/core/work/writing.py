"""Changing rows, and noting what is done after the commit. Every change also notes how it is undone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.core.commands import Command
from dragoman.core.ids import HUB, NOBODY, AgentId, SessionId
from dragoman.core.lookups import Row
from dragoman.core.model import tally
from dragoman.core.model.agents import Agent, Link
from dragoman.core.model.audit import sealed
from dragoman.core.model.deliveries import Delivery, Outgoing
from dragoman.core.model.ratelimit import Key, Minute
from dragoman.core.model.state import Change, Entity
from dragoman.core.model.tally import Allowance, Rate, Tally
from dragoman.core.model.tasks import Event, EventKind, Question, Task
from dragoman.core.work.notes import Entry
from dragoman.core.work.scene import Scene
from dragoman.messages.faults import Fault, Kind, refuse


class Writing(Scene):
    def put(self, row: Row) -> None:
        """Add the row, or change it if it is there."""
        self._write(row, row)

    def remove(self, row: Row) -> None:
        self._write(row, None)

    def _write(self, named: Any, row: Row | None) -> None:
        """`row`, or none any more, under the name of `named`."""
        table = type(named)
        id: Any = (named.task, named.seq) if table is Event else named.id  # `key_of`, for every row there is
        dirty = self._dirty[table]
        entry = dirty.get(id)
        if entry is None:
            base: Any = self.directory.agents.get(id) if table is Agent else self._base[table].get(id)
            if table is Entity and base is None:
                base = self.directory.entities.get(id)
            old: Any = base
            dirty[id] = Entry(base, row)
            self._undo.append((dirty.pop, id, ...))
            # The shortcuts of `_changed`. They are not undone: what they name is looked up among the dirty rows.
            if table is Delivery:
                self._lanes.setdefault((row or base).task, {})[id] = None  # type: ignore[union-attr,arg-type]
            elif table is Task:
                origin = (row or base).origin  # type: ignore[union-attr]
                self._requests[origin.principal, origin.request_id] = id
        else:
            old = entry.row
            if table is Task and old is None and entry.base is not None:
                raise refuse(Kind.OVERLOADED, "a task of this id is just being forgotten; try again", retryable=True)
            self._undo.append((Entry.put, entry, old))
            entry.row = row
        if table is Question:
            self.touched_tasks.add(id)
        if table is Task:
            self._count(old, row)  # type: ignore[arg-type]
            self.touched_tasks.add(id)

    def _count(self, old: Task | None, new: Task | None) -> None:
        held = None if old is None else old.holder
        holds = None if new is None else new.holder
        if held != holds:
            if held is not None:
                self._add(self._load, held, -1)
            if holds is not None:
                self._add(self._load, holds, +1)
        stood, stands = (old and old.queue), (new and new.queue)
        if stood != stands:
            if stood:
                self._add(self._backlog, stood, -1)
            if stands:
                self._add(self._backlog, stands, +1)
                if new is not None:
                    self._queued[new.id] = None

    def _add(self, counts: dict[Any, int], name: str, n: int) -> None:
        before = counts.get(name, 0)
        self._undo.append((counts.__setitem__, name, before))
        counts[name] = before + n

    def note_minutes(self, minutes: Mapping[Key, Minute]) -> None:
        for key, minute in minutes.items():
            if key in self._minutes:
                self._undo.append((self._minutes.__setitem__, key, self._minutes[key]))
            else:
                self._undo.append((self._minutes.pop, key, ...))
            self._minutes[key] = minute

    def note_passed(self, id: str, digest: str) -> None:
        self._passed[id] = digest
        self._undo.append((self._passed.pop, id, ...))

    def note_used(self, id: int, content: int) -> None:
        self._used[id] = content
        self._undo.append((self._used.pop, id, ...))

    def share(self, change: Change, entity: Entity | None, was: Entity | None = None) -> None:
        """Write something that agents share, and the change of it into the log. None: it is gone."""
        if entity is not None:
            self.put(entity)
        elif was is not None:
            self.remove(was)
        self._log.append(change)
        self._undo.append((self._log.pop, -1, ...))

    def put_versioned(self, task: Task) -> None:
        """Put a task whose version was raised by the decision itself, which tells it to somebody."""
        self.put(task)
        before = self._versioned.get(task.id)
        if before is None:
            self._undo.append((self._versioned.pop, task.id, ...))
        else:
            self._undo.append((self._versioned.__setitem__, task.id, before))
        self._versioned[task.id] = task

    def heard_from(self, agent: AgentId) -> None:
        """A sign of life. It is no change of anything, and is not undone."""
        self._heard.add(agent)

    def put_link(self, link: Link) -> None:
        self._set_link(link.session, link)

    def drop_link(self, session: SessionId) -> None:
        self._set_link(session, None)

    def _set_link(self, session: SessionId, link: Link | None) -> None:
        links = self._links
        if session in links:
            self._undo.append((links.__setitem__, session, links[session]))
        else:
            self._undo.append((links.pop, session, None))
        links[session] = link

    def close_link(self, session: SessionId, reason: str) -> None:
        """Forget a link and, after the commit, hang up."""
        self.drop_link(session)
        self.closed_links.append((session, reason))
        self._undo.append((self.closed_links.pop, -1, ...))

    def ask_afterwards(self, command: Command) -> None:
        """Go on with this in a unit of its own, after the commit."""
        self.afterwards.append(command)
        self._undo.append((self.afterwards.pop, -1, ...))

    def send(self, link: Link, outgoing: Outgoing) -> None:
        """Hand an outgoing message to a link, after the commit."""
        self.outgoing_messages.append((link.session, outgoing))
        self._undo.append((self.outgoing_messages.pop, -1, ...))

    def record(self, task: Task, kind: EventKind, **fields: Any) -> Task:
        """Append an event to a task's story; returns the task with its new number (not yet put)."""
        seq = task.seq + 1
        self.put(Event(task=task.id, seq=seq, at=self.now, kind=kind, personal=task.personal, **fields))
        return msgspec.structs.replace(task, seq=seq, updated_at=self.now)

    def sign_of_life(self, task: Task, **fields: Any) -> Task:
        """The task of an agent that was just heard (not yet put).

        Where the link that it was given over is gone it hangs on the agent's next one from now on: that one vouches for
        it, and when it breaks, too, the task is missed. Where it stands still its deadline has moved along.
        """
        session = task.session
        if session is not None and task.owner is not None and self.link(session) is None:
            session = next((link.session for link in self.links_to(task.owner) if link.ordered), session)
        return msgspec.structs.replace(
            task,
            last_sign_at=self.now,
            deadline=task.due(self.now),
            lost_at=None,
            session=session,
            answered=False,
            expires_at=None,
            **fields,
        )

    def audit(
        self,
        *,
        principal: str,
        action: str,
        outcome: str = "accepted",
        protocol: str | None = None,
        subject: str | None = None,
        reason: str | None = None,
        digest: str | None = None,
    ) -> None:
        last = self._audit[-1] if self._audit else None
        seq, prev = (last.seq, last.hash) if last else (self.directory.audit_seq, self.directory.audit_hash)
        said = (principal, action, outcome, protocol, subject, reason, digest)
        self._audit.append(sealed(seq + 1, self.now, prev, *said))
        self._undo.append((self._audit.pop, -1, ...))

    def audit_refusal(
        self,
        fault: Fault,
        *,
        principal: str,
        action: str,
        protocol: str | None = None,
        subject: str | None = None,
        address: str | None = None,
    ) -> bool:
        """Record a refusal, or count it where its sender has had enough records (`audit.tally`); whether it is one.

        It is the last thing that becomes of a command, so it needs no undoing."""
        sender = tally.sender_of(principal, address)
        taken: dict[str, Allowance] = {}
        for name, rate in () if principal == HUB else tally.rates_of(sender):
            left = self._allowance(name, rate)
            if left.left < 1:
                self._tally(sender, fault, principal, action, protocol)
                return False
            taken[name] = Allowance(left.left - 1, left.at)
        self._allowances.update(taken)
        self.audit(
            principal=principal,
            action=action,
            outcome="refused",
            protocol=protocol,
            subject=subject,
            reason=str(fault),
        )
        return True

    def _allowance(self, name: str, rate: Rate) -> Allowance:
        known = self._allowances.get(name) or self.directory.allowances.get(name)
        return Allowance(rate.burst, self.now) if known is None else known.now(rate, self.now)

    def _tally(self, sender: str, fault: Fault, principal: str, action: str, protocol: str | None) -> None:
        key = tally.Key(sender, action, fault.kind)
        counted = len(self._tallies) + len(self.directory.tallies)
        if counted >= tally.MOST_TALLIES and key not in self._tallies and key not in self.directory.tallies:
            key = tally.Key(f"@{tally.OTHERS}", "", fault.kind)
            principal, protocol = NOBODY, None
        before = self._tallies[key] if key in self._tallies else self.directory.tallies.get(key)
        self._tallies[key] = Tally(
            principal=principal,
            protocol=protocol,
            count=1 if before is None else before.count + 1,
            since=self.now if before is None else before.since,
            reason=str(fault),
        )

    def record_tallies(self) -> int:
        """A record for each count; how many there were."""
        counted = {**self.directory.tallies, **self._tallies}
        for key, one in counted.items():
            if one is not None:
                self.audit(
                    principal=one.principal,
                    action=key.action or "refused",
                    outcome="refused",
                    protocol=one.protocol,
                    reason=tally.in_words(key, one),
                )
            self._tallies[key] = None
        return len(counted)
