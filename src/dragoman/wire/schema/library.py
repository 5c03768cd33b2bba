"""JSON Schemas of agents that the hub does not trust: checked, compiled once, and unable to fetch anything or to stall
the hub.

A schema is draft-07 or 2020-12 (D6); without `$schema` it is 2020-12. It is refused, with a JSON pointer and a reason,
when it exceeds one of these:

    bytes, depth, subschemas, enum values, length of a pattern    `Bounds`
    $ref                 only within the document: `#` or `#/…`, and to a place where a schema stands
    $id, $anchor, …      a schema has no other name than its place; `$id` at the top is allowed and means nothing
    recursion            fine where each turn goes deeper into the document, refused where it goes round in place
    visits               how often one place of a document may be looked at. Alternatives within alternatives multiply:
                         forty lines of JSON can ask for 2**40 looks. The product is bounded beforehand, for documents
                         as deep as messages may be
    pattern              of the linear-time kind: no lookaround, no backreferences, bounded when compiled

`format` is checked, `uuid` in draft-07 as well, which does not know it (D1). What a refused document held is never
repeated: faults name the place and the rule, since payloads may be personal (D13).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

import jsonschema_rs
import msgspec
from msgspec import Struct

Schema: TypeAlias = dict[str, Any] | bool

DRAFT_07 = "http://json-schema.org/draft-07/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"

#: Where a schema stands within a schema: directly, in a list, under a name.
ONE = frozenset({
    "additionalProperties", "additionalItems", "items", "contains", "propertyNames", "not", "if", "then", "else",
    "unevaluatedItems", "unevaluatedProperties", "contentSchema",
})  # fmt: skip
LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
#: Those that look at the same place of the document again, and those that are only kept for others to refer to.
IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"})
KEPT = frozenset({"$defs", "definitions", "contentSchema"})
#: Of the places within, the largest of these counts, since each of them is a different place; all others add up.
APART = frozenset({"properties", "additionalProperties", "items", "prefixItems", "additionalItems"})
NAMELESS = frozenset({"$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$recursiveAnchor", "$vocabulary"})

MASK = "the value"
HIDDEN = "*"
"""Stands in a pointer for a name that may be personal."""
UNNAMED = frozenset({"additionalProperties", "unevaluatedProperties"})
UNEXPECTED = "a property is there that is not allowed"
"""The fault of these keywords, without the names of the properties."""
# Any version of RFC 4122 and its successor. `$` alone would let a final newline through.
_UUID = re.compile("^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$(?!\\n)")
_encode = msgspec.json.Encoder(order="sorted").encode


class Bounds(Struct, frozen=True, kw_only=True):
    bytes: int = 100_000
    depth: int = 32
    subschemas: int = 1000
    values: int = 1000
    pattern: int = 1000
    compiled_pattern: int = 1_000_000
    visits: int = 200
    levels: int = 64


BOUNDS = Bounds()


class SchemaError(ValueError):
    """A schema that is not taken."""

    def __init__(self, what: str, pointer: str = "") -> None:
        super().__init__(f"{pointer}: {what}" if pointer else what)
        self.what = what
        self.pointer = pointer


class Fault(Struct, frozen=True):
    """Why a document does not fit: where in the document, what, and by which rule of the schema."""

    pointer: str
    what: str
    rule: str


class Place(Struct, frozen=True):
    """A schema within the schema: what stands there, and which others it applies."""

    schema: Schema
    parts: tuple[tuple[str, str], ...]
    """(keyword, pointer) of each; for `$ref` the pointer of where it leads."""


class Document(Struct, frozen=True):
    """An examined schema: every place in it by its pointer."""

    root: Schema
    dialect: str
    places: Mapping[str, Place]


class Compiled:
    """A schema ready for use."""

    def __init__(self, document: Document, validator: jsonschema_rs.Validator) -> None:
        self.document = document
        self._validator = validator
        self._mentioned = frozenset(_mentioned(document))

    def accepts(self, instance: Any) -> bool:
        return self._validator.is_valid(instance)

    def faults(self, instance: Any, most: int = 10, *, hidden: bool = False) -> list[Fault]:
        """What does not fit, at most so many faults. `hidden`: they also leave out names that are not the schema's
        own."""
        found: list[Fault] = []
        for error in self._validator.iter_errors(instance):
            rule = error.schema_path
            what = "a property's name does not fit" if "propertyNames" in rule else error.message
            where = error.instance_path
            if hidden:
                where = [step if isinstance(step, int) or step in self._mentioned else HIDDEN for step in where]
                what = UNEXPECTED if rule and rule[-1] in UNNAMED else what
            found.append(Fault(pointer(where), what, pointer(rule)))
            if len(found) == most:
                break
        return found

    def content(self, payload: Mapping[str, Any], reserved: frozenset[str] = frozenset()) -> dict[str, Any]:
        """A payload without the fields of the protocol itself, unless the schema names them."""
        apart = reserved - self._mentioned
        return {name: value for name, value in payload.items() if name not in apart}


def examine(schema: Any, bounds: Bounds = BOUNDS) -> Document:
    """Examine a schema, or raise `SchemaError`."""
    if not isinstance(schema, dict | bool):
        raise SchemaError("expected an object or a boolean")
    if isinstance(schema, dict) and "$id" in schema:
        schema = {keyword: value for keyword, value in schema.items() if keyword != "$id"}
    try:
        size = len(_encode(schema))
    except RecursionError:
        raise SchemaError(f"nested deeper than {bounds.depth} schemas") from None
    if size > bounds.bytes:
        raise SchemaError(f"{size} bytes exceed the limit of {bounds.bytes}")
    places: dict[str, Place] = {}
    for at, found, depth in _walk(schema):
        if depth > bounds.depth:
            raise SchemaError(f"nested deeper than {bounds.depth} schemas", at)
        if len(places) == bounds.subschemas:
            raise SchemaError(f"more than {bounds.subschemas} schemas in one", at)
        if isinstance(found, dict):
            _check_keywords(found, at, bounds)
        places[at] = Place(found, tuple(_parts(found, at)))
    for at, place in places.items():
        for keyword, leads in place.parts:
            if leads not in places:
                raise SchemaError(f"{keyword} leads to #{leads}, where no schema stands", at)
    _check_visits(places, bounds)
    return Document(schema, _dialect(schema), places)


def compile(schema: Any, bounds: Bounds = BOUNDS) -> Compiled:
    """A schema ready for use, or `SchemaError`."""
    document = examine(schema, bounds)
    return Compiled(document, validator(document.root, document.dialect, bounds))


def validator(
    schema: Schema, dialect: str, bounds: Bounds = BOUNDS, registry: jsonschema_rs.Registry | None = None
) -> jsonschema_rs.Validator:
    """A validator of jsonschema-rs, with every option set."""
    kind = jsonschema_rs.Draft7Validator if dialect == DRAFT_07 else jsonschema_rs.Draft202012Validator
    regex = jsonschema_rs.RegexOptions(size_limit=bounds.compiled_pattern, dfa_size_limit=bounds.compiled_pattern)
    try:
        return kind(
            schema,
            formats={"uuid": _is_uuid},
            validate_formats=True,
            ignore_unknown_formats=True,
            registry=registry,
            mask=MASK,
            pattern_options=regex,
            offline=True,
        )
    except jsonschema_rs.ValidationError as error:
        raise SchemaError(error.message, pointer(error.instance_path)) from None
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        raise SchemaError(str(error)) from None


class Library:
    """Compiled schemas, at most `most` of them, the least recently used forgotten first."""

    def __init__(self, most: int = 10_000, bounds: Bounds = BOUNDS) -> None:
        self.most = most
        self.bounds = bounds
        self._compiled: dict[bytes, Compiled] = {}
        self._named: dict[bytes, Compiled] = {}

    def __len__(self) -> int:
        return len(self._compiled)

    def compiled(self, schema: Schema, key: bytes | None = None) -> Compiled:
        """A schema ready for use, compiled at most once while it is remembered. `key` is a name for it that cannot mean
        another one, such as its contract and direction: it saves writing the schema out."""
        if key is not None:
            named = self._named.get(key)
            if named is not None:
                return named
            if len(self._named) >= 10 * self.most:
                self._named.clear()  # names are cheap: they are found again, under what they mean
            named = self._named[key] = self.compiled(schema)
            return named
        name = _encode(schema)
        found = self._compiled.pop(name, None) or compile(schema, self.bounds)
        self._compiled[name] = found
        if len(self._compiled) > self.most:
            del self._compiled[next(iter(self._compiled))]
        return found


def pointer(path: Any) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


# -- checking ---------------------------------------------------------------------------------------------


def _walk(schema: Schema) -> Iterator[tuple[str, Schema, int]]:
    """Every schema in a schema, with its pointer and depth. Not by recursion: a schema may be nested very deeply."""
    waiting: list[tuple[str, Any, int]] = [("", schema, 0)]
    while waiting:
        at, found, depth = waiting.pop()
        if not isinstance(found, dict | bool):
            raise SchemaError("expected a schema: an object or a boolean", at)
        yield at, found, depth
        if isinstance(found, dict):
            waiting += [(place, inner, depth + 1) for _, place, inner in _inner(found, at)]


def _inner(schema: dict[str, Any], at: str) -> Iterator[tuple[str, str, Any]]:
    for keyword, value in schema.items():
        here = f"{at}{pointer([keyword])}"
        if keyword in NAMED and isinstance(value, dict):
            for name, inner in value.items():
                if not (keyword == "dependencies" and isinstance(inner, list)):
                    yield keyword, f"{here}{pointer([name])}", inner
        elif keyword in LISTED and isinstance(value, list):
            for number, inner in enumerate(value):
                yield keyword, f"{here}/{number}", inner
        elif keyword in ONE:
            yield keyword, here, value


def _parts(schema: Schema, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(schema, dict):
        for keyword, place, _ in _inner(schema, at):
            yield keyword, place
        if "$ref" in schema:
            yield "$ref", unquote(schema["$ref"][1:])


def _check_keywords(schema: dict[str, Any], at: str, bounds: Bounds) -> None:
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise SchemaError("$ref may only point into this document, as in #/$defs/name", at)
    for keyword in NAMELESS & schema.keys():
        raise SchemaError(f"{keyword} is not supported; use $ref with a pointer", at)
    for keyword in ("$id", "$schema"):
        if at and keyword in schema:
            raise SchemaError(f"{keyword} is only allowed at the top", at)
    values = schema.get("enum", ())
    if isinstance(values, list) and len(values) > bounds.values:
        raise SchemaError(f"more than {bounds.values} values", f"{at}/enum")
    named = schema.get("patternProperties")
    for pattern in (schema.get("pattern"), *(named if isinstance(named, dict) else ())):
        if isinstance(pattern, str) and len(pattern) > bounds.pattern:
            raise SchemaError(f"a pattern longer than {bounds.pattern} characters", at)


def _check_visits(places: Mapping[str, Place], bounds: Bounds) -> None:
    """How often one place of a document can be looked at, level by level: bounded, however schemas refer to another."""
    order = _in_place_first(places)
    before: dict[str, int] = {}
    for level in range(bounds.levels + 1):
        visits: dict[str, int] = {}
        for at in order:
            apart, added = 0, 0 if level else 1
            for keyword, leads in places[at].parts:
                if keyword in KEPT:
                    continue
                if keyword in IN_PLACE or keyword == "$ref":
                    added += visits[leads]
                elif level and keyword in APART:
                    apart = max(apart, before[leads])
                elif level:
                    added += before[leads]
            visits[at] = apart + added
        if visits[""] > bounds.visits:
            raise SchemaError(f"may look at one place more than {bounds.visits} times; use fewer alternatives")
        # Beyond the limit the exact number does not matter, but an integer of a thousand digits would be slow.
        visits = {at: min(count, bounds.visits + 1) for at, count in visits.items()}
        if visits == before:
            break
        before = visits


def _in_place_first(places: Mapping[str, Place]) -> list[str]:
    """The places in an order in which whatever a schema applies in place comes before itself."""
    order: list[str] = []
    state: dict[str, bool] = {}  # False: being looked at, True: done
    for start in places:
        waiting = [(start, False)]
        while waiting:
            at, finished = waiting.pop()
            if finished:
                state[at] = True
                order.append(at)
            elif at not in state:
                state[at] = False
                waiting.append((at, True))
                for keyword, leads in places[at].parts:
                    if keyword not in IN_PLACE and keyword != "$ref":
                        continue
                    if state.get(leads) is False:
                        raise SchemaError("refers to itself without going deeper into the document", at)
                    waiting.append((leads, False))
    return order


def _mentioned(document: Document) -> Iterator[str]:
    """Every property name that a schema speaks of, anywhere."""
    for place in document.places.values():
        if isinstance(place.schema, dict):
            for keyword in ("properties", "required"):
                yield from (name for name in place.schema.get(keyword, ()) if isinstance(name, str))


def _dialect(schema: Schema) -> str:
    dialect = schema.get("$schema", DRAFT_2020) if isinstance(schema, dict) else DRAFT_2020
    name = dialect.removesuffix("#") if isinstance(dialect, str) else dialect
    if name not in (DRAFT_07, DRAFT_2020):
        raise SchemaError("expected draft-07 or 2020-12", "/$schema")
    return str(name)


def _is_uuid(value: str) -> bool:
    return _UUID.match(value) is not None
