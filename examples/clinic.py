"""Two domains that work together under a contract, over a2acp: a laboratory reads a clinic's records, encrypted.

Start a hub with `dragoman dev`, then in other terminals:

    dragoman agent add records --protocol a2acp --domain clinic -o json
    dragoman agent add lab --protocol a2acp --domain research --capability read:records -o json
    dragoman policy allow research clinic
    DRAGOMAN_URL=a2acp+ws://localhost:8420 DRAGOMAN_TOKEN=… python examples/clinic.py records
    DRAGOMAN_URL=a2acp+ws://localhost:8420 DRAGOMAN_TOKEN=… python examples/clinic.py lab
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from dragoman import Agent, Client, Task

records = Agent("records", domain="clinic", version="2.1.0")


@dataclass
class Record:
    patient: str
    nights: int


@records.task("read_record", pii=True, requires=("read:records",), timeout=30)
async def read_record(task: Task, patient: str) -> Record:
    """Read one patient's record."""
    if not patient.startswith("P-"):
        raise task.reject("patients have numbers, as P-101")
    return Record(patient, nights=3)


async def lab() -> None:
    async with Client(id="lab") as hub:
        print(await hub.call("read_record", {"patient": "P-101"}, agent="records"))
        contract = await hub.contract("read_record", agent="records")
        print(f"under {contract.contract_id}, {contract.security.encryption}, until {contract.expires_at}")
        await hub.terminate(contract, "done")


if __name__ == "__main__":
    if sys.argv[1:] == ["lab"]:
        asyncio.run(lab())
    else:
        records.run()
