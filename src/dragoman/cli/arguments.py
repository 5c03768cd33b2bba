"""The work's input, as typed: `key=value`, `@file`, or `-` for stdin.

A value is JSON where it parses as JSON, else text: `retries=3` is a number, `name=kuma` is text, `tag='"3"'` is the
text 3. Files and stdin hold one JSON object each. Later ones win.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.security.datahome import data_home

HOW = "write key=value, @file.json, or - for JSON on stdin"
OFFERED = """write an intent, {"intent": …, "input_schema": …, "output_schema": …}, or @file.json"""


def read(arguments: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for argument in arguments:
        if argument == "-":
            found |= _object(_read(_stdin, "stdin"), "stdin")
        elif argument.startswith("@"):
            found |= _object(_read(partial(Path(argument[1:]).read_text, "utf-8-sig"), argument[1:]), argument[1:])
        else:
            if not _is_text(argument):
                raise CommandError(
                    Exit.USAGE, f"{line(argument)!r} is not UTF-8", next="write it as text, or give a @file.json"
                )
            key, equals, text = argument.partition("=")
            if argument.startswith("-") and not equals:
                raise CommandError(Exit.USAGE, f"unknown option {line(argument)}")
            if not (key and equals):
                raise CommandError(Exit.USAGE, f"{line(argument)!r} is not an argument", next=HOW)
            found[key] = value(text)
    return found


def offers(text: str) -> list[Any]:
    """The offers that one `--offer` means: an intent that takes anything, a JSON object, or a file with one or a list
    of them. What they may contain, the hub knows."""
    place = "--offer"
    if text.startswith("@"):
        place = text[1:]
        text = _read(partial(Path(place).read_text, "utf-8-sig"), place)
    elif not text.lstrip().startswith(("{", "[")):
        if not text.strip() or not _is_text(text):
            raise CommandError(Exit.USAGE, "--offer is empty", next=OFFERED)
        return [{"intent": text, "input_schema": True}]
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CommandError(Exit.USAGE, f"{line(place)} is not JSON: {line(error)}", next=OFFERED) from None
    listed = found if isinstance(found, list) else [found]
    if not listed or not all(isinstance(one, dict) for one in listed):
        raise CommandError(Exit.USAGE, f"{line(place)} does not hold an offer", next=OFFERED)
    return [{"input_schema": True, **one} for one in listed]


def value(text: str) -> Any:
    try:
        parsed = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(parsed, float) and not math.isfinite(parsed) else parsed


def _read(reader: Callable[[], str], place: str) -> str:
    try:
        return reader()
    except (OSError, UnicodeDecodeError) as error:
        why = line(getattr(error, "strerror", None) or error)
        raise CommandError(Exit.USAGE, f"{line(place)} cannot be read: {why}", next=HOW) from error


def _stdin() -> str:
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="strict")  # as JSON is, whatever the locale says
    return sys.stdin.read()


def _is_text(argument: str) -> bool:
    """Whether what was typed could be decoded: where not, half surrogate pairs stand for its bytes."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _object(text: str, place: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except RecursionError:
        raise CommandError(Exit.USAGE, f"{line(place)} is nested too deeply", next="nest it less") from None
    except ValueError as error:
        raise CommandError(Exit.USAGE, f"{line(place)} is not JSON: {line(error)}", next=HOW) from error
    if not isinstance(parsed, dict):
        raise CommandError(Exit.USAGE, f"{line(place)} does not hold a JSON object", next=HOW)
    return parsed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that is there twice, the hub would never see the first."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


CONNECTION = Group("Connection", sort_key=90)


def _not_below_zero(type_: object, value: float | None) -> None:
    if value is not None and not value >= 0:
        raise ValueError("Must be 0 or more.")


def _above_zero(type_: object, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError("Must be more than 0.")


Seconds = Annotated[float, Parameter(validator=_not_below_zero)]
Timeout = Annotated[float, Parameter(validator=_above_zero)]
Lines = Annotated[int, Parameter(name=["--lines", "-n"], validator=_not_below_zero)]

Interval = Annotated[Seconds, Parameter(help="Seconds between two requests to the hub.")]
For = Annotated[Seconds | None, Parameter(name="--for", help="Stop after this many seconds.")]

LOOK = 2.0
"""Seconds that a single look may take, also where all of them together get less."""

Limit = Annotated[int, Parameter(help="At most this many entries.")]
Cursor = Annotated[str | None, Parameter(help="Go on after this cursor, which the last page ended with.")]

AgentName = Annotated[str, Parameter(name="ID", help="The agent's id.")]
Kind = Annotated[
    str | None, Parameter(help="Its kind, for example infra: callers may ask for a kind instead of an agent.")
]
Role = Annotated[str | None, Parameter(help="worker, planner, reviewer, …")]
Capabilities = Annotated[list[str] | None, Parameter(negative=(), help="A capability of the agent; may be repeated.")]

Form = Literal["table", "json", "jsonl"]

Output = Annotated[Form, Parameter(name=["--output", "-o"], help="How to print: table, json or jsonl.")]
OutputLines = Annotated[
    Form, Parameter(name=["--output", "-o"], help="table or jsonl (json is the same as jsonl here).")
]
"""Of what never ends."""

Config = Annotated[
    Path | None,
    Parameter(name=["--config", "-c"], env_var="DRAGOMAN_CONFIG", help="The settings file [./dragoman.toml, if any]."),
]


@Parameter(name="*", group=CONNECTION)
@dataclass(frozen=True, kw_only=True)
class HubLocation:
    """How to find the hub: by its address, or by what `dragoman dev` left in its data directory."""

    hub: Annotated[
        str | None, Parameter(env_var="DRAGOMAN_URL", help="The hub's URL; its token in DRAGOMAN_TOKEN.")
    ] = None
    data: Annotated[
        Path | None, Parameter(env_var="DRAGOMAN_DATA", help="The data directory of a local hub [.dragoman].")
    ] = None

    @property
    def directory(self) -> Path:
        """The data directory that is meant, by name or as that of a hub started here."""
        return self.data or data_home(os.environ)


LOCAL = HubLocation()
