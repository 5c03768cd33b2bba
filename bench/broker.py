"""A private RabbitMQ for one measurement: its own data, its own ports, gone when the run ends.

Debian's rabbitmq-server as it is installed, started by hand: data and log in a scratch directory on a real disk,
everything bound to loopback, a port mapper (epmd) of its own, no plugins. Where it is not installed, nothing is
measured, and the run says so.
"""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import procs
from bench.figures import Settings

PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"
INSTALL = "not measured: install rabbitmq-server"
STARTING = 60.0

CONF = """\
loopback_users = none
listeners.tcp.1 = 127.0.0.1:{port}
log.console = false
log.file.level = error
vm_memory_high_watermark.relative = 0.6
"""


def installed() -> bool:
    return Path(PROGRAM).exists() and shutil.which("epmd") is not None


def version() -> str:
    """The broker's version, by the name of the directory that it lies in; empty where there is none."""
    found = re.search(r"rabbitmq_server-([0-9.]+)", str(Path(PROGRAM).resolve())) if installed() else None
    return found[1] if found else ""


@contextmanager
def broker(settings: Settings) -> Iterator[tuple[procs.Proc, int]]:
    """A fresh broker, and the port at which it takes AMQP connections as guest:guest."""
    place = Path(settings.data or procs.ROOT / "bench" / "results")
    place.mkdir(parents=True, exist_ok=True)
    port, mapper, distribution = free_ports(3)
    with tempfile.TemporaryDirectory(prefix="rabbitmq-", dir=place, ignore_cleanup_errors=True) as scratch:
        Path(scratch, "rabbitmq.conf").write_text(CONF.format(port=port))
        Path(scratch, "plugins").write_text("[].\n")
        env = {
            "HOME": scratch,
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{scratch}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{scratch}/none.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{scratch}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{scratch}/data",
            "RABBITMQ_LOG_BASE": f"{scratch}/log",
            # Without its shell around it, so that what is stopped is the broker itself.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        with (
            procs.Proc(["epmd", "-port", str(mapper), "-address", "127.0.0.1"], env=env),
            procs.Proc([PROGRAM], env=env) as server,
        ):
            await_port(port)
            yield server, port


def await_port(port: int) -> None:
    """Until it answers the opening of AMQP, not only the connection."""
    deadline = time.monotonic() + STARTING
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
                line.sendall(b"AMQP\x00\x00\x09\x01")
                if line.recv(1):
                    return
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError("the broker does not answer")
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
