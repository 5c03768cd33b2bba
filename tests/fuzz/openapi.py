"""Requests made up from an OpenAPI document, and what must hold of every answer.

The document says what is good; from it come good values, the same values broken at some place, and bytes that are
nothing at all. Whatever is asked, with whatever credential:

    status     one that the document declares for this operation, and never 500
    body       of the type and the schema that is declared for this status
    refusals   hence problem details (RFC 9457) at the management API, and each protocol's own error at its endpoints
    tokens     are never in an answer, unless it is the answer that hands one out
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

import httpx2
import jsonschema_rs
import msgspec
from hypothesis import strategies as st

from dragoman.protocols.a2acp.types import BROKER_ID
from tests.conformance.a2acp.samples import CAPABILITY
from tests.fuzz import samples
from tests.fuzz.hostile import broken_trees, written
from tests.fuzz.stage import Stage

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE")
#: What any address may answer, beside what is declared for an operation: there is no such method, or no such address,
#: or the hub does not answer to this name.
ANYWHERE = {"404", "405", "421", "426"}
#: What is said with a status of the 500s where it is declared, and is no mistake of the hub's: nobody is there to do
#: it, somebody did not answer in time.
EXPECTED = {"503", "504"}
#: Where a hub would do what a test must not let it do: run commands, write files.
LEFT_OUT = {("post", "/api/v1/backup")}
NEVER = {"command"}
#: Agents that others here need: they stay, with the token they have.
LASTING = {("DELETE", "/api/v1/agents/{id}"), ("POST", "/api/v1/agents/{id}/token")}

CHOICES = {"protocol": ("chiffon", "agentmsg", "a2acp"), "entity_type": ("TASK", "AGENT", "RESOURCE", "POLICY")}
PLURAL = {"task": "tasks", "agent": "agents", "parent": "tasks", "principal": "agents", "entity_id": "tasks"}

ODD_IDS = (
    "%", "%00", "\x00", "a/b", "é", "İ", "\u202e", "' or 1=1 --", "a" * 3000, "*", "[a-z]*", "_", "~", "null",
    "00000000-0000-0000-0000-000000000000", "0000", "TASK", "hub", "policy", "watch", "0", "-1", "?x", "#", "  ", "\\",
)  # fmt: skip
ODD_WORDS = ("", " ", "0", "-1", "1.5", "true", "null", "nan", "inf", "1e400", "9" * 30, "99999999999999999999", "é",
             "a", "queued", "\x00", "%00", "a" * 3000, "[]", "2026-03-01T12:00:00Z", "\ud800",
             "9223372036854775808")  # fmt: skip
ODD_HEADERS = (
    ("Content-Type", "text/plain"), ("Content-Type", "application/xml; charset=utf-16"), ("Content-Type", ";;;"),
    ("Content-Encoding", "gzip"), ("Content-Encoding", "x"), ("Idempotency-Key", ""), ("Idempotency-Key", "k"),
    ("Idempotency-Key", "a b"), ("Idempotency-Key", "x" * 300), ("Idempotency-Key", "\xe9"), ("traceparent", "x"),
    ("traceparent", "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"), ("Last-Event-ID", "x"),
    ("Last-Event-ID", "9" * 30), ("Last-Event-ID", "-1"), ("Accept", "text/html"), ("Range", "bytes=0-1"),
    ("If-None-Match", "*"), ("X-HTTP-Method-Override", "DELETE"), ("Host", "elsewhere"), ("Origin", "null"),
)  # fmt: skip


class Operation(NamedTuple):
    method: str
    path: str
    told: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"

    def body(self) -> Mapping[str, Any] | None:
        content = self.told.get("requestBody", {}).get("content", {})
        return content["application/json"]["schema"] if content else None


class Ask(NamedTuple):
    operation: Operation
    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    content: bytes | None


def operations(document: Mapping[str, Any]) -> list[Operation]:
    return [
        Operation(method.upper(), path, told)
        for path, methods in document["paths"].items()
        for method, told in methods.items()
        if (method, path) not in LEFT_OUT
    ]


# -- good values --


def values(schema: Any, named: Mapping[str, Any], depth: int = 4) -> st.SearchStrategy[Any]:
    """What fits a schema, as far as msgspec's schemas go."""
    if "$ref" in schema:
        return values(named[schema["$ref"].rpartition("/")[2]], named, depth - 1) if depth > 0 else st.just({})
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return st.one_of([values(one, named, depth) for one in schema[word]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object":
            return _objects(schema, named, depth)
        case "array":
            length = {"min_size": schema.get("minItems", 0), "max_size": min(schema.get("maxItems", 2), 2)}
            if "prefixItems" in schema:
                return st.tuples(*(values(one, named, depth - 1) for one in schema["prefixItems"])).map(list)
            return st.lists(values(schema.get("items") or {}, named, depth - 1), **length)
        case "string":
            return _strings(schema)
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum"))
            return st.floats(
                low, schema.get("maximum"), allow_nan=False, allow_infinity=False,
                exclude_min="exclusiveMinimum" in schema,
            )  # fmt: skip
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
    return st.sampled_from([None, True, 1, "a", [], {"a": [1]}])


def _objects(schema: Mapping[str, Any], named: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
    members = {
        name: values(inner, named, depth - 1)
        for name, inner in schema.get("properties", {}).items()
        if name not in NEVER
    }
    required = {name: members.pop(name) for name in schema.get("required", ()) if name in members}
    fixed = st.fixed_dictionaries(required, optional=members)
    more = schema.get("additionalProperties")
    if members or required or not isinstance(more, dict):
        return fixed
    return st.dictionaries(st.text("abc", min_size=1, max_size=3), values(more, named, depth - 1), max_size=2)


def _strings(schema: Mapping[str, Any]) -> st.SearchStrategy[str]:
    if schema.get("format") == "date-time":
        return st.datetimes().map(lambda moment: f"{moment.isoformat()}Z")
    if "pattern" in schema:
        # Python has no possessive way to say "no newline at the end" in a generated text; a sample is enough.
        return st.from_regex(schema["pattern"].replace("(?!\\n)", ""), fullmatch=True).filter(
            lambda text: "\n" not in text
        )
    size = {"min_size": schema.get("minLength", 0), "max_size": min(schema.get("maxLength", 20), 20)}
    common = [word for word in ("review", "any", "nobody", "chiffon", "a") if len(word) >= size["min_size"]]
    return st.sampled_from(common) | st.text(**size)


# -- requests --


def spoken(stage: Stage, operation: Operation) -> list[Any]:
    """Whole messages for the endpoints that take such, from the agent whose token is used there."""
    match operation.method, operation.path:
        case "POST", "/api/agent/message":
            return [{**tree, "from_agent": "any", "message_id": str(uuid4())} for tree in samples.chiffon()]
        case "POST", "/api/agent/register":
            return [{**samples.REGISTRATION, "agent_id": "chiffon-agent", "callback_url": None}]
        case "POST", "/agentmsg/messages":
            return [_as(tree, "agentmsg-agent", str(uuid4())) for tree in samples.agentmsg()]
        case "POST", "/agentmsg/state":
            return [tree["payload"] for tree in samples.agentmsg() if tree["type"] == "STATE_UPDATE"]
        case "POST", "/a2acp/messages":
            return [_to_broker(tree, stage) for tree in samples.a2acp()]
        case "POST", "/a2acp/agents":
            return [{"agent_id": "a2acp-agent", "capabilities": [msgspec.to_builtins(CAPABILITY)]}]
        case "POST", "/auth/token":
            return [{"agent_id": "a2acp-agent", "target_agent_id": "x", "requested_capabilities": ["a"], "ttl": 60}]
    return []


def _to_broker(tree: Any, stage: Stage) -> Any:
    """A message of a2acp from the one agent that has a token for the broker, said now."""
    return {
        **tree,
        "message_id": str(uuid4()),
        "timestamp": datetime.now(UTC).isoformat(),
        "source_agent": stage.speaker,
        "target_agent": {"agent_id": BROKER_ID, "domain": "a_domain", "version": "1.0.0"},
        "security": {**tree["security"], "auth_token": stage.pass_to_broker},
    }


def _as(tree: Any, agent: str, id: str) -> Any:
    """A message of agentmsg from another agent, sent now."""
    text = json.dumps({**tree, "id": id}).replace('"ada"', json.dumps(agent)).replace('"bob"', '"other-agent"')
    return json.loads(text.replace(samples.NOW, datetime.now(UTC).isoformat()))


@st.composite
def asks(draw: st.DrawFn, stage: Stage, among: Sequence[Operation]) -> Ask:
    """A request that is good, or broken in some way."""
    operation = draw(st.sampled_from(list(among)))
    named = stage.document["components"]["schemas"]
    method = operation.method if draw(st.integers(0, 9)) else draw(st.sampled_from(METHODS))
    path = operation.path
    query: list[tuple[str, str]] = []
    headers: list[tuple[str, str]] = []
    for parameter in operation.told["parameters"]:
        name = parameter["name"]
        if parameter["in"] == "path":
            path = path.replace(f"{{{name}}}", quote(_id(draw, stage, operation, name), safe=""))
        elif draw(st.integers(0, 3)) == 0:
            (query if parameter["in"] == "query" else headers).append(
                (name, _word(draw, stage, name, parameter["schema"], named))
            )
    if draw(st.integers(0, 9)) == 0:
        query.append((draw(st.sampled_from(("limit", "cursor", "x", "", "é"))), draw(st.sampled_from(ODD_WORDS))))
    headers += draw(st.lists(st.sampled_from(ODD_HEADERS), max_size=1))
    headers += _credential(draw, stage, operation)
    if operation.path == "/a2acp/messages":
        headers.append(("Prefer", "respond-async"))  # nobody is there to respond
    schema = operation.body()
    content: bytes | None = None
    if schema is not None and draw(st.integers(0, 9)):
        said = spoken(stage, operation)
        good = draw(st.sampled_from(said) if said and draw(st.booleans()) else values(schema, named))
        tree = good if draw(st.booleans()) else draw(broken_trees([good]))
        content = written(tree).encode("utf-8", "surrogatepass")
    elif draw(st.booleans()):
        content = draw(st.binary(max_size=50))
    text = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in query)
    every = operations(stage.document)
    meant = next((one for one in every if (one.path, one.method) == (operation.path, method)), operation)
    return Ask(meant, method, f"{path}?{text}" if text else path, tuple(dict(headers).items()), content)


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="%")


def _id(draw: st.DrawFn, stage: Stage, operation: Operation, name: str) -> str:
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(ODD_IDS) | st.text(min_size=1, max_size=10).filter(lambda text: text.isprintable()))
    if name in CHOICES:
        return draw(st.sampled_from(CHOICES[name]))
    words = operation.path.split("/")
    kind = words[words.index(f"{{{name}}}") - 1]
    known = stage.pool[kind] or stage.pool["tasks"]
    if (operation.method, operation.path) in LASTING:
        known = [one for one in known if not one.endswith("-agent")] or ["nobody"]
    found = known[draw(st.integers(0, 99)) % len(known)]
    return found if draw(st.integers(0, 4)) else found[: draw(st.integers(1, 13))]


