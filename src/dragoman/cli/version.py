"""Which Dragoman this is."""

from __future__ import annotations

from dragoman.cli import printing
from dragoman.cli.options import Output


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
