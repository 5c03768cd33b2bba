"""A release lead, over coven: ships a release by asking all the others, one after the other, in one trace.

It serves over its stream and calls beside it, under the same id: what a handler calls belongs to the task that it works
on. So `dragoman trace` and the dashboard show the whole release as one story over five protocols.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dragoman import Agent, Client, Task, TaskFailed
from dragoman.demo import roster

RELEASE = "3.0.0"
HOUR = 3600.0

PLAN = ("research", "test", "review", "study", "deploy", "report")


def run(id: str, state_dir: Path | None) -> None:
    agent = Agent(id, kind=roster.LEAD.kind, version="0.2.0", concurrency=1, state_dir=state_dir, grace=0.5)

    @agent.on("ship_release", timeout=HOUR)
    async def ship_release(task: Task, version: str) -> dict[str, Any]:
        """Plan a release, and see it through."""
        await task.progress(5, "plan", output=f"Release {version}: {', '.join(PLAN)}.\n")
        deployed: str | None = None
        async with Client(id=id) as hub:
            if task.attempt == 1:  # after a restart of the hub nobody is asked the same again
                found = await hub.call("research", {"content": "latency"}, agent=roster.RESEARCH.id)
                await task.progress(20, "research", output=f"The researcher says: {found}\n")
                tests = await hub.call("run_tests", {"suite": "unit"}, agent=roster.CODE.id)
                await task.progress(35, "test", output=f"{tests['passed']} tests passed.\n")
                notes = await hub.call("write_notes", {"release": version}, agent=roster.EDITOR.id)
                await task.progress(50, "review", output=f"{notes['by']} finished the notes.\n")
                study = await hub.call("plan_study", {"ward": "sleep"}, agent=roster.LAB.id)
                await task.progress(60, "study", output=f"{study['patients']} records read under a contract.\n")
                deployed = await _deploy(hub)
                await task.progress(80, "deploy", output=f"{deployed}\n")
            report = await hub.call("write_report", {"topic": f"release {version}"}, agent=roster.SCRIBE.id)
        return {"release": version, "deploy": deployed, "words": report["words"]}

    agent.run()


async def _deploy(hub: Client) -> str:
    """A person decides; without them nothing is deployed, and the release is reported all the same."""
    try:
        await hub.call("run_playbook", {"playbook": "upgrade_postgres.yml"}, agent=roster.INFRA.id)
    except TaskFailed as failure:
        return f"Not deployed: {failure.message}"
    return "Deployed."
