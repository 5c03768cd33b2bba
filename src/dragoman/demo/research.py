"""A researcher, over coven: thinks aloud, uses a tool, and answers in a stream of text."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from dragoman import Agent, Task
from dragoman.demo import roster

SHELF = {
    "backups": "Nightly, to another machine, encrypted. The last restore that was tried took 14 minutes and was whole.",
    "certificates": "Nine are public, all from one authority. web-02.lan is the next to expire, in 9 days.",
    "latency": "The median is 38 ms, the 99th percentile 210 ms. Three quarters of that is the invoice service.",
}
"""What can be looked up here."""

UNKNOWN = "Nothing is written about that here. It may be worth asking the people who run it."


def run(id: str, state_dir: Path | None) -> None:
    agent = Agent(id, kind=roster.RESEARCH.kind, version="0.3.0", concurrency=1, state_dir=state_dir, grace=0.5)

    @agent.on("research", timeout=120)
    async def research(task: Task, content: str) -> dict[str, Any]:
        """Look something up and say what was found."""
        await task.think(f"Which shelf would have {content!r}?")
        await asyncio.sleep(0.6)
        use = await task.tool_use("shelf", {"topic": content})
        found = next((text for topic, text in SHELF.items() if topic in content.lower()), None)
        await asyncio.sleep(0.5)
        await task.tool_result(use, found or "nothing", is_error=found is None)
        for piece in re.findall(r"\S+\s*", found or UNKNOWN):
            await task.text(piece)
            await asyncio.sleep(0.08)
        return {"topic": content, "found": found is not None}

    agent.run()
