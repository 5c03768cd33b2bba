"""What a document is known to satisfy: several schemas at once, as one set of facts.

`compatibility` asks what all documents have that a schema allows. A conjunction is a set of places that all hold, with
references followed and `allOf` joined. Leaving out a fact makes the set of documents larger, never smaller, so facts
that are too hard to express are left out: those of `not`, `if`, `contains` and similar keywords.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import jsonschema_rs
import msgspec

from dragoman.wire.schema.library import DRAFT_07, DRAFT_2020, Document, Schema, pointer, validator

TYPES = ("null", "boolean", "object", "array", "number", "string")
#: Keywords that one of the drafts does not have: there they are comments, and no fact follows from them.
ONLY_IN: dict[str, str] = {
    **dict.fromkeys(
        ("prefixItems", "minContains", "maxContains", "dependentRequired", "dependentSchemas", "unevaluatedItems",
         "unevaluatedProperties"), DRAFT_2020
    ),
    **dict.fromkeys(("additionalItems", "contentEncoding", "contentMediaType", "dependencies"), DRAFT_07),
}  # fmt: skip
FEW = 100
"""So many values in a row are tried one by one."""

Number: TypeAlias = int | float
_encode = msgspec.json.Encoder(order="sorted").encode


class Side:
    """One of the two documents, with a validator for each of its places."""

    def __init__(self, document: Document, name: str) -> None:
        self.document = document
        self.name = name
        self.whole = _encode(document.root)
        self._texts: dict[str, bytes] = {}
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        self._matches: dict[tuple[str, str], bool] = {}
        self._registry: jsonschema_rs.Registry | None = None

    def schema(self, at: str) -> Schema:
        """What counts at a place: in draft-07 nothing stands beside a reference."""
        found = self.document.places[at].schema
        if isinstance(found, dict) and self.document.dialect == DRAFT_07 and "$ref" in found:
            return {"$ref": found["$ref"]}
        return found

    def text(self, at: str) -> bytes:
        """The same as sorted JSON."""
        known = self._texts.get(at)
        if known is None:
            known = self._texts[at] = _encode(self.schema(at))
        return known

    def accepts(self, at: str, value: Any) -> bool:
        known = self._validators.get(at)
        if known is None:
            uri = f"urn:dragoman:{self.name}"
            if self._registry is None:
                root: Any = self.document.root
                draft = jsonschema_rs.Draft7 if self.document.dialect == DRAFT_07 else jsonschema_rs.Draft202012
                self._registry = jsonschema_rs.Registry([(uri, root)], draft=draft)
            whole: Schema = {"$ref": f"{uri}#{quote(at)}"} if at else self.document.root
            known = self._validators[at] = validator(whole, self.document.dialect, registry=self._registry)
        return known.is_valid(value)

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a property's name matches, by the same engine that checks documents."""
        key = (pattern, name)
        if key not in self._matches:
            self._matches[key] = validator({"pattern": pattern}, DRAFT_2020).is_valid(name)
        return self._matches[key]


class Node(NamedTuple):
    """A place in one of the documents."""

    side: Side
    at: str

    @property
    def schema(self) -> Schema:
        return self.side.schema(self.at)

    def inner(self, *path: str | int) -> Node:
        return Node(self.side, self.at + pointer(path))

    def accepts(self, value: Any) -> bool:
        return self.side.accepts(self.at, value)

    @property
    def referred(self) -> Node | None:
        """Where its reference leads."""
        for keyword, leads in self.side.document.places[self.at].parts:
            if keyword == "$ref":
                return Node(self.side, leads)
        return None

    def equals(self, other: Node) -> bool:
        """Whether both have the same text; with references in it, the whole documents must be the same."""
        if self.side.document.dialect != other.side.document.dialect:
            return False
        mine, theirs = self.side.text(self.at), other.side.text(other.at)
        if mine != theirs:
            return False
        return b'"$ref"' not in mine or (self.at == other.at and self.side.whole == other.side.whole)


class Bound(NamedTuple):
    """An end of a range; infinite where the schema has none."""

    value: Number
    open: bool


