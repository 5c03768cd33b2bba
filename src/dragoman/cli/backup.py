"""`dragoman backup`: a consistent copy of the store. A running hub makes it itself; else we do, in its place.

Keys are no part of it: a copy that is found must not come with the keys that open it. Nor are files of tasks and the
environments of children, which lie beside the store. We say which there are, so that they are kept too.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dragoman.app.datadir import DataDir
from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub

LONG_COPY = 3600.0


def backup(
    target: Annotated[Path, Parameter(help="The file to make; it must not exist.")],
    /,
    *,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Copy the store, while the hub runs or not."""
    path = target.absolute()  # the hub may have another working directory
    if path.exists():
        raise CommandError(Exit.USAGE, f"{line(path)} exists already", next="name a new file")
    if not path.parent.is_dir():
        raise CommandError(
            Exit.USAGE, f"there is no directory {line(path.parent)}", next=f"mkdir -p {line(path.parent)}"
        )
    try:
        hub = Hub.find(location)
        hub.ask("POST", "backup", body={"target": str(path)}, patience=LONG_COPY)
        by = "hub"
    except CommandError as failure:
        if failure.code is not Exit.UNREACHABLE or location.hub:
            raise
        _offline(location.directory, path, failure)
        by = "offline"
    size = path.stat().st_size if path.exists() else None
    data = DataDir(location.directory)
    keys, beside = ([], []) if location.hub else (data.key_files(), data.beside_the_store())
    if output != "table":
        missing = [str(path.absolute()) for path in (*keys, *beside)]
        report = {"target": str(path), "bytes": size, "by": by, "not_in_it": missing}
        printing.document(report, output)
        return
    printing.verdict(True, f"the store is copied to {line(path)}" + (f" ({size:,} bytes)" if size is not None else ""))
    if keys:
        printing.note(f"  not in it: {', '.join(line(key) for key in keys)}")
        printing.note(
            "  without these keys what they encrypted cannot be read, and tokens end: keep a copy, apart from this"
        )
    if beside:
        printing.note(
            f"  nor: {', '.join(line(directory) for directory in beside)}: copy what is in there, too, after this"
        )
    printing.suggest("keep it on another disk; to restore: stop the hub and put it back as hub.sqlite")


def _offline(directory: Path, target: Path, unreachable: CommandError) -> None:
    """The store's own backup, under the store's own lock: a hub that starts meanwhile waits outside. If one is there
    after all, its answer counts."""
    from dragoman.app.settings import SettingsError
    from dragoman.cli.serving import load_settings
    from dragoman.stores.sqlite.schema import StoreInUse, StoreRefused

    settings = load_settings({"data": str(directory)}, None)
    source = settings.store_path
    if not source.exists():
        raise CommandError(
            Exit.NOT_FOUND,
            f"no hub is running, and there is no store at {line(source)}",
            next="name it with --data DIR",
        )
    os.umask(0o077)  # the copy holds everything that the store does
    try:
        asyncio.run(_copy(source, target))
    except StoreInUse:
        raise unreachable from None
    except (StoreRefused, SettingsError) as error:
        raise CommandError(Exit.NOT_ALLOWED, str(error)) from error
    except OSError as error:
        raise CommandError(
            Exit.NOT_ALLOWED, f"the copy failed: {line(error)}", next="check space and permissions"
        ) from error


async def _copy(source: Path, target: Path) -> None:
    from dragoman.stores.sqlite.store import SqliteStore

    store = SqliteStore(source)
    await store.open()
    try:
        await store.backup(str(target))
    finally:
        await store.close()
