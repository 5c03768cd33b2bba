"""Quotas: how much one principal may have in the store (`model.holdings`), in any protocol. 0 in a rule is no limit.

They are checked where something new is accepted; nothing is taken away. Every refusal is retryable: there is room again
when tasks end, direct messages are acknowledged or entities are deleted. The counts are those of the last commit, so
the commands of one unit may exceed a limit together. People and the hub itself have no quota.
"""

from __future__ import annotations

from dragoman.core.ids import ADMIN, HUB, AgentId
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, refuse

AGAIN_SECONDS = 5

NAMED = {
    "bytes": "bytes of requests, direct messages and state",
    "letters": "direct messages of yours",
    "entities": "tasks of yours in the shared state",
}
"""What is counted, in words. The keys are the refusal's `scope`."""


def check(work: Work, principal: AgentId, *, bytes: int = 0, direct_messages: int = 0, entities: int = 0) -> None:
    """Refuse what would exceed a quota of this principal."""
    if principal in (ADMIN, HUB):
        return
    rules = work.rules
    held = work.directory.holdings.get(principal)
    if held is None:
        return  # the first one is always accepted, whatever its size
    for what, wanted, has, limit, until in (
        (
            "bytes",
            bytes,
            held.bytes,
            rules.bytes_per_agent,
            "some of your tasks are over or messages acknowledged",
        ),
        (
            "letters",
            direct_messages,
            held.direct_messages,
            rules.direct_messages_per_agent,
            "some of them are acknowledged",
        ),
        ("entities", entities, held.entities, rules.entities_per_agent, "you have deleted some"),
    ):
        if wanted and limit and has + wanted > limit:
            named = NAMED[what]
            more = f", this message has {wanted} more" if what == "bytes" else ""
            raise refuse(
                Kind.RATE_LIMITED,
                f"the hub keeps {has} {named} that are not done with{more}, and the hub takes {limit} at most",
                next=f"send this again when {until}",
                retryable=True,
                scope=what,
                limit=limit,
                retry_after=AGAIN_SECONDS,
            )