def _word(draw: st.DrawFn, stage: Stage, name: str, schema: Any, named: Mapping[str, Any]) -> str:
    """A parameter. Nobody has the time for a long wait."""
    if name == "wait":
        return draw(st.sampled_from(("0", "0.001", "-1", "x", "1e9", "")))
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(ODD_WORDS))
    if name in PLURAL:
        return stage.pool[PLURAL[name]][0] if stage.pool[PLURAL[name]] else "x"
    good = draw(values(schema, named))
    return good if isinstance(good, str) else json.dumps(good)


def _credential(draw: st.DrawFn, stage: Stage, operation: Operation) -> list[tuple[str, str]]:
    how = draw(st.sampled_from(("right",) * 16 + ("none", "other", "wrong", "odd")))
    own = stage.tokens.get(operation.told["tags"][0], stage.admin)
    if how == "none":
        return []
    if how == "odd":
        odd = (
            "Bearer",
            "Bearer ",
            "Basic eA==",
            "bearer  x",
            "Bearer \xe9",
            own,
            f"Bearer {own} x",
            "Bearer " + "a" * 9000,
        )
        return [("Authorization", draw(st.sampled_from(odd)))]
    other = draw(st.sampled_from([stage.admin, *stage.tokens.values()]))
    return [("Authorization", f"Bearer {own if how == 'right' else other if how == 'other' else 'x' * 32}")]


