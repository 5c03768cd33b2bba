"""Agents: add, show, restart and remove them, and give them a new token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from dragoman.api.bodies import (
    AgentIn,
    AgentsQuery,
    LogsQuery,
    Nothing,
)
from dragoman.api.context import PROTOCOL, Call, Context, Plain, respond
from dragoman.api.problems import Next, Problem, list_of
from dragoman.core.agreements.terms import LIBRARY
from dragoman.core.commands import AddAgent, PauseAgent, RemoveAgent, ResumeAgent, RotateToken
from dragoman.core.ids import ADMIN, AgentId, rfc3339
from dragoman.core.model.agents import Agent, ConnectionEvent, Offer, Profile
from dragoman.core.model.holdings import NOTHING
from dragoman.core.model.state import AWAY, Registry
from dragoman.core.ports import TaskFilter
from dragoman.core.protocol_capabilities import RESERVED
from dragoman.core.queries import AgentOut, AgentStatus, LogLine, agent_out, log_line
from dragoman.messages.faults import Kind
from dragoman.protocols.a2acp.contracts import Capability
from dragoman.protocols.features import FEATURES
from dragoman.security.tokens import new_token, token_hash
from dragoman.server.a2acp import contracts
from dragoman.supervisor.child_log import ChildLog, Entry
from dragoman.supervisor.spec import (
    DETAIL,
    ChildLimits,
    ChildSpec,
    RestartPolicy,
    State,
    contradiction,
    spec_of,
)
from dragoman.supervisor.spec import PROTOCOL as CHILD_PROTOCOL
from dragoman.supervisor.supervisor import ChildDeclaration
from dragoman.wire.schema.library import SchemaError

EVENTS_A_TASK = 100
LONGEST_COMMAND = 128 * 1024
CHILD_FIELDS = (
    "cwd",
    "env",
    "pass_env",
    "restart",
    "limits",
    "grace_seconds",
    "privileges",
    "allow_files",
    "allow_hosts",
    "wasm",
)
"""Fields that only an agent with a command has."""


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """The token is shown this once; the hub keeps only its hash. An agent that the hub runs itself needs none."""

    agent_id: str
    token: str | None


class ChildOut(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that the hub runs. Of its environment only the names are shown: values may be secrets."""

    state: State
    since: str
    pid: int | None
    restarts: int
    last_end: str | None
    command: tuple[str, ...]
    cwd: str | None
    env: tuple[str, ...]
    pass_env: tuple[str, ...]
    restart: RestartPolicy
    limits: ChildLimits
    grace_seconds: float
    privileges: bool
    allow_files: tuple[str, ...]
    allow_hosts: tuple[str, ...]
    origin: str


class Pending(msgspec.Struct, frozen=True, rename={"direct_messages": "letters"}):
    """What its quotas count: bytes of unfinished work, direct messages not acknowledged, tasks in the shared state."""

    bytes: int
    direct_messages: int
    state_entities: int


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent reported: its last status, those before it (the oldest first), and its last errors."""

    version: int
    at: str
    status: dict[str, Any]
    history: tuple[dict[str, Any], ...]
    errors: tuple[dict[str, Any], ...]


class StatusHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The statuses that an agent reported, or that the hub noted when it was silent: the oldest first, the last one
    holds now. Empty for an agent that never reported. `errors` are its last error reports."""

    agent: str
    history: tuple[dict[str, Any], ...]
    errors: tuple[dict[str, Any], ...]


class ConnectionChangeOut(msgspec.Struct, frozen=True, kw_only=True):
    at: str
    event: ConnectionEvent
    why: str


class AgentDetails(AgentOut, frozen=True, kw_only=True, omit_defaults=True):
    """`child` is set for an agent that the hub runs; then `status` may also be the state of its process. An agent that
    reported that it takes no work has that as its status. `reported`, `pending` (what the hub holds for it) and
    `connections` (the last changes of its connection, the newest first) are set where one agent is shown."""

    status: str  # type: ignore[assignment]

    offers: tuple[Capability, ...] = ()
    child: ChildOut | None = None
    reported: Reported | None = None
    pending: Pending | None = None
    connections: tuple[ConnectionChangeOut, ...] = ()


