"""`dev` and `serve`: read the settings, look whether a hub can start here, and hand over to the wiring."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dragoman.app.program import program
from dragoman.cli import escaping
from dragoman.cli.arguments import Config
from dragoman.cli.errors import CommandError, Exit, NotAHub

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dragoman.app.datadir import Whereabouts
    from dragoman.app.settings import Settings

ReadyJson = Annotated[bool, Parameter(negative=(), help="Print one line of JSON on stdout once it serves.")]
Amqp = Annotated[
    str | None,
    Parameter(help="A broker for chiffon, amqp://user:password@host/vhost; DRAGOMAN_AMQP keeps it out of `ps`."),
]


def dev(
    *,
    host: Annotated[str | None, Parameter(help="The address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, Parameter(help="The port for HTTP and WebSocket; 0 picks a free one [8420].")] = None,
    grpc_port: Annotated[int | None, Parameter(help="The port for gRPC; 0 picks a free one [50051].")] = None,
    certificate: Annotated[
        Path | None, Parameter(help="Speak TLS 1.3 only, with this certificate (dragoman cert makes one).")
    ] = None,
    key: Annotated[Path | None, Parameter(help="The certificate's key.")] = None,
    allow_plain: Annotated[
        bool | None, Parameter(negative=(), help="Serve without TLS even if other machines can reach the ports.")
    ] = None,
    amqp: Amqp = None,
    data: Annotated[Path | None, Parameter(help="The data directory [.dragoman].")] = None,
    demo: Annotated[bool, Parameter(help="Start demo agents beside it.")] = False,
    ready_json: ReadyJson = False,
    config: Config = None,
) -> int:
    """Start a hub on this machine, with everything in one process."""
    flags = {
        "server.host": host,
        "server.port": port,
        "server.grpc_port": 0 if grpc_port is None and port == 0 else grpc_port,  # any free one means both
        "server.allow_plain": allow_plain,
        "tls.certificate": str(certificate) if certificate is not None else None,
        "tls.key": str(key) if key is not None else None,
        "coven.guests": True,
        "amqp.url": amqp,
        "data": str(data) if data is not None else None,
    }
    typed = {
        "--demo": demo,
        "--config": config,
        "--host": host,
        "--certificate": certificate,
        "--key": key,
        "--allow-plain": allow_plain,
        "--data": data,
        "--port": port,
        "--grpc-port": grpc_port,
    }
    return _start(load_settings(flags, config), demo=demo, ready_json=ready_json, typed=typed)


def serve(
    *,
    store: Annotated[
        str | None,
        Parameter(help="Be a node of a cluster: postgresql://…; DRAGOMAN_STORE__URL keeps it out of `ps`."),
    ] = None,
    node: Annotated[str | None, Parameter(help="This node's name; no other node has it.")] = None,
    realm: Annotated[str | None, Parameter(help="Which of the hubs in that database [default].")] = None,
    host: Annotated[str | None, Parameter(help="The address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, Parameter(help="The port for HTTP and WebSocket; 0 picks a free one [8420].")] = None,
    grpc_port: Annotated[int | None, Parameter(help="The port for gRPC; 0 picks a free one [50051].")] = None,
    data: Annotated[Path | None, Parameter(help="The data directory [.dragoman].")] = None,
    amqp: Amqp = None,
    config: Config = None,
    ready_json: ReadyJson = False,
) -> int:
    """Start a hub as its settings file says; or a node of a cluster, with --store and --node."""
    flags = {
        "store.url": store,
        "cluster.node": node,
        "cluster.realm": realm,
        "server.host": host,
        "server.port": port,
        "server.grpc_port": 0 if grpc_port is None and port == 0 else grpc_port,  # any free one means both
        "data": str(data) if data is not None else None,
        "amqp.url": amqp,
    }
    return _start(load_settings(flags, config), demo=False, ready_json=ready_json, typed=None)


def load_settings(flags: dict[str, Any], config: Path | None) -> Settings:
    from dragoman.app.settings import SettingsError, load

    try:
        return load(flags=flags, environ=os.environ, file=settings_file(config)).settings
    except SettingsError as error:
        raise settings_stop(error.problems) from error


def settings_file(config: Path | None) -> Path | None:
    """The file that was named, else `dragoman.toml` here, if there is one."""
    beside = Path("dragoman.toml")
    return config or (beside if beside.exists() else None)


def settings_stop(problems: list[str]) -> CommandError:
    lines = "".join(f"\n  - {problem}" for problem in problems)
    return CommandError(
        Exit.USAGE, f"the settings are invalid:{lines}", next="correct them, then look: dragoman config show --origin"
    )


def _start(settings: Settings, *, demo: bool, ready_json: bool, typed: Mapping[str, Any] | None) -> int:
    """`typed`: the options of `dev`, by which the same hub is started again; None where a file says it all."""
    from dragoman.app.datadir import DataDir, DataDirError
    from dragoman.core.ports import StoreFailed
    from dragoman.security.keys import KeyProblem
    from dragoman.security.private import PrivateFileError
    from dragoman.security.tls import TlsProblem
    from dragoman.stores.sqlite.schema import StoreRefused

    host, port = settings.server.host, settings.server.port
    try:
        _refuse_a_second(DataDir(settings.data))
        _refuse_a_busy_port(host, port, typed, "--port", "server.port")
        if settings.coven.enabled:
            _refuse_a_busy_port(host, settings.server.grpc_port, typed, "--grpc-port", "server.grpc_port")

        from dragoman.app.process import run

        os.umask(0o077)  # whatever a hub writes, store and backups too, is its user's alone
        greeting = _greeting(settings, demo=demo, ready_json=ready_json, service=typed is None)
        return run(settings, greeting, demo=demo)
    except StoreFailed as error:  # only a node's start raises it
        raise _no_store(settings, error) from error
    except (DataDirError, StoreRefused, TlsProblem, KeyProblem, PrivateFileError) as error:
        if is_full(error, Path(settings.data)):
            raise disk_full(Path(settings.data)) from error
        # Their sentences end with what to do.
        raise CommandError(Exit.NOT_ALLOWED, str(error)) from error
    except OSError as error:
        if is_full(error, Path(settings.data)):
            raise disk_full(Path(settings.data)) from error
        # The port may have been taken between our look and the server's.
        if error.errno == errno.EADDRINUSE:
            from dragoman.server.server import GrpcPortBusy

            if isinstance(error, GrpcPortBusy):
                raise CommandError(Exit.USAGE, str(error.strerror)) from error
            raise _busy(host, port, typed, "--port", "server.port") from error
        raise


def _no_store(settings: Settings, error: Exception) -> CommandError:
    from dragoman.app.settings.model import without_password
    from dragoman.cli.cluster import unusable

    return unusable(without_password(settings.store.url or ""), settings.cluster.realm, error)


def _again(typed: Mapping[str, Any], but: str, value: int) -> str:
    """How to start the same hub once more, with one option that is another. Whatever else was typed stays: a port that
    is left out would be the default one again, which may be what is taken."""
    options = {**{option: given for option, given in typed.items() if option != but}, but: value}
    words = [
        option if given is True else f"{option} {shlex.quote(str(given))}"
        for option, given in options.items()
        if given is not None and given is not False
    ]
    return " ".join((program(), "dev", *words))


def _greeting(settings: Settings, *, demo: bool, ready_json: bool, service: bool) -> Callable[[Whereabouts], None]:
    """What is printed once the hub serves: a line of JSON for programs, a banner for people. Its link logs the browser
    in, wherever the banner goes; only a service's log, which others read, does not get the token."""

    def greet(here: Whereabouts) -> None:
        if ready_json:
            ready: dict[str, Any] = {"http": here.http, "grpc": here.grpc, "data": settings.data}
            ready["admin_token"] = here.admin_token
            ready["login"] = here.login
            if here.grpc_tls:
                ready["grpc_tls"] = True
            print(json.dumps(ready), flush=True)
        else:
            login = None if service and not sys.stderr.isatty() else here.login
            words = banner(http=here.http, data=settings.data, login=login, demo=demo)
            print(words, file=sys.stderr, flush=True)

    return greet


