"""Hostile schemas, and payloads that do not fit."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.a2acp.plain import PROVISION, WANTED, Bond, Plain, code_of
from tests.security.a2acp.ground import CANARY, Json
from tests.support.hubproc import HubProcess


def hostile(address: str) -> dict[str, Any]:
    return {
        "remote ref": {"$ref": address},
        "remote ref within": {"properties": {"a": {"$ref": f"{address}#/definitions/a"}}},
        "remote meta schema": {"$schema": address, "type": "object"},
        "file ref": {"$ref": "file:///etc/passwd"},
        "dynamic ref": {"$schema": "https://json-schema.org/draft/2020-12/schema", "$dynamicRef": address},
        "catastrophic regex": {"properties": {"a": {"pattern": "(a+)+$"}}, "patternProperties": {"(a|a)*b(?=x)": True}},
        "endless recursion": {"$ref": "#"},
        "ten thousand choices": {"anyOf": [{"const": n} for n in range(10_000)]},
        "deep": nested(500),
        "no schema": {"type": "nothing"},
    }


def nested(levels: int) -> Any:
    made: Any = True
    for _ in range(levels):
        made = {"not": made}
    return made


@pytest.mark.requirement("A2-SCH-1")
@pytest.mark.parametrize("name", list(hostile("")))
def test_a_hostile_schema_is_refused_or_harmless(
    cast: dict[str, Plain], name: str, trap: tuple[str, Callable[[], bool]]
) -> None:
    address, sprung = trap
    eve, schema = cast["eve"], hostile(address)[name]
    for side in ("input_schema", "output_schema"):
        answer = eve.register({**PROVISION, side: schema})
        assert answer.status in (400, 413, 422), answer
        assert code_of(answer) == "SCHEMA_MISMATCH"
    for side in ("request_schema", "response_schema"):
        told = eve.refused(eve.initiate("bob", "loose", **{side: schema}), later=False)
        assert told["code"] == "SCHEMA_MISMATCH", told
    assert not sprung()


@pytest.mark.requirement("A2-SCH-1")
def test_a_regex_that_could_stall_does_not(cast: dict[str, Plain], hub: HubProcess) -> None:
    name = uuid.uuid4().hex[:6]
    mallory, ada = Plain(hub, f"mallory-{name}"), Plain(hub, f"ada-{name}")
    slow = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|aa)+$"}}, "required": ["a"]}
    answer = mallory.register({"intent": "stall", "input_schema": slow})
    if answer.status != 200:
        assert code_of(answer) == "SCHEMA_MISMATCH"
        return
    bond = ada.shake(mallory, "stall")
    assert code_of(ada.send(bond.request({"a": "a" * 5000 + "b"}), timeout=60)) == "CONTRACT_VIOLATION"  # and soon
    assert hub.admin.get("/livez").status == 200


@pytest.mark.requirement("A2-SCH-3")
def test_what_a_refused_payload_held_is_not_repeated(hub: HubProcess, bond: Bond) -> None:
    wrong: list[Json] = [
        {**WANTED, "record_count": CANARY},
        {**WANTED, "dataset_type": {"x": CANARY}},
        {**WANTED, "extra": CANARY},
        {"test_scenario_id": [CANARY]},
    ]
    for content in wrong:
        answer = bond.source.send(bond.request(content), later=True)
        assert code_of(answer) == "CONTRACT_VIOLATION"
        assert CANARY.encode() not in answer.body
    assert CANARY not in hub.log.read_text()
    assert CANARY.encode() not in hub.admin.get("/api/v1/audit?limit=500").body
