"""An orchestrator that speaks chiffon itself: calls the deployer and follows its work.

TOKEN=$(dragoman agent add conductor --protocol chiffon)
DRAGOMAN_TOKEN=$TOKEN python examples/orchestrator.py chiffon+ws://localhost:8420
"""

import asyncio
import sys

from dragoman import Client, TaskFailed


async def main(url: str) -> None:
    async with Client(url, id="conductor") as hub:
        async for event in hub.stream("deployer", "run_playbook", playbook="deploy_kuma.yml"):
            step = event.data.get("step", {}).get("name", "")
            print(f"{event.seq:3} {event.kind:10} {event.data.get('percent', '')!s:>4} {step}")

        try:
            print(await hub.call("deployer", "run_playbook", playbook="deploy_kuma.yml", extra_vars={"version": "1.4"}))
            await hub.call("deployer", "run_playbook", playbok="a typing error")
        except TaskFailed as failed:
            print(f"failed, as it should: {failed.message}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "chiffon+ws://localhost:8420"))