class Conjunction:
    """Documents that satisfy all of these places, and are of one type if one is given."""

    def __init__(self, nodes: Iterable[Node], type: str | None = None) -> None:
        self.nodes = tuple(dict.fromkeys(nodes))
        self.type = type
        self.empty = False
        self.atoms = tuple(self._flatten())

    def _flatten(self) -> Iterator[Node]:
        waiting, seen = list(self.nodes), set[Node]()
        while waiting:
            node = waiting.pop(0)
            schema = node.schema
            if schema is False:
                self.empty = True
            if node in seen or isinstance(schema, bool):
                continue
            seen.add(node)
            yield node
            if node.referred is not None and "$ref" in schema:
                waiting.append(node.referred)
            waiting += [node.inner("allOf", number) for number in range(len(schema.get("allOf", ())))]

    def plus(self, *nodes: Node) -> Conjunction:
        return Conjunction((*self.nodes, *nodes), self.type)

    def of(self, type: str) -> Conjunction:
        return Conjunction(self.nodes, type)

    def places_with(self, keyword: str) -> Iterator[tuple[Node, Any]]:
        """The places that have a keyword, where their draft has it, each with its value."""
        for atom in self.atoms:
            schema = atom.schema
            dialect = atom.side.document.dialect
            if isinstance(schema, dict) and keyword in schema and ONLY_IN.get(keyword, dialect) == dialect:
                yield atom, schema[keyword]

    def values(self, keyword: str) -> list[Any]:
        return [value for _, value in self.places_with(keyword)]

    # -- which types, which values --

    @property
    def types(self) -> tuple[str, ...]:
        current = [self.type] if self.type else list(TYPES)
        for named in self.values("type"):
            allowed = {named} if isinstance(named, str) else set(named)
            current = [kept for name in current if (kept := types_meet(name, allowed)) is not None]
        return tuple(current)

    def candidates(self) -> list[Any] | None:
        """All documents there are, where they are few; None where they are many."""
        listed = [*self.values("enum")] + [[value] for value in self.values("const")]
        types = self.types
        if listed:
            found = min(listed, key=len)
        elif set(types) <= {"null", "boolean"}:
            found = [None] * ("null" in types) + [True, False] * ("boolean" in types)
        elif types == ("integer",):
            low, high = self.lower(True).value, self.upper(True).value
            if not (math.isfinite(low) and math.isfinite(high)) or high - low >= FEW:
                return None
            found = list(range(int(low), int(high) + 1))
        else:
            return None
        return [value for value in found if self.accepts(value)]

    def accepts(self, value: Any) -> bool:
        fits_type = self.type is None or types_meet(_type_of(value), {self.type}) is not None
        return fits_type and not self.empty and all(atom.accepts(value) for atom in self.atoms)

    # -- numbers and lengths --

    def lower(self, integer: bool) -> Bound:
        return lowest(self.values("minimum"), self.values("exclusiveMinimum"), integer)

    def upper(self, integer: bool) -> Bound:
        return highest(self.values("maximum"), self.values("exclusiveMaximum"), integer)

    def least(self, keyword: str) -> Number:
        return max(self.values(keyword), default=0)

    def most(self, keyword: str) -> Number:
        return min(self.values(keyword), default=math.inf)

    # -- arrays --

    @property
    def prefix(self) -> int:
        """So many elements may have schemas of their own."""
        lists = [*self.values("prefixItems"), *(value for value in self.values("items") if isinstance(value, list))]
        return max(map(len, lists), default=0)

    def element(self, index: int) -> Conjunction:
        """What is known of the element at `index`."""
        return Conjunction(node for atom in self.atoms for node in elements(atom, index))

    @property
    def longest(self) -> Number:
        limit = self.most("maxItems")
        for index in range(self.prefix + 1):
            if index < limit and self.element(index).empty:
                return index
        return limit

    # -- objects --

    @property
    def required(self) -> frozenset[str]:
        return frozenset(name for names in self.values("required") for name in names)

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for names in self.values("properties") for name in names))

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(pattern for patterns in self.values("patternProperties") for pattern in patterns))

    def member(self, name: str) -> Conjunction:
        """What is known of the value of a property."""
        return Conjunction(node for atom in self.atoms for node in _property(atom, name))

    def others(self) -> dict[str | None, Conjunction]:
        """What is known of properties without a name here: of those that match a pattern, and (None) of those that
        match none. Of every such property, one of these holds."""
        found: dict[str | None, Conjunction] = {}
        for pattern in (None, *self.patterns):
            nodes: list[Node] = []
            for atom in self.atoms:
                schema = atom.schema
                assert isinstance(schema, dict)
                if pattern in schema.get("patternProperties", ()):
                    nodes.append(atom.inner("patternProperties", str(pattern)))
                elif "additionalProperties" in schema and (pattern is None or not schema.get("patternProperties")):
                    nodes.append(atom.inner("additionalProperties"))
            found[pattern] = Conjunction(nodes)
        return found

    @property
    def closed(self) -> bool:
        """Whether there are no properties but the named ones."""
        return all(other.empty for other in self.others().values())


