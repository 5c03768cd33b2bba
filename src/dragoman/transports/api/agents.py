"""Agents: let them in, look at them, give them a new token, send them away."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.core.agents.model import Agent
from dragoman.core.commands import AddAgent, RemoveAgent, RotateToken
from dragoman.core.errors import Kind
from dragoman.core.ids import ADMIN, HUB, AgentId
from dragoman.core.ports import TaskFilter
from dragoman.core.queries import AgentOut, LogLine, agent_out, log_line
from dragoman.security.tokens import new_token, token_hash
from dragoman.transports.api.bodies import AgentIn, AgentsQuery, Nothing, Page, read_body, read_query
from dragoman.transports.api.desk import Desk
from dragoman.transports.api.endpoint import respond
from dragoman.transports.api.problems import Problem
from dragoman.transports.api.tasks import PROTOCOL

RESERVED = frozenset({HUB, ADMIN, "anonymous", "protocol-broker-agent"})
EVENTS_A_TASK = 100


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """The token is shown this once; the hub keeps only its hash."""

    agent_id: str
    token: str


class AgentList(msgspec.Struct, frozen=True, kw_only=True):
    agents: tuple[AgentOut, ...]


class AgentLogs(msgspec.Struct, frozen=True, kw_only=True):
    """Oldest first. `next` leads to older tasks."""

    logs: tuple[LogLine, ...]
    next: str | None


def told(desk: Desk, agent: Agent) -> AgentOut:
    return agent_out(agent, reachable=desk.intake.reachable(agent.id), tasks=desk.intake.load_of(agent.id))


def find_agent(desk: Desk, request: Request) -> Agent:
    id = request.path_params["id"]
    agent = desk.intake.agent(AgentId(id))
    if agent is None:
        raise Problem(Kind.NOT_FOUND, f"no agent {id[:80]!r}", next="List them with GET /api/v1/agents.")
    return agent


async def add(desk: Desk, request: Request) -> Response:
    wish = await read_body(desk, request, AgentIn)
    if wish.agent_id in RESERVED:
        raise Problem(Kind.INVALID, f"the id {wish.agent_id} is the hub's own", field="agent_id")
    if wish.protocol not in desk.protocols:
        spoken = ", ".join(desk.protocols)
        raise Problem(
            Kind.INVALID,
            f"this hub does not speak {wish.protocol!r}",
            field="protocol",
            next=f"Use one of: {spoken}.",
            spoken=list(desk.protocols),
        )
    for field in ("command", "cwd", "env"):
        if getattr(wish, field) is not None:
            raise Problem(Kind.INVALID, f"{field} is only for agents the hub runs as child processes", field=field)
    token = new_token()
    agent = Agent(
        id=AgentId(wish.agent_id),
        protocol=wish.protocol,
        created_at=desk.intake.now(),
        token_hash=token_hash(token),
        kind=wish.kind,
        role=wish.role,
        name=wish.name,
        domain=wish.domain,
        version=wish.version,
        capabilities=wish.capabilities,
        work_types=wish.work_types,
        untrusted=wish.untrusted,
    )
    if wish.max_concurrent is not None:
        agent = msgspec.structs.replace(agent, max_concurrent=wish.max_concurrent)
    await desk.intake.ask(AddAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent))
    return respond(201, Credential(agent_id=agent.id, token=token), {"Location": f"/api/v1/agents/{agent.id}"})


async def listing(desk: Desk, request: Request) -> Response:
    query = read_query(request, AgentsQuery)
    agents = [told(desk, agent) for agent in sorted(desk.intake.agents(), key=lambda agent: agent.id)]
    wanted = [
        agent
        for agent in agents
        if query.protocol in (None, agent.protocol)
        and query.kind in (None, agent.kind)
        and query.status in (None, agent.status.value)
    ]
    return respond(200, AgentList(agents=tuple(wanted)))


async def one(desk: Desk, request: Request) -> Response:
    return respond(200, told(desk, find_agent(desk, request)))


async def remove(desk: Desk, request: Request) -> Response:
    agent = find_agent(desk, request)
    await desk.intake.ask(RemoveAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent.id))
    return Response(status_code=204, headers={"Cache-Control": "no-store"})


async def rotate(desk: Desk, request: Request) -> Response:
    await read_body(desk, request, Nothing, optional=True)
    agent = find_agent(desk, request)
    token = new_token()
    await desk.intake.ask(RotateToken(principal=ADMIN, protocol=PROTOCOL, agent=agent.id, token_hash=token_hash(token)))
    return respond(200, Credential(agent_id=agent.id, token=token))


async def logs(desk: Desk, request: Request) -> Response:
    """The newest events of its newest tasks."""
    query = read_query(request, Page)
    agent = find_agent(desk, request)
    try:
        tasks, on = await desk.store.tasks(
            TaskFilter(agent=agent.id), after=query.cursor or None, limit=min(query.limit, 50)
        )
    except ValueError:
        raise Problem(Kind.INVALID, "this is no cursor", field="cursor") from None
    lines: list[LogLine] = []
    for task in tasks:
        newest = await desk.store.events(task.id, after=max(0, task.seq - EVENTS_A_TASK), limit=EVENTS_A_TASK)
        lines += [log_line(event) for event in newest]
    lines.sort(key=lambda line: (line.at, line.task_id, line.seq))
    return respond(200, AgentLogs(logs=tuple(lines), next=on))
