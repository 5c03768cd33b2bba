"""Every route there is, in one list.

`MANAGEMENT` and `OPERATIONS` are served from here; what the protocols' own endpoints serve is only documented
(`protocol_routes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from dragoman.api import (
    agents,
    audit,
    bodies,
    cluster,
    contracts,
    dashboard,
    events,
    files,
    keys,
    oidc,
    operations,
    overview,
    people,
    playground,
    reference,
    task_events,
    tasks,
    users,
    views,
)
from dragoman.api.context import ApiRoute, Context, Handler, Plain
from dragoman.api.openapi import document
from dragoman.api.protocol_routes import A2ACP, AGENTMSG, CHIFFON, FORGE
from dragoman.core.model.people import Role
from dragoman.core.queries import DeadLetterOut, QuestionOut, TaskOut, WhyOut
from dragoman.core.queries.sequence import Sequence
from dragoman.core.queries.trace import TraceOut
from dragoman.messages.faults import Kind
from dragoman.messages.files import FileRef

NOT_FOUND, INVALID, CONFLICT, MISMATCH = Kind.NOT_FOUND, Kind.INVALID, Kind.CONFLICT, Kind.MISMATCH


def v1(call: str, handler: Handler, tag: str, summary: str, answers: Mapping[int, Any], **more: Any) -> ApiRoute:
    """A route of the management API: "POST /agents". A viewer may read; to change work takes an operator."""
    method, path = call.split()
    more.setdefault("auth", Role.VIEWER if method == "GET" else Role.OPERATOR)
    return ApiRoute(
        method=method, path=f"/api/v1{path}", handler=handler, tag=tag, summary=summary, answers=answers, **more
    )


def hub(call: str, handler: Handler, tag: str, summary: str, answers: Mapping[int, Any], **more: Any) -> ApiRoute:
    """A route about the hub itself (agents, people, policies, keys, backups): for admins."""
    return v1(call, handler, tag, summary, answers, auth=Role.ADMIN, **more)


def public(call: str, handler: Handler, summary: str, answers: Mapping[int, Any], **more: Any) -> ApiRoute:
    """A route that needs no token."""
    method, path = call.split()
    return ApiRoute(
        method=method, path=path, handler=handler, tag="operations", summary=summary, answers=answers, auth=None, **more
    )


async def documentation(context: Context, call: Plain) -> dict[str, Any]:
    return document(ROUTES)


async def reference_page(context: Context, call: Plain) -> Response:
    return Response(reference.page(document(ROUTES)), headers=dashboard.HEADERS, media_type="text/html")


MANAGEMENT = (
    # agents
    hub("POST /agents", agents.add_agent, "agents", "Add an agent", {201: agents.Credential}, body=bodies.AgentIn,
        drop_nulls=True, refusals=(INVALID, CONFLICT)),
    v1("GET /agents", agents.list_agents, "agents", "List agents", {200: agents.AgentList}, query=bodies.AgentsQuery,
        refusals=(INVALID,)),
    v1("GET /agents/{id}", agents.show_agent, "agents", "Show an agent", {200: agents.AgentDetails},
        refusals=(NOT_FOUND,)),
    v1("GET /agents/{id}/history", agents.status_history, "agents",
        "An agent's former statuses, as it reported them, and its last errors; the oldest first",
        {200: agents.StatusHistory}, refusals=(NOT_FOUND,)),
    v1("POST /agents/{id}/pause", agents.pause_agent, "agents",
        "Give an agent no new work; it finishes what it has", {200: agents.AgentDetails}, body=bodies.Nothing,
        body_optional=True, refusals=(NOT_FOUND,)),
    v1("POST /agents/{id}/resume", agents.resume_agent, "agents", "Give a paused agent work again",
        {200: agents.AgentDetails}, body=bodies.Nothing, body_optional=True, refusals=(NOT_FOUND,)),
    hub("DELETE /agents/{id}", agents.remove_agent, "agents",
        "Remove an agent; its unfinished work goes back to the queue", {204: None}, refusals=(NOT_FOUND,)),
    hub("POST /agents/{id}/token", agents.rotate_token, "agents", "Give an agent a new token; the old one ends at once",
        {200: agents.Credential}, body=bodies.Nothing, body_optional=True, refusals=(NOT_FOUND, CONFLICT)),
    hub("POST /agents/{id}/revoke", keys.revoke_token, "agents",
        "Revoke one signed token of an agent (a2acp), given as it is or by its jti; its secret stays valid",
        {200: keys.Revocation}, body=bodies.RevocationIn, refusals=(INVALID, NOT_FOUND, CONFLICT)),
    v1("POST /agents/{id}/restart", agents.restart_agent, "agents",
        "Restart an agent that the hub runs, also one that it gave up on", {200: agents.AgentDetails},
        body=bodies.Nothing, body_optional=True, refusals=(NOT_FOUND, CONFLICT)),
    v1("GET /agents/{id}/view", views.show_agent_view, "agents", "An agent with its last tasks and its log",
        {200: views.AgentView}, refusals=(NOT_FOUND,)),
    v1("GET /agents/{id}/logs", agents.agent_logs, "agents",
        "What an agent printed, if the hub runs it; else the events of its newest tasks, and what it logged",
        {200: agents.AgentLogs}, query=bodies.LogsQuery, refusals=(INVALID, NOT_FOUND)),
    # tasks
    v1("POST /tasks", tasks.submit_task, "tasks", "Submit a task", {202: TaskOut}, body=bodies.TaskIn, drop_nulls=True,
        refusals=(INVALID, NOT_FOUND, CONFLICT, MISMATCH, Kind.TOO_LARGE, Kind.UNSUPPORTED_WORK, Kind.UNAVAILABLE,
            Kind.OVERLOADED),
        headers={
            "Idempotency-Key": "Same key and same body: the first task again. Same key, other body: 409.",
            "traceparent": "W3C trace context; the task takes its trace id.",
        }),
    v1("GET /tasks", tasks.list_tasks, "tasks", "List tasks, newest first", {200: tasks.TaskList},
        query=bodies.TasksQuery, refusals=(INVALID,)),
    v1("GET /tasks/{id}", tasks.show_task, "tasks", "Show a task, or wait until it is final", {200: TaskOut},
        query=bodies.TaskQuery, refusals=(INVALID, NOT_FOUND)),
    v1("GET /tasks/{id}/events", task_events.follow, "tasks",
        "A task's events as they happen (server-sent events), ending with `end` when it is final",
        {200: task_events.MEDIA_TYPE}, query=bodies.EventsQuery, refusals=(INVALID, NOT_FOUND),
        headers={"Last-Event-ID": "The number of the last event seen; the stream goes on after it."}),
    v1("GET /tasks/{id}/why", tasks.explain_task, "tasks", "Why a task is where it is", {200: WhyOut},
        refusals=(NOT_FOUND,)),
    v1("GET /tasks/{id}/trace", task_events.trace, "tasks",
        "All tasks that one request led to, as a tree, with every step between caller, hub and agents", {200: TraceOut},
        refusals=(NOT_FOUND,)),
    v1("GET /tasks/{id}/errors", task_events.errors, "tasks",
        "What went wrong: agents' error reports, and why attempts failed", {200: task_events.TaskErrors},
        refusals=(NOT_FOUND,)),
    v1("POST /tasks/{id}/cancel", tasks.cancel_task, "tasks", "Cancel a task and its subtasks", {200: TaskOut},
        body=bodies.CancelIn, body_optional=True, refusals=(NOT_FOUND, CONFLICT)),
    v1("POST /tasks/{id}/retry", tasks.retry_task, "tasks",
        "Retry a task that failed, was cancelled, or is stuck with an agent", {202: TaskOut}, body=bodies.EditedIn,
        body_optional=True, refusals=(NOT_FOUND, CONFLICT)),
    v1("POST /tasks/{id}/pause", tasks.pause_task, "tasks", "Hold a task", {200: TaskOut}, body=bodies.Nothing,
        body_optional=True, refusals=(NOT_FOUND, CONFLICT)),
    v1("POST /tasks/{id}/resume", tasks.resume_task, "tasks",
        "Resume a held or paused task, with the answer that its agent waits for, if any", {200: TaskOut},
        body=bodies.ResumeIn, body_optional=True, refusals=(NOT_FOUND, CONFLICT)),
    v1("POST /tasks/{id}/handover", tasks.hand_task_over, "tasks",
        "Give an unfinished task to another agent; the hub tells the one that has it to stop", {200: TaskOut},
        body=bodies.HandoverIn, refusals=(INVALID, NOT_FOUND, CONFLICT, Kind.UNSUPPORTED_WORK, Kind.FORBIDDEN)),
    v1("GET /tasks/{id}/view", views.show_task_view, "tasks",
        "A task with all that a page shows of it: why, sequence, attempts, questions", {200: views.TaskView},
        refusals=(NOT_FOUND,)),
    v1("GET /tasks/{id}/sequence", views.show_sequence, "tasks",
        "Each step of a task and of those it led to, between callers, hub, agents and people", {200: Sequence},
        refusals=(NOT_FOUND,)),
    v1("GET /tasks/{id}/wire", views.show_wire, "tasks",
        "Each message as it came, as the hub understood it, and as it left", {200: views.WireOut},
        query=bodies.WireQuery, refusals=(INVALID, NOT_FOUND)),
    v1("POST /bulk/tasks", views.change_tasks, "tasks", "Retry or cancel up to 500 tasks, each by itself",
        {200: views.BulkOut}, body=bodies.BulkTasksIn, refusals=(INVALID,)),
    # playground
    v1("POST /playground", playground.send_work, "playground",
        "Send work as an agent of any protocol would, and see the bytes that go and come",
        {200: playground.ExchangeOut}, body=bodies.PlaygroundIn,
        refusals=(INVALID, NOT_FOUND, CONFLICT, Kind.OVERLOADED, Kind.TIMEOUT)),
    v1("GET /playground/{id}", playground.show_exchange, "playground",
        "The exchange that led to a task, with what came since", {200: playground.ExchangeOut}, refusals=(NOT_FOUND,)),
    # files
    v1("POST /files", files.upload_file, "files",
        "Upload a file, to attach it to a task; the body is the file, `name` its name", {201: FileRef},
        query=bodies.FileQuery, refusals=(Kind.TOO_LARGE, Kind.RESOURCES)),
    v1("GET /files", files.list_files, "files",
        "List files, oldest first; `owner=` only those of one owner, `attached=` only those of tasks, or of none",
        {200: files.FilesOut}, query=bodies.FilesQuery),
    v1("DELETE /files/{id}", files.delete_file, "files",
        "Remove a file; one that belongs to a task only with `attached=1`", {204: None}, query=bodies.RemoveFileQuery,
        refusals=(NOT_FOUND, CONFLICT)),
    v1("GET /tasks/{id}/files", files.list_task_files, "files", "The files that belong to a task",
        {200: files.FileList}, refusals=(NOT_FOUND,)),
    v1("GET /tasks/{id}/files/{file}", files.download_file, "files", "Download a file of a task, or a `Range` of it",
        {200: "application/octet-stream", 206: "application/octet-stream", 416: None}, refusals=(NOT_FOUND,)),
    # protocols
    v1("GET /losses", operations.loss_matrix, "protocols", "What cannot be carried between two protocols",
        {200: operations.LossMatrix}, query=bodies.LossesQuery, refusals=(NOT_FOUND,)),
    # contracts
    v1("GET /contracts", contracts.list_contracts, "contracts", "List contracts between agents, newest first",
        {200: contracts.ContractList}, query=bodies.ContractsQuery, refusals=(INVALID,)),
    v1("GET /contracts/{id}", contracts.show_contract, "contracts", "Show a contract, with its schemas",
        {200: contracts.ContractOut}, refusals=(NOT_FOUND,)),
    v1("POST /contracts/{id}/end", contracts.end_contract, "contracts", "End a contract; the hub informs both agents",
        {200: contracts.ContractOut}, body=bodies.CancelIn, body_optional=True, refusals=(NOT_FOUND, Kind.CONTRACT)),
    v1("POST /contracts/{id}/renew", contracts.renew_contract, "contracts",
        "Let a contract end later, on the same terms; the hub informs both agents", {200: contracts.ContractOut},
        body=bodies.RenewIn, body_optional=True, refusals=(INVALID, NOT_FOUND, CONFLICT)),
    v1("GET /policies/domains", contracts.list_policies, "contracts", "Which domains may ask which",
        {200: contracts.DomainPolicies}),
    hub("POST /policies/domains", contracts.set_policy, "contracts",
        "Allow or forbid one domain to ask another; this replaces the policy of the pair",
        {200: contracts.DomainPolicies}, body=bodies.DomainPolicyIn, refusals=(INVALID, CONFLICT)),
    hub("DELETE /policies/domains", contracts.remove_policy, "contracts", "Remove the policy of a pair of domains",
        {200: contracts.DomainPolicies}, query=bodies.DomainsQuery, refusals=(INVALID, NOT_FOUND)),
    # questions
    v1("GET /questions", people.list_questions, "questions", "List questions to people", {200: people.QuestionList},
        query=bodies.QuestionsQuery, refusals=(INVALID, NOT_FOUND)),
    v1("GET /questions/{id}", people.show_question, "questions", "Show a question", {200: QuestionOut},
        refusals=(NOT_FOUND,)),
    v1("POST /questions/{id}/answer", people.answer_question, "questions",
        "Answer a question; a second answer is a conflict", {200: QuestionOut}, body=bodies.AnswerIn,
        refusals=(INVALID, NOT_FOUND, CONFLICT)),
    # deadletters
    v1("GET /deadletters", people.list_dead_letters, "deadletters", "List dead letters, newest first",
        {200: people.DeadLetterList}, query=bodies.DeadLettersQuery, refusals=(INVALID, NOT_FOUND)),
    v1("GET /deadletters/{id}", people.show_dead_letter, "deadletters", "Show a dead letter, with what it holds",
        {200: DeadLetterOut}, refusals=(NOT_FOUND,)),
    v1("POST /deadletters/{id}/redrive", people.redrive, "deadletters",
        "Send a dead letter again, with a new input if one is given", {202: TaskOut}, body=bodies.EditedIn,
        body_optional=True, refusals=(INVALID, NOT_FOUND, CONFLICT)),
    v1("POST /deadletters/{id}/discard", people.discard, "deadletters",
        "Discard a dead letter; its task stays as it is", {200: DeadLetterOut}, body=bodies.Nothing, body_optional=True,
        refusals=(NOT_FOUND,)),
    v1("POST /bulk/deadletters", views.change_dead_letters, "deadletters",
        "Redrive or discard up to 500 dead letters, each by itself", {200: views.BulkOut},
        body=bodies.BulkDeadLettersIn, refusals=(INVALID,)),
    # events
    v1("GET /events", events.follow, "events",
        "All events as they happen (server-sent events), or a digest of them for pages", {200: task_events.MEDIA_TYPE},
        query=bodies.StreamQuery, refusals=(INVALID,),
        headers={"Last-Event-ID": "The id of the last event seen; the stream goes on after it."}),
    v1("GET /overview", overview.show_overview, "events", "What wants attention, and how the hub is doing",
        {200: overview.OverviewOut}, query=bodies.RangeQuery, refusals=(INVALID,)),
    v1("GET /series", overview.show_series, "events", "Figures over time", {200: overview.SeriesOut},
        query=bodies.RangeQuery, refusals=(INVALID,)),
    # audit
    v1("GET /audit", audit.list_records, "audit", "Read the audit record", {200: audit.AuditList},
        query=bodies.AuditQuery, refusals=(INVALID,)),
    v1("GET /audit/view", audit.show_view, "audit", "The newest records that fit, and whether the chain holds",
        {200: audit.AuditView}, query=bodies.AuditViewQuery, refusals=(INVALID,)),
    v1("GET /audit/export", audit.export, "audit", "Every record that fits, as JSON lines",
        {200: "application/x-ndjson"}, query=bodies.AuditViewQuery, refusals=(INVALID,)),
    v1("GET /audit/checkpoint", audit.checkpoint, "audit",
        "Number and hash of the newest record, signed with the key that signs tokens: keep it elsewhere",
        {200: audit.CheckpointOut}),
    v1("GET /audit/verify", audit.verify_chain, "audit", "Verify the chain of hashes; names the first broken record",
        {200: audit.Verdict}),
    # keys
    hub("GET /keys", keys.list_keys, "keys",
        "The keys that sign tokens (a2acp), and those that still verify; the one that signs first", {200: keys.KeyList},
        refusals=(NOT_FOUND, CONFLICT)),
    hub("POST /keys/rotate", keys.rotate_keys, "keys",
        "Sign with a new key; the old ones verify until their tokens expire, or, with `distrust`, no longer",
        {200: keys.KeyList}, body=bodies.KeyRotationIn, body_optional=True, refusals=(INVALID, NOT_FOUND, CONFLICT)),
    # people
    v1("GET /me", users.show_me, "people", "Who you are, and your role", {200: users.Me}),
    hub("GET /users", users.list_users, "people", "List people", {200: users.UserList}),
    hub("POST /users", users.add_user, "people", "Add a person; the answer has a link that logs them in once",
        {201: users.LoginOut}, body=bodies.UserIn, refusals=(INVALID, CONFLICT)),
    hub("DELETE /users/{name}", users.remove_user, "people", "Remove a person; their token and sessions end at once",
        {204: None}, refusals=(NOT_FOUND,)),
    hub("POST /users/{name}/role", users.set_user_role, "people",
        "Give a person another role; it counts at once, also in their sessions", {200: users.UserOut},
        body=bodies.RoleIn, refusals=(INVALID, NOT_FOUND)),
    hub("POST /users/{name}/token", users.new_user_token, "people",
        "Give a person a new API token; the old one and all sessions end", {200: users.UserToken}, body=bodies.Nothing,
        body_optional=True, refusals=(NOT_FOUND,)),
    hub("POST /users/{name}/login", users.new_login, "people", "Make a link that logs a person in once",
        {200: users.LoginOut}, body=bodies.Nothing, body_optional=True, refusals=(NOT_FOUND,)),
    v1("GET /login", oidc.show_ways, "people", "How a browser may log in, beside links and tokens",
        {200: oidc.LoginWays}, auth=None),
    v1("POST /login", users.log_in_by_token, "people", "Log a browser in: a session cookie for a token", {204: None},
        body=bodies.LoginIn, refusals=(INVALID, Kind.UNAUTHENTICATED, Kind.FORBIDDEN), auth=None),
    v1("POST /logout", users.log_out, "people", "Log a browser out", {204: None}, query=bodies.LogoutQuery,
        body=bodies.Nothing, body_optional=True, auth=Role.VIEWER),
    # cluster
    v1("GET /cluster", cluster.show, "cluster", "The nodes of this cluster, and which of them leads",
        {200: cluster.ClusterOut}, refusals=(NOT_FOUND, Kind.OVERLOADED)),
    hub("POST /cluster/step-down", cluster.step_down, "cluster",
        "Have this node hand over the lead: it commits what it accepted, and another node takes it",
        {202: cluster.ClusterOut}, body=bodies.Nothing, body_optional=True,
        refusals=(NOT_FOUND, CONFLICT, Kind.OVERLOADED)),
    # store
    hub("POST /backup", operations.copy_store, "store",
        "Copy the store while the hub runs; only from the hub's own machine", {200: operations.Copied},
        body=bodies.BackupIn, refusals=(INVALID, CONFLICT, Kind.FORBIDDEN, Kind.OVERLOADED)),
)  # fmt: skip

OPERATIONS = (
    public("GET /livez", operations.livez, "Whether the hub is alive", {200: operations.Health}),
    public("GET /readyz", operations.readyz, "Whether the hub accepts new work now",
        {200: operations.Health, 503: operations.Health}),
    public("GET /metrics", operations.metrics, "Prometheus metrics", {200: "text/plain"}),
    public("GET /openapi.json", documentation, "This document", {200: dict[str, Any]}),
    public("GET /docs", reference_page, "The same as a page for people", {200: "text/html"}),
    public("GET /schemas/{protocol}.json", operations.schema, "JSON Schema of a protocol's messages",
        {200: dict[str, Any]}, refusals=(NOT_FOUND,)),
    public("GET /schemas/coven.proto", operations.coven_proto, "The proto file of coven, as the hub speaks it",
        {200: "text/plain"}),
    public("GET /login/{code}", users.log_in_by_link, "Log a browser in once, by a link", {303: None},
        refusals=(Kind.UNAUTHENTICATED,), secret_path=True),
    public("GET /oidc/login", oidc.begin, "Log a browser in by the identity provider", {303: None},
        refusals=(NOT_FOUND, Kind.UNAVAILABLE)),
    public("GET /oidc/callback", oidc.finish, "Where the identity provider sends the browser back to", {303: None},
        query=bodies.CallbackQuery, refusals=(NOT_FOUND, CONFLICT, Kind.UNAUTHENTICATED, Kind.FORBIDDEN)),
    public("GET /assets/{name}", dashboard.asset, "Script and style of the dashboard", {200: "text/javascript"},
        refusals=(NOT_FOUND,)),
    public("GET /favicon.svg", dashboard.favicon, "The icon of the dashboard", {200: "image/svg+xml"}),
    *(public(f"GET {path}", dashboard.page, "A page of the dashboard", {200: "text/html"}) for path in dashboard.VIEWS),
)  # fmt: skip

SERVED = (*MANAGEMENT, *OPERATIONS)
ROUTES = (*SERVED, *CHIFFON, *FORGE, *AGENTMSG, *A2ACP)
