"""A hub as small as can be, in a process of its own that can be killed: commits one unit after the other and says so.

`python -m tests.adapters.hub_process <directory> [<units>]`: prints `ready`, then the number of each unit after its
commit returned. Every unit adds a task with an event and an audit record, and finishes the task before it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from dragoman.core.model.tasks import Status
from dragoman.core.ports import Changes
from dragoman.stores.sqlite.schema import StoreRefused
from dragoman.stores.sqlite.store import SqliteStore
from tests.adapters.records import chain, event, task


async def main(directory: str, units: int) -> None:
    store = SqliteStore(Path(directory) / "hub.db")
    try:
        begin = await store.open()
    except StoreRefused as refusal:
        print(f"{type(refusal).__name__}: {refusal}", flush=True)
        return
    print("ready", store.writer_pid, flush=True)
    last = (await store.audit(after=begin.audit_seq - 1))[-1] if begin.audit_seq else None
    for number in range(begin.audit_seq + 1, begin.audit_seq + 1 + units):
        [last] = chain(1, after=last)
        before = await store.task(task(f"t{number - 1}").id)
        changed = [msgspec.structs.replace(before, status=Status.COMPLETED)] if before else []
        async with store.unit() as unit:
            await unit.commit(
                Changes(added=[task(f"t{number}"), event(f"t{number}", 1)], changed=changed, audit=[last])
            )
        print(number, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000))
