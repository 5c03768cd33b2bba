"""`dragoman doctor`: is everything as it must be, and if not, what to do. Each line a verdict and a fix.

The checks are functions that return findings, in the order in which one would ask: the machine, the directory, the
store, the hub. None of them changes anything.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dragoman.app.datadir import DEFAULT, DataDir, DataDirError, alive
from dragoman.cli import printing
from dragoman.cli.about import installed
from dragoman.cli.arguments import LOCAL, HubLocation, Output
from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.escaping import line
from dragoman.cli.hubclient import Hub

if TYPE_CHECKING:
    from dragoman.app.settings import Settings

OLDEST_PYTHON = (3, 11)
SCARCE_SPACE = 1 << 30
NO_SPACE = 64 << 20
APART = 10.0
"""Seconds between two clocks that are more than a slow answer and a date without fractions make up. From a minute on,
messages are refused as too old or of the future."""
SILENT = 60.0
"""Seconds after which a node that shows no sign of life is named."""

Verdict = Literal["ok", "warning", "problem"]


class Finding(NamedTuple):
    check: str
    verdict: Verdict
    says: str
    fix: str = ""


MARKS = {"ok": True, "warning": None, "problem": False}


def doctor(*, output: Output = "table", location: HubLocation = LOCAL) -> int:
    """Check this machine, the data directory and the hub."""
    directory = DataDir(location.directory)
    findings: list[Finding] = []
    report = printing.Report(output)

    def add(found: Iterable[Finding]) -> None:
        for finding in found:
            findings.append(finding)
            first = f"{printing.mark(MARKS[finding.verdict], sys.stdout)} {finding.check}: {line(finding.says)}"
            lines = [first, *([f"    fix: {line(finding.fix)}"] if finding.fix else [])]
            report.add("", lines, finding._asdict())

    for check in (python, sqlite, space, permissions, write_ahead_log):
        add(check(directory))
    hub, answers = _hub(location, directory)
    add(hub)
    add(() if answers else store(directory))
    add(() if location.hub else master_key(directory))
    add(settings(directory))

    bad = [finding for finding in findings if finding.verdict == "problem"]
    odd = [finding for finding in findings if finding.verdict == "warning"]
    report.end("findings", ok=not bad)
    if output == "table":
        sentence = (
            f"{printing.count(len(bad), 'problem')}, {printing.count(len(odd), 'warning')}"
            if bad or odd
            else "all is well"
        )
        printing.verdict(not bad, sentence)
        if bad:
            printing.suggest(bad[0].fix)
    return Exit.FAILED if bad else Exit.OK


def python(_: DataDir) -> Iterator[Finding]:
    now = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info >= OLDEST_PYTHON:
        yield Finding("python", "ok", now)
    else:
        yield Finding("python", "problem", f"{now} is too old", "install Python 3.11 or newer, then `make setup`")


def sqlite(_: DataDir) -> Iterator[Finding]:
    try:
        import apsw

        from dragoman.stores.sqlite.schema import StoreRefused, require_sqlite
    except ImportError as error:
        yield Finding("sqlite", "problem", f"cannot be loaded: {error}", "install it again: make setup")
        return
    try:
        require_sqlite()
        yield Finding("sqlite", "ok", str(apsw.sqlite_lib_version()))
    except StoreRefused as error:
        yield Finding("sqlite", "problem", str(error), "pip install -U 'apsw>=3.54'")


def space(directory: DataDir) -> Iterator[Finding]:
    place = directory.path.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    sentence = f"{free / (1 << 30):.1f} GB free for {directory.path}"
    if free < NO_SPACE:
        yield Finding(
            "disk", "problem", sentence, "free some, or move the data directory: the hub refuses work without it"
        )
    elif free < SCARCE_SPACE:
        yield Finding("disk", "warning", sentence, "free some before the hub has to refuse work")
    else:
        yield Finding("disk", "ok", sentence)


PRIVATE = ("admin.token", "hub.json", "hub.sqlite", "hub.sqlite-wal", "tls")
"""What only its owner may read; keys of all kinds besides, wherever they lie in the directory."""


def permissions(directory: DataDir) -> Iterator[Finding]:
    path = directory.path
    if not path.exists():
        where = "" if str(path) == DEFAULT else f" --data {path}"
        yield Finding("data", "warning", f"{path} does not exist yet", f"it is made by: dragoman dev{where}")
        return
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "data",
            "problem",
            f"{path} is not yours to write",
            "see that its file system is writable, become its owner, or give another --data",
        )
        return
    open_ones = [
        f"{file} ({stat.S_IMODE(file.stat().st_mode):04o})"
        for file in (path, *(path / name for name in PRIVATE), *sorted(path.glob("tls/*.key")), *directory.key_files())
        if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077
    ]
    if open_ones:
        # In a closed directory an open file is out of reach, until the directory is opened.
        verdict: Verdict = "problem" if stat.S_IMODE(path.stat().st_mode) & 0o077 else "warning"
        # X: a directory is entered by its owner, a file stays what it is.
        fix = f"chmod -R go=,u=rwX {path}"
        yield Finding("data", verdict, f"not closed to others: {', '.join(open_ones)}", fix)
    else:
        yield Finding("data", "ok", f"{path} is closed to others")


def write_ahead_log(directory: DataDir) -> Iterator[Finding]:
    """Whether it comes near its limit, above which the hub takes no work."""
    from dragoman.app.settings import SettingsError, load
    from dragoman.app.settings.model import StoreSettings
    from dragoman.cli.serving import settings_file

    file = directory.path / "hub.sqlite-wal"
    try:
        size = file.stat().st_size
    except OSError:
        return
    try:
        limit = load(environ=os.environ, file=settings_file(None)).settings.store.log_limit_bytes
    except SettingsError:
        limit = StoreSettings().log_limit_bytes
    sentence = f"the write-ahead log has {size >> 20:,} MiB of at most {limit >> 20:,}"
    fix = f"another program reads the database and does not end its transaction: find it (fuser {file}) and end it"
    if size >= limit:
        yield Finding("log", "problem", f"{sentence}: the hub refuses work", fix)
    elif size > limit // 2:
        yield Finding("log", "warning", sentence, fix)
    else:
        yield Finding("log", "ok", sentence)


def _hub(location: HubLocation, directory: DataDir) -> tuple[list[Finding], bool]:
    """What there is to say, and whether a hub answers (or may be at work): then its store is left alone."""
    start = "dragoman dev" + (f" --data {directory.path}" if location.data else "")
    try:
        here = directory.whereabouts()
    except DataDirError as error:
        return [Finding("hub", "problem", str(error), "see above")], True
    if location.hub is None and here is None:
        return [Finding("hub", "warning", f"none is running in {directory.path}", f"start one: {start}")], False
    if location.hub is None and here is not None and not alive(here.pid):
        sentence = f"the last one (process {here.pid}) ended without a clean stop; nothing it accepted is lost"
        return [Finding("hub", "warning", sentence, f"start it again: {start}")], False
    try:
        hub = Hub.find(location)
        hub.ask("GET", base="/livez", patience=5.0)
    except CommandError as failure:
        fix = failure.next or "check the address"
        return [Finding("hub", "problem", failure.sentence, fix)], here is not None
    found = [Finding("hub", "ok", f"answers at {hub.url}")]
    try:
        hub.ask("GET", base="/readyz", patience=5.0)
    except CommandError as failure:
        found.append(Finding("ready", "problem", f"it takes no work: {failure.sentence}", "look at the hub's log"))
    found += (*_clock(hub), *_cluster(hub), *_token_and_version(hub))
    return found, True


def _clock(hub: Hub) -> Iterator[Finding]:
    try:
        ahead = hub.ahead(patience=5.0)
    except CommandError:
        return  # it has just been asked whether it answers
    if ahead is None:
        return
    if abs(ahead) <= APART:
        yield Finding("clock", "ok", "the hub's and this machine's agree")
        return
    sentence = f"the hub's is {printing.duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine's"
    fix = (
        "set the one that is wrong, then restart the hub: while it runs it follows a clock that was set by 36 s an hour"
    )
    yield Finding("clock", "warning", sentence, fix)


def _cluster(hub: Hub) -> Iterator[Finding]:
    """Who leads, and which nodes were not heard of for a while, where the hub is a node."""
    try:
        found: Any = hub.get("cluster")
    except CommandError:
        return  # it is none; or what is wrong is reported by the other checks
    leader = found["leader"]
    if leader is None:
        fix = "look into the nodes' logs, and whether PostgreSQL takes writes: dragoman cluster status"
        yield Finding("cluster", "problem", f"no node leads the realm {found['realm']}", fix)
        return
    now = datetime.now(UTC)
    seen = {node["name"]: printing.moment(node["last_seen"]) or now for node in found["nodes"]}
    silent = [name for name, at in seen.items() if (now - at).total_seconds() > SILENT]
    says = f"{leader} leads epoch {found['epoch']} of {printing.count(len(found['nodes']), 'node')}"
    if silent:
        yield Finding("cluster", "warning", f"{says}; not heard of: {', '.join(silent)}", "start them, or look there")
    else:
        yield Finding("cluster", "ok", says)


def _token_and_version(hub: Hub) -> Iterator[Finding]:
    try:
        hub.get("tasks", limit=1)
        yield Finding("token", "ok", "the hub knows it")
    except CommandError as failure:
        yield Finding(
            "token", "problem", failure.sentence, failure.next or "set DRAGOMAN_TOKEN to the hub's admin token"
        )
    try:
        document: Any = hub.ask("GET", base="/openapi.json", patience=5.0)
        theirs = str(document["info"]["version"])
    except (CommandError, KeyError, TypeError):
        yield Finding("version", "warning", "the hub does not report its version", "look whether it is a Dragoman hub")
        return
    ours = installed()
    if theirs == ours:
        yield Finding("version", "ok", f"{ours}, here and there")
    else:
        yield Finding(
            "version", "warning", f"this command is {ours}, the hub is {theirs}", "use the same version for both"
        )


def store(directory: DataDir) -> Iterator[Finding]:
    """The whole database, while no hub works on it."""
    file = directory.path / "hub.sqlite"
    if not file.exists():
        return
    try:
        import apsw

        from dragoman.stores.sqlite import schema, writer_process
        from dragoman.stores.sqlite.schema import StoreInUse, StoreRefused
    except ImportError:
        return  # `sqlite` has reported it already

    restore = "restore the newest backup as hub.sqlite (dragoman backup makes them)"
    try:
        held = asyncio.run(writer_process.lock_directory(directory.path))
    except StoreInUse as error:
        yield Finding("store", "warning", f"not checked: {error}", "stop that hub, then ask again")
        return
    try:
        with closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            complaints = schema.integrity(connection)
            if not complaints:
                schema.known_version(connection, str(file))
    except StoreRefused as error:
        yield Finding("store", "problem", error.problem, error.advice)
        return
    except apsw.Error as error:
        complaints = [str(error)]
    finally:
        os.close(held)
    if complaints:
        yield Finding("store", "problem", f"{file} is damaged: {complaints[0]}", restore)
    else:
        yield Finding("store", "ok", f"{file} is whole ({file.stat().st_size:,} bytes)")


def master_key(directory: DataDir) -> Iterator[Finding]:
    """Whether the keys are there that something is sealed under. It only reads, so a hub may be at work."""
    file = directory.path / "hub.sqlite"
    if not file.exists():
        return
    try:
        import apsw

        from dragoman.app.keys import VARIABLE, DataVault
        from dragoman.stores.sqlite import master_keys
        from dragoman.stores.sqlite.schema import StoreRefused
    except ImportError:
        return  # `sqlite` has reported it already
    try:
        with closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            connection.set_busy_timeout(5_000)
            in_use, given_up = master_keys.keys(connection)
        DataVault(directory.path, given=os.environ.get(VARIABLE)).check(in_use, given_up)
    except StoreRefused as error:
        yield Finding("master key", "problem", error.problem, error.advice)
        return
    except apsw.Error:
        return  # `store` says what is wrong with it
    if in_use:
        yield Finding("master key", "ok", f"{', '.join(sorted(in_use))} is there")


def settings(directory: DataDir) -> Iterator[Finding]:
    """Whether they make sense, and whether what they name for TLS and for tokens can be used."""
    from dragoman.app.settings import SettingsError, load
    from dragoman.cli.serving import settings_file

    named = os.environ.get("DRAGOMAN_CONFIG")
    try:
        found = load(environ=os.environ, file=settings_file(Path(named) if named else None)).settings
        yield Finding("settings", "ok", "make sense")
    except SettingsError as error:
        for problem in error.problems:
            yield Finding("settings", "problem", problem, "correct it, then: dragoman config show --origin")
        return
    tls, coven = found.tls, found.coven
    made = directory.path / "tls"
    pairs = {(tls.certificate, tls.key), (coven.tls_certificate, coven.tls_key)}
    if not any(certificate for certificate, _ in pairs) and (made / "server.pem").exists():
        pairs.add((str(made / "server.pem"), str(made / "server.key")))  # made by `dragoman cert`, served by a flag
    for certificate, key in sorted(pairs, key=str):
        if certificate and key:
            yield certificates(Path(certificate), Path(key), Path(tls.client_ca) if tls.client_ca else None)
    yield from keys(found, directory)
    if found.amqp.url is not None:
        yield asyncio.run(broker(found))


async def broker(settings: Settings) -> Finding:
    """Whether the broker lets the hub in."""
    from dragoman.amqp import Broker, Lost, Missing, NotAllowed
    from dragoman.app.endpoints import broker_of
    from dragoman.security.trust import TrustProblem

    try:
        place, tls = broker_of(settings.amqp)
        found = await Broker.connect(place, tls=tls(), name="dragoman doctor")
    except (Missing, TrustProblem) as problem:
        return Finding("broker", "problem", str(problem), "do that, then ask again")
    except NotAllowed as refused:
        return Finding("broker", "problem", str(refused), "correct the user and the password in amqp.url")
    except Lost as lost:
        return Finding("broker", "problem", str(lost), "start the broker, or correct amqp.url")
    await found.close()
    return Finding("broker", "ok", f"{place.shown} lets the hub in")


def keys(settings: Settings, directory: DataDir) -> Iterator[Finding]:
    """Those that tokens are signed with, if they cannot be used."""
    from msgspec import structs

    from dragoman.app.keys import SigningKeys
    from dragoman.security.keys import KeyProblem
    from dragoman.security.private import PrivateFileError

    try:
        SigningKeys(structs.replace(settings, data=str(directory.path))).check()
    except (KeyProblem, PrivateFileError) as problem:
        yield Finding("keys", "problem", problem.problem, problem.advice)


def certificates(certificate: Path, key: Path, client_ca: Path | None) -> Finding:
    """Readable, a pair, closed to others, and good for a while yet."""
    from dragoman.app.certificates import DAY, SOON
    from dragoman.security.tls import Files, TlsProblem, how_to_renew, read_pair, server_context

    now = int(time.time())
    files = Files(certificate=certificate, key=key, client_ca=client_ca)
    try:
        server_context(files, now)
        left = read_pair(files, now).not_after - now
    except TlsProblem as problem:
        return Finding("tls", "problem", problem.problem, problem.advice)
    sentence = f"{certificate} is good for {printing.count(left // DAY, 'day')}"
    if left < SOON:
        fix = f"renew it; the hub takes it without a restart: {how_to_renew(certificate)}"
        return Finding("tls", "warning", sentence, fix)
    return Finding("tls", "ok", sentence)
