"""Made-up schemas and documents of one small world, so that two schemas have something to say about each other."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

from dragoman.wire.schema.library import DRAFT_07, DRAFT_2020

NAMES = ("a", "b", "ab")
PATTERNS = ("^a", "b$", "^x")
TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
FORMATS = ("uuid", "date", "ipv4", "duration", "made-up")
NUMBERS = st.sampled_from([-2, -1, 0, 0.5, 1, 1.0, 1.5, 2, 3, 4, 6])
STRINGS = st.sampled_from(["", "a", "b", "ab", "xx", "2026-01-27", "10.0.0.1", "P1D", "YWI="])

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "x", "y"]), inner, max_size=3),
    max_leaves=6,
)
SMALL = st.integers(0, 3)
NAME_LISTS = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    branches = st.lists(inner, min_size=1, max_size=3)
    common: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=4, unique_by=repr),
        "const": VALUES,
        "minimum": NUMBERS, "maximum": NUMBERS, "exclusiveMinimum": NUMBERS, "exclusiveMaximum": NUMBERS,
        "multipleOf": st.sampled_from([1, 2, 3, 0.5, 6]),
        "minLength": SMALL, "maxLength": SMALL, "pattern": st.sampled_from(PATTERNS),
        "format": st.sampled_from(FORMATS),
        "contentEncoding": st.just("base64"),
        "minItems": SMALL, "maxItems": SMALL, "uniqueItems": st.booleans(), "items": inner, "contains": inner,
        "minProperties": SMALL, "maxProperties": SMALL, "required": NAME_LISTS,
        "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), inner, max_size=2),
        "additionalProperties": inner, "propertyNames": inner,
        "dependencies": st.dictionaries(st.sampled_from(NAMES), NAME_LISTS | inner, max_size=1),
        "allOf": branches, "anyOf": branches, "oneOf": branches, "not": inner,
        "if": inner, "then": inner, "else": inner, "title": st.just("t"),
    }  # fmt: skip
    modern: dict[str, st.SearchStrategy[Any]] = {
        "prefixItems": branches, "minContains": SMALL, "maxContains": SMALL, "unevaluatedProperties": inner,
        "unevaluatedItems": inner, "additionalItems": inner,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), NAME_LISTS, max_size=1),
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
        "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
    }  # fmt: skip
    words = {**common, **modern}
    chosen = st.lists(st.sampled_from(sorted(words)), max_size=4, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: words[name] for name in names}))


SUBSCHEMAS = st.recursive(st.booleans() | st.builds(dict), _schemas, max_leaves=6)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """A whole schema, with two definitions to refer to."""
    made = draw(_schemas(SUBSCHEMAS))
    whole = {**made, "$defs": {"one": draw(SUBSCHEMAS), "two": draw(SUBSCHEMAS)}}
    if draw(st.integers(0, 3)) == 0:
        whole["$schema"] = draw(st.sampled_from([DRAFT_07, f"{DRAFT_07}#", DRAFT_2020]))
    return whole


LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [True, False, {"type": "integer"}, {"type": "number"}, {"type": "string"}, {"minimum": 1}, {"maximum": 2},
     {"minLength": 1}, {"maxLength": 1}, {"const": 1}, {"enum": ["a", "b"]}, {"required": ["a"]}, {"type": "object"}]
)  # fmt: skip
#: Words that speak of the same thing: two schemas made of one row meet more often than two of all words.
FAMILIES: tuple[tuple[str, dict[str, st.SearchStrategy[Any]]], ...] = (
    ("number", {"minimum": NUMBERS, "maximum": NUMBERS, "exclusiveMinimum": NUMBERS, "exclusiveMaximum": NUMBERS,
                "multipleOf": st.sampled_from([1, 2, 3, 0.5, 6])}),
    ("string", {"minLength": SMALL, "maxLength": SMALL, "pattern": st.sampled_from(PATTERNS),
                "format": st.sampled_from(FORMATS), "enum": st.lists(STRINGS, min_size=1, max_size=3, unique=True)}),
    ("array", {"minItems": SMALL, "maxItems": SMALL, "uniqueItems": st.booleans(), "items": LEAVES,
               "prefixItems": st.lists(LEAVES, min_size=1, max_size=2),
               "contains": LEAVES}),
    ("object", {"required": NAME_LISTS, "properties": st.dictionaries(st.sampled_from(NAMES), LEAVES,
                                                                      max_size=2),
                "patternProperties": st.dictionaries(st.sampled_from(PATTERNS), LEAVES, max_size=1),
                "additionalProperties": LEAVES, "minProperties": SMALL, "maxProperties": SMALL,
                "propertyNames": st.sampled_from([{"maxLength": 1}, {"pattern": "^a"}, True]),
                "dependentRequired": st.dictionaries(st.sampled_from(NAMES), NAME_LISTS, max_size=1)}),
    ("any", {"anyOf": st.lists(LEAVES, min_size=1, max_size=3),
             "oneOf": st.lists(LEAVES, min_size=1, max_size=3), "not": LEAVES,
             "if": LEAVES, "then": LEAVES, "else": LEAVES,
             "type": st.sampled_from(TYPES)}),
)  # fmt: skip
LEAF_VALUES: st.SearchStrategy[Any] = st.sampled_from([None, True, 0, 1, 2, 0.5, "", "a", "ab", {}, {"a": 1}])
FAMILY_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "number": NUMBERS,
    "string": STRINGS,
    "array": st.lists(LEAF_VALUES, max_size=4),
    "object": st.dictionaries(st.sampled_from([*NAMES, "x", "y"]), LEAF_VALUES, max_size=4),
    "any": LEAF_VALUES,
}


@st.composite
def relatives(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], list[Any]]:
    """Two schemas about one type, (target, source), and documents of that type."""
    kind, words = draw(st.sampled_from(FAMILIES))

    def made(most: int) -> dict[str, Any]:
        chosen = draw(st.lists(st.sampled_from(sorted(words)), min_size=1, max_size=most, unique=True))
        schema = {word: draw(words[word]) for word in chosen}
        return schema if kind == "any" or draw(st.booleans()) else {**schema, "type": kind}

    return made(2), made(4), draw(st.lists(FAMILY_VALUES[kind], min_size=20, max_size=30))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two schemas, (target, source): often nearly the same one, since strangers seldom fit."""
    source = draw(schemas())
    if draw(st.integers(0, 3)) == 0:
        return draw(schemas()), source
    target = copy.deepcopy(source)
    for _ in range(draw(st.integers(0, 3))):
        other = draw(schemas())
        places = [place for place in _places(target) if isinstance(place, dict)]
        place = places[draw(st.integers(0, len(places) - 1))]
        words = sorted(set(place) - {"$schema", "$defs"})
        if words and draw(st.booleans()):
            del place[draw(st.sampled_from(words))]
        else:
            additions = sorted(set(other) - {"$schema", "$defs"})
            if additions:
                name = draw(st.sampled_from(additions))
                place[name] = copy.deepcopy(other[name])
    if draw(st.booleans()):
        source, target = target, source
    return copy.deepcopy(target), source


def _places(schema: Any) -> list[Any]:
    """A schema and some of those in it."""
    found = [schema]
    for place in found:
        if isinstance(place, dict):
            for word in ("properties", "$defs", "patternProperties"):
                found += list(place.get(word, {}).values())
            for word in ("allOf", "anyOf", "oneOf", "prefixItems"):
                found += place.get(word, [])
            found += [place[word] for word in ("items", "additionalProperties", "contains") if word in place]
    return found