def _refuse_a_second(directory: Any) -> None:
    """Refuse to start beside a hub that answers for this data directory. One that died leaves a note, and no answer."""
    here = directory.whereabouts()
    if here is None:
        return
    from dragoman.cli.hubclient import Hub

    try:
        Hub(here.http, None, here.certificate).ask("GET", base="/livez", patience=2.0)
    except NotAHub:
        pass
    except CommandError as failure:
        if failure.code is Exit.UNREACHABLE:
            return
    raise CommandError(
        Exit.NOT_ALLOWED,
        f"a hub already serves {directory.path} at {here.http} (process {here.pid})",
        next=f"use it, stop it (kill {here.pid}), or start another one with --data DIR --port 0",
    )


def _refuse_a_busy_port(host: str, port: int, typed: Mapping[str, Any] | None, flag: str, setting: str) -> None:
    if port == 0:
        return
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _busy(host, port, typed, flag, setting) from error
        if error.errno == errno.EACCES:
            raise CommandError(
                Exit.NOT_ALLOWED,
                f"port {port} is reserved for the system's administrator",
                next=f"take one above 1023, for example {flag} 8420",
            ) from error
        raise CommandError(
            Exit.USAGE,
            f"the hub cannot listen on {host}: {error.strerror or error}",
            next="give an address of this machine, for example --host 127.0.0.1",
        ) from error