# -- answers --


def send(stage: Stage, ask: Ask) -> tuple[httpx2.Response, bytes]:
    """The answer and its body; of a stream that goes on, the beginning is enough."""
    headers = [(name.encode(), _sendable(value)) for name, value in ask.headers]
    if ask.content is not None and not any(name.lower() == b"content-type" for name, _ in headers):
        headers.append((b"Content-Type", b"application/json"))
    with stage.http.stream(ask.method, ask.url, headers=headers, content=ask.content) as answer:
        endless = answer.headers.get("content-type", "").startswith("text/event-stream")
        return answer, b"" if endless else answer.read()


def _sendable(value: str) -> bytes:
    """A header's value that our own client does not refuse."""
    return "".join(sign for sign in value if " " <= sign <= "\xff" and sign != "\x7f").strip().encode("latin-1")


def is_no_mistake(status: str, body: bytes, declared: Mapping[str, Any]) -> bool:
    """Some of the 500s are honest; but no protocol's word for an internal error is."""
    if status < "500":
        return True
    told = body.lower()
    return status in EXPECTED and status in declared and b"internal_error" not in told and b'"internal"' not in told


def declared_of(ask: Ask) -> Mapping[str, Any]:
    """What is declared of answers to this request, by status."""
    return ask.operation.told["responses"] if ask.method == ask.operation.method else {}


