"""Record a refusal, or count it where its sender has used up its allowance of records (`model.refusals`).

This is the last step of a command, so nothing here is undone.
"""

from __future__ import annotations

from dragoman.core.ids import HUB, NOBODY
from dragoman.core.model import refusals
from dragoman.core.model.refusals import Allowance, Rate, RefusalCount, RefusalKey
from dragoman.core.work import Work
from dragoman.messages.faults import Fault


def record(
    work: Work,
    fault: Fault,
    *,
    principal: str,
    action: str,
    protocol: str | None = None,
    subject: str | None = None,
    address: str | None = None,
) -> bool:
    """Whether the refusal is a record of its own."""
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
    return True


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
