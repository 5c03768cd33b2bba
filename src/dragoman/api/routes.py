"""Every route there is, in one list.

`MANAGEMENT` and `OPERATIONS` are served from here; what the protocols' own transports serve is only documented
(`protocol_routes`).
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dragoman.api import (
    agents,
    audit,
    backup,
    bodies,
    contracts,
    deadletters,
    files,
    keys,
    losses,
    policies,
    questions,
    reports,
    stream,
    tasks,
    traces,
)
from dragoman.api.context import Context
from dragoman.api.page import status_page
from dragoman.api.problems import Problem
from dragoman.api.protocol_routes import A2ACP, AGENTMSG, CHIFFON, FORGE
from dragoman.api.route import ApiRoute, respond
from dragoman.api.schemas import PROTOCOLS
from dragoman.core.queries import DeadLetterOut, QuestionOut, TaskOut, WhyOut
from dragoman.core.queries.trace import TraceOut
from dragoman.messages.faults import Kind
from dragoman.messages.files import FileRef
from dragoman.server import operations

V1 = "/api/v1"
NOT_FOUND, INVALID, CONFLICT, MISMATCH = Kind.NOT_FOUND, Kind.INVALID, Kind.CONFLICT, Kind.MISMATCH


async def livez(context: Context, request: Request) -> Response:
    return operations.livez()


async def readyz(context: Context, request: Request) -> Response:
    return operations.readyz(context.ready)


async def metrics(context: Context, request: Request) -> Response:
    context.admit_to_metrics(request)
    return await operations.metrics(context.store, context.metrics)


async def schema(context: Context, request: Request) -> Response:
    protocol = request.path_params["protocol"]
    if protocol not in PROTOCOLS:
        raise Problem(Kind.NOT_FOUND, f"no schema of {protocol[:40]!r}", next=f"There is: {', '.join(PROTOCOLS)}.")
    return respond(200, PROTOCOLS[protocol]())


async def coven_proto(context: Context, request: Request) -> Response:
    """The proto file that the hub's messages are generated from, as it is in the package."""
    source = resources.files("dragoman.protocols.coven").joinpath("coven.proto").read_text("utf-8")
    return Response(source, media_type="text/plain")


async def documentation(context: Context, request: Request) -> Response:
    # Made when asked for: it imports nothing more, and a hub that is never asked pays nothing.
    from dragoman.api.openapi import document

    return respond(200, document(ROUTES))