def _busy(host: str, port: int, typed: Mapping[str, Any] | None, flag: str, setting: str) -> CommandError:
    other = (
        f"{_again(typed, flag, port + 1 if port < 65535 else 0)}   (or {flag} 0 for any free one)"
        if typed is not None
        else f"set {setting} in the settings file to another one"
    )
    return CommandError(Exit.USAGE, f"port {port} on {host} is taken by another program", next=other)


TRY = "task ls"


def banner(
    *, http: str, data: str | Path, login: str | None = None, next: str | None = None, demo: bool = False
) -> str:
    """The facts: where it listens, where it keeps everything, and one command to try (`next`, without our name).

    With demo agents there is no command to try yet: it is printed when they have connected (`app.demo.next_commands`).

    `login` is the link that logs a browser in, once.
    """
    following = f"{program()} {next or TRY}"
    if Path(data) != Path(".dragoman") and "--data" not in following:
        following += f" --data {shlex.quote(str(data))}"
    lines = [
        "",
        f"  dragoman serves at  {http}",
        *([f"  open the dashboard  {login}"] if login else []),
        f"  everything is in    {escaping.line(data)}  (readable by you only; a restart loses nothing)",
        "  demo agents         start in a moment; --no-demo leaves them out"
        if demo
        else f"  try next            {escaping.line(following)}",
        "  stop with           Ctrl-C: work under way is kept and goes on at the next start",
        "",
    ]
    return "\n".join(lines)


FULL = (errno.ENOSPC, errno.EDQUOT)
SQLITE_FULL, SQLITE_FAILED = "FullError", "IOError"
"""What the writer process meets has no number: SQLite's error for it, and for a disk where nothing of its shared memory
fits either."""
TOO_LITTLE = 1 << 20
LARGEST = 3
"""How many of the largest things in the directory are named."""


def is_full(error: BaseException, data: Path) -> bool:
    """Whether the error, or what it came from, is about space."""
    from dragoman.stores.sqlite.schema import StoreRefused

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return True
        cause = cause.__cause__ or cause.__context__
    because = error.because if isinstance(error, StoreRefused) else ""
    if because == SQLITE_FULL:
        return True
    try:
        return because == SQLITE_FAILED and shutil.disk_usage(_there(data)).free < TOO_LITTLE
    except OSError:
        return False


def disk_full(data: Path) -> CommandError:
    place = _there(data)
    held = sorted(((_bytes(one), one.name) for one in _in(data)), reverse=True)[:LARGEST]
    named = ", ".join(f"{name} {bytes / 1e6:,.1f} MB" for bytes, name in held if bytes >= 1e6)
    largest = f"; the largest in {data}: {named}" if named else ""
    return CommandError(
        Exit.NOT_ALLOWED,
        f"the disk of {data} is full, so the hub cannot start",
        next=f"free some space there (df -h {place}){largest}. Or move {data} to another disk, and name it with --data",
    )


def _there(data: Path) -> Path:
    place = data.absolute()
    while not place.exists():
        place = place.parent
    return place


def _in(data: Path) -> list[Path]:
    try:
        return list(data.iterdir())
    except OSError:
        return []


def _bytes(path: Path) -> int:
    """What it takes on the disk, with everything below it."""
    total = 0
    for folder, _, files in os.walk(path) if path.is_dir() else [(str(path.parent), [], [path.name])]:
        for file in files:
            try:
                total += os.lstat(os.path.join(folder, file)).st_blocks * 512
            except OSError:
                continue
    return total
