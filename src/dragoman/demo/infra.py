"""An infrastructure agent: runs playbooks step by step, and asks a person before it stops a database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

from dragoman import Agent, Task
from dragoman.demo import roster


class Step(NamedTuple):
    name: str
    seconds: float
    says: str


class Playbook(NamedTuple):
    """`asks`: what a person must agree to after the first step. `breaks`: why it cannot end well."""

    steps: tuple[Step, ...]
    asks: str | None = None
    breaks: str | None = None


PLAYBOOKS = {
    "site.yml": Playbook(
        (
            Step("gather facts", 0.5, "ok: [web-01] [web-02] [db-01]"),
            Step("packages", 0.9, "changed: [web-02] openssl 3.0.14 -> 3.0.15"),
            Step("nginx configuration", 0.7, "changed: [web-01] [web-02]"),
            Step("reload nginx", 0.4, "ok: [web-01] [web-02] no request was dropped"),
            Step("verify", 0.5, "ok: https://www.lan answers 200 in 38 ms"),
        )
    ),
    "deploy_kuma.yml": Playbook(
        (
            Step("pull image", 1.1, "louislam/uptime-kuma:1.23.16, 141 MB"),
            Step("configure monitors", 0.6, "3 monitors added, 11 unchanged"),
            Step("restart service", 0.8, "healthy after 2 checks"),
        )
    ),
    "rotate_logs.yml": Playbook(
        (
            Step("find old logs", 0.4, "42 files, 3.1 GB, older than 14 days"),
            Step("compress", 1.2, "3.1 GB -> 240 MB"),
        )
    ),
    "renew_certs.yml": Playbook(
        (
            Step("read expiry dates", 0.3, "web-02.lan expires in 9 days"),
            Step("order certificate", 0.4, "POST /acme/new-order: 429"),
        ),
        breaks="the certificate authority refused web-02.lan: too many orders this week, try again on Monday",
    ),
    "upgrade_postgres.yml": Playbook(
        (
            Step("check replicas", 0.3, "db-02 and db-03 are 0 bytes behind"),
            Step("stop writes", 0.6, "db-01 is read-only"),
            Step("upgrade", 1.6, "pg_upgrade --link: 17.6 -> 18.1"),
            Step("verify", 0.7, "db-01 accepts writes again after 38 s"),
        ),
        asks="Upgrade db-01 to PostgreSQL 18.1 now? Writes stop for about 40 seconds.",
    ),
}

SILENT, NEVER = ("db-04",), 25.0
"""A host that does not answer: who asks about it gives up first, if it said how long it waits."""
ANSWER_WITHIN = 30 * 60.0


def run(id: str, state_dir: Path | None) -> None:
    agent = Agent(id, kind=roster.INFRA.kind, version="1.4.0", concurrency=4, state_dir=state_dir, grace=0.5)

    @agent.on("run_playbook", timeout=300)
    async def run_playbook(task: Task, playbook: str, extra_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run one of the demo's playbooks."""
        book = PLAYBOOKS.get(playbook)
        if book is None:
            raise task.reject(f"there is no playbook {playbook!r} here; there are {', '.join(PLAYBOOKS)}")
        count = len(book.steps)
        for number, step in enumerate(book.steps, start=1):
            await task.checkpoint()
            await asyncio.sleep(step.seconds)
            await task.progress(100 * number // (count + 1), step.name, output=f"TASK [{step.name}] {step.says}\n")
            if number == 1 and book.asks is not None:
                agreed = await task.ask(book.asks, options=["yes", "no"], timeout=ANSWER_WITHIN, default="no")
                if agreed != "yes":
                    raise task.reject("a person said no, or nobody answered in time; nothing was changed")
        if book.breaks is not None:
            raise task.reject(book.breaks)
        return {"playbook": playbook, "steps": count, "vars": extra_vars or {}}

    @agent.on("check_host", timeout=30)
    async def check_host(task: Task, host: str) -> dict[str, Any]:
        """How a host is doing."""
        await asyncio.sleep(NEVER if host in SILENT else 0.4)
        return {"host": host, "load": 0.42, "disk_free_percent": 61, "reboot_needed": host == "web-02"}

    agent.run()
