"""Good messages of every protocol, as trees and as bytes. What is secret in them is the canary."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from dragoman.protocols.coven import codec as coven
from dragoman.protocols.coven import types as coven_types
from tests.conformance.a2acp import samples as a2acp_samples
from tests.conformance.agentmsg import samples as agentmsg_samples

CONFORMANCE = Path(__file__).parent.parent / "conformance"
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CANARY = "canary-4f1d6c0b9e"
NOW = agentmsg_samples.TIME
"""When the samples of agentmsg were said."""


def encoded(trees: list[Any]) -> list[bytes]:
    return [json.dumps(tree).encode() for tree in trees]


def _examples(protocol: str) -> dict[str, Any]:
    return dict(json.loads((CONFORMANCE / protocol / "examples.json").read_text("utf-8")))


@cache
def chiffon() -> list[Any]:
    named = _examples("chiffon")
    whole = named.pop("envelope")
    trees = [
        {**whole, "type": name.removesuffix("_failed"), "payload": payload.get("payload", payload)}
        for name, payload in named.items()
    ]
    secret = {"token": CANARY, "delivery_id": "d-1", "other": [1]}
    chunk = {**trees[-2]["payload"], "output": "hello", "output_chunk": "bytes 0-5 of 5"}
    return [*trees, {**trees[0], "x_custom_fields": secret}, {**trees[-2], "payload": chunk}]


CONTROLS: list[Any] = [{"ack": ["d-1", "d-2"]}, {"accepted": ["m-1"]}]


REGISTRATION: dict[str, Any] = {
    "agent_id": "mux-1", "agent_type": "infra", "supported_versions": ["1.0"], "work_types": ["run_playbook"],
    "limits": {"max_concurrent": 3}, "callback_url": "https://example.org/cb",
}  # fmt: skip


@cache
def agentmsg() -> list[Any]:
    return [agentmsg_samples.tree(name) for name in agentmsg_samples.PAYLOADS]


@cache
def a2acp() -> list[Any]:
    security = {"auth_token": CANARY, "encryption": "none"}
    trees = [a2acp_samples.tree(kind, security=security) for kind in ("request", "response", "event", "error")]
    sealed = {"alg": "A256GCM", "kid": "k", "nonce": "B" * 16, "ciphertext": "C" * 40, "contract_id": "c-1"}
    trees.append(a2acp_samples.tree(payload=sealed, security={**security, "encryption": "aes256"}))
    broker = msgspec.to_builtins(a2acp_samples.BROKER)
    for intent, kind, role, body in a2acp_samples.BODIES:
        to, by = ("target_agent", "source_agent") if role.value == "agent" else ("source_agent", "target_agent")
        ada = msgspec.to_builtins(a2acp_samples.ADA)
        said = msgspec.to_builtins(body)
        trees.append(a2acp_samples.tree(kind, intent=intent, payload=said, security=security, **{to: broker, by: ada}))
    return trees


@cache
def forge() -> list[Any]:
    trees = list(_examples("forge").values())
    return [*trees, trees[:3], {"level": "info", "message": "a log line"}]


@cache
def coven_agent() -> list[bytes]:
    of = coven_types
    events: list[Any] = [
        of.Text("hello"), of.Thinking("hm"), of.ToolUse("t", "n", "{}"), of.ToolResult("t", "out", False),
        of.FileData("a.txt", "text/plain", b"data"), of.Done(full_response="all", result_json="{}"), of.Error("no"),
        of.Done(question=of.Question(question="?", options_json="[]", timeout_seconds=5, default_json="1")),
    ]  # fmt: skip
    said: list[Any] = [of.MessageResponse(request_id="r1", event=event) for event in events]
    said.append(
        of.MessageResponse(
            request_id="r1",
            progress=of.Progress(percent=5, step="s", message="m", number=1, total=2),
            fault=of.Fault(kind="timeout", message="late", retryable=True, facts_json="{}"),
            cursor=3,
            task_id="t",
        )
    )
    said += [of.Heartbeat(1_700_000_000_000), of.RegisterAgent(agent_id="a", name="A", capabilities=("x",))]
    return [coven.encode_agent(one) for one in said]


@cache
def coven_server() -> list[bytes]:
    of = coven_types
    file = of.FileData("a.txt", "text/plain", b"data")
    said: list[Any] = [
        of.SendMessage(
            request_id="r1", content="do it", attachments=(file,), input_json="{}", attempt=1, priority="high"
        ),
        of.Cancel(request_id="r1", reason="no"),
        of.Welcome(server_id="s", agent_id="a"),
        of.Shutdown("stopping"),
    ]
    return [coven.encode_server(one) for one in said]


@cache
def coven_calls() -> list[bytes]:
    of = coven_types
    return [
        coven.encode_response(of.MessageResponse(request_id="r1", event=of.Text("x"))),
        coven.encode_send(of.SendMessage(request_id="r1", content="do it", unknown=b"\xfa\x3e\x03new")),
        coven.encode_follow(of.FollowRequest(task_id="t", after=3)),
        coven.encode_cancel(of.CancelRequest(task_id="t", reason="no")),
        coven.encode_cancel_reply(of.CancelReply(task_id="t", status="cancelled")),
    ]


SCHEMAS: list[Any] = [
    True,
    a2acp_samples.CAPABILITY.input_schema,
    {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"type": "string", "format": "uuid"}},
     "items": [{"$ref": "#/definitions/a"}, {"enum": [1, "a", None]}], "additionalItems": False},
    {"type": ["object", "null"], "$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}},
     "properties": {"n": {"$ref": "#/$defs/n"}, "m": {"oneOf": [{"minimum": 3}, {"maximum": 2}]}},
     "patternProperties": {"^x-": {"type": "integer", "multipleOf": 3}}, "additionalProperties": {"not": {"const": 5}},
     "dependentRequired": {"n": ["m"]}, "if": {"required": ["q"]}, "then": {"maxProperties": 3}, "else": True},
    {"type": "array", "prefixItems": [{"type": "number"}], "contains": {"const": 1}, "uniqueItems": True,
     "unevaluatedItems": False, "minItems": 1, "maxItems": 9},
    {"type": "string", "pattern": "^[a-z]+$", "minLength": 1, "maxLength": 10},
]  # fmt: skip

TOML = b"""
data = "here"

[server]
host = "127.0.0.1"
port = 8420

[rules]
idle_seconds = 10.5
retry_delays_seconds = [1, 2, 3]

[sandbox]
minimum = "bubblewrap"

[[agents]]
id = "reviewer"
command = ["node", "reviewer.js"]
env = { KEY = "canary-4f1d6c0b9e" }
limits = { memory_mb = 512 }
untrusted = true
allow_hosts = ["api.example.com"]
"""


def flows() -> list[Any]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(EXAMPLES.glob("*-flow.json"))]
