"""What the broker checks of a message that can be read, before it looks at tokens' grants, contracts and limits.

    said by     must have                                                       else
    ----------  --------------------------------------------------------------  ----------------------
    an agent    `source_agent` itself (all-D1)                                  AUTH_FAILED
    an agent    the broker as `target_agent` of what is asked of the broker     SCHEMA_MISMATCH
    the broker  the agent as `target_agent`                                     SCHEMA_MISMATCH
    the broker  itself as `source_agent` of what only the broker says           SCHEMA_MISMATCH
    either      of the broker's intents only what is its own (`intents`)        SCHEMA_MISMATCH
    an agent    a timestamp at most 5 minutes old                               AUTH_FAILED, too_old
    an agent    a timestamp at most 60 seconds ahead                            AUTH_FAILED, in_the_future

That a message id counts once (D15) is a decision of the hub's core: the ids are rows of its store.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.types import Agent, Message
from dragoman.wire.role import Role

OLDEST = timedelta(minutes=5)
AHEAD = timedelta(seconds=60)


def misspoken(message: Message, speaker: Role, agent: Agent, broker: Agent) -> tuple[str, str, Code] | None:
    """Why `speaker` may not say this on a link between these two: the field, the reason, the code."""
    source, target = message.source_agent, message.target_agent
    if speaker is Role.AGENT and (source.agent_id, source.domain) != (agent.agent_id, agent.domain):
        return "source_agent", "is not who is connected", Code.AUTH_FAILED
    if speaker is Role.HUB and target.agent_id != agent.agent_id:
        return "target_agent.agent_id", f"{target.agent_id!r} is not who is connected", Code.SCHEMA_MISMATCH
    found = intents.form_of(message)
    if found is None:
        return None
    if found[0] not in (None, speaker):
        what = f"{message.intent} as {message.message_type} is not said by the {speaker.value}"
        return "intent", what, Code.SCHEMA_MISMATCH
    field, party = ("target_agent", target) if speaker is Role.AGENT else ("source_agent", source)
    if found[0] is not None and party.agent_id != broker.agent_id:
        what = f"{message.intent} is only between an agent and the broker"
        return f"{field}.agent_id", what, Code.SCHEMA_MISMATCH
    return None


def untimely(timestamp: datetime, now: datetime) -> Refusal | None:
    """Why a timestamp is not accepted now, or None."""
    age = now - timestamp
    if -AHEAD <= age <= OLDEST:
        return None
    reason = "too_old" if age > OLDEST else "in_the_future"
    what = "timestamp is older than 5 minutes" if age > OLDEST else "timestamp is more than 60 seconds ahead"
    details = {"reason": reason, "field": "timestamp", "now": now.astimezone(UTC).isoformat().replace("+00:00", "Z")}
    return Refusal(code=Code.AUTH_FAILED, message=f"{what}; check your clock", details=details)
