"""Is every document that one schema allows accepted by another? (D7)

The schemas need not be equal: a source that sends less, or restricts more, fits a target that accepts more. There are
three answers, and only the first lets two agents work together:

    YES      every document fits; a test checks this promise against jsonschema-rs with generated schemas
    NO       a document that the source may send does not fit; the answer says where and why. It is assumed that
             documents which a schema describes can occur
    UNKNOWN  the comparison found no answer, and says where: treated as NO with that reason

The documents of the source are divided until there is one case (`anyOf`, `oneOf`, one type at a time), or so few that
each can be tried; and each case must satisfy every keyword of the target. Recursive schemas are compared by assuming,
while two places are being compared, that they fit: documents are finite, so this is sound where each turn goes deeper,
which `library` requires. The work is bounded: beyond `STEPS` the answer is UNKNOWN.

    target's keyword               fits where the source
    -----------------------------  ----------------------------------------------------------------------------
    type, enum, const              has no other type, no other value
    minimum … maxLength, maxItems  has bounds within these
    multipleOf                     has a multiple of it
    pattern, format, content…      has exactly the same
    properties, required, …        requires as much, and each property fits; unnamed ones fit additionalProperties
    items, prefixItems, contains   fits element by element
    allOf, anyOf, oneOf, not       fits all, one, exactly one and surely no other, surely not
    if, then, else                 fits `then` where `if` holds, and `else`, unless `if` always holds
    unevaluated…                   has exactly the same
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.wire.schema.conjunction import (
    Conjunction,
    Node,
    Number,
    Side,
    disjoint,
    elements,
    highest,
    lowest,
    types_meet,
)
from dragoman.wire.schema.library import BOUNDS, DRAFT_2020, Bounds, Document, Schema, examine, validator

STEPS = 10_000
DEEPEST = 64
MOST = 20
"""So many misfits are reported."""

CLOSE = "set additionalProperties to false where nothing else is sent"
"""What a source can do that is silent about properties: silence means that they may be sent, as anything."""

#: Formats that both drafts check, and in the same way.
COMMON_FORMATS = frozenset({"date-time", "date", "email", "ipv4", "ipv6", "uri", "uuid"})


class Answer(enum.StrEnum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Misfit(Struct, frozen=True):
    """Where in the target's schema, where in the source's, and why. `sure` is false where the answer is UNKNOWN."""

    pointer: str
    source: str
    reason: str
    sure: bool


class Verdict(Struct, frozen=True):
    misfits: tuple[Misfit, ...] = ()

    @property
    def answer(self) -> Answer:
        if not self.misfits:
            return Answer.YES
        return Answer.NO if _any_sure(self.misfits) else Answer.UNKNOWN

    def details(self) -> dict[str, Any]:
        """For the details of a SCHEMA_MISMATCH."""
        reported = [{"pointer": one.pointer, "source": one.source, "reason": one.reason} for one in self.misfits]
        return {"compatible": self.answer.value, "misfits": reported}


def accepts(target: Schema | Document, source: Schema | Document, bounds: Bounds = BOUNDS) -> Verdict:
    """Whether the target takes all that the source may send; raises `SchemaError` for a schema that is none."""
    sides = []
    for name, given in (("target", target), ("source", source)):
        document = given if isinstance(given, Document) else examine(given, bounds)
        validator(document.root, document.dialect, bounds)  # also checks it against its meta-schema
        sides.append(Side(document, name))
    here, there = sides
    found = _Comparison().fits(Conjunction([Node(there, "")]), Node(here, ""), frozenset())
    return Verdict(tuple(dict.fromkeys(found))[:MOST])


class _Comparison:
    """One comparison: the assumptions so far, and how much work is left."""

    def __init__(self) -> None:
        self._supposed: set[Any] = set()
        self._left = STEPS
        self._depth = 0

    def fits(self, source: Conjunction, target: Node, split: frozenset[tuple[Node, str]]) -> list[Misfit]:
        """Why not every document of `source` satisfies `target`; nothing where every one does. `split` names the
        alternatives that were taken apart already."""
        schema = target.schema
        if schema is True or schema == {} or source.empty:
            return []
        self._left -= 1 + len(source.atoms)
        if self._left < 0 or self._depth > DEEPEST:
            return [_misfit(source, target, "too much to compare", sure=False)]
        key = (frozenset(source.nodes), source.type, target, split)
        if key in self._supposed or any(atom.equals(target) for atom in source.atoms):
            return []
        self._supposed.add(key)
        self._depth += 1
        found = self._case(source, target, split)
        if found and not source.atoms and source.type is None:
            found = [
                _misfit(source, target, "may be anything: the source says nothing about it", sure=_any_sure(found))
            ]
        self._depth -= 1
        self._supposed.discard(key)
        return found

    def _case(self, source: Conjunction, target: Node, split: frozenset[tuple[Node, str]]) -> list[Misfit]:
        few = source.candidates()
        if few is not None:
            wrong = next((value for value in few if not target.accepts(value)), _NONE)
            return [] if wrong is _NONE else [_misfit(source, target, f"{_short(wrong)} is not accepted")]
        for keyword in ("anyOf", "oneOf"):
            for atom, branches in source.places_with(keyword):
                if (atom, keyword) not in split:
                    after = split | {(atom, keyword)}
                    cases = [source.plus(atom.inner(keyword, number)) for number in range(len(branches))]
                    return [found for case in cases for found in self.fits(case, target, after)]
        types = source.types
        if source.type is None and len(types) != 1:
            return [found for type in types for found in self.fits(source.of(type), target, split)]
        if not types:
            return []
        source = source if source.type == types[0] else source.of(types[0])
        if target.schema is False:
            return [_misfit(source, target, f"no {types[0]} is accepted here")]
        return list(self._words(source, target, split))

    # -- the target's keywords, one after the other; the source is of one type --

    def _words(self, source: Conjunction, target: Node, split: frozenset[tuple[Node, str]]) -> Iterator[Misfit]:
        schema = target.schema
        assert isinstance(schema, dict)
        if "$ref" in schema and target.referred is not None:
            yield from self.fits(source, target.referred, split)
        wanted = schema.get("type", source.type or "")
        allowed = {wanted} if isinstance(wanted, str) else set(wanted)
        if types_meet(source.type or "", allowed) != source.type:
            yield _misfit(source, target, f"type {source.type} is not accepted, only {_short(wanted)}", "type")
            return
        for keyword in ("enum", "const"):
            if keyword in schema:
                yield _misfit(source, target, f"the source is not bound to {_short(schema[keyword])}", keyword)
        for number in range(len(schema.get("allOf", ()))):
            yield from self.fits(source, target.inner("allOf", number), split)
        yield from self._alternatives(source, target, schema, split)
        own = _WORDS.get("number" if source.type == "integer" else source.type or "")
        if own is not None:
            yield from own(self, source, target, schema)

    def _alternatives(
        self, source: Conjunction, target: Node, schema: dict[str, Any], split: frozenset[tuple[Node, str]]
    ) -> Iterator[Misfit]:
        if "anyOf" in schema and not _same(source, target, "anyOf"):
            branches = [target.inner("anyOf", number) for number in range(len(schema["anyOf"]))]
            if all(self.fits(source, branch, split) for branch in branches):
                sure = all(disjoint(source, branch) for branch in branches)
                yield _misfit(source, target, "fits none of the alternatives as a whole", "anyOf", sure=sure)
        if "oneOf" in schema and not _same(source, target, "oneOf"):
            branches = [target.inner("oneOf", number) for number in range(len(schema["oneOf"]))]
            apart = [disjoint(source, branch) for branch in branches]
            chosen = [number for number, away in enumerate(apart) if not away]
            if len(chosen) != 1:
                reason = "may fit several of the alternatives" if chosen else "fits none of the alternatives"
                yield _misfit(source, target, reason, "oneOf", sure=not chosen)
            else:
                yield from self.fits(source, branches[chosen[0]], split)
        if "not" in schema and not _same(source, target, "not") and not disjoint(source, target.inner("not")):
            sure = not self.fits(source, target.inner("not"), split)
            yield _misfit(source, target, "may be what is excluded here", "not", sure=sure)
        if "if" in schema:
            condition = target.inner("if")
            if "then" in schema and not disjoint(source, condition):
                yield from _unsure(self.fits(source.plus(condition), target.inner("then"), split))
            if "else" in schema and self.fits(source, condition, split):
                yield from _unsure(self.fits(source, target.inner("else"), split))

    def _number(self, source: Conjunction, target: Node, schema: dict[str, Any]) -> Iterator[Misfit]:
        integer = source.type == "integer"
        for keyword, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            included, excluded = ([schema[word]] if word in schema else [] for word in (keyword, strict))
            named = keyword if keyword in schema else strict
            if keyword == "minimum":
                low, wanted = source.lower(integer), lowest(included, excluded, integer)
                if low < wanted:
                    yield _misfit(source, target, f"may be as low as {low.value}", named)
            else:
                high, wanted = source.upper(integer), highest(included, excluded, integer)
                if (high.value, not high.open) > (wanted.value, not wanted.open):
                    yield _misfit(source, target, f"may be as high as {high.value}", named)
        if "multipleOf" in schema:
            step = schema["multipleOf"]
            known = [*source.values("multipleOf"), *([1] if integer else [])]
            if not any(_divides(step, other) for other in known):
                yield _misfit(source, target, f"may be no multiple of {step}", "multipleOf")

    def _string(self, source: Conjunction, target: Node, schema: dict[str, Any]) -> Iterator[Misfit]:
        yield from _within(source, target, schema, "minLength", "maxLength", 0, None)
        for keyword in ("pattern", "format", "contentEncoding", "contentMediaType"):
            if keyword not in schema or (keyword.startswith("content") and _dialect(target) == DRAFT_2020):
                continue
            same = [atom for atom, value in source.places_with(keyword) if value == schema[keyword]]
            if keyword == "format" and schema[keyword] not in COMMON_FORMATS:
                same = [atom for atom in same if _dialect(atom) == _dialect(target)]
            if not same:
                yield _misfit(source, target, f"does not promise {_short(schema[keyword])}", keyword, sure=False)

    def _array(self, source: Conjunction, target: Node, schema: dict[str, Any]) -> Iterator[Misfit]:
        longest = source.longest
        yield from _within(source, target, schema, "minItems", "maxItems", 0, longest)
        prefix = max(source.prefix, Conjunction([target]).prefix)
        for index in range(prefix + 1):
            if index < longest:
                for place in elements(target, index):
                    yield from self.fits(source.element(index), place, frozenset())
        if schema.get("uniqueItems") and longest > 1 and True not in source.values("uniqueItems"):
            yield _misfit(source, target, "may repeat an element", "uniqueItems")
        if "contains" in schema:
            yield from self._contains(source, target, schema, prefix)
        yield from _identical(source, target, schema, "unevaluatedItems")

    def _contains(self, source: Conjunction, target: Node, schema: dict[str, Any], prefix: int) -> Iterator[Misfit]:
        least = schema.get("minContains", 1) if _dialect(target) == DRAFT_2020 else 1
        most = schema.get("maxContains") if _dialect(target) == DRAFT_2020 else None
        wanted = target.inner("contains")
        every = all(not self.fits(source.element(index), wanted, frozenset()) for index in range(prefix + 1))
        enough = least == 0 or (every and source.least("minItems") >= least)
        if not enough or (most is not None and source.longest > most):
            yield _misfit(source, target, "may not have the elements that are wanted", "contains", sure=False)

    def _object(self, source: Conjunction, target: Node, schema: dict[str, Any]) -> Iterator[Misfit]:
        required, named, others = source.required, source.named, source.others()
        for name in schema.get("required", ()):
            if name not in required:
                yield _misfit(source, target, f"{_short(name)} may be missing", "required")
        known = len(named) if source.closed else None
        yield from _within(source, target, schema, "minProperties", "maxProperties", len(required), known)
        patterns, additional = schema.get("patternProperties", {}), "additionalProperties" in schema
        for name in dict.fromkeys((*named, *schema.get("properties", ()))):
            value = source.member(name)
            places = [target.inner("properties", name)] if name in schema.get("properties", ()) else []
            places += [target.inner("patternProperties", one) for one in patterns if target.side.matches(one, name)]
            if not places and additional:
                places = [target.inner("additionalProperties")]
            for place in places:
                yield from self._property(value, place, name)
        for mine, value in others.items():
            for one in patterns:
                if one == mine or not (mine is None and one in others):
                    found = self.fits(value, target.inner("patternProperties", one), frozenset())
                    yield from found if one == mine else _unsure(found)
            if additional and mine not in patterns:
                yield from self._property(value, target.inner("additionalProperties"), mine)
        if "propertyNames" in schema:
            yield from self._names(source, target.inner("propertyNames"), named)
        yield from self._dependencies(source, target, schema)
        yield from _identical(source, target, schema, "unevaluatedProperties")

    def _property(self, value: Conjunction, place: Node, name: str | None) -> Iterator[Misfit]:
        silent = not value.atoms and value.type is None and not value.empty
        if place.schema is False and not value.empty:
            what = f"property {_short(name)}" if name is not None else "any other property"
            advice = f"; {CLOSE}" if silent else ""
            yield _misfit(value, place, f"{what} may be sent, but is not accepted{advice}")
            return
        found = self.fits(value, place, frozenset())
        if found and silent and name is not None:
            reason = f"{_short(name)} may be anything: the source says nothing about it; declare it there, or {CLOSE}"
            found = [_misfit(value, place, reason, sure=_any_sure(found))]
        yield from found

    def _names(self, source: Conjunction, wanted: Node, named: tuple[str, ...]) -> Iterator[Misfit]:
        for name in named:
            if not source.member(name).empty and not wanted.accepts(name):
                yield _misfit(source, wanted, f"{_short(name)} is not accepted as a name")
        if not source.closed:
            names = Conjunction(
                (atom.inner("propertyNames") for atom, _ in source.places_with("propertyNames")), "string"
            )
            yield from _unsure(self.fits(names, wanted, frozenset()))

    def _dependencies(self, source: Conjunction, target: Node, schema: dict[str, Any]) -> Iterator[Misfit]:
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, wanted in schema.get(keyword, {}).items():
                if source.member(name).empty:
                    continue
                if not isinstance(wanted, list):
                    found = self.fits(source, target.inner(keyword, name), frozenset())
                    yield from found if name in source.required else _unsure(found)
                elif missing := set(wanted) - source.required:
                    same = [also for also in source.values("dependentRequired") if missing <= set(also.get(name, ()))]
                    if not same:
                        yield _misfit(source, target, f"{_short(name)} may come without {sorted(missing)}", keyword)


_Words = Callable[[_Comparison, Conjunction, Node, dict[str, Any]], Iterator[Misfit]]
_WORDS: dict[str, _Words] = {
    "number": _Comparison._number,
    "string": _Comparison._string,
    "array": _Comparison._array,
    "object": _Comparison._object,
}
_NONE = object()
_ENCODE = msgspec.json.Encoder(order="sorted").encode


def _within(
    source: Conjunction,
    target: Node,
    schema: dict[str, Any],
    least: str,
    most: str,
    known: Number,
    limit: Number | None,
) -> Iterator[Misfit]:
    """Whether lengths lie within the target's; `known` and `limit` are what follows from other keywords."""
    low, high = max(source.least(least), known), source.most(most)
    high = high if limit is None else min(high, limit)
    if low < schema.get(least, 0):
        yield _misfit(source, target, f"may be as few as {low}", least)
    if most in schema and high > schema[most]:
        yield _misfit(source, target, f"may be more than {schema[most]}", most)


