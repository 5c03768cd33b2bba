"""Three agents that converse, and what they say to ask for help and to hand a task over."""

from __future__ import annotations

from typing import Any

from dragoman.core.commands import (
    AnswerHandover,
    AskHelp,
    ChangeState,
    GiveHelp,
    Handing,
    HandOver,
    HelpVerdict,
)
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, TaskId
from dragoman.core.model.state import Operation, Registry
from dragoman.core.model.tasks import Question, Task
from dragoman.core.ports import Store
from dragoman.core.rules import Rules
from tests.support.world import Peer, World


async def three_who_converse(store: Store) -> World:
    """Ann, Bob and Cid, and a boss who does nothing."""
    world = await World(store, Rules(direct_message_jitter=False)).start()
    for id in ("ann", "bob", "cid"):
        await world.add(id, protocol="agentmsg", capabilities=("code_review",), concurrent=4)
    await world.add("boss", "orchestrator", work_types=())
    return world


def asks(world: World, agent: str, task: TaskId | None, **fields: Any) -> AskHelp:
    given = {"question": "which way?", "topic": "CODE_REVIEW", **fields}
    return AskHelp(
        principal=AgentId(agent), direct_message=world.direct_message(agent, kind="HELP_REQUEST"), task_id=task, **given
    )


def helps(world: World, agent: str, request: AskHelp, verdict: HelpVerdict, **fields: Any) -> GiveHelp:
    direct_message = world.direct_message(agent, "left", kind="HELP_RESPONSE")
    return GiveHelp(
        principal=AgentId(agent),
        request_id=request.direct_message.message_id,
        direct_message=direct_message,
        verdict=verdict,
        **fields,
    )


def hands(world: World, agent: str, task: TaskId, reason: Handing = Handing.LOAD_BALANCING, **fields: Any) -> HandOver:
    given = {"deadline": Instant(world.time + 20 * SECOND), **fields}
    direct_message = world.direct_message(agent, kind="TASK_HANDOFF")
    return HandOver(principal=AgentId(agent), task_id=task, direct_message=direct_message, reason=reason, **given)


def takes(
    world: World, agent: str, request: HandOver, accepted: bool = True, error: str | None = None, **terms: Any
) -> AnswerHandover:
    direct_message = world.direct_message(agent, "yes" if accepted else "no", kind="TASK_HANDOFF")
    return AnswerHandover(
        principal=AgentId(agent),
        request_id=request.direct_message.message_id,
        direct_message=direct_message,
        accepted=accepted,
        error=error,
        terms=terms,
    )


async def working(world: World, agent: str = "ann", **fields: Any) -> tuple[Peer, Task]:
    """A task in an agent's hands, its assignment acknowledged."""
    peer = await world.connect(agent, acknowledges=True)
    task = await world.submit(None, pinned=agent, **fields)
    await peer.ack(*peer.take())
    return peer, task


async def allots(world: World, name: str, **account: Any) -> None:
    """An allocation that a person sets for an agent."""
    await world.ask(
        ChangeState(
            principal=ADMIN, operation=Operation.CREATE, entity=Registry.RESOURCE, entity_id=name, changes=account,
            version=0,
        )
    )  # fmt: skip


async def question(world: World, id) -> Question:
    found = await world.store.question(id)
    assert found is not None
    return found
