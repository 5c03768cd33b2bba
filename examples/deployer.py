"""An agent that runs playbooks, and asks a person before it restarts production.

TOKEN=$(dragoman agent add deployer --protocol chiffon)
DRAGOMAN_TOKEN=$TOKEN python examples/deployer.py chiffon+ws://localhost:8420 &
dragoman call deployer run_playbook playbook=deploy_kuma.yml
"""

import asyncio
import sys
from typing import Any

from dragoman import Agent, Task

agent = Agent("deployer", version="1.2.3", state_dir=".dragoman/agents")


@agent.on("run_playbook", timeout=300)
async def run(
    task: Task, playbook: str, extra_vars: dict[str, Any] | None = None, restart: bool = False
) -> dict[str, Any]:
    """Run an Ansible playbook."""
    steps = ["fetch", "configure", "verify"]
    for number, step in enumerate(steps, start=1):
        await task.progress(100 * number // len(steps), step, output=f"{playbook}: {step} done\n")
        await asyncio.sleep(0.2)  # here would be the work
    if restart:
        answer = await task.ask("Restart prod?", options=["yes", "no"], timeout=300, default="no")
        if answer == "no":
            raise task.reject("declined by a person")
    return {"url": "https://kuma.lan", "vars": extra_vars or {}}


if __name__ == "__main__":
    agent.run(sys.argv[1] if len(sys.argv) > 1 else None)
