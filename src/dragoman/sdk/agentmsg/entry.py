"""Agentmsg's row of `sdk.services`. The links of an agent share one memory of what it received and sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.sdk.address import Address
from dragoman.sdk.agentmsg.client import AgentmsgClient
from dragoman.sdk.agentmsg.link import AgentmsgLink, Memory
from dragoman.sdk.agentmsg.session import pipes
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.services import Participant, Service


@asynccontextmanager
async def service(who: Participant, address: Address, runtime: Runtime) -> AsyncIterator[Service]:
    memory, dial = Memory(), pipes(address, runtime)
    yield Service(dial=lambda: AgentmsgLink(dial(), runtime, memory))


def client(who: Participant, address: Address, runtime: Runtime) -> AgentmsgClient:
    return AgentmsgClient(who.known_id, pipes(address, runtime), runtime, who.give_up_after)
