"""The policies, in the one order in which every command meets them.

A policy is a small class that lets a command pass or raises `Refused`. The order is the list below: who, then
whether they may, then how much. Contracts, budgets and domains join it here.
"""

from __future__ import annotations

from typing import Protocol

from dragoman.core.commands import (
    AddAgent,
    AdmitGuest,
    Command,
    Discard,
    NoteRefusal,
    Redrive,
    RemoveAgent,
    RotateToken,
)
from dragoman.core.errors import Kind, refuse
from dragoman.core.ids import ADMIN, HUB
from dragoman.core.work import Work


class Policy(Protocol):
    def check(self, work: Work, command: Command) -> None: ...


class KnownPrincipal:
    """Whoever asks must still exist: a token may be revoked while its message waits in the intake."""

    def check(self, work: Work, command: Command) -> None:
        if work.agent(command.principal) is None and command.principal not in (ADMIN, HUB):
            if isinstance(command, NoteRefusal | AdmitGuest):  # a stranger is turned away, or let in
                return
            raise refuse(
                Kind.UNAUTHENTICATED,
                f"{command.principal!r} is not known here (any more); add it with `dragoman agent add`",
                agent_id=command.principal,
                token_status="revoked",
            )


class PeopleOnly:
    """Agents do not administer the hub."""

    COMMANDS = (AddAgent, RemoveAgent, RotateToken, Redrive, Discard)

    def check(self, work: Work, command: Command) -> None:
        if isinstance(command, self.COMMANDS) and command.principal not in (ADMIN, HUB):
            raise refuse(Kind.FORBIDDEN, "only the admin token may do this", agent_id=command.principal)


CHAIN: tuple[Policy, ...] = (KnownPrincipal(), PeopleOnly())


def check(work: Work, command: Command) -> None:
    for policy in CHAIN:
        policy.check(work, command)
