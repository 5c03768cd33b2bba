"""What may be sent in, checked in the order of all-D3 before anything is done: size, depth, strict JSON, shape.

A task keeps fields it does not know (all-D6: they stand in its first event as `extra`). Everything else refuses them:
a misspelt `input` must not redrive a dead letter unedited.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request

from dragoman.api.context import ApiRoute, Call, Context
from dragoman.api.problems import Next, Problem, Reason, misshapen
from dragoman.api.sessions import Caller
from dragoman.core.ids import ADMIN
from dragoman.core.model.people import LONGEST_NAME, Role
from dragoman.core.model.tasks import Priority, QuestionStatus
from dragoman.messages.faults import Kind
from dragoman.protocols.a2acp.contracts import Capability
from dragoman.server.asgi import hold
from dragoman.supervisor.spec import (
    AllowedFile,
    AllowedHost,
    ChildLimits,
    Directory,
    RestartPolicy,
    Variable,
    Word,
)
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError, Stage

BODY_SECONDS = 10.0
"""A client that has not sent its body by then is stalled."""
LONGEST_WAIT = 300

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
AgentName: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$(?!\n)")]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=500)]


class TaskHints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the work may need. `max_duration_seconds` raises both time limits of the task (chiffon-D6)."""

    max_duration_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    max_memory_mb: Annotated[int, Meta(ge=0)] | None = None
    max_gpu_vram_mb: Annotated[int, Meta(ge=0)] | None = None


Amount: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task may cost: reserved before an agent gets the task, and settled when it ends."""

    budget_usd: Amount | None = None
    max_tokens: Amount | None = None
    cpu: Amount | None = None
    memory: Amount | None = None


class TaskIn(msgspec.Struct, frozen=True, kw_only=True):
    """A task for one agent (`agent`), for any of a `kind`, or for any agent that can do it."""

    type: Name
    input: dict[str, Any] = {}
    name: Name | None = None
    description: Annotated[str, Meta(max_length=10_000)] | None = None
    agent: Name | None = None
    kind: Name | None = None
    required_role: Name | None = None
    required_capabilities: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()
    priority: Priority = Priority.NORMAL
    dependencies: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    deadline: Annotated[datetime, Meta(tz=True)] | None = None
    budget: Amount | Budget | None = None
    """USD, or an amount of each."""
    thread: Name | None = None
    parent: Name | None = None
    hints: TaskHints | None = None
    attachments: Annotated[tuple[Name, ...], Meta(max_length=100)] = ()
    """Ids of files that were uploaded before (POST /api/v1/files)."""


class AgentIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An agent to add."""

    agent_id: AgentName
    protocol: Name
    kind: Name | None = None
    role: Name | None = None
    name: Name | None = None
    capabilities: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    work_types: Annotated[tuple[Name, ...], Meta(max_length=1000)] | None = None
    domain: Name | None = None
    version: Name | None = None
    offers: Annotated[tuple[Capability, ...], Meta(max_length=1000)] = ()
    """What it offers on declared terms, whatever its protocol is: others may make contracts for it (a2acp)."""
    untrusted: bool = False
    """With a command: it runs in a sandbox or not at all. Without one it is only a mark."""
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    command: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=1000)] | None = None
    """With it, the hub itself runs the agent as a child process that speaks forge; the fields below are about that."""
    cwd: Directory | None = None
    env: dict[Variable, Word] | None = None
    pass_env: Annotated[tuple[Variable, ...], Meta(max_length=100)] | None = None
    restart: RestartPolicy | None = None
    limits: ChildLimits | None = None
    grace_seconds: Annotated[float, Meta(ge=0, le=3600)] | None = None
    privileges: bool | None = None
    allow_files: Annotated[tuple[AllowedFile, ...], Meta(max_length=100)] | None = None
    """What an untrusted agent may read, beside its own directory; with `:rw` behind it also write."""
    allow_hosts: Annotated[tuple[AllowedHost, ...], Meta(max_length=100)] | None = None
    wasm: bool | None = None
    """Whether the command is a WebAssembly module; by default, if it is called `….wasm`."""


class DomainPolicyIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether agents of the domain `source` may ask those of `target`; `*` is any domain, no intents means all."""

    source: Name
    target: Name
    allow: bool = True
    intents: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()
    encrypt: bool = False


class FileQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=1000)] = ""


class RemoveFileQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`attached=1` removes also a file that belongs to a task."""

    attached: bool = False


class LossesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    caller: str | None = None
    agent: str | None = None


class StreamQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`type` names kinds of events, separated by commas; `follow` tasks whose every event a digest brings, too."""

    after: Annotated[int, Meta(ge=0)] | None = None
    detail: Literal["events", "digest"] = "events"
    task: str | None = None
    agent: str | None = None
    type: str | None = None
    follow: str | None = None


class RangeQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    range: Literal["15m", "1h", "6h", "1d", "7d", "30d"] = "15m"


class WireQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"start": "from"}):
    start: Annotated[int, Meta(ge=1)] = 1
    limit: Limit = 50


class PlaygroundIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Work for an agent, sent as an agent of `protocol` would send it."""

    protocol: Literal["chiffon", "agentmsg", "forge", "a2acp", "coven", "api"]
    agent: Name
    work: Name
    input: dict[str, Any] = {}


class HandoverIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: Name


class BulkTasksIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: Literal["retry", "cancel"]
    ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=500)]


class BulkDeadLettersIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: Literal["redrive", "discard"]
    ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=500)]


class UserIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]
    role: Role = Role.VIEWER


class RoleIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    role: Role


class CallbackQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What an identity provider sends back by the browser; it may send more."""

    state: Annotated[str, Meta(max_length=200)] = ""
    code: Annotated[str, Meta(max_length=4096)] | None = None


class LogoutQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    everywhere: bool = False


class LoginIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: Annotated[str, Meta(min_length=1, max_length=200)]


class CancelIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None


class RenewIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`hours` is how long the contract lasts from now; without it as long as a new one."""

    hours: Annotated[float, Meta(gt=0, le=24 * 366)] | None = None


class ResumeIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`answer` is what the paused agent waited for, if anything."""

    answer: Any | msgspec.UnsetType = msgspec.UNSET


class EditedIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`input` replaces the old one; without it the old one is used again."""

    input: dict[str, Any] | None = None


class AnswerIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`note`: why, for people who look later. The agent does not get it."""

    answer: Any
    note: Annotated[str, Meta(max_length=2000)] | None = None


class KeyRotationIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`distrust`: the old keys may have been stolen, so every token that they signed is void."""

    distrust: bool = False


class RevocationIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either a whole signed token, or its `jti`."""

    token: Annotated[str, Meta(min_length=1, max_length=8192)] | None = None
    jti: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class BackupIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`target` is a file on the hub's own machine that does not exist yet."""

    target: Annotated[str, Meta(pattern="^/[^\\x00]{1,4000}$")]


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No fields: an empty body or `{}`."""


# -- queries ----------------------------------------------------------------------------------------------------


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: str | None = None


class TasksQuery(Page, frozen=True, kw_only=True):
    """`status` is one or several, separated by commas. `protocol` is the caller's or the agent's. `since` and `until`
    are times (RFC 3339) or ages (`15m`, `1h`, `7d`). `q`: words in id, type, name, description or error message.
    `full=1` adds input, output and result to each task."""

    status: str | None = None
    type: str | None = None
    agent: str | None = None
    principal: str | None = None
    parent: str | None = None
    protocol: str | None = None
    since: str | None = None
    until: str | None = None
    q: Annotated[str, Meta(max_length=200)] | None = None
    full: bool = False


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`wait` delays the answer until the task is final, at most this many seconds. `history=1` adds its events."""

    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 0
    history: bool = False
    raw: bool = False


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`after` is the number of the last event seen (as Last-Event-ID). `raw=1` adds the wire message as it came."""

    after: Annotated[int, Meta(ge=0)] = 0
    raw: bool = False


class LogsQuery(Page, frozen=True, kw_only=True):
    """`tail` is how many of the newest lines. For an agent that the hub runs: `level` leaves out lines below it,
    `after` is the number of the last line seen, and `wait` how many seconds to wait for another one."""

    tail: Limit | None = None
    level: Literal["debug", "info", "warn", "error"] | None = None
    after: Annotated[int, Meta(ge=0)] = 0
    wait: Annotated[float, Meta(ge=0, le=60)] = 0


class AgentsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    protocol: str | None = None
    kind: str | None = None
    status: str | None = None


class QuestionsQuery(Page, frozen=True, kw_only=True):
    status: QuestionStatus | None = None
    task: str | None = None
    limit: Limit = 100


class FilesQuery(Page, frozen=True, kw_only=True):
    """`attached`: only files that belong to a task, or only those that do not."""

    owner: str | None = None
    attached: bool | None = None


class DeadLettersQuery(Page, frozen=True, kw_only=True):
    task: str | None = None


class ContractsQuery(Page, frozen=True, kw_only=True):
    agent: str | None = None


class DomainsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: Name
    target: Name


class AuditQuery(Page, frozen=True, kw_only=True):
    principal: str | None = None
    subject: str | None = None
    outcome: str | None = None


class AuditViewQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`action` is the beginning of a verb: `task.` finds all that was done to tasks."""

    principal: str | None = None
    action: str | None = None
    outcome: Literal["accepted", "refused"] | None = None


S = TypeVar("S")


async def read_json(context: Context, request: Request, *, optional: bool = False) -> Any:
    """The parsed body. An optional one that is empty counts as `{}`."""
    limits = context.limits
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(
            Kind.INVALID, "a compressed body is not accepted", status=415, next=Next("send it without Content-Encoding")
        )
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limits.bytes:
        raise _too_large(limits)
    held = int(declared) if declared.isascii() and declared.isdigit() else 0
    await hold(request.scope, ADMIN, held)
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                data += piece
                if len(data) > limits.bytes:
                    raise _too_large(limits)
                if len(data) > held:
                    await hold(request.scope, ADMIN, len(data) - held)
                    held = len(data)
    except TimeoutError:
        raise Problem(
            Kind.TIMEOUT, f"the body did not arrive within {BODY_SECONDS:g} s", status=408, next=Next("send it again")
        ) from None
    except ClientDisconnect:
        raise Problem(Kind.INVALID, "the connection ended before the body did", status=400) from None
    if optional and not bytes(data).strip():
        return {}
    try:
        return guard.check(bytes(data), limits)
    except RemoteProtocolError as error:
        if error.stage is Stage.SIZE:
            raise _too_large(limits) from None
        raise Problem(Kind.INVALID, error.what, field=error.field, status=400) from None


def _too_large(limits: guard.Limits) -> Problem:
    return Problem(Kind.TOO_LARGE, f"a body may have at most {limits.bytes} bytes", limit=limits.bytes)


async def read_call(context: Context, route: ApiRoute, request: Request, caller: Caller | None) -> Call[Any, Any]:
    """The request with its query and body as the route declares them. Unknown parameters of the query are refused: a
    misspelt filter must not list everything."""
    query = None
    if route.query is not None:
        query = shape(dict(request.query_params), route.query, Reason.INVALID_QUERY)
    if route.body is None:
        return Call(request, query, None, caller=caller)
    tree = await read_json(context, request, optional=route.body_optional)
    given = tree
    if route.drop_nulls and type(tree) is dict:
        given = {name: value for name, value in tree.items() if value is not None}
    return Call(request, query, shape(given, route.body, Reason.INVALID_BODY), tree, caller)


def shape(tree: Any, type: type[S], reason: Reason) -> S:
    """Values of a query are text, so they are read as what they stand for."""
    try:
        return msgspec.convert(tree, type, strict=reason is not Reason.INVALID_QUERY)
    except msgspec.ValidationError as error:
        raise misshapen(error, reason=reason, type=type) from None
