"""`dragoman realms`: one address for all realms of a PostgreSQL. See `app.realms`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from dragoman.cli.cluster import Store, store_url, unusable
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.serving import ReadyJson

app = App(name="realms", help="Several hubs over one PostgreSQL at one address: serve.")


@app.command
def serve(
    *,
    store: Store = None,
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="The port for HTTP and WebSocket; 0 picks a free one.")] = 8420,
    grpc_port: Annotated[int, Parameter(help="The port for gRPC; 0 picks a free one.")] = 50051,
    certificate: Annotated[Path | None, Parameter(help="Speak TLS 1.3 only, with this certificate.")] = None,
    key: Annotated[Path | None, Parameter(help="The certificate's key.")] = None,
    ca: Annotated[Path | None, Parameter(help="The CA of the nodes' certificates [the system's].")] = None,
    allow_plain: Annotated[
        bool, Parameter(negative=(), help="Serve without TLS even if other machines can reach the ports.")
    ] = False,
    ready_json: ReadyJson = False,
) -> int:
    """Pass every request on to a node of its realm: by host name (REALM.hub.example), or by the realm of its token."""
    from dragoman.app.realms.process import Serving, run
    from dragoman.app.settings import Server, Settings, TlsSettings, is_loopback
    from dragoman.app.settings.model import without_password
    from dragoman.core.ports import StoreFailed
    from dragoman.security.tls import TlsProblem

    url = store_url(store)
    if (certificate is None) is not (key is None):
        raise CommandError(Exit.USAGE, "--certificate and --key belong together", next="dragoman cert --help")
    if certificate is None and not allow_plain and not is_loopback(host):
        raise CommandError(
            Exit.USAGE, f"other machines can reach {line(host)}, so this needs TLS",
            next="give --certificate and --key (dragoman cert), or --allow-plain behind a proxy that speaks TLS",
        )  # fmt: skip
    settings = Settings(
        server=Server(host=host, port=port, grpc_port=grpc_port, allow_plain=allow_plain),
        tls=TlsSettings(
            certificate=None if certificate is None else str(certificate), key=None if key is None else str(key)
        ),
    )

    def greet(serving: Serving) -> None:
        if ready_json:
            print(json.dumps({"http": serving.http, "grpc": serving.grpc, "realms": serving.realms}), flush=True)
            return
        realms = ", ".join(serving.realms) or "none yet: dragoman cluster init --realm NAME"
        print(f"  serves at  {serving.http}  and, for gRPC,  {serving.grpc}\n  realms     {realms}", file=sys.stderr)

    try:
        return run(settings, url, ca, greet)
    except StoreFailed as error:
        raise unusable(without_password(url), "default", error) from error
    except TlsProblem as error:
        raise CommandError(Exit.NOT_ALLOWED, str(error)) from error
    except OSError as error:
        raise CommandError(
            Exit.USAGE, f"cannot serve at {line(host)}:{port}: {error.strerror or error}",
            next="check --ca, or take another port with --port and --grpc-port",
        ) from error  # fmt: skip
