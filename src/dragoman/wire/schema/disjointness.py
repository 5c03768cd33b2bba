"""Can no document satisfy both? Only a sure yes counts; what is hard to tell is no.

Asked where it matters which of several alternatives a document fits (`oneOf`, `not`, `if`): two cases are apart where
their types, their values, their ranges or the values of a property that one of them requires are.
"""

from __future__ import annotations

from dragoman.wire.schema.conjunction import Conjunction, Node, types_meet

DEPTH = 8


def disjoint(source: Conjunction, other: Node) -> bool:
    """Whether surely no document of `source` satisfies `other`."""
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
