"""The policies that every command passes before its decision, in one order.

A policy is a small class that lets a command pass or raises `Refused`. The order is the list below: who asks, whether
they may, then how much.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from dragoman.core.commands import (
    AddAgent,
    AdmitGuest,
    Command,
    Discard,
    EndContract,
    NoteRefusal,
    PauseAgent,
    Reassign,
    Redrive,
    RemoveAgent,
    RenewContract,
    ResumeAgent,
    RevokeToken,
    RotateKey,
    RotateToken,
    SetDomainPolicy,
    Submit,
    Tell,
)
from dragoman.core.commands.people import (
    AddPerson,
    EndSessions,
    LogIn,
    LogInByProvider,
    OfferLogin,
    RecordLogin,
    RemovePerson,
    SetPersonRole,
    SetPersonToken,
)
from dragoman.core.ids import ADMIN, HUB
from dragoman.core.model import ratelimit
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, Refused, refuse


class Policy(Protocol):
    def check(self, work: Work, command: Command) -> None: ...


class KnownPrincipal:
    """The principal must still exist: its token may be revoked while its message waits in the intake."""

    def check(self, work: Work, command: Command) -> None:
        if work.agent(command.principal) is None and command.principal not in (ADMIN, HUB):
            if isinstance(command, NoteRefusal | AdmitGuest):  # no credential yet
                return
            raise refuse(
                Kind.UNAUTHENTICATED,
                f"{command.principal!r} is not known here (any more)",
                next="add it with `dragoman agent add`",
                agent_id=command.principal,
                token_status="revoked",
            )


class PeopleOnly:
    """Agents do not administer the hub."""

    COMMANDS = frozenset({
        AddAgent, RemoveAgent, RotateToken, RevokeToken, PauseAgent, ResumeAgent, Reassign, Redrive, Discard,
        SetDomainPolicy, RenewContract, AddPerson, RemovePerson, SetPersonToken, SetPersonRole, OfferLogin, LogIn,
        LogInByProvider, RecordLogin, EndSessions,
    })  # fmt: skip

    def check(self, work: Work, command: Command) -> None:
        if type(command) in self.COMMANDS and command.principal not in (ADMIN, HUB):
            raise refuse(Kind.FORBIDDEN, "only the admin token may do this", agent_id=command.principal)


class Pace:
    """Limits how often a principal sends, over all protocols and links. Ending a collaboration is never refused for
    it. `Rules.paces`: what it sends in one protocol is limited, too."""

    def check(self, work: Work, command: Command) -> None:
        principal = command.principal
        if principal in (ADMIN, HUB) or type(command) in (EndContract, NoteRefusal):
            return
        if command.action is None and command.seen is None:
            return
        for protocol, limit in work.rules.paces:
            if protocol == command.protocol and limit:
                self._take(work, principal, (protocol, principal), limit)
        if work.rules.messages_per_agent:
            self._take(work, principal, ("principal", principal), work.rules.messages_per_agent)

    def _take(self, work: Work, principal: str, key: ratelimit.Key, limit: int) -> None:
        minute = work.minute(key) or ratelimit.EMPTY
        if minute.total >= limit and (wait := minute.wait(limit, work.now)):
            after = min(ratelimit.SPAN, max(1, -(-wait // ratelimit.SECOND)))
            raise refuse(
                Kind.RATE_LIMITED,
                f"more than {limit} messages a minute of {principal}, over all its links",
                next=f"wait {after} s",
                retryable=True,
                scope="principal",
                limit=limit,
                retry_after=after,
            )
        work.note_minutes({key: minute.taken(work.now)})


class RateLimit:
    """Limits the messages in a sliding minute of an agent, of a collaboration, and of all together. There is one bucket
    for each principal, in any protocol; a rule says which protocols are limited. An agent of one of them is limited at
    every endpoint that takes its token. Housekeeping is no message. Ending a contract is never refused and never
    counted, so that no limit keeps an agent in a collaboration (a2acp-D16)."""

    def check(self, work: Work, command: Command) -> None:
        rules = work.rules
        if command.principal in (ADMIN, HUB) or not self._limited(work, command):
            return
        if command.action is None and command.seen is None:  # a message that only reads counts, too
            return
        if type(command) is EndContract:
            return
        wanted = ratelimit.keys(command.principal, self._collaboration(work, command))
        outcome = ratelimit.take(work.minute, wanted, _limits(rules.per_minute), work.now)
        if isinstance(outcome, ratelimit.Exceeded):
            raise refuse(
                Kind.RATE_LIMITED,
                f"more than {outcome.limit} messages a minute for this {outcome.scope}",
                next=f"wait {outcome.retry_after} s",
                retryable=True,
                scope=outcome.scope,
                limit=outcome.limit,
                retry_after=outcome.retry_after,
            )
        work.note_minutes(outcome)

    def _limited(self, work: Work, command: Command) -> bool:
        limited = work.rules.limited
        if command.protocol in limited:
            return True
        agent = None if command.protocol is None else work.agent(command.principal)
        return agent is not None and agent.protocol in limited

    def _collaboration(self, work: Work, command: Command) -> str | None:
        """The collaboration that is counted, too. Naming another agent's contract takes nothing from its two
        parties."""
        if type(command) is Submit:
            id = command.agreement.contract
            contract = None if id is None else work.contract(id)
            return None if contract is None or contract.source.agent != command.principal else contract.collaboration
        if type(command) is Tell:
            contract = (
                None if command.direct_message.contract is None else work.contract(command.direct_message.contract)
            )
            return None if contract is None or command.principal not in contract.parties else contract.collaboration
        return command.collaboration if type(command) is RotateKey else None


@lru_cache(maxsize=4)
def _limits(per_minute: tuple[int, int, int]) -> ratelimit.Limits:
    agent, collaboration, broker = per_minute
    return ratelimit.Limits(agent=agent, collaboration=collaboration, broker=broker)


CHAIN: tuple[Policy, ...] = (KnownPrincipal(), PeopleOnly(), Pace(), RateLimit())
CHECKS = tuple(policy.check for policy in CHAIN)


def count(work: Work, command: Command) -> None:
    """Count a refused message for its sender, too."""
    try:
        Pace().check(work, command)
        RateLimit().check(work, command)
    except Refused:
        pass  # this limit refused it


def check(work: Work, command: Command) -> None:
    for passes in CHECKS:
        passes(work, command)
