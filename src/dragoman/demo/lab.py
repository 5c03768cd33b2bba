"""A laboratory, over a2acp: plans studies, for which it asks another domain's records under contracts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dragoman import Agent, Task
from dragoman.demo import roster


def run(id: str, state_dir: Path | None) -> None:
    agent = Agent(id, domain=roster.RESEARCH_DOMAIN, version="1.2.3", concurrency=4, state_dir=state_dir, grace=0.5)

    @agent.task("plan_study", timeout=60)
    async def plan_study(task: Task, ward: str) -> dict[str, Any]:
        """Look at a ward's records, and say whether there is enough for a study."""
        records = agent.client
        found = await records.call("list_patients", {"ward": ward}, agent=roster.RECORDS.id)
        patients = found["patients"]
        if not patients:
            raise task.reject(f"there was nobody on ward {ward!r}; there are sleep and heart")
        await task.progress(30, "reading records", output=f"{len(patients)} patients\n")
        nights = 0
        for number, patient in enumerate(patients, start=1):
            record = await records.call("read_record", {"patient": patient}, agent=roster.RECORDS.id)
            nights += record["nights"]
            await task.progress(30 + 60 * number // len(patients), f"record {number} of {len(patients)}")
            await asyncio.sleep(0.2)
        return {"ward": ward, "patients": len(patients), "nights": nights, "enough": nights >= 10}

    agent.run()
