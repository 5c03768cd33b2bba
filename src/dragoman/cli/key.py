"""`dragoman key`: the keys that sign tokens (a2acp), and the master key; `dragoman cert`: certificates for TLS."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dragoman import durable
from dragoman.cli import printing
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import Column, Item, col

app = App(name="key", help="The keys that sign tokens, and the master key: ls, rotate, give-up.")

USES = {"signs": "signs", "verifies": "verifies", "shared": "shared: every holder of the secret signs"}

COLUMNS = (
    col("key", "kid"),
    col("algorithm"),
    Column("use", lambda key: USES.get(str(key.get("use")), key.get("use"))),
    col("since", "created_at"),
    col("verifies until", "verifies_until", rare=True),
)


@app.command
def ls(*, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """List the keys: the one that signs, and those whose tokens are still good."""
    found = printing.Listing(Hub.find(location).get("keys"), "keys", COLUMNS, output).items
    if output == "table":
        _summary(found)
        printing.suggest("dragoman agent ls --protocol a2acp")


@app.command
def rotate(
    *,
    distrust: Annotated[
        bool,
        Parameter(negative=(), help="The old keys may have been stolen: every token that they signed is void at once."),
    ] = False,
    output: Output = "table",
    location: HubLocation = LOCAL,
) -> None:
    """Sign with a new key. The old one verifies until the tokens that it signed are over."""
    answer = Hub.find(location).post("keys", "rotate", body={"distrust": True} if distrust else {})
    found = printing.Listing(answer, "keys", COLUMNS, output).items
    if output != "table":
        return
    _summary(found)
    if distrust:
        printing.note("  what older keys signed is void; agents fetch new tokens with their secrets")
    printing.suggest("dragoman key ls", "dragoman audit query --principal admin")


@app.command(name="give-up")
def give_up(*, output: Output = "table", location: HubLocation = LOCAL) -> None:
    """Go on without a master key that is lost for good. What it encrypted can be read again when the key is put back.

    The hub must not run. It makes a new key when it seals something next.
    """
    if location.hub:
        raise CommandError(
            Exit.USAGE, "this command works on a data directory, not on a running hub", next="name it with --data DIR"
        )
    lost = _given_up(location.directory)
    if printing.as_data({"given_up": lost}, output):
        return
    if lost:
        printing.verdict(
            True, f"given up: {', '.join(lost)}; what it encrypted cannot be read until the key is put back"
        )
    else:
        printing.verdict(None, "no key is missing; nothing was changed")
    printing.suggest("dragoman doctor")


def _given_up(data: Path) -> list[str]:
    import asyncio

    from dragoman.app.keys import DIRECTORY, FILE, MADE, VARIABLE, DataVault
    from dragoman.core.ports import StoreFailed
    from dragoman.stores.sqlite import master_keys, schema, writer_process
    from dragoman.stores.sqlite.schema import StoreRefused

    file = data / "hub.sqlite"
    if not file.exists():
        raise CommandError(Exit.NOT_FOUND, f"there is no store at {line(file)}", next="name it with --data DIR")
    try:
        held = asyncio.run(writer_process.lock_directory(data))
        try:
            connection = schema.connect(str(file))
            try:
                lacking = DataVault(data, given=os.environ.get(VARIABLE)).lacking(*master_keys.keys(connection))
                master_keys.give_up(connection, lacking)
            finally:
                connection.close()
        finally:
            os.close(held)
    except (StoreRefused, StoreFailed) as error:
        raise CommandError(Exit.NOT_ALLOWED, str(error)) from error
    if not (data / DIRECTORY / FILE).exists():
        (data / MADE).unlink(missing_ok=True)
    return sorted(lacking)


def _summary(found: Sequence[Item]) -> None:
    old = sum(key.get("use") == "verifies" for key in found)
    signing = next((line(key.get("kid")) for key in found if key.get("use") == "signs"), "no key")
    printing.verdict(
        True,
        f"{signing} signs"
        + (f", and {printing.count(old, 'older key')} still {'verifies' if old == 1 else 'verify'}" if old else ""),
    )


def cert(
    *,
    dir: Annotated[Path, Parameter(help="The directory for the files; made if missing, readable by you only.")] = Path(
        ".dragoman/tls"
    ),
    host: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help="A name or address that clients use, repeatable [those of the last one, else this machine's own].",
        ),
    ] = None,
    client: Annotated[str | None, Parameter(help="Make a client's certificate of this name instead.")] = None,
    days: Annotated[int, Parameter(help="How long it lasts.")] = 397,
    output: Output = "table",
) -> None:
    """Make a certificate for TLS, signed by a CA of your own.

    The CA in the directory is made at the first time and used again after that. Without --host, a certificate that is
    made again keeps its names.
    """
    from dragoman.security.certificates import Authority, CertificateProblem
    from dragoman.security.private import PrivateFileError
    from dragoman.security.trust import CA, CERTIFICATE, KEY

    now = datetime.now(UTC).replace(microsecond=0)
    with contextlib.suppress(OSError):  # reported below
        # By default this is the data directory, which a hub does not take when it is open to others.
        durable.make_directory(dir.parent)
    try:
        authority = Authority(dir, now)
        if client is not None:
            made = authority.client(client, now=now, days=days)
        else:
            made = authority.server(host or authority.hosts, now=now, days=days)
    except (CertificateProblem, PrivateFileError) as error:
        raise CommandError(Exit.USAGE, line(str(error))) from error

    if output != "table":
        printing.document(
            {
                "ca": str(made.ca),
                "certificate": str(made.certificate),
                "key": str(made.key),
                "names": list(made.names),
                "not_after": made.not_after.isoformat().replace("+00:00", "Z"),
                "new_ca": made.new_ca,
            },
            output,
        )
        return
    for_whom = f"the client {client}" if client is not None else ", ".join(made.names)
    printing.verdict(True, f"a certificate for {line(for_whom)}, until {made.not_after:%Y-%m-%d}")
    rows = [
        ("certificate", str(made.certificate)),
        ("key", str(made.key)),
        ("clients trust", f"{made.ca}{' (new)' if made.new_ca else ''}"),
    ]
    certificate, key, ca = (shlex.quote(str(path)) for path in (made.certificate, made.key, made.ca))
    if client is not None:
        rows += [
            ("hub's settings", f"tls.client_ca = {json.dumps(str(made.ca.absolute()))}"),
            ("", 'tls.clients = "required"'),
            ("client sets", f"{CA}={ca} {CERTIFICATE}={certificate} {KEY}={key}"),
        ]
        printing.facts(rows)
        printing.suggest(f"give {certificate}, {key} and {ca} to the client, by a safe way")
    else:
        rows += [
            ("hub's settings", f"tls.certificate = {json.dumps(str(made.certificate.absolute()))}"),
            ("", f"tls.key = {json.dumps(str(made.key.absolute()))}"),
            ("clients set", f"{CA}={ca}"),
        ]
        printing.facts(rows)
        printing.suggest(f"dragoman dev --certificate {certificate} --key {key}")
