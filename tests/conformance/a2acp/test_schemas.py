"""Schemas of strangers: what is refused, what documents are told, and whose documents fit whose schema."""

# ruff: noqa: E501 - a table is read in columns

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.conformance.a2acp.made_up import VALUES, pairs, relatives, schemas
from tests.conformance.a2acp.samples import CAPABILITY

from dragoman.protocols.a2acp.types import RESERVED
from dragoman.wire.schema import compatibility
from dragoman.wire.schema import library as subject
from dragoman.wire.schema.compatibility import Answer, accepts
from dragoman.wire.schema.library import DRAFT_07, Compiled, Library, SchemaError

SCHEMATA = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def refused(schema: Any) -> SchemaError:
    with pytest.raises(SchemaError) as caught:
        subject.compile(schema)
    return caught.value


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Alternatives within alternatives: 2**levels looks at one place."""
    steps = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(levels)}
    return {"$defs": {**steps, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


DEEPENING = {
    "$defs": {"n": {"anyOf": [{"properties": {"n": {"$ref": "#/$defs/n"}}, "minProperties": 9},
                              {"properties": {"n": {"$ref": "#/$defs/n"}}, "maxProperties": 0}]}},
    "$ref": "#/$defs/n",
}  # fmt: skip


@pytest.mark.requirement("A2-SCH-1")
@pytest.mark.parametrize(
    ("schema", "pointer", "what"),
    [
        ({"properties": {"a": {"$ref": "https://example.org/x"}}}, "/properties/a", "only point into this document"),
        ({"$ref": "file:///etc/passwd"}, "", "only point into this document"),
        ({"$ref": "other.json#/a"}, "", "only point into this document"),
        ({"$ref": "#anchor"}, "", "only point into this document"),
        ({"$ref": 5}, "", "only point into this document"),
        ({"$ref": "#/nowhere"}, "", "no schema stands"),
        ({"const": {"type": "string"}, "items": {"$ref": "#/const"}}, "/items", "no schema stands"),
        ({"$dynamicRef": "#x"}, "", "not supported"),
        ({"items": {"$anchor": "x"}}, "/items", "not supported"),
        ({"items": {"$id": "https://example.org/x"}}, "/items", "only allowed at the top"),
        ({"$schema": "https://example.org/mine"}, "/$schema", "draft-07 or 2020-12"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "/$schema", "draft-07 or 2020-12"),
        ({"$ref": "#"}, "", "without going deeper"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}, None, "without going"),
        ({"type": "text"}, "/type", ""),
        ({"minLength": -1}, "/minLength", ""),
        ({"properties": {"a~/b": {"minimum": "1"}}}, "/properties/a~0~1b/minimum", ""),
        ({"properties": {"a": 5}}, "/properties/a", "expected a schema"),
        ({"items": [{}]}, "/items", ""),
        (5, "", "expected an object or a boolean"),
        ({"pattern": "("}, "/pattern", ""),
        ({"pattern": "(?=a)b"}, "/pattern", ""),
        ({"pattern": "(a{1,500}){1,500}"}, "/pattern", ""),
        ({"pattern": "a" * 1001}, "", "longer than 1000"),
        ({"patternProperties": {"a" * 1001: {}}}, "", "longer than 1000"),
        ({"enum": list(range(1001))}, "/enum", "more than 1000 values"),
        ({"anyOf": [{"const": n} for n in range(10_000)]}, None, ""),
        ({"properties": {f"p{n}": {} for n in range(1001)}}, None, "more than 1000 schemas"),
        ({"description": "x" * 100_000}, "", "bytes exceed"),
        (nested(33), None, "nested deeper"),
        (nested(5000), None, ""),
        (doubling(8), "", "more than 200 times"),
        (doubling(200), "", "more than 200 times"),
        (DEEPENING, "", "more than 200 times"),
    ],
)  # fmt: skip
def test_a_hostile_schema_is_refused_by_pointer(schema: Any, pointer: str | None, what: str) -> None:
    error = refused(schema)
    assert what in error.what
    assert pointer is None or error.pointer == pointer


@pytest.mark.requirement("A2-SCH-1")
def test_an_honest_schema_may_be_recursive_named_and_wide() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert subject.compile(tree).accepts({"left": {"right": {}}})
    assert not subject.compile(tree).accepts({"left": {"right": 5}})
    assert subject.compile(
        {"$id": "https://example.org/me", "$defs": {"a b": {"type": "null"}}, "$ref": "#/$defs/a%20b"}
    )
    assert subject.compile({"anyOf": [{"const": n} for n in range(150)]}).accepts(149)
    assert subject.compile(doubling(5)).accepts("x")
    assert subject.compile({"items": {"pattern": "(x+x+)+y"}}).accepts(["x" * 100_000 + "y"])
    assert subject.compile(True).accepts(1)
    assert not subject.compile(False).accepts(1)


@pytest.mark.requirement("a2acp-D1", "A2-CTR-6")
@pytest.mark.parametrize("dialect", [None, f"{DRAFT_07}#", DRAFT_07])
def test_formats_are_checked_in_both_drafts(dialect: str | None) -> None:
    for name, good, bad in (
        ("uuid", "11111111-1111-4111-8111-111111111111", "1"),
        ("date-time", "2026-01-27T14:30:00Z", "x"),
    ):
        schema = {"format": name, **({"$schema": dialect} if dialect else {})}
        assert subject.compile(schema).accepts(good)
        assert not subject.compile(schema).accepts(bad)
        assert subject.compile(schema).accepts(5)


@pytest.mark.requirement("A2-CTR-6", "A2-SCH-3", "a2acp-D13")
def test_faults_name_the_place_and_never_the_value() -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 3, "pattern": "^x", "format": "uuid", "enum": ["x"]},
                       "born": {"not": {}}, "tags": {"uniqueItems": True, "contains": {"const": 1}},
                       "which": {"oneOf": [{"type": "null"}, {"type": "integer"}]}, "k": {"const": 5},
                       "size": {"type": "integer", "minimum": 5, "multipleOf": 7}},
        "propertyNames": {"maxLength": 8},
        "required": ["id"],
    }  # fmt: skip
    secret = "canary-secret"
    document = {"name": secret, "born": secret, "tags": [secret, secret], "which": secret, "k": secret, "size": 1.5}
    faults = subject.compile(schema).faults({**document, secret: 1}, most=50)
    assert {"/name", "/born", "/tags", "/which", "/k", "/size", ""} == {fault.pointer for fault in faults}
    assert not [fault for fault in faults if secret in fault.what]
    assert {"/required", "/properties/name/type"} & {fault.rule for fault in faults} == {"/required"}
    assert len(subject.compile({"items": False}).faults([0] * 100)) <= 10
    assert subject.compile(schema).faults({"id": 1}) == []


@pytest.mark.requirement("A2-CTR-6", "a2acp-D8")
def test_what_the_protocol_put_into_a_payload_is_not_the_agents_affair() -> None:
    payload = {"rows": 3, "contract_id": "c-1", "correlation_id": "k-1", "traceparent": "00-x"}
    closed = subject.compile(CAPABILITY.input_schema)
    assert closed.accepts(closed.content(payload, RESERVED))
    assert not closed.accepts(closed.content({**payload, "extra": 1}, RESERVED))
    wants = subject.compile({"type": "object", "required": ["contract_id"]})
    assert wants.content(payload, RESERVED) == {"rows": 3, "contract_id": "c-1"}
    assert wants.accepts(wants.content(payload, RESERVED))


def test_a_library_compiles_once_and_forgets_the_oldest() -> None:
    library = Library(most=2)
    one = library.compiled({"const": 1})
    assert library.compiled({"const": 1}) is one
    library.compiled({"const": 2})
    library.compiled({"const": 1})
    library.compiled({"const": 3}, key=b"c-3/input")
    assert (len(library), library.compiled({"const": 1}) is one) == (2, True)
    assert isinstance(library.compiled({"const": 3}, key=b"c-3/input"), Compiled)


# -- whose documents fit whose schema --


def thing(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
LIST = {"$defs": {"n": thing(["v"], v=NUMBER, next={"$ref": "#/$defs/n"})}, "$ref": "#/$defs/n"}
CHAIN = {"definitions": {"m": thing(["v", "w"], v=WHOLE, w=TEXT, next={"$ref": "#/definitions/m"})},
         "$ref": "#/definitions/m", "$schema": DRAFT_07}  # fmt: skip
CLOSED = {"additionalProperties": False}
CAT, DOG = (
    thing(["kind"], kind={"const": "cat"}, lives=WHOLE),
    thing(["kind", "name"], kind={"const": "dog"}, name=TEXT),
)

FITTING: list[tuple[Any, Any]] = [
    (True, False), ({}, TEXT), (TEXT, False), (NUMBER, WHOLE), ({"type": ["string", "null"]}, TEXT),
    ({"minimum": 0}, {"type": "number", "exclusiveMinimum": 0}), ({"exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
    ({"maximum": 5}, {"type": "integer", "exclusiveMaximum": 5.5}), ({"multipleOf": 2}, {"type": "integer", "multipleOf": 6}),
    ({"enum": [1, 2, "x"]}, {"enum": ["x", 2.0]}), (WHOLE, {"const": 3.0}), ({"enum": [1, 2, 3]}, {**WHOLE, "minimum": 1, "maximum": 3}),
    ({"enum": [True, False]}, {"type": "boolean"}), ({"minLength": 1, "maxLength": 9}, {**TEXT, "minLength": 2, "maxLength": 9}),
    ({"pattern": "^a"}, {**TEXT, "pattern": "^a"}), ({"pattern": "^a"}, {"const": "ab"}), ({"format": "uuid"}, {**TEXT, "format": "uuid"}),
    (thing(["a"], a=TEXT), thing(["a", "b"], a={"enum": ["x"]}, b={})),
    ({**thing(a=TEXT), **CLOSED}, {**thing(a=TEXT), **CLOSED}),
    ({**thing(a=NUMBER), "additionalProperties": TEXT}, {**thing(a=WHOLE, b=TEXT), **CLOSED}),
    ({"properties": {"a": TEXT}}, {**thing(b=TEXT), **CLOSED}),
    ({"patternProperties": {"^x": TEXT}}, {"type": "object", "patternProperties": {"^x": {**TEXT, "minLength": 1}}}),
    ({"propertyNames": {"maxLength": 2}}, {**thing(ab={}, a={}), **CLOSED}), ({"minProperties": 1}, thing(["a"])),
    ({"maxProperties": 2}, {**thing(a={}, b={}), **CLOSED}), ({"dependentRequired": {"a": ["b"]}}, thing(["b"], a={})),
    ({"items": NUMBER, "minItems": 1}, {"type": "array", "items": WHOLE, "minItems": 2}),
    ({"items": NUMBER}, {"type": "array", "prefixItems": [WHOLE, NUMBER], "items": False}),
    ({"prefixItems": [TEXT]}, {"$schema": DRAFT_07, "type": "array", "items": [TEXT, WHOLE]}),
    ({"uniqueItems": True}, {"type": "array", "maxItems": 1}), ({"contains": TEXT}, {"type": "array", "items": TEXT, "minItems": 1}),
    ({"anyOf": [TEXT, WHOLE]}, {"type": ["integer", "string"]}), ({"anyOf": [TEXT, WHOLE]}, {"oneOf": [WHOLE, TEXT]}),
    ({"oneOf": [CAT, DOG]}, {**DOG, "required": ["kind", "name", "age"]}), ({"oneOf": [CAT, DOG]}, {"oneOf": [DOG, CAT]}),
    ({"not": TEXT}, WHOLE), ({"not": thing(["a"])}, {**thing(b=TEXT), **CLOSED}), ({"not": {"minimum": 5}}, {**NUMBER, "maximum": 4}),
    ({"allOf": [NUMBER, {"minimum": 0}]}, {**WHOLE, "minimum": 3}), (NUMBER, {"allOf": [{"type": ["integer", "string"]}, NUMBER]}),
    ({"if": {"required": ["kind"], "properties": {"kind": {"const": "cat"}}}, "then": {"required": ["lives"]}}, DOG),
    ({"if": TEXT, "then": {"minLength": 1}, "else": {"type": "null"}}, {**TEXT, "minLength": 1}),
    (LIST, CHAIN), (LIST, LIST), ({"$ref": "#/$defs/a", "$defs": {"a": {"title": "x"}}}, TEXT),
]  # fmt: skip


@pytest.mark.requirement("A2-SCH-2", "a2acp-D7", "A2-CTR-2")
@pytest.mark.parametrize(("target", "source"), FITTING)
def test_what_fits_by_structure_is_recognised(target: Any, source: Any) -> None:
    assert accepts(target, source) == compatibility.Verdict()


MISFITS: list[tuple[Any, Any, str, str]] = [
    ({"$schema": DRAFT_07, "$ref": "#/$defs/a", "$defs": {"a": WHOLE}}, {"$schema": DRAFT_07, "$ref": "#/$defs/a", "$defs": {"a": {}}}, "no", "/$defs/a/type"),
    (WHOLE, NUMBER, "no", "/type"), (TEXT, True, "no", ""), (False, TEXT, "no", ""), ({"minimum": 1}, {**NUMBER, "minimum": 0.5}, "no", "/minimum"),
    ({"exclusiveMaximum": 5}, {**NUMBER, "maximum": 5}, "no", "/exclusiveMaximum"), ({"multipleOf": 4}, {**WHOLE, "multipleOf": 2}, "no", "/multipleOf"),
    ({"enum": ["a"]}, TEXT, "no", "/enum"), ({"const": 1}, {"enum": [1, 2]}, "no", ""), ({"minLength": 1}, TEXT, "no", "/minLength"),
    ({"maxLength": 3}, TEXT, "no", "/maxLength"), ({"pattern": "^a"}, {**TEXT, "pattern": "^ab"}, "unknown", "/pattern"),
    ({"format": "uuid"}, TEXT, "unknown", "/format"), (thing(["a"]), thing(a=TEXT), "no", "/required"),
    (thing(a=TEXT), thing(a=WHOLE), "no", "/properties/a/type"), (thing(a=TEXT), thing(), "no", "/properties/a"),
    ({**thing(a={}), **CLOSED}, {**thing(a={}, b={}), **CLOSED}, "no", "/additionalProperties"),
    ({**thing(a={}), **CLOSED}, thing(a={}), "no", "/additionalProperties"),
    (thing(**{"a/b": thing(c=TEXT)}), thing(**{"a/b": thing(c=WHOLE)}), "no", "/properties/a~1b/properties/c/type"),
    ({"items": TEXT}, {"type": "array", "items": {"type": ["string", "null"]}}, "no", "/items"),
    ({"uniqueItems": True}, {"type": "array"}, "no", "/uniqueItems"), ({"maxItems": 2}, {"type": "array"}, "no", "/maxItems"),
    ({"oneOf": [TEXT, {"minLength": 1}]}, TEXT, "unknown", "/oneOf"), ({"oneOf": [WHOLE, {"type": "null"}]}, TEXT, "no", "/oneOf"),
    ({"anyOf": [{"minLength": 5}, {"maxLength": 4}]}, TEXT, "unknown", "/anyOf"), ({"anyOf": [WHOLE, {"type": "null"}]}, TEXT, "no", "/anyOf"),
    ({"not": TEXT}, {**TEXT, "minLength": 1}, "no", "/not"), (CHAIN, LIST, "no", "/definitions/m/properties/v/type"),
    ({"unevaluatedProperties": False}, {**thing(a={}), **CLOSED}, "unknown", "/unevaluatedProperties"),
    (thing(a=TEXT), {**thing(), "patternProperties": {"^a": {}}, "additionalProperties": TEXT}, "no", "/properties/a"),
    ({"format": "duration"}, {**TEXT, "format": "duration", "$schema": DRAFT_07}, "unknown", "/format"),
]  # fmt: skip


@pytest.mark.requirement("A2-SCH-2", "a2acp-D7", "A2-CTR-2")
@pytest.mark.parametrize(("target", "source", "answer", "pointer"), MISFITS)
def test_what_does_not_fit_is_refused_by_pointer(target: Any, source: Any, answer: str, pointer: str) -> None:
    verdict = accepts(target, source)
    assert verdict.answer.value == answer
    assert pointer in [misfit.pointer for misfit in verdict.misfits]
    details = json.loads(json.dumps(verdict.details()))
    assert details["compatible"] == answer
    assert all(misfit["reason"] for misfit in details["misfits"])


@pytest.mark.requirement("A2-CTR-2")
def test_the_documents_mismatch_is_explained() -> None:
    target = thing(["test_scenario_id", "dataset_type"], test_scenario_id=TEXT, dataset_type=TEXT)
    verdict = accepts(target, thing(["scenario_id", "type"], scenario_id=TEXT, type=TEXT))
    assert verdict.answer is Answer.NO
    assert [(misfit.pointer, misfit.reason) for misfit in verdict.misfits][:2] == [
        ("/required", '"test_scenario_id" may be missing'), ("/required", '"dataset_type" may be missing'),
    ]  # fmt: skip


@pytest.mark.requirement("A2-SCH-2", "a2acp-D7")
def test_a_source_schema_that_omits_a_property_is_refused_with_what_to_do() -> None:
    """An open schema lets anything be sent under the name; either way of saying more makes it fit."""
    target, source = thing(["rows"], rows={}, note=TEXT), thing(["rows"], rows={})
    [misfit] = accepts(target, source).misfits
    assert (misfit.pointer, misfit.sure) == ("/properties/note", True)
    assert misfit.reason.startswith(
        '"note" may be anything: the source says nothing about it; declare it there, or set'
    )
    for more in (CLOSED, {"properties": {"rows": {}, "note": TEXT}}):
        assert accepts(target, {**source, **more}).answer is Answer.YES


@pytest.mark.requirement("A2-SCH-1", "A2-SCH-2", "A2-TIM-1")
def test_comparing_is_bounded_too() -> None:
    def ring(length: int) -> dict[str, Any]:
        places = {f"n{n}": thing(next={"$ref": f"#/$defs/n{(n + 1) % length}"}) for n in range(length)}
        return {"$defs": places, "$ref": "#/$defs/n0"}

    assert accepts(ring(2), ring(3)).answer is Answer.YES
    assert accepts(ring(97), ring(89)).answer is Answer.UNKNOWN
    wide = {"type": "object", "allOf": [{"anyOf": [thing([f"a{n}"]), thing([f"b{n}"])]} for n in range(20)]}
    assert accepts({"minProperties": 21}, wide).answer is not Answer.YES


@pytest.mark.requirement("A2-SCH-2", "a2acp-D7")
@SCHEMATA
@given(pairs(), st.lists(VALUES, min_size=10, max_size=20))
def test_a_yes_never_lets_a_misfit_through(pair: tuple[Any, Any], documents: list[Any]) -> None:
    """jsonschema-rs judges: whatever the source's schema allows, the target's accepts."""
    target, source = pair
    try:
        mine, theirs = subject.compile(target), subject.compile(source)
    except SchemaError:
        assume(False)
    if accepts(target, source).answer is Answer.YES:
        assert [document for document in documents if theirs.accepts(document) and not mine.accepts(document)] == []


@pytest.mark.requirement("A2-SCH-2", "a2acp-D7")
@SCHEMATA
@given(relatives())
def test_a_yes_about_one_type_never_lets_a_misfit_through(made: tuple[Any, Any, list[Any]]) -> None:
    target, source, documents = made
    mine, theirs = subject.compile(target), subject.compile(source)
    if accepts(target, source).answer is Answer.YES:
        assert [document for document in documents if theirs.accepts(document) and not mine.accepts(document)] == []


@pytest.mark.requirement("A2-SCH-2")
@SCHEMATA
@given(pairs())
def test_a_yes_is_never_disproved_by_another_method(pair: tuple[Any, Any]) -> None:
    """jsonschema-rs can compare schemas itself, without saying where they differ: its sure no is never our yes."""
    target, source = pair
    try:
        answer = accepts(target, source).answer
    except SchemaError:
        assume(False)
    if answer is Answer.YES and target.get("$schema") == source.get("$schema"):
        one, two = (jsonschema_rs.canonicalize(schema, validate_formats=True) for schema in (target, source))
        try:
            assert one.covers(two) != jsonschema_rs.canonical.Containment.NO
        except jsonschema_rs.canonical.UnsupportedOperand:  # it cannot tell, either
            pass


@SCHEMATA
@given(schemas())
def test_every_schema_accepts_itself(schema: dict[str, Any]) -> None:
    try:
        subject.compile(schema)
    except SchemaError:
        assume(False)
    assert accepts(schema, schema).answer is Answer.YES
