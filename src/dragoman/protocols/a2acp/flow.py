"""A conversation as a file: what each party sends, what it expects, and what it keeps for later.

The document's two flows are such files (`examples/`). A file has parties, policies and steps:

    {"by": "source", "send": MESSAGE}                         with blanks to be filled in
    {"by": "source", "send": MESSAGE, "times": 101}           the same again and again, each under its own id
    {"by": "source", "send": MESSAGE, "later": true}          its answer comes later, as a message
    {"by": "source", "expect": MESSAGE, "keep": {NAME: POINTER}}

In a message that is sent, `{{id}}` and `{{now}}` are fresh, `{{token}}` is a good token for its source and target,
`{{token:expired}}` and `{{token:foreign}}` are bad ones, and `{{NAME}}` is what was kept. In one that is expected, only
what is written is compared; `{{any}}` is anything that is there, `{{positive}}` a number above 0. A `send` that is
meant to be broken says by `broken` which field the refusal names.

Reading, filling in and comparing are pure; the player of a flow brings the hub, the tokens and the clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.protocols.a2acp.contracts import Capability, DomainPolicy
from dragoman.protocols.a2acp.types import Agent, Name, Record
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError

LIMITS = guard.Limits(bytes=8 * 1024 * 1024, depth=64)
FRESH = frozenset({"id", "now", "token", "token:expired", "token:foreign"})
"""Blanks that a player fills in itself."""
WILD = frozenset({"any", "positive"})
"""Blanks that only an expectation has."""

_BLANK = re.compile(r"\{\{([a-z0-9_:]+)\}\}")
_MISSING = object()


class Player(Record, frozen=True, kw_only=True):
    """One party: its identity, its capabilities, and what it may be granted."""

    agent: Agent
    capabilities: tuple[Capability, ...] = ()
    grants: tuple[Name, ...] = ()


class Step(Record, frozen=True, kw_only=True):
    part: Name
    by: Name
    send: dict[str, Any] | None = None
    expect: dict[str, Any] | None = None
    keep: dict[str, str] = msgspec.field(default_factory=dict)
    times: Annotated[int, Meta(ge=1, le=10_000)] = 1
    later: bool = False
    broken: str | None = None
    about: str = ""


class Flow(Record, frozen=True, kw_only=True):
    name: Name
    about: str
    parties: dict[str, Player]
    steps: tuple[Step, ...]
    policies: tuple[DomainPolicy, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the flow, in their order."""
        return tuple(dict.fromkeys(step.part for step in self.steps))


def read(data: bytes) -> Flow:
    """A flow from its file; raises ValueError where it makes no sense."""
    try:
        flow = msgspec.convert(guard.check(data, LIMITS), Flow)
    except RemoteProtocolError as error:
        raise ValueError(error.what) from None
    kept: set[str] = set()
    for number, step in enumerate(flow.steps):
        if (step.send is None) == (step.expect is None):
            raise ValueError(f"step {number} must either send or expect")
        if step.by not in flow.parties:
            raise ValueError(f"step {number} is by {step.by!r}, who is no party")
        unknown = blanks(step.send or step.expect) - kept - (WILD if step.send is None else FRESH)
        if unknown:
            raise ValueError(f"step {number} has a blank {{{{{min(unknown)}}}}}, which no step before it keeps")
        kept |= step.keep.keys()
    return flow


def blanks(template: Any) -> set[str]:
    """The names of all blanks in a message."""
    if isinstance(template, dict):
        return set().union(*(blanks(value) for value in template.values()))
    if isinstance(template, list):
        return set().union(*(blanks(value) for value in template))
    return set(_BLANK.findall(template)) if isinstance(template, str) else set()


def fill(template: Any, blank: Callable[[str], Any]) -> Any:
    """A message with its blanks filled in. A blank alone becomes whatever value it stands for, within text its text."""
    if isinstance(template, dict):
        return {name: fill(value, blank) for name, value in template.items()}
    if isinstance(template, list):
        return [fill(value, blank) for value in template]
    if not isinstance(template, str):
        return template
    alone = _BLANK.fullmatch(template)
    return blank(alone[1]) if alone else _BLANK.sub(lambda found: str(blank(found[1])), template)


def differences(expected: Any, actual: Any, kept: Mapping[str, Any], at: str = "") -> list[str]:
    """Where a message is not what was expected, as JSON pointers with a reason."""
    if isinstance(expected, dict):
        if not isinstance(actual, dict):
            return [f"{at or '/'}: expected an object"]
        found = []
        for name, value in expected.items():
            inner = actual.get(name, _MISSING)
            found += [f"{at}/{name}: missing"] if inner is _MISSING else differences(value, inner, kept, f"{at}/{name}")
        return found
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return [text for number, (one, two) in pairs for text in differences(one, two, kept, f"{at}/{number}")]
    if expected == "{{any}}":
        return []
    if expected == "{{positive}}":
        positive = isinstance(actual, int | float) and not isinstance(actual, bool) and actual > 0
        return [] if positive else [f"{at}: expected a number above 0"]
    wanted = fill(expected, lambda name: kept.get(name, _MISSING))
    return [] if wanted == actual else [f"{at}: expected {wanted!r}"]


def taken(step: Step, message: Mapping[str, Any]) -> dict[str, Any]:
    """What a step keeps of the message that came; raises KeyError if it is absent."""
    found: dict[str, Any] = {}
    for name, pointer in step.keep.items():
        value: Any = message
        for part in pointer.split("/")[1:]:
            value = value[int(part)] if isinstance(value, list) else value[part.replace("~1", "/").replace("~0", "~")]
        found[name] = value
    return found
