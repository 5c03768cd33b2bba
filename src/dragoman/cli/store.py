"""`dragoman store copy`: from the data directory of a stopped hub to a realm of PostgreSQL, for nodes of a cluster."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dragoman.cli import printing
from dragoman.cli.arguments import Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line

app = App(name="store", help="The store: copy.")

EVERY = 1.0
"""Seconds between two lines of progress."""


@app.command
def copy(
    *,
    source: Annotated[Path, Parameter(name="--from", help="The data directory of a hub that is stopped.")],
    to: Annotated[str, Parameter(help="The database: postgresql://USER@HOST/DATABASE")],
    realm: Annotated[str, Parameter(help="The realm that takes it; nothing may be in it yet.")] = "default",
    files: Annotated[str | None, Parameter(help="A bucket for the bytes of files: s3://BUCKET/PREFIX")] = None,
    output: Output = "table",
) -> None:
    """Copy a hub's store, files and keys to PostgreSQL.

    The source is only read. Everything is compared before the realm is switched to the copy, in one step; a copy that
    was interrupted starts again by the same command.
    """
    from dragoman.app.keys import VARIABLE
    from dragoman.app.store_copy import Plan, copy_store
    from dragoman.cli.serving import load_settings
    from dragoman.core.ports import StoreFailed
    from dragoman.messages.faults import Refused
    from dragoman.security.private import PrivateFileError
    from dragoman.stores.postgres.connection import schema_of
    from dragoman.stores.s3_files import BucketProblem, check
    from dragoman.stores.sqlite.schema import StoreInUse, StoreRefused

    store = load_settings({"data": str(source)}, None).store_path
    if not store.exists():
        raise CommandError(Exit.NOT_FOUND, f"there is no store at {line(store)}", next="name its directory with --from")
    try:
        schema_of(realm)
        if files is not None:
            check(files)
    except (ValueError, BucketProblem) as problem:
        raise CommandError(Exit.USAGE, str(problem)) from problem
    plan = Plan(source, store, to, realm, files, os.environ.get(VARIABLE))
    progress = Progress(quiet=output != "table")
    begun = time.monotonic()
    try:
        report = asyncio.run(copy_store(plan, progress.say))
    except StoreInUse as error:
        raise CommandError(Exit.NOT_ALLOWED, str(error), next="stop that hub, and copy then") from error
    except (StoreRefused, StoreFailed, BucketProblem, PrivateFileError, Refused) as error:
        raise CommandError(Exit.NOT_ALLOWED, line(str(error))) from error
    rows = sum(report.tables.values())
    if output != "table":
        printing.document({"realm": realm, "seconds": round(time.monotonic() - begun, 3), **report._asdict()}, output)
        return
    printing.verdict(
        True, f"the realm {realm} is the hub of {line(source)}: {rows:,} rows, {report.files:,} files, compared"
    )
    printing.facts(
        [
            (
                "audit",
                f"{report.tables['audit']:,} records, the last one {report.audit_hash[:16]}…: the chain is whole",
            ),
            ("tasks", f"{report.tables['task']:,}, with {report.tables['event']:,} events"),
            ("files", f"{report.files:,} ({report.file_bytes:,} bytes)"),
            ("keys and environments", f"{report.records:,}, sealed with the master key {report.master_keys[0]}"),
        ]
    )
    printing.note(f"  give every node that key: {line(source / 'keys/master.json')}, or DRAGOMAN_MASTER_KEY")
    printing.note(f"  {line(source)} is unchanged; do not start a hub over it again, or the two go different ways")
    printing.suggest("dragoman serve --store URL --node NAME" + ("" if realm == "default" else f" --realm {realm}"))


class Progress:
    """A line now and then, on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._at = time.monotonic()

    def say(self, table: str, copied: int) -> None:
        now = time.monotonic()
        if not self._quiet and now - self._at >= EVERY:
            self._at = now
            print(f"  {table}: {copied:,} copied", file=sys.stderr, flush=True)
