"""Commands about the program itself: `config` (the settings as the hub would use them here), `completion`, `version`.

The script of a completion is made of the commands themselves, all of which are imported for it, so it is printed or
installed once; a shell that completes starts nothing of ours.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import Config, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
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


Shell = Literal["bash", "zsh", "fish"]

SHELLS: tuple[Shell, ...] = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[Shell | None, Parameter(help="Which shell [the one in SHELL].")] = None,
    /,
    *,
    install: Annotated[
        bool, Parameter(negative=(), help="Put it where the shell finds it, and name it in its startup file.")
    ] = False,
) -> None:
    """Print the completion script of a shell, or install it."""
    from dragoman.cli.main import build

    meant = shell or _own()
    if not install:
        print(build().generate_completion(shell=meant))
        printing.note(f"  next: dragoman completion {meant} --install")
        return
    place = build().install_completion(shell=meant)
    printing.verdict(True, f"the completion of {meant} is in {line(place)}; a new shell has it")
    printing.suggest("dragoman --help")


def _own() -> Shell:
    name = Path(os.environ.get("SHELL", "")).name
    for shell in SHELLS:
        if name == shell:
            return shell
    raise CommandError(
        Exit.USAGE, f"{line(name or 'this shell')!r} has no completion here", next="name one: bash, zsh or fish"
    )


def installed() -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as found

    try:
        return found("dragoman")
    except PackageNotFoundError:
        return "unknown"


def version(*, output: Output = "table") -> None:
    """Print the version."""
    if output == "table":
        print(installed())
    else:
        import platform

        printing.document({"dragoman": installed(), "python": platform.python_version()}, output)