MANAGEMENT = (
    # agents
    ApiRoute(
        method="POST", path=f"{V1}/agents", handler=agents.add, tag="agents", summary="Let an agent in",
        body=bodies.AgentIn, answers={201: agents.Credential}, refusals=(INVALID, CONFLICT),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/agents", handler=agents.listing, tag="agents", summary="List agents",
        query=bodies.AgentsQuery, answers={200: agents.AgentList}, refusals=(INVALID,),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/agents/{{id}}", handler=agents.one, tag="agents", summary="Look at an agent",
        answers={200: agents.AgentTold}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/agents/{{id}}/history", handler=agents.past, tag="agents",
        summary="How an agent was, by its own word and by its silence, and its last errors; the oldest first",
        answers={200: reports.StatusHistory}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="DELETE", path=f"{V1}/agents/{{id}}", handler=agents.remove, tag="agents",
        summary="Send an agent away; its unfinished work goes back to the queue",
        answers={204: None}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/agents/{{id}}/token", handler=agents.rotate, tag="agents",
        summary="Give an agent a new token; the old one ends at once",
        body=bodies.Nothing, body_optional=True, answers={200: agents.Credential}, refusals=(NOT_FOUND, CONFLICT),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/agents/{{id}}/revoke", handler=keys.revoke, tag="agents",
        summary="Void one signed token of an agent (a2acp), by itself or by its jti; its secret stays good",
        body=bodies.RevocationIn, answers={200: keys.Revocation}, refusals=(INVALID, NOT_FOUND, CONFLICT),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/agents/{{id}}/restart", handler=agents.restart, tag="agents",
        summary="Stop an agent that the hub runs, and start it afresh; also one that has crashed for good",
        body=bodies.Nothing, body_optional=True, answers={200: agents.AgentTold}, refusals=(NOT_FOUND, CONFLICT),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/agents/{{id}}/logs", handler=agents.logs, tag="agents",
        summary="What a child printed; of another agent the events of its newest tasks, in words, and what it logged",
        query=bodies.LogsQuery, answers={200: agents.AgentLogs}, refusals=(INVALID, NOT_FOUND),
    ),
    # tasks
    ApiRoute(
        method="POST", path=f"{V1}/tasks", handler=tasks.submit, tag="tasks", summary="Submit a task",
        body=bodies.TaskIn, answers={202: TaskOut},
        headers={
            "Idempotency-Key": "Same key and same body: the first task again. Same key, other body: 409.",
            "traceparent": "W3C trace context; the task takes its trace id.",
        },
        refusals=(
            INVALID, NOT_FOUND, CONFLICT, MISMATCH, Kind.TOO_LARGE, Kind.UNSUPPORTED_WORK, Kind.UNAVAILABLE,
            Kind.OVERLOADED,
        ),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tasks", handler=tasks.listing, tag="tasks", summary="List tasks, newest first",
        query=bodies.TasksQuery, answers={200: tasks.TaskList}, refusals=(INVALID,),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tasks/{{id}}", handler=tasks.one, tag="tasks",
        summary="Look at a task, or wait until it is final",
        query=bodies.TaskQuery, answers={200: TaskOut}, refusals=(INVALID, NOT_FOUND),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tasks/{{id}}/events", handler=stream.follow, tag="tasks",
        summary="A task's events as they happen (server-sent events), ending with `end` when it is final",
        query=bodies.EventsQuery, answers={200: stream.MEDIA_TYPE}, refusals=(INVALID, NOT_FOUND),
        headers={"Last-Event-ID": "The number of the last event seen; the stream goes on after it."},
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tasks/{{id}}/why", handler=tasks.reasons, tag="tasks",
        summary="Why a task is where it is", answers={200: WhyOut}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tasks/{{id}}/trace", handler=traces.one, tag="tasks",
        summary="All tasks that came of one request, as a tree, with every step between caller, hub and agents",
        answers={200: TraceOut}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tasks/{{id}}/errors", handler=reports.of_task, tag="tasks",
        summary="What went wrong: agents' error reports, and why attempts failed",
        answers={200: reports.TaskErrors}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/tasks/{{id}}/cancel", handler=tasks.cancel, tag="tasks",
        summary="Stop a task and its children", body=bodies.CancelIn, body_optional=True,
        answers={200: TaskOut}, refusals=(NOT_FOUND, CONFLICT),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/tasks/{{id}}/retry", handler=tasks.retry, tag="tasks",
        summary="Do a task again: failed, cancelled, or stuck with an agent", body=bodies.EditedIn, body_optional=True,
        answers={202: TaskOut}, refusals=(NOT_FOUND, CONFLICT),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/tasks/{{id}}/pause", handler=tasks.pause, tag="tasks", summary="Hold a task",
        body=bodies.Nothing, body_optional=True, answers={200: TaskOut}, refusals=(NOT_FOUND, CONFLICT),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/tasks/{{id}}/resume", handler=tasks.resume, tag="tasks",
        summary="Let a held or paused task go on, with an answer if one was waited for",
        body=bodies.ResumeIn, body_optional=True, answers={200: TaskOut}, refusals=(NOT_FOUND, CONFLICT),
    ),
    # files
    ApiRoute(
        method="POST", path=f"{V1}/files", handler=files.keep, tag="files",
        summary="Keep a file, to attach it to a task; the body is the file, `name` what it is called",
        query=bodies.FileQuery, answers={201: FileRef}, refusals=(Kind.TOO_LARGE, Kind.RESOURCES),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/files", handler=files.kept, tag="files",
        summary="List the files that are kept, oldest first; `owner=` only those of one, `attached=` of tasks or not",
        query=bodies.FilesQuery, answers={200: files.FilesOut},
    ),
    ApiRoute(
        method="DELETE", path=f"{V1}/files/{{id}}", handler=files.remove, tag="files",
        summary="Remove a file; one that belongs to a task only with `attached=1`",
        query=bodies.RemoveFileQuery, answers={204: None}, refusals=(NOT_FOUND, CONFLICT),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tasks/{{id}}/files", handler=files.listing, tag="files",
        summary="The files that belong to a task", answers={200: files.FileList}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/tasks/{{id}}/files/{{file}}", handler=files.fetch, tag="files",
        summary="Fetch a file of a task, or a `Range` of it",
        answers={200: "application/octet-stream", 206: "application/octet-stream", 416: None}, refusals=(NOT_FOUND,),
    ),
    # protocols
    ApiRoute(
        method="GET", path=f"{V1}/losses", handler=losses.matrix, tag="protocols",
        summary="What cannot be carried between two protocols", query=bodies.LossesQuery,
        answers={200: losses.LossMatrix}, refusals=(NOT_FOUND,),
    ),
    # contracts
    ApiRoute(
        method="GET", path=f"{V1}/contracts", handler=contracts.listing, tag="contracts",
        summary="List contracts between agents, newest first", query=bodies.ContractsQuery,
        answers={200: contracts.ContractList}, refusals=(INVALID,),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/contracts/{{id}}", handler=contracts.one, tag="contracts",
        summary="Look at a contract, with its schemas", answers={200: contracts.ContractOut}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/contracts/{{id}}/end", handler=contracts.end, tag="contracts",
        summary="End a collaboration; both agents are told", body=bodies.CancelIn, body_optional=True,
        answers={200: contracts.ContractOut}, refusals=(NOT_FOUND, Kind.CONTRACT),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/policies/domains", handler=policies.listing, tag="contracts",
        summary="Which domains may ask which", answers={200: policies.DomainPolicies},
    ),
    ApiRoute(
        method="POST", path=f"{V1}/policies/domains", handler=policies.change, tag="contracts",
        summary="Allow or forbid a domain to ask another; the newest word about a pair counts",
        body=bodies.DomainPolicyIn, answers={200: policies.DomainPolicies}, refusals=(INVALID, CONFLICT),
    ),
    ApiRoute(
        method="DELETE", path=f"{V1}/policies/domains", handler=policies.remove, tag="contracts",
        summary="Take back what was said about a pair of domains", query=bodies.DomainsQuery,
        answers={200: policies.DomainPolicies}, refusals=(INVALID, NOT_FOUND),
    ),
    # questions
    ApiRoute(
        method="GET", path=f"{V1}/questions", handler=questions.listing, tag="questions",
        summary="List questions to people", query=bodies.QuestionsQuery,
        answers={200: questions.QuestionList}, refusals=(INVALID, NOT_FOUND),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/questions/{{id}}", handler=questions.one, tag="questions",
        summary="Look at a question", answers={200: QuestionOut}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/questions/{{id}}/answer", handler=questions.answer, tag="questions",
        summary="Answer a question; a second answer is a conflict", body=bodies.AnswerIn,
        answers={200: QuestionOut}, refusals=(INVALID, NOT_FOUND, CONFLICT),
    ),
    # dead letters
    ApiRoute(
        method="GET", path=f"{V1}/deadletters", handler=deadletters.listing, tag="deadletters",
        summary="List dead letters, newest first", query=bodies.LettersQuery,
        answers={200: deadletters.DeadLetterList}, refusals=(INVALID, NOT_FOUND),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/deadletters/{{id}}", handler=deadletters.one, tag="deadletters",
        summary="Look into a dead letter", answers={200: DeadLetterOut}, refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/deadletters/{{id}}/redrive", handler=deadletters.redrive, tag="deadletters",
        summary="Send a dead letter on its way again, edited if need be", body=bodies.EditedIn, body_optional=True,
        answers={202: TaskOut}, refusals=(INVALID, NOT_FOUND, CONFLICT),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/deadletters/{{id}}/discard", handler=deadletters.discard, tag="deadletters",
        summary="Forget a dead letter; its task stays as it is", body=bodies.Nothing, body_optional=True,
        answers={200: DeadLetterOut}, refusals=(NOT_FOUND,),
    ),
    # audit
    ApiRoute(
        method="GET", path=f"{V1}/audit", handler=audit.listing, tag="audit", summary="Read the audit record",
        query=bodies.AuditQuery, answers={200: audit.AuditList}, refusals=(INVALID,),
    ),
    ApiRoute(
        method="GET", path=f"{V1}/audit/checkpoint", handler=audit.checkpoint, tag="audit",
        summary="Number and hash of the newest record, signed with the key that signs tokens: keep it elsewhere",
        answers={200: audit.CheckpointOut},
    ),
    ApiRoute(
        method="GET", path=f"{V1}/audit/verify", handler=audit.check, tag="audit",
        summary="Walk the chain of hashes and name the first broken record", answers={200: audit.Verdict},
    ),
    # keys
    ApiRoute(
        method="GET", path=f"{V1}/keys", handler=keys.listing, tag="keys",
        summary="The keys that sign tokens (a2acp), and those that still verify; the one that signs first",
        answers={200: keys.KeyList}, refusals=(NOT_FOUND, CONFLICT),
    ),
    ApiRoute(
        method="POST", path=f"{V1}/keys/rotate", handler=keys.rotate, tag="keys",
        summary="Sign with a new key; the old ones verify until their tokens are over, or, distrusted, no more",
        body=bodies.KeyRotationIn, body_optional=True, answers={200: keys.KeyList},
        refusals=(INVALID, NOT_FOUND, CONFLICT),
    ),
    # the store
    ApiRoute(
        method="POST", path=f"{V1}/backup", handler=backup.copy, tag="store",
        summary="Copy the store while everything goes on; only from the hub's own machine", body=bodies.BackupIn,
        answers={200: backup.Copied}, refusals=(INVALID, CONFLICT, Kind.FORBIDDEN, Kind.OVERLOADED),
    ),
)  # fmt: skip

