"""Two agents that speak agentmsg: a junior that asks for help and hands over, and a senior that helps and takes over.

export JUNIOR=$(dragoman agent add junior --protocol agentmsg) SENIOR=$(dragoman agent add senior --protocol agentmsg)
python examples/team.py agentmsg+ws://localhost:8420 &
dragoman call junior fix issue=17
"""

import asyncio
import os
import sys
from typing import Any

from dragoman import Agent, HelpRequest, Task

junior = Agent("junior", token=os.environ.get("JUNIOR"))
senior = Agent("senior", token=os.environ.get("SENIOR"))


@junior.on("fix")
async def try_to_fix(task: Task, issue: int) -> str:
    """Fix an issue, with a little help."""
    advice = await task.help(f"Where would you look for issue {issue}?", attempted=["reading the log"])
    await task.progress(50, "looked there", output=f"{advice.responder} says: {advice.content}\n")
    handed = await task.handoff(reason="CAPABILITY_LIMIT", context={"seen": advice.content})
    return "nobody took it over, so it is as it was" if not handed.accepted else ""


@senior.on_help("TECHNICAL_GUIDANCE")
async def advise(request: HelpRequest) -> str:
    return f"not in what you tried: {', '.join(request.context['attempted_solutions'])}"


@senior.on("fix")
async def fix(task: Task, issue: int) -> dict[str, Any]:
    """Fix an issue."""
    return {"issue": issue, "begun_by": task.handover and task.handover.from_agent, "known": task.context}


async def main(url: str | None) -> None:
    await asyncio.gather(junior.serve(url), senior.serve(url))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
