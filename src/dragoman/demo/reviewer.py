"""A reviewer, over agentmsg: helps the editor, and takes over release notes that are too long for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dragoman import Accept, Agent, HandoffRequest, HelpRequest, Reject, Task
from dragoman.demo import roster
from dragoman.demo.editor import NOTES


def run(id: str, state_dir: Path | None) -> None:
    agent = Agent(id, version="0.1.0", skills=["prose"], concurrency=4, state_dir=state_dir, grace=0.5)

    @agent.on_help("TECHNICAL_GUIDANCE", "CODE_REVIEW")
    async def advise(request: HelpRequest) -> str:
        await asyncio.sleep(0.5)
        return "Say what it means for the reader; otherwise it is clear."

    @agent.on_handoff
    async def decide(request: HandoffRequest) -> Accept | Reject:
        if request.from_agent != roster.EDITOR.id:
            return Reject(f"{id} works for {roster.EDITOR.id} only")
        return Accept(requirements=("the entries, in any order",))

    @agent.on("write_notes", timeout=120)
    async def write_notes(task: Task, release: str) -> dict[str, Any]:
        """Write the notes of a release, or the rest of them."""
        entries = NOTES.get(release, ())
        for number, entry in enumerate(entries[task.context.get("written", 0) :], start=1):
            await asyncio.sleep(0.5)
            await task.progress(50 + 45 * number // len(entries), f"entry {number}", output=f"{entry}\n")
        began = task.handover.from_agent if task.handover is not None else id
        return {"release": release, "entries": len(entries), "by": id, "begun_by": began}

    agent.run()
