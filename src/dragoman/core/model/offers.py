"""What an agent may be asked for under a contract: one definition for discovery and for the handshake.

    an agent                                          serves
    ------------------------------------------------  ---------------------------------------------------------------
    of a protocol with handshakes                     what it offers, and nothing else
    of any other protocol, with offers or work types  its offers, and its work types: without terms, they take anything
    of any other protocol, with neither               any intent

Whether the two may work together is another matter: the domain policies say so (`domain_policy`).
"""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.policy import ANY
from dragoman.core.protocol_capabilities import SHAKES_HANDS


def terms_for(agent: Agent, intent: str) -> Offer | None:
    """The terms on which an agent serves an intent; None if it does not."""
    declared = agent.offer(intent)
    if declared is not None or agent.protocol in SHAKES_HANDS:
        return declared
    return Offer(intent=intent) if takes_any(agent) or intent in (agent.work_types or ()) else None


def takes_any(agent: Agent) -> bool:
    """Whether it serves every intent, since it said nothing of what it does."""
    return agent.protocol not in SHAKES_HANDS and agent.work_types is None and not agent.offers


def intents_of(agent: Agent) -> tuple[str, ...]:
    """What it serves by name; of one that serves every intent, `*`."""
    if takes_any(agent):
        return (ANY,)
    named = dict.fromkeys(offer.intent for offer in agent.offers)
    if agent.protocol not in SHAKES_HANDS:
        named.update(dict.fromkeys(agent.work_types or ()))
    return tuple(named)


def listed(agent: Agent, intent: str | None) -> Iterator[Offer]:
    """What an agent serves, or only what it does of one intent. An agent that serves every intent is there with `*`."""
    if takes_any(agent):
        yield Offer(intent=ANY)
        return
    for name in intents_of(agent) if intent is None else (intent,):
        terms = terms_for(agent, name)
        if terms is not None:
            yield terms
