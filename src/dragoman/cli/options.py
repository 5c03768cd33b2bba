"""The options that many commands share, spelt once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from dragoman.security.datahome import data_home

CONNECTION = Group("Connection", sort_key=90)


def _not_below_zero(type_: object, value: float | None) -> None:
    if value is not None and not value >= 0:
        raise ValueError("Must be 0 or more.")


Seconds = Annotated[float, Parameter(validator=_not_below_zero)]
Lines = Annotated[int, Parameter(name=["--lines", "-n"], validator=_not_below_zero)]

Interval = Annotated[Seconds, Parameter(help="Seconds between two looks.")]
For = Annotated[Seconds | None, Parameter(name="--for", help="Stop after so many seconds.")]

LOOK = 2.0
"""Seconds that a single look may take, also where all of them together get less."""

BREATH = 0.05
"""The least number of seconds between two looks."""

Limit = Annotated[int, Parameter(help="At most so many.")]
Cursor = Annotated[str | None, Parameter(help="Where the last page ended.")]

Form = Literal["table", "json", "jsonl"]

Output = Annotated[Form, Parameter(name=["--output", "-o"], help="How to print: table, json or jsonl.")]
OutputLines = Annotated[Form, Parameter(name=["--output", "-o"], help="table, or jsonl (json means it too).")]
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
