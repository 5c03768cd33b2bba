"""Finds the data directory of the hub of this directory, which has the file that says how to reach it.

    looked for                                                where
    --------------------------------------------------------  ------------------------------------------
    DRAGOMAN_DATA                                             the environment
    `data`, relative to the file                              the settings file: DRAGOMAN_CONFIG, else ./dragoman.toml
    .dragoman

A hub that is started here without flags finds its own directory in the same way (`app.settings`), so a command typed
beside it finds it. Commands and the SDK import this before every request, so it takes nothing but the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DEFAULT = ".dragoman"
SETTINGS = "dragoman.toml"


def data_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The data directory of the hub of this directory. A settings file that no hub could start with is ignored."""
    named = environ.get("DRAGOMAN_DATA")
    if named:
        return Path(named)
    file = Path(environ.get("DRAGOMAN_CONFIG") or SETTINGS)
    try:
        text = file.read_text("utf-8")
        import tomllib  # here, because there is no such file in most places

        named = tomllib.loads(text).get("data")
    except (OSError, ValueError):
        return Path(DEFAULT)
    return file.parent / named if isinstance(named, str) and named else Path(DEFAULT)
