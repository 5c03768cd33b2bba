"""The unit of work: what decisions see, and what they leave behind.

A decision never waits. It asks `Work` for rows; what has not been loaded yet and cannot be had at once (`peek`)
raises `NotLoaded`, the engine loads it and runs the decision again from its start (everything it had written is
undone first). Since a decision is a pure function of what it sees, running it twice is the same as running it once.

Decisions of one unit run one after the other and see each other's changes, laid over what the store answered.
If one refuses, only its own changes are undone. When all have run, `changes()` is what the store must commit, and
only after it has is the rest of the world told: `settle()` brings the directory up to date, `outgoing_messages` leave.

One class, in files by what is done with it, each building on the one before:

    file      class      what it adds
    --------  ---------  -------------------------------------------------------------------------
    notes     `Notes`    everything a unit holds: what was loaded, what was changed, how to undo it
    rows      `Rows`     reading what the store holds
    scene     `Scene`    reading what the hub has in memory: agents, links, queues, the policy
    writing   `Writing`  changing rows, and noting what is done after the commit
    unit      `Work`     the engine's side: beginning, undoing, committing, settling

They are one chain of inheritance, and not parts that are handed on to: this is the hottest code of the hub, and a call
to a part would double the calls of every decision.
"""

from __future__ import annotations

from dragoman.core.work.notes import NotLoaded, Reactions, key_of
from dragoman.core.work.unit import Work

__all__ = ("NotLoaded", "Reactions", "Work", "key_of")