def _identical(source: Conjunction, target: Node, schema: dict[str, Any], keyword: str) -> Iterator[Misfit]:
    if schema.get(keyword, True) not in (True, {}):
        yield _misfit(source, target, "is only compared when both schemas are the same", keyword, sure=False)


def _misfit(source: Conjunction, target: Node, reason: str, keyword: str = "", *, sure: bool = True) -> Misfit:
    at = source.nodes[-1].at if source.nodes else ""
    return Misfit(target.at + (f"/{keyword}" if keyword else ""), at, reason, sure)


def _any_sure(found: Iterable[Misfit]) -> bool:
    return any(one.sure for one in found)


def _unsure(found: list[Misfit]) -> list[Misfit]:
    return [msgspec.structs.replace(one, sure=False) for one in found]


def _dialect(node: Node) -> str:
    return node.side.document.dialect


def _divides(step: Number, other: Number) -> bool:
    """Whether every multiple of `other` is one of `step`. Of fractions only the same: their arithmetic is not exact."""
    whole = float(step).is_integer() and float(other).is_integer()
    return step == other or (whole and other % step == 0)


def _same(source: Conjunction, target: Node, keyword: str) -> bool:
    """Whether the source has the same value for this keyword, without references."""
    wanted = _ENCODE(target.schema[keyword]) if isinstance(target.schema, dict) else b""
    return b'"$ref"' not in wanted and any(
        _ENCODE(value) == wanted and _dialect(atom) == _dialect(target) for atom, value in source.places_with(keyword)
    )


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}…"
