"""An orchestrator: keeps a gentle stream of work going between the demo's agents, over chiffon, whatever they speak.

It begins with a handful at once, so that there is something to see, and slows down from there. It calls the demo's own
agents by name: work must not reach a user's own agents of the same kind.

Beside that it has one release after the other shipped (`demo.lead`): a story over all agents in one trace, with a
question to a person, a handoff, a contract, and a retry that succeeds. At most one question waits for a person at a
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dragoman import Client, DragomanError
from dragoman.demo import roster

INFRA = roster.INFRA.address
CODE = roster.CODE.address
RESEARCH = roster.RESEARCH.address
SCRIBE = roster.SCRIBE.address
EDITOR = roster.EDITOR.address
LAB = roster.LAB.address
LEAD = roster.LEAD.address


class Job(NamedTuple):
    """`then`: what only makes sense after it, given to the hub at the same time. `within`: seconds that it may take."""

    target: str
    work: str
    input: dict[str, Any]
    then: Job | None = None
    within: int | None = None


DEPLOY = Job(INFRA, "run_playbook", {"playbook": "deploy_kuma.yml", "extra_vars": {"version": "1.23.16"}})
CERTS = Job(INFRA, "run_playbook", {"playbook": "renew_certs.yml"})
HANGS = Job(INFRA, "check_host", {"host": "db-04"}, within=3)
"""Is not done in its time, and becomes a dead letter: one at each start."""
RELEASE = Job(LEAD, "ship_release", {"version": "3.0.0"})

OPENING = (
    CERTS,
    HANGS,
    Job(INFRA, "run_playbook", {"playbook": "site.yml"}),
    Job(CODE, "review_change", {"change": 1841}),
    Job(CODE, "run_tests", {"suite": "unit"}, then=DEPLOY),
    Job(SCRIBE, "write_report", {"topic": "latency"}),
    Job(EDITOR, "write_notes", {"release": "3.0.0"}),
    Job(LAB, "plan_study", {"ward": "sleep"}),
)

ROUND = (
    Job(RESEARCH, "research", {"content": "What do we know about our certificates?"}),
    Job(INFRA, "check_host", {"host": "web-01"}),
    Job(CODE, "run_tests", {"suite": "integration"}),
    Job(INFRA, "run_playbook", {"playbook": "rotate_logs.yml"}),
    Job(SCRIBE, "write_report", {"topic": "backups"}),
    Job(CODE, "review_change", {"change": 1842}),
    Job(EDITOR, "write_notes", {"release": "2.4.1"}),
    Job(INFRA, "check_host", {"host": "web-02"}),
    Job(LAB, "plan_study", {"ward": "heart"}),
    Job(CODE, "run_tests", {"suite": "unit"}, then=DEPLOY),
    Job(INFRA, "run_playbook", {"playbook": "site.yml"}),
    Job(CODE, "review_change", {"change": 1843}),
    Job(EDITOR, "write_notes", {"release": "3.0.0"}),
    CERTS,
)

PACE = ((12, 3.0), (60, 6.0), (360, 10.0))
"""The pause before each job, up to the so-manieth; then a minute: a demo left running fills no disk."""
SLOWEST = 60.0

MOST_AT_ONCE = 6
NEXT_RELEASE = 5 * 60.0
STILL_OPEN = 35 * 60.0
"""A question of an earlier run may still wait: so long, until it has surely expired, no other is asked."""


def pauses() -> Iterator[float]:
    for number in itertools.count(1):
        yield next((pause for upto, pause in PACE if number <= upto), SLOWEST)


def run(id: str, state_dir: Path | None) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_plan(id))


async def _plan(id: str) -> None:
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    room = asyncio.Semaphore(MOST_AT_ONCE)
    # The client is closed first: then every waiting call gets an error, instead of being cancelled.
    async with asyncio.TaskGroup() as under_way, Client(id=id, kind=roster.PLANNER.kind) as hub:
        under_way.create_task(_ship_releases(hub))
        for job in OPENING:
            under_way.create_task(_run(hub, job, room))
        for job, pause in zip(itertools.cycle(ROUND), pauses(), strict=False):
            await asyncio.sleep(pause)
            async with room:  # no agent works: then nothing is added either
                pass
            under_way.create_task(_run(hub, job, room))


async def _run(hub: Client, job: Job, room: asyncio.Semaphore) -> None:
    """Errands may fail, that is part of the play; the hub has the story."""
    async with room:
        with contextlib.suppress(DragomanError):
            task = await hub.submit(job.target, job.work, job.input, **_limits(job))
            tasks = [task]
            if job.then is not None:
                after = job.then
                tasks.append(await hub.submit(after.target, after.work, after.input, dependencies=[task]))
            await asyncio.gather(*map(hub.result, tasks), return_exceptions=True)


def _limits(job: Job) -> dict[str, Any]:
    return {} if job.within is None else {"hints": {"max_duration_seconds": job.within}}


async def _ship_releases(hub: Client) -> None:
    if os.environ.get("DRAGOMAN_DEMO_ASKED"):
        await asyncio.sleep(STILL_OPEN)
    while True:
        with contextlib.suppress(DragomanError):
            await hub.call(RELEASE.target, RELEASE.work, **RELEASE.input)
        await asyncio.sleep(NEXT_RELEASE)
