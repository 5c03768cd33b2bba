"""A store as a fleet leaves it after a day: finished tasks of many types, agents and protocols, with names and reasons.

    filter      tasks that fit
    ---------   -----------------------------------------------------------------
    status      completed 85 %, failed 10 %, cancelled 5 %
    type        16 types: the first has half of the tasks, the next a quarter, …
    agent       40 agents, eight of each protocol; `lint` is never an `ops-…` agent's work, and never fails
    principal   10 callers, two of each protocol

So some combinations of filters that fit many tasks each fit none together: the worst case of a list.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import msgspec

from bench.growth import RETAINED, fill
from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import (
    Attempt,
    Event,
    EventKind,
    Origin,
    Status,
    Task,
    TaskLineage,
    TaskOutcome,
    TaskOutput,
    TaskRouting,
    TaskTiming,
)
from dragoman.messages.faults import Fault, Kind

PROTOCOLS = ("chiffon", "agentmsg", "coven", "forge", "a2acp")
TYPES = (
    "build", "test", "lint", "deploy", "review", "plan", "research", "report",
    "backup", "restore", "scan", "migrate", "train", "evaluate", "notify", "archive",
)  # fmt: skip
TEAMS = ("web", "ops", "data", "docs", "infra", "mobile", "search", "billing")
CALLERS = tuple(f"{protocol}-caller-{n}" for protocol in PROTOCOLS for n in (1, 2))
WORDS = (
    "kuma", "gateway", "registry", "checkout", "ledger", "invoice", "parser", "scheduler", "cache", "router",
    "mailer", "importer", "catalogue", "session", "thumbnail", "webhook", "billing", "exporter", "crawler", "index",
)  # fmt: skip
RARE = "quetzal"
"""A word that one task in 10,000 has."""
REASONS = (
    "the registry refused the image",
    "the agent was silent for 300 s",
    "three tests failed in the payment module",
    "the disk of the runner is full",
)
"""Of a failure; each is found by its words."""
EVERY_RARE = 10_000
BODY = msgspec.Raw(b'{"input":{"playbook":"deploy_kuma.yml"},"hints":{"max_duration_seconds":300}}')


def agents() -> list[Agent]:
    return [
        Agent(id=AgentId(f"{team}-{protocol}"), protocol=protocol, kind=team, created_at=Instant(1), token_hash="")
        for protocol in PROTOCOLS
        for team in TEAMS
    ]


class Mix:
    """Makes task after task; the same ones in every run."""

    def __init__(self, wanted: int) -> None:
        self._chance = random.Random(7)
        self._step = RETAINED // max(1, wanted)

    def __call__(self, n: int, born: int) -> tuple[Task, list[Event]]:
        chance = self._chance
        at = Instant(born + n * self._step)
        bits = chance.getrandbits(128)
        type = TYPES[min(16 - (bits & 0xFFFF).bit_length(), len(TYPES) - 1)]
        protocol = PROTOCOLS[(bits >> 16) % len(PROTOCOLS)]
        team = TEAMS[(bits >> 24) % len(TEAMS)]
        caller = CALLERS[(bits >> 32) % len(CALLERS)]
        share = (bits >> 40) % 100
        status = Status.COMPLETED if share < 85 else Status.FAILED if share < 95 else Status.CANCELLED
        if type == "lint":
            status, team = Status.COMPLETED, "web" if team == "ops" else team
        words = [WORDS[(bits >> shift) % len(WORDS)] for shift in (48, 56, 64)]
        if n % EVERY_RARE == 0:
            words.append(RARE)
        hexes = f"{bits:032x}"
        id = f"{at // 1000:012x}7{hexes[:3]}8{hexes[3:18]}"
        task_id = TaskId(f"{id[:8]}-{id[8:12]}-{id[12:16]}-{id[16:20]}-{id[20:32]}")
        agent = AgentId(f"{team}-{protocol}")
        fault = (
            Fault(kind=Kind.WORK_FAILED, message=REASONS[(bits >> 72) % len(REASONS)])
            if status is Status.FAILED
            else None
        )
        task = Task(
            id=task_id,
            type=type,
            name=f"{type} {words[0]} {words[1]}",
            description=f"{' '.join(words)} for the release {n % 1000}",
            status=status,
            origin=Origin(
                principal=AgentId(caller),
                protocol=caller.partition("-")[0],
                request_id=f"r-{at:x}-{n}",
                digest=hexes * 2,
            ),
            created_at=at,
            updated_at=at,
            rank=at,
            owner=agent,
            finished_at=at,
            seq=3,
            routing=TaskRouting(route=f"{type}:{team}", kind=team),
            timing=TaskTiming(deadline=Instant(at + 3_600_000_000), idle_limit=300_000_000),
            lineage=TaskLineage(trace_id=hexes),
            attempt=Attempt(count=1),
            output=TaskOutput(progress=100),
            outcome=TaskOutcome(digest=hexes * 2, event=3, fault=fault),
        )
        last = {Status.COMPLETED: EventKind.COMPLETED, Status.FAILED: EventKind.FAILED}.get(status, EventKind.CANCELLED)
        return task, [
            Event(task=task_id, seq=1, at=at, kind=EventKind.SUBMITTED, body=BODY, protocol=task.origin.protocol),
            Event(task=task_id, seq=2, at=at, kind=EventKind.ASSIGNED, agent=agent, body=BODY),
            Event(task=task_id, seq=3, at=at, kind=last, agent=agent, body=BODY, protocol=protocol),
        ]


async def store_tasks(path: Path, wanted: int) -> None:
    os.umask(0o077)
    await fill(path, wanted, make=Mix(wanted), audited=False, first=agents())


if __name__ == "__main__":
    asyncio.run(store_tasks(Path(sys.argv[1]), int(sys.argv[2])))