class AgentList(msgspec.Struct, frozen=True, kw_only=True):
    agents: tuple[AgentDetails, ...]


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a log. Of a child: what it printed (`stream` stdout or stderr), logged in its protocol (event), or what
    the hub wrote about it (hub). Of another agent: an event of a task, or what it logged beside its tasks (event)."""

    seq: int
    at: str
    kind: str
    text: str
    task_id: str | None
    level: str | None = None
    stream: str | None = None
    context: dict[str, Any] = {}


class AgentLogs(msgspec.Struct, frozen=True, kw_only=True):
    """Oldest first. `next` is the cursor for older tasks; for an agent that the hub runs, the number of the last
    line."""

    logs: tuple[Line, ...]
    next: str | None


def agent_details(context: Context, agent: Agent) -> AgentDetails:
    reachable, tasks = context.intake.reachable(agent.id), context.intake.load_of(agent.id)
    now, seen = context.intake.now(), context.intake.seen_at(agent.id)
    plain = agent_out(agent, reachable=reachable, tasks=tasks, now=now, seen=seen)
    facts = {field: getattr(plain, field) for field in plain.__struct_fields__}
    facts["details"] = {name: value for name, value in agent.details.items() if name != DETAIL}
    child = _child(context, agent)
    if context.children is not None and (report := context.children.report(agent.id)) is not None:
        facts["sandbox"] = report.sandbox  # it may have been refused since its row was written
    if child is not None and child.state not in (State.IDLE, State.BUSY):
        facts["status"] = child.state
    elif plain.status is AgentStatus.IDLE and (away := _away(context, agent)) is not None:
        facts["status"] = away
    return AgentDetails(**facts, offers=tuple(map(contracts.capability_of, agent.offers)), child=child)


def _away(context: Context, agent: Agent) -> str | None:
    """Why a connected agent takes no work, as it reported: `error`, `maintenance`, `offline`."""
    entity = context.intake.entity(f"{Registry.AGENT.value}/{agent.id}")
    state = None if entity is None else entity.value.get("state")
    return str(state).lower() if state in AWAY else None


def _child(context: Context, agent: Agent) -> ChildOut | None:
    found = None if context.children is None else context.children.report(agent.id)
    if found is None:
        return None
    of = found.spec
    return ChildOut(
        state=found.state,
        since=rfc3339(found.since),
        pid=found.pid,
        restarts=found.restarts,
        last_end=found.last_end,
        command=of.command,
        cwd=of.cwd,
        env=of.env,
        pass_env=of.pass_env,
        restart=of.restart,
        limits=of.limits,
        grace_seconds=of.grace(busy=True),
        privileges=of.privileges,
        allow_files=of.allow_files,
        allow_hosts=of.allow_hosts,
        origin=of.origin,
    )


def _reported(context: Context, agent: AgentId) -> Reported | None:
    """None for an agent that never reported its status."""
    entry = context.intake.entity(f"{Registry.AGENT.value}/{agent}")
    if entry is None or not entry.value:
        return None
    return Reported(
        version=entry.version,
        at=rfc3339(entry.updated_at),
        status={name: value for name, value in entry.value.items() if name != "errors"},
        history=entry.past,
        errors=tuple(entry.value.get("errors", ())),
    )


def _status_history(context: Context, agent: AgentId) -> StatusHistory:
    report = _reported(context, agent)
    if report is None:
        return StatusHistory(agent=agent, history=(), errors=())
    return StatusHistory(
        agent=agent, history=(*report.history, {"at": report.at, **report.status}), errors=report.errors
    )


def offered(capabilities: Sequence[Capability]) -> tuple[Offer, ...]:
    """What an agent offers; each of its schemas is checked first."""
    for place, one in enumerate(capabilities):
        for field in ("input_schema", "output_schema"):
            try:
                LIBRARY.compiled(getattr(one, field))
            except SchemaError as error:
                where = f"offers[{place}].{field}{error.pointer}"
                raise Problem(Kind.INVALID, f"this schema is not supported: {error.what}", field=where) from None
    return tuple(map(contracts.offer_of, capabilities))


def find_agent(context: Context, id: str) -> Agent:
    agent = context.intake.agent(AgentId(id))
    if agent is None:
        raise Problem(Kind.NOT_FOUND, f"no agent {id[:80]!r}", next=list_of("agents"))
    return agent


async def add_agent(context: Context, call: Call[None, AgentIn]) -> Response:
    wanted = call.body
    if wanted.agent_id in RESERVED:
        raise Problem(Kind.INVALID, f"the id {wanted.agent_id} is reserved for the hub", field="agent_id")
    if wanted.protocol not in context.protocols:
        spoken = ", ".join(context.protocols)
        raise Problem(
            Kind.INVALID,
            f"this hub does not speak {wanted.protocol!r}",
            field="protocol",
            next=Next(f"use one of: {spoken}"),
            spoken=list(context.protocols),
        )
    if wanted.command is not None:
        return await _run(context, wanted)
    for field in CHILD_FIELDS:
        if getattr(wanted, field) is not None:
            message = f"{field} needs `command`: it is only for agents that the hub runs"
            raise Problem(Kind.INVALID, message, field=field)
    token = new_token(context.realm)
    agent = Profile.of(wanted).admitted(
        AgentId(wanted.agent_id), wanted.protocol, at=context.intake.now(), token_hash=token_hash(token)
    )
    agent = msgspec.structs.replace(agent, offers=offered(wanted.offers))
    await context.execute(call, AddAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent))
    return respond(201, Credential(agent_id=agent.id, token=token), {"Location": f"/api/v1/agents/{agent.id}"})


async def _run(context: Context, wanted: AgentIn) -> Response:
    """An agent that the hub itself runs, from now on and after each start."""
    assert wanted.command is not None
    if context.children is None:
        raise Problem(Kind.INVALID, "this hub does not run agents itself", field="command")
    if wanted.protocol != CHILD_PROTOCOL:
        message = f"an agent that the hub runs speaks {CHILD_PROTOCOL} over its standard streams, not {wanted.protocol}"
        raise Problem(
            Kind.INVALID, message, field="protocol", next=Next(f"write {CHILD_PROTOCOL!r}, or leave command out")
        )
    if not wanted.command[0]:
        raise Problem(Kind.INVALID, "the command is empty", field="command")
    if sum(map(len, wanted.command)) + sum(len(k) + len(v) for k, v in (wanted.env or {}).items()) > LONGEST_COMMAND:
        raise Problem(
            Kind.TOO_LARGE, f"command and environment may have at most {LONGEST_COMMAND} characters", field="command"
        )
    given = {field: value for field in CHILD_FIELDS if (value := getattr(wanted, field)) is not None and field != "env"}
    spec = ChildSpec(command=wanted.command, untrusted=wanted.untrusted, **given)
    if (wrong := contradiction(spec)) is not None:
        raise Problem(Kind.INVALID, wrong[1], field=wrong[0])
    profile, offers = Profile.of(wanted), offered(wanted.offers)
    declared = ChildDeclaration(id=wanted.agent_id, spec=spec, env=wanted.env or {}, profile=profile, offers=offers)
    agent = await context.children.admit(declared)
    return respond(201, Credential(agent_id=agent.id, token=None), {"Location": f"/api/v1/agents/{agent.id}"})


async def list_agents(context: Context, call: Call[AgentsQuery, None]) -> AgentList:
    query = call.query
    if query.protocol is not None and query.protocol not in FEATURES:
        what = f"there is no protocol {query.protocol[:80]!r}"
        raise Problem(Kind.INVALID, what, field="protocol", next=Next(f"use one of: {', '.join(FEATURES)}"))
    agents = [agent_details(context, agent) for agent in sorted(context.intake.agents(), key=lambda agent: agent.id)]
    wanted = [
        agent
        for agent in agents
        if query.protocol in (None, agent.protocol)
        and query.kind in (None, agent.kind)
        and query.status in (None, agent.status)
    ]
    return AgentList(agents=tuple(wanted))


async def show_agent(context: Context, call: Plain) -> AgentDetails:
    return whole_agent(context, find_agent(context, call.id))


def whole_agent(context: Context, agent: Agent) -> AgentDetails:
    """With what is only shown of one agent."""
    held = context.intake.holding(agent.id)
    return msgspec.structs.replace(
        agent_details(context, agent),
        reported=_reported(context, agent.id),
        pending=None if held == NOTHING else Pending(held.bytes, held.direct_messages, held.entities),
        connections=tuple(
            ConnectionChangeOut(at=rfc3339(change.at), event=change.event, why=change.why)
            for change in reversed(agent.connections)
        ),
    )


async def status_history(context: Context, call: Plain) -> StatusHistory:
    return _status_history(context, find_agent(context, call.id).id)


async def remove_agent(context: Context, call: Plain) -> None:
    agent = find_agent(context, call.id)
    await context.execute(call, RemoveAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent.id))
    if context.children is not None:
        context.children.dismiss(agent.id)  # it has its grace period; the request does not wait for that


async def pause_agent(context: Context, call: Call[None, Nothing]) -> AgentDetails:
    agent = find_agent(context, call.id)
    await context.execute(call, PauseAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent.id))
    return agent_details(context, find_agent(context, call.id))


async def resume_agent(context: Context, call: Call[None, Nothing]) -> AgentDetails:
    agent = find_agent(context, call.id)
    await context.execute(call, ResumeAgent(principal=ADMIN, protocol=PROTOCOL, agent=agent.id))
    return agent_details(context, find_agent(context, call.id))


async def rotate_token(context: Context, call: Call[None, Nothing]) -> Credential:
    agent = find_agent(context, call.id)
    if spec_of(agent) is not None:
        raise Problem(Kind.CONFLICT, f"{agent.id} is run by the hub itself and needs no token")
    token = new_token(context.realm)
    await context.execute(
        call, RotateToken(principal=ADMIN, protocol=PROTOCOL, agent=agent.id, token_hash=token_hash(token))
    )
    return Credential(agent_id=agent.id, token=token)


async def restart_agent(context: Context, call: Call[None, Nothing]) -> AgentDetails:
    agent = find_agent(context, call.id)
    if context.children is None or context.children.report(agent.id) is None:
        raise Problem(
            Kind.CONFLICT,
            f"{agent.id} is not run by this hub",
            next=Next("start it again where it runs; it will connect"),
            agent_id=agent.id,
        )
    await context.children.restart(agent.id)
    return agent_details(context, find_agent(context, call.id))


async def agent_logs(context: Context, call: Call[LogsQuery, None]) -> AgentLogs:
    """What a child printed; of any other agent the newest events of its newest tasks, and what it logged besides."""
    query = call.query
    agent = find_agent(context, call.id)
    kept = None if context.children is None else context.children.log_of(agent.id)
    if kept is not None:
        return await _printed(context, kept, query)
    try:
        tasks, on = await context.store.tasks(
            TaskFilter(agent=agent.id), after=query.cursor or None, limit=min(query.limit, 50)
        )
    except ValueError:
        raise Problem(Kind.INVALID, "this is not a cursor of this list", field="cursor") from None
    lines: list[LogLine] = []
    for task in tasks:
        newest = await context.store.events(task.id, after=max(0, task.seq - EVENTS_A_TASK), limit=EVENTS_A_TASK)
        lines += [log_line(event) for event in newest if not event.personal]
    lines_out = [Line(seq=one.seq, at=one.at, kind=one.kind, text=one.text, task_id=one.task_id) for one in lines]
    if context.children is not None and not query.cursor:
        lines_out += map(_entry, await context.children.logs.of(agent.id).tail(query.tail or query.limit))
    lines_out.sort(key=lambda line: (line.at, line.task_id or "", line.seq))
    if query.tail:
        del lines_out[: -query.tail]
    return AgentLogs(logs=tuple(lines_out), next=on)


async def _printed(context: Context, kept: ChildLog, query: LogsQuery) -> AgentLogs:
    after = query.after
    if query.cursor:
        if not (query.cursor.isascii() and query.cursor.isdigit()):
            raise Problem(Kind.INVALID, "this is not a cursor of this list", field="cursor")
        after = int(query.cursor[:20])
    if query.wait and not context.waiters.closed:
        await kept.changed(after, query.wait)
    found = await kept.tail(query.tail or query.limit, level=query.level, after=after)
    return AgentLogs(logs=tuple(map(_entry, found)), next=str(found[-1].seq if found else after))


def _entry(entry: Entry) -> Line:
    return Line(
        seq=entry.seq,
        at=rfc3339(entry.at),
        kind="log",
        level=entry.level,
        stream=entry.stream,
        text=entry.message,
        task_id=entry.task,
        context=entry.context,
    )
