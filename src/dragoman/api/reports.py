"""What agents report: how they are, and what went wrong, with them or in the course of a task."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.context import Context
from dragoman.api.route import respond
from dragoman.api.store_reads import events, find_task
from dragoman.core.ids import AgentId, rfc3339
from dragoman.core.model.state import Registry
from dragoman.core.model.tasks import EventKind

ERRORS = frozenset({EventKind.ERROR_REPORTED, EventKind.ATTEMPT_FAILED, EventKind.FAILED})
MOST_ERRORS = 200


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent is, by its own word: the last report, those before it (the oldest first), and its last errors."""

    version: int
    at: str
    status: dict[str, Any]
    history: tuple[dict[str, Any], ...]
    errors: tuple[dict[str, Any], ...]


class StatusHistory(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent was and is, by its own word and by its silence: the oldest first, the last one holds now. Empty for
    one that never said how it is. `errors` are its last reports of errors."""

    agent: str
    history: tuple[dict[str, Any], ...]
    errors: tuple[dict[str, Any], ...]


class TaskError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`report` is what the agent said; `error` why an attempt or the task failed."""

    seq: int
    at: str
    kind: str
    agent: str | None
    severity: str | None = None
    report: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class TaskErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest first; the newest `MOST_ERRORS` of them."""

    errors: tuple[TaskError, ...]


_body = msgspec.json.Decoder(dict[str, Any]).decode


def reported(context: Context, agent: AgentId) -> Reported | None:
    """None for an agent that never said how it is."""
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


def history(context: Context, agent: AgentId) -> StatusHistory:
    told = reported(context, agent)
    if told is None:
        return StatusHistory(agent=agent, history=(), errors=())
    return StatusHistory(agent=agent, history=(*told.history, {"at": told.at, **told.status}), errors=told.errors)


async def of_task(context: Context, request: Request) -> Response:
    task = await find_task(context, request.path_params["id"])
    found = []
    async for event in events(context, task):
        if event.kind not in ERRORS:
            continue
        said = event.content
        found.append(
            TaskError(
                seq=event.seq,
                at=rfc3339(event.at),
                kind=event.kind.value,
                agent=event.agent,
                severity=getattr(said, "severity", None),
                report=getattr(said, "report", None),
                error=msgspec.to_builtins(fault) if (fault := getattr(said, "fault", None)) is not None else None,
            )
        )
    return respond(200, TaskErrors(errors=tuple(found[-MOST_ERRORS:])))
