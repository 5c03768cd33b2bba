"""`dragoman config`: the settings as the hub would use them here."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.options import Config, Output
from dragoman.cli.printing import col
from dragoman.cli.serving import settings_file, settings_stop

app = App(name="config", help="The settings, and where each came from: show.")


@app.command
def show(
    *,
    origin: Annotated[bool, Parameter(negative=(), help="Say where each value came from.")] = False,
    config: Config = None,
    output: Output = "table",
) -> None:
    """Print every setting."""
    from dragoman.app.settings import SettingsError, load, value_of

    file = settings_file(config)
    try:
        loaded = load(environ=os.environ, file=file)
    except SettingsError as error:
        raise settings_stop(error.problems) from error
    rows = [
        {"setting": name, "value": value_of(loaded.settings, name), "origin": str(at)}
        for name, at in loaded.origins.items()
    ]
    if output == "json":
        if origin:
            printing.document({row["setting"]: {"value": row["value"], "origin": row["origin"]} for row in rows})
        else:
            printing.document({row["setting"]: row["value"] for row in rows})
    elif output == "jsonl":
        for row in rows:
            printing.document(row if origin else {key: row[key] for key in ("setting", "value")}, output)
    else:
        printing.table(rows, [col("setting"), col("value"), *([col("origin")] if origin else [])])
        changed = sum(at.source != "default" for at in loaded.origins.values())
        printing.verdict(
            True, f"{len(rows)} settings, {changed} of them not the default" + (f"; file {file}" if file else "")
        )
        if not origin:
            printing.suggest("dragoman config show --origin")
