"""A clinic's records, over a2acp: personal data, which only leaves encrypted and under a contract."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from dragoman import Agent, HandshakeRequest, Reject, Task
from dragoman.demo import roster

WARDS = {"sleep": ("P-101", "P-204", "P-377"), "heart": ("P-018", "P-204")}
"""Ward → its invented patients."""


@dataclass
class Record:
    patient: str
    ward: str
    nights: int


def run(id: str, state_dir: Path | None) -> None:
    agent = Agent(id, domain=roster.CLINIC, version="2.1.0", concurrency=4, state_dir=state_dir, grace=0.5)

    @agent.on_handshake
    async def decide(request: HandshakeRequest) -> bool | Reject:
        return True if request.source == roster.LAB.id else Reject(f"{id} works with {roster.LAB.id} only")

    @agent.task("list_patients", requires=("read:records",))
    async def list_patients(ward: str) -> dict[str, list[str]]:
        """Who was on a ward, by number."""
        return {"patients": list(WARDS.get(ward, ()))}

    @agent.task("read_record", pii=True, requires=("read:records",))
    async def read_record(task: Task, patient: str) -> Record:
        """One patient's record."""
        await asyncio.sleep(0.3)
        ward = next((ward for ward, there in WARDS.items() if patient in there), None)
        if ward is None:
            raise task.reject("no such patient")
        return Record(patient, ward, nights=int(patient[-1]))

    agent.run()