OPERATIONS = (
    ApiRoute(
        method="GET", path="/livez", handler=livez, tag="operations", summary="Is it alive", auth=None,
        answers={200: operations.Health},
    ),
    ApiRoute(
        method="GET", path="/readyz", handler=readyz, tag="operations", summary="Would it take new work now",
        auth=None, answers={200: operations.Health, 503: operations.Health},
    ),
    ApiRoute(
        method="GET", path="/metrics", handler=metrics, tag="operations", summary="Prometheus metrics", auth=None,
        answers={200: "text/plain"},
    ),
    ApiRoute(
        method="GET", path="/openapi.json", handler=documentation, tag="operations", summary="This document",
        auth=None, answers={200: dict[str, Any]},
    ),
    ApiRoute(
        method="GET", path="/schemas/{protocol}.json", handler=schema, tag="operations",
        summary="JSON Schema of a protocol's messages", auth=None, answers={200: dict[str, Any]},
        refusals=(NOT_FOUND,),
    ),
    ApiRoute(
        method="GET", path="/schemas/coven.proto", handler=coven_proto, tag="operations",
        summary="The proto file of coven, as the hub speaks it", auth=None, answers={200: "text/plain"},
    ),
    ApiRoute(
        method="GET", path="/", handler=status_page, tag="operations", summary="The status page, for browsers",
        auth=None, answers={200: "text/html"},
    ),
)  # fmt: skip

SERVED = (*MANAGEMENT, *OPERATIONS)
ROUTES = (*SERVED, *CHIFFON, *FORGE, *AGENTMSG, *A2ACP)