def check(stage: Stage, ask: Ask) -> None:
    answer, body = send(stage, ask)
    status = str(answer.status_code)
    shown = f"{ask!r}\n-> {status} {answer.headers.get('content-type')} {body[:1000]!r}"
    assert is_no_mistake(status, body, declared_of(ask)), shown
    for secret in (stage.admin, *stage.tokens.values()):
        assert secret.encode() not in body, shown
    if ask.method == "HEAD":
        return
    operation = ask.operation
    declared = declared_of(ask).get(status)
    if declared is None:
        assert status in ANYWHERE, f"not declared: {shown}"
        assert _is_refusal(stage, operation, body), shown
        return
    content = declared.get("content")
    if not content:
        assert not body, shown
        return
    media, told = next(iter(content.items()))
    assert answer.headers["content-type"].partition(";")[0] == media, shown
    if media.endswith("json") and media != "application/x-ndjson":
        assert not (found := faults(stage, told["schema"], json.loads(body))), f"{found} in {shown}"
        if answer.status_code < 400:
            stage.know(json.loads(body), operation.told["tags"][0])
        if operation.path == "/a2acp/agents" and status == "200":
            stage.renew(json.loads(body))


def faults(stage: Stage, schema: Any, told: Any) -> list[str]:
    return [
        f"{'/'.join(map(str, error.instance_path))}: {error.message}"
        for error in _validator(stage, json.dumps(schema)).iter_errors(told)
    ]


@cache
def _validator(stage: Stage, schema: str) -> jsonschema_rs.Validator:
    whole = {**json.loads(schema), "components": stage.document["components"]}
    return jsonschema_rs.Draft202012Validator(whole, validate_formats=True)


def _is_refusal(stage: Stage, operation: Operation, body: bytes) -> bool:
    """Whether a refusal is in one of the forms that are declared for refusals around here, or problem details."""
    forms = [
        told["schema"]
        for other in operations(stage.document)
        for status, one in other.told["responses"].items()
        for media, told in one.get("content", {}).items()
        if status >= "400" and media.endswith("json") and other.told["tags"] == operation.told["tags"]
    ]
    problem = {"$ref": "#/components/schemas/ProblemOut"}
    return any(not faults(stage, form, json.loads(body)) for form in (problem, *forms))
