"""An editor, over agentmsg: drafts release notes, asks the reviewer for help, and hands over what is too long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dragoman import Agent, Task
from dragoman.demo import roster

NOTES = {
    "2.4.1": ("Fixed: the total of an invoice was rounded before tax was added.",),
    "3.0.0": (
        "New: a report for every customer, written overnight.",
        "Changed: certificates are renewed a week earlier.",
        "Removed: the old import, which nobody has used since spring.",
        "Fixed: the search forgot what was typed after a pause.",
    ),
}
"""Release → what is to be said about it."""
MOST = 3
"""Entries that fit on the editor's desk; more than that is the reviewer's."""


def run(id: str, state_dir: Path | None) -> None:
    agent = Agent(id, version="0.1.0", skills=["prose"], concurrency=4, state_dir=state_dir, grace=0.5)

    @agent.on("write_notes", timeout=120)
    async def write_notes(task: Task, release: str) -> dict[str, Any]:
        """Write the notes of a release."""
        if release not in NOTES:
            raise task.reject(f"nothing is known of release {release}; there are {', '.join(NOTES)}")
        entries = NOTES[release]
        task.used(tokens=900, cost_usd=0.004 * len(entries))
        await task.progress(20, "drafting", output=f"# {release}\n\n{entries[0]}\n")
        await asyncio.sleep(0.6)
        advice = await task.help(
            f"Is this clear to a reader who was not there? {entries[0]}",
            help_type="TECHNICAL_GUIDANCE",
            to=roster.REVIEWER.id,
            deadline=60,
        )
        await task.progress(50, "heard the reviewer", output=f"({advice.content})\n")
        if len(entries) > MOST:
            handed = await task.handoff(
                roster.REVIEWER.id, "CAPABILITY_LIMIT", context={"advice": advice.content, "written": 1}, deadline=60
            )
            if handed.accepted:
                return {}
        await asyncio.sleep(0.4)
        return {"release": release, "entries": len(entries), "by": id}

    agent.run()
