"""Coven's row of `sdk.services`. The links of an agent share one memory of what it sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.sdk.address import Address
from dragoman.sdk.calling.backend import LONGEST_ABSENCE
from dragoman.sdk.coven.client import CovenClient
from dragoman.sdk.coven.io import CovenLink
from dragoman.sdk.coven.transcripts import Transcripts
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.services import Participant, Service


@asynccontextmanager
async def service(who: Participant, address: Address, runtime: Runtime) -> AsyncIterator[Service]:
    memory = Transcripts()
    yield Service(dial=lambda: CovenLink(address, runtime, memory))


def client(who: Participant, address: Address, runtime: Runtime) -> CovenClient:
    seconds = LONGEST_ABSENCE if who.give_up_after is None else who.give_up_after
    return CovenClient(address, who.id or "", runtime, retry_for=seconds)
