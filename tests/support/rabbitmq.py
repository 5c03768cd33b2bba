"""RabbitMQ for tests: private brokers in directories of their own, and one that all tests of a run share.

    broker = Broker(directory)            a broker on free ports of loopback, with a port mapper (epmd) of its own
    broker.start(); broker.url(); broker.stop(); broker.kill(); broker.control("list_queues", "name")
    shared()                              the broker of this run; each test takes a virtual host of its own
    with virtual_host() as url: …

Debian's rabbitmq-server as it is installed, started by hand. The shared one is started by the first process that asks
(a file lock decides), under a keeper process that stops it when no process of the test run holds the lock of its users
any more, however they ended (as `tests.support.postgres`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from urllib.parse import quote

import aio_pika
import pytest
from aio_pika.exceptions import AMQPError

from tests.support.shared_server import end_after_the_last_user, starting

PATIENCE = 60.0
STEP = 0.05
STARTS = 2
"""How often the shared broker is started before its tests fail."""
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")

CONF = """\
loopback_users = none
listeners.tcp.1 = 127.0.0.1:{port}
management.tcp.ip = 127.0.0.1
management.tcp.port = {api}
log.console = false
log.file.level = error
vm_memory_high_watermark.relative = 0.6
disk_free_limit.absolute = 50MB
"""


def installed() -> bool:
    return PROGRAM.exists() and shutil.which("epmd") is not None


def need_rabbitmq() -> None:
    """Skip the test where there is no RabbitMQ."""
    if not installed():
        pytest.skip("needs rabbitmq-server: apt-get install rabbitmq-server")


class Broker:
    """A private broker. Its management API is on, so that tests see queues and set limits in milliseconds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        ports = directory / "ports"
        if ports.exists():
            self.port, self.mapper, self.distribution, self.api = map(int, ports.read_text().split())
        else:
            directory.mkdir(parents=True, exist_ok=True)
            self.port, self.mapper, self.distribution, self.api = _free_ports(4)
            ports.write_text(f"{self.port} {self.mapper} {self.distribution} {self.api}")
        self._process: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None

    # -- its life

    @property
    def _environment(self) -> dict[str, str]:
        directory = str(self.directory)
        return {
            "PATH": os.environ["PATH"],
            "HOME": directory,
            "ERL_EPMD_PORT": str(self.mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"tests{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self.distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS":
                "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{directory}/none.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{directory}/data",
            "RABBITMQ_LOG_BASE": f"{directory}/log",
            "RUNNING_UNDER_SYSTEMD": "true",  # without its shell around it: what is killed is the broker itself
        }  # fmt: skip

    def start(self) -> Broker:
        """Until it takes connections. Its data are those of the last time."""
        (self.directory / "rabbitmq.conf").write_text(CONF.format(port=self.port, api=self.api))
        (self.directory / "plugins").write_text("[rabbitmq_management].\n")
        output = (self.directory / "output").open("ab")
        try:
            given: dict[str, Any] = {
                "env": self._environment, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output,
                "start_new_session": True, "cwd": "/",
            }  # fmt: skip
            if self._epmd is None:
                epmd = ["epmd", "-port", str(self.mapper), "-address", "127.0.0.1"]
                self._epmd = subprocess.Popen(epmd, **given)
            self._process = subprocess.Popen([PROGRAM], **given)
        finally:
            output.close()
        self.wait()
        return self

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as line:
                    line.sendall(b"AMQP\x00\x00\x09\x01")
                    if line.recv(1):
                        self.ask("GET", "/api/overview")
                        return
            except OSError:
                pass
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(f"RabbitMQ ended:\n{(self.directory / 'output').read_text()[-2000:]}")
            if time.monotonic() > until:
                raise TimeoutError("RabbitMQ did not start")
            time.sleep(STEP)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As if its machine lost power."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)
            self._process.wait(PATIENCE)
            self._process = None

    def remove(self) -> None:
        self.kill()
        if self._epmd is not None:
            os.killpg(self._epmd.pid, signal.SIGKILL)
            self._epmd.wait(PATIENCE)
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- its use

    def url(self, vhost: str = "", *, port: int | None = None) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port or self.port}/{vhost}".rstrip("/")

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The management API."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.api}{path}", method=method)
        request.add_header("authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
        return json.loads(text) if text else None


class Host:
    """A virtual host: the queues of one test."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.url = broker.url(name)

    def at(self, port: int) -> str:
        """The same, through a relay."""
        return self.broker.url(self.name, port=port)

    def limit(self, queue: str, **definition: object) -> None:
        """A policy for queues of this name."""
        pattern = f"^{queue.replace('.', '[.]')}$"
        body = {"pattern": pattern, "definition": definition, "apply-to": "queues"}
        self.broker.ask("PUT", f"/api/policies/{self.name}/{quote(queue)}", body)

    def unlimit(self, queue: str) -> None:
        self.broker.ask("DELETE", f"/api/policies/{self.name}/{quote(queue)}")

    def queues(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.broker.ask("GET", f"/api/queues/{self.name}")}

    def delete(self, queue: str) -> None:
        self.broker.ask("DELETE", f"/api/queues/{self.name}/{quote(queue)}")

    def peek(self, queue: str, most: int = 1000) -> list[dict[str, Any]]:
        """The messages that wait in a queue; they stay there."""
        asked = {"count": most, "ackmode": "ack_requeue_true", "encoding": "auto"}
        found: list[dict[str, Any]] = self.broker.ask("POST", f"/api/queues/{self.name}/{quote(queue)}/get", asked)
        return found


def make_host(broker: Broker) -> Host:
    name = f"t{uuid.uuid4().hex[:12]}"
    broker.ask("PUT", f"/api/vhosts/{name}")
    broker.ask("PUT", f"/api/permissions/{name}/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    return Host(broker, name)


@contextmanager
def host() -> Iterator[Host]:
    """A virtual host of the shared broker. Skips the test where there is no RabbitMQ."""
    made = make_host(shared())
    try:
        yield made
    finally:
        made.broker.ask("DELETE", f"/api/vhosts/{made.name}")


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


# -- the broker that the tests of a run share


def private_directory(name: str) -> Path:
    return Path(gettempdir()) / f"dragoman-rabbit-{os.getpid()}-{name}"


@cache
def shared() -> Broker:
    need_rabbitmq()
    with starting("rabbit") as directory:
        if not (directory / "serves").exists() and not (directory / "failed").exists():
            subprocess.run(
                [sys.executable, "-m", "tests.support.rabbitmq", str(directory)],
                cwd=Path(__file__).parents[2], timeout=(STARTS + 1) * PATIENCE, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        if not (directory / "serves").exists():  # or every test would wait for it once more
            pytest.fail(f"RabbitMQ did not start: {(directory / 'failed').read_text()}")
    return Broker(directory)


def keep(directory: Path) -> None:
    """Start the shared broker, then watch over it in the background until nobody uses it."""
    broker = _started(directory)
    (directory / "serves").touch()

    def end() -> None:
        for pid in (broker._process, broker._epmd):  # children of the process that forked this one
            if pid is not None:
                try:
                    os.killpg(pid.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        shutil.rmtree(directory, ignore_errors=True)

    end_after_the_last_user(directory, end)


def _started(directory: Path) -> Broker:
    """On other ports where another program took one of them before the broker did. A broker that does not start leaves
    its reason in the directory."""
    for left in reversed(range(STARTS)):
        broker = Broker(directory)
        try:
            return broker.start()
        except (RuntimeError, TimeoutError) as error:
            broker.remove()
            directory.mkdir()
            if not left:
                (directory / "failed").write_text(str(error))
                raise
    raise AssertionError


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
    os._exit(0)


async def skip_if_broken(host: Host) -> None:
    """Skip the test if the broker came back from a kill with a queue that no client may consume (ADR 55)."""
    for queue in await asyncio.to_thread(host.queues):
        if not await _takes_a_consumer(host.url, queue):
            pytest.skip(f"this RabbitMQ came back with {queue} broken, for every client (ADR 55)")


async def _takes_a_consumer(url: str, queue: str) -> bool:
    """Whether a client that is not ours may consume it."""

    async def ignore(message: object) -> None:
        """It comes again to the next consumer."""

    try:
        async with asyncio.timeout(15):
            async with await aio_pika.connect(url) as connection:
                channel = await connection.channel()
                await (await channel.get_queue(queue)).consume(ignore)
    except (TimeoutError, AMQPError):
        return False
    return True
