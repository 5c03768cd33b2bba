"""A hub whose a2acp door believes everybody: `python -m bench.unchecked dev …`. To measure what believing nobody costs.

    taken out                                         stands in
    ------------------------------------------------  --------------------------------------------------------------
    the token of a message: signature, claims, agent  `server.a2acp.tokens.AuthService.verify`
    that its id is new, also after a restart          `core.policy.replay.first_time`, and its row
    the limits of a minute                            `core.policy.chain.RateLimit`
    both payloads against the contract's schemas      `core.tasks.submit.check_input`, `core.tasks.results.kept`

Everything else is the hub as it is. It must never be reachable by anybody but its benchmark.
"""

from __future__ import annotations

import sys
from typing import Any

from dragoman.cli.main import main
from dragoman.core.ids import AgentId
from dragoman.core.policy import chain, replay
from dragoman.core.tasks import results, submit
from dragoman.server.a2acp.tokens import AuthService


def believe(self: Any, message: Any, link: Any) -> Any:
    agent = self._hub.agent(AgentId(message.source_agent.agent_id))
    return agent, agent.capabilities


def nothing(*_: object) -> None:
    return None


def as_it_is(_work: object, _task: object, body: bytes) -> bytes:
    return body


def take_out() -> None:
    for place, name, instead in (
        (AuthService, "verify", believe),
        (replay, "first_time", nothing),
        (submit, "check_input", nothing),
        (results, "kept", as_it_is),
    ):
        if not hasattr(place, name):
            raise RuntimeError(f"there is no {name} to take out: the figure would be wrong")
        setattr(place, name, instead)
    kept = tuple(policy for policy in chain.CHAIN if not isinstance(policy, chain.RateLimit))
    if len(kept) == len(chain.CHAIN):
        raise RuntimeError("there is no rate limit to take out: the figure would be wrong")
    chain.CHAIN = kept


if __name__ == "__main__":
    take_out()
    sys.exit(main())
