"""The two flows that the document speaks of: their parts, and every message in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.a2acp.samples import BROKER, START

from dragoman.protocols.a2acp import codec, flow, intents
from dragoman.protocols.a2acp.errors import A2acpError
from dragoman.protocols.a2acp.intents import misspoken
from dragoman.protocols.a2acp.types import RESERVED
from dragoman.wire import Role
from dragoman.wire.schema import compatibility
from dragoman.wire.schema import library as subject

EXAMPLES = Path(__file__).parents[3] / "examples"
FLOWS = {name: flow.read((EXAMPLES / f"{name}.json").read_bytes())
         for name in ("agent-collaboration-flow", "error-handling-flow")}  # fmt: skip


def sent(step: flow.Step, number: int) -> dict[str, Any]:
    """A message as a player would send it."""
    known = {"id": f"11111111-1111-4111-8111-{number:012}", "now": START.isoformat(), "token": "t"}
    filled: dict[str, Any] = flow.fill(step.send, lambda name: known.get(name, f"some-{name}"))
    return filled


@pytest.mark.requirement("A2-FLW-1", "A2-FLW-3")
def test_the_flows_have_the_documents_parts() -> None:
    assert FLOWS["agent-collaboration-flow"].parts == ("discovery", "handshake", "contract", "exchange", "termination")
    assert FLOWS["error-handling-flow"].parts == ("authentication", "schemas", "time", "rate")
    codes = {
        step.expect["payload"]["error"]["code"]
        for step in FLOWS["error-handling-flow"].steps
        if step.expect and step.expect["message_type"] == "error"
    }
    assert codes == {"AUTH_FAILED", "SCHEMA_MISMATCH", "CONTRACT_VIOLATION", "TIMEOUT", "RATE_LIMIT_EXCEEDED"}


@pytest.mark.requirement("A2-FLW-1", "A2-FLW-3")
@pytest.mark.parametrize("name", list(FLOWS))
def test_every_message_of_a_flow_is_one_that_its_party_may_send(name: str) -> None:
    for number, step in enumerate(FLOWS[name].steps):
        if step.send is None:
            continue
        party = FLOWS[name].parties[step.by].agent
        try:
            fault = misspoken(codec.decode(json.dumps(sent(step, number)).encode()), Role.AGENT, party, BROKER)
            field = fault and fault[0]
        except A2acpError as error:
            field = error.field
        assert field == step.broken


@pytest.mark.requirement("A2-FLW-1", "A2-CTR-2")
def test_the_flows_schemas_fit_where_the_flow_goes_on_and_not_where_it_ends() -> None:
    for name, answers in (("agent-collaboration-flow", ["yes"]), ("error-handling-flow", ["no"])):
        target = FLOWS[name].parties["target"].capabilities[0]
        payloads = [step.send["payload"] for step in FLOWS[name].steps if step.send]
        wishes = [payload["request_schema"] for payload in payloads if "request_schema" in payload]
        told = [compatibility.accepts(target.input_schema, wish) for wish in wishes]
        assert [verdict.answer.value for verdict in told] == answers
        asked = [sent(step, 0) for step in FLOWS[name].steps if step.send and step.send["intent"] == target.intent]
        schema = subject.compile(target.input_schema)
        misfits = [one["payload"]["correlation_id"] for one in asked if one["message_type"] == "request"
                   and not schema.accepts(schema.content(one["payload"], RESERVED))]  # fmt: skip
        assert misfits == ([] if answers == ["yes"] else ["mismatch-2"])


def test_what_is_expected_is_compared_by_what_is_written() -> None:
    told = {"a": {"b": [1, {"c": 2, "d": 3}], "n": 4}, "x": "k-1"}
    kept = {"name": "k-1"}
    assert flow.differences({"a": {"b": [1, {"c": 2}], "n": "{{positive}}"}, "x": "{{name}}"}, told, kept) == []
    assert flow.differences({"a": "{{any}}"}, told, kept) == []
    bad = {"a": {"b": [1], "n": "{{any}}"}, "x": "k-2", "y": "{{any}}", "n": {"z": 1}}
    assert [text.split(":")[0] for text in flow.differences(bad, {**told, "n": 0}, kept)] == ["/a/b", "/x", "/y", "/n"]
    step = flow.Step(part="p", by="b", expect={}, keep={"d": "/a/b/1/d"})
    assert flow.taken(step, told) == {"d": 3}
    assert flow.fill(["{{n}}", "x-{{n}}", 5], lambda name: 7) == [7, "x-7", 5]


@pytest.mark.parametrize("steps", [[{"part": "p", "by": "a"}], [{"part": "p", "by": "z", "send": {}}]])
def test_a_flow_without_sense_is_refused(steps: list[Any]) -> None:
    party = {"agent": {"agent_id": "a", "domain": "d", "version": "1.0.0"}}
    whole = {"name": "f", "about": "", "parties": {"a": party}, "steps": steps}
    with pytest.raises(ValueError, match="step 0"):
        flow.read(json.dumps(whole).encode())


def test_codec_and_flow_agree_on_what_a_message_is() -> None:
    first = FLOWS["agent-collaboration-flow"].steps[0]
    assert codec.decode(json.dumps(sent(first, 1)).encode()).intent == intents.DISCOVER
