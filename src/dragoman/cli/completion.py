"""`dragoman completion`: what makes a shell complete our commands and options.

The script is made of the commands themselves, all of which are imported for it, so it is printed or installed once; a
shell that completes starts nothing of ours.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dragoman.cli import printing
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line

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