def lowest(included: list[Number], excluded: list[Number], integer: bool) -> Bound:
    """The highest of lower bounds; between whole numbers every bound is one of them."""
    ends = [Bound(value, False) for value in included] + [Bound(value, True) for value in excluded]
    if integer:
        ends = [Bound(math.floor(end.value) + 1 if end.open else math.ceil(end.value), False) for end in ends]
    return max(ends, default=Bound(-math.inf, False))


def highest(included: list[Number], excluded: list[Number], integer: bool) -> Bound:
    """The lowest of upper bounds."""
    ends = [Bound(value, False) for value in included] + [Bound(value, True) for value in excluded]
    if integer:
        ends = [Bound(math.ceil(end.value) - 1 if end.open else math.floor(end.value), False) for end in ends]
    return min(ends, key=lambda end: (end.value, not end.open), default=Bound(math.inf, False))


def elements(atom: Node, index: int) -> Iterator[Node]:
    """The schema of the element at `index`, if there is one."""
    schema = atom.schema
    assert isinstance(schema, dict)
    modern = atom.side.document.dialect == DRAFT_2020
    listed = schema.get("prefixItems" if modern else "items", ())
    if isinstance(listed, list) and index < len(listed):
        yield atom.inner("prefixItems" if modern else "items", index)
    elif isinstance(schema.get("items"), dict | bool):
        yield atom.inner("items")
    elif not modern and "items" in schema and "additionalItems" in schema:
        yield atom.inner("additionalItems")


def _property(atom: Node, name: str) -> Iterator[Node]:
    schema = atom.schema
    assert isinstance(schema, dict)
    alone = True
    if name in schema.get("properties", ()):
        alone = False
        yield atom.inner("properties", name)
    for pattern in schema.get("patternProperties", ()):
        if atom.side.matches(pattern, name):
            alone = False
            yield atom.inner("patternProperties", pattern)
    if alone and "additionalProperties" in schema:
        yield atom.inner("additionalProperties")


def types_meet(name: str, allowed: set[str]) -> str | None:
    """What is left of a type."""
    if name in allowed or (name == "integer" and "number" in allowed):
        return name
    return "integer" if name == "number" and "integer" in allowed else None


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    return {float: "number", str: "string", list: "array"}.get(type(value), "object")


# -- whether two schemas have no document in common

DEPTH = 8


def disjoint(source: Conjunction, other: Node) -> bool:
    """Whether surely no document of `source` satisfies `other`; False where that is hard to tell.

    Asked where it matters which of several alternatives a document fits (`oneOf`, `not`, `if`).
    """
    return _apart(source, Conjunction([other]), DEPTH)


def _apart(one: Conjunction, two: Conjunction, depth: int) -> bool:
    if one.empty or two.empty:
        return True
    if depth == 0:
        return False
    for mine, theirs in ((one, two), (two, one)):
        few = mine.candidates()
        if few is not None:
            return not any(theirs.accepts(value) for value in few)
    for mine, theirs in ((one, two), (two, one)):
        for keyword in ("anyOf", "oneOf"):
            for atom, branches in mine.places_with(keyword):
                places = (Conjunction([atom.inner(keyword, number)]) for number in range(len(branches)))
                if all(_apart(theirs, place, depth - 1) for place in places):
                    return True
    shared = [type for type in one.types if types_meet(type, set(two.types)) is not None]
    return all(_apart_as(type, one, two, depth) for type in shared)


def _apart_as(type: str, one: Conjunction, two: Conjunction, depth: int) -> bool:
    if type in ("number", "integer"):
        low, high = max(one.lower(False), two.lower(False)), min(one.upper(False).value, two.upper(False).value)
        return low.value > high
    if type == "string":
        return max(one.least("minLength"), two.least("minLength")) > min(one.most("maxLength"), two.most("maxLength"))
    if type == "array":
        return max(one.least("minItems"), two.least("minItems")) > min(one.longest, two.longest)
    if type == "object":
        names = sorted(one.required | two.required)
        return any(_apart(one.member(name), two.member(name), depth - 1) for name in names)
    return False
