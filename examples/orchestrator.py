"""An orchestrator that speaks chiffon itself: calls the deployer and follows its work.

TOKEN=$(dragoman agent add conductor --protocol chiffon)
DRAGOMAN_TOKEN=$TOKEN python examples/orchestrator.py chiffon+ws://localhost:8420
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from dragoman import Client, Progress, TaskFailed


@dataclass
class Deployed:
    url: str
    vars: dict[str, Any]


async def main(url: str) -> None:
    async with Client(url, id="conductor") as hub:
        handle = await hub.submit("run_playbook", {"playbook": "deploy_kuma.yml"}, agent="deployer", priority="high")
        async for event in handle.events():
            match event:
                case Progress(percent=percent, step=step):
                    print(f"{event.seq:3} {percent!s:>4} {step.name if step else ''}")
                case _:
                    print(f"{event.seq:3} {event.kind}")
        print(await handle.result())

        given = {"playbook": "deploy_kuma.yml", "extra_vars": {"version": "1.4"}}
        deployed = await hub.call("run_playbook", given, agent="deployer", returns=Deployed)
        print(deployed.url, deployed.vars)
        try:
            await hub.call("run_playbook", {"playbok": "a typing error"}, agent="deployer")
        except TaskFailed as failed:
            print(f"failed, as it should: {failed.message}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "chiffon+ws://localhost:8420"))
