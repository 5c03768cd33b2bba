"""Record a refusal, or count it where its sender has used up its allowance of records (`model.refusals`).

What violates a contract is noted in the contract as well, if it is a record: its parties and the reason.

This is the last step of a command. Only the contract may have to be loaded first; nothing after that is undone.
"""

from __future__ import annotations

from dragoman.core.ids import HUB, NOBODY, AgentId, TaskId
from dragoman.core.model import refusals
from dragoman.core.model.contracts import Contract, Violation
from dragoman.core.model.refusals import Allowance, Rate, RefusalCount, RefusalKey
from dragoman.core.work import Work
from dragoman.messages.brevity import in_short
from dragoman.messages.faults import Fault, Kind

AGAINST_TERMS = frozenset({Kind.CONTRACT, Kind.FORBIDDEN, Kind.MISMATCH})
"""Refusals that violate the contract that they name, if a party of it was refused."""
LONGEST_NOTE = 300


def record(
    work: Work,
    fault: Fault,
    *,
    principal: str,
    action: str,
    protocol: str | None = None,
    subject: str | None = None,
    address: str | None = None,
    task: TaskId | None = None,
) -> bool:
    """Whether the refusal is a record of its own."""
    contract = _violated(work, fault, principal)
    sender = refusals.sender_of(principal, address)
    taken: dict[str, Allowance] = {}
    for name, rate in () if principal == HUB else refusals.rates_of(sender):
        left = _allowance(work, name, rate)
        if left.left < 1:
            _count(work, sender, fault, principal, action, protocol)
            return False
        taken[name] = Allowance(left.left - 1, left.at)
    work.allowances.update(taken)
    work.audit(
        principal=principal,
        action=action,
        outcome="refused",
        protocol=protocol,
        subject=subject,
        reason=str(fault),
    )
    if contract is not None:
        by, reason = AgentId(principal), in_short(fault.message, LONGEST_NOTE)
        work.put(contract.with_violation(Violation(at=work.now, by=by, action=action, reason=reason, task=task)))
    return True


def _violated(work: Work, fault: Fault, principal: str) -> Contract | None:
    named = fault.facts.get("contract_id") if fault.kind in AGAINST_TERMS else None
    contract = work.contract(named) if type(named) is str else None
    return contract if contract is not None and principal in contract.parties else None


def _allowance(work: Work, name: str, rate: Rate) -> Allowance:
    known = work.allowances.get(name) or work.directory.allowances.get(name)
    return Allowance(rate.burst, work.now) if known is None else known.now(rate, work.now)


def _count(work: Work, sender: str, fault: Fault, principal: str, action: str, protocol: str | None) -> None:
    counts, committed = work.refusal_counts, work.directory.refusal_counts
    key = RefusalKey(sender, action, fault.kind)
    if len(counts) + len(committed) >= refusals.MOST_COUNTS and key not in counts and key not in committed:
        key = RefusalKey(f"@{refusals.OTHERS}", "", fault.kind)
        principal, protocol = NOBODY, None
    before = counts[key] if key in counts else committed.get(key)
    counts[key] = RefusalCount(
        principal=principal,
        protocol=protocol,
        count=1 if before is None else before.count + 1,
        since=work.now if before is None else before.since,
        reason=str(fault),
    )


def record_counts(work: Work) -> int:
    """Write a record for each count; returns how many counts there were."""
    counted = {**work.directory.refusal_counts, **work.refusal_counts}
    for key, one in counted.items():
        if one is not None:
            work.audit(
                principal=one.principal,
                action=key.action or "refused",
                outcome="refused",
                protocol=one.protocol,
                reason=refusals.in_words(key, one),
            )
        work.refusal_counts[key] = None
    return len(counted)
