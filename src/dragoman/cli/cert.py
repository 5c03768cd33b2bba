"""`dragoman cert`: a CA of one's own and a certificate for the hub, so that TLS is one command away."""

from __future__ import annotations

import contextlib
import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dragoman import durable
from dragoman.cli import printing
from dragoman.cli.arguments import Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line


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
