"""The container image: built as docs/howto/deploy.md says, and run as it says, by Debian's own tools.

No registry of images is needed: the base is made of Debian's packages and has the name that the Containerfile asks for,
with Debian's version of Python as its build argument. Root, buildah, podman, runc and mmdebstrap are needed, and what
pip needs to find packages.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.hubproc import until

ROOT = Path(__file__).parents[2]
TOOLS = ("buildah", "podman", "runc", "mmdebstrap")
PYTHON = "3.11-slim-bookworm"
BASE = f"docker.io/library/python:{PYTHON}"
IMAGE = "dragoman:test"
MOST_BYTES = 200 * 1024 * 1024
"""What the image may add to its base."""
BUILD_SECONDS = 900.0

pytestmark = pytest.mark.soak


class Engine:
    """buildah and podman with a storage of their own."""

    def __init__(self, place: Path) -> None:
        self._place = ("--root", str(place / "storage"), "--runroot", str(place / "run"), "--storage-driver", "vfs")

    def buildah(self, *arguments: str | Path, cwd: Path = ROOT) -> str:
        return run("buildah", *self._place, *arguments, cwd=cwd)

    def podman(self, *arguments: str) -> str:
        options = ("--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc")
        return run("podman", *self._place, *options, *arguments)

    def size(self, image: str) -> int:
        return int(self.podman("image", "inspect", image, "--format", "{{.Size}}"))


def run(*command: str | Path, cwd: Path = ROOT, seconds: float = BUILD_SECONDS) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, cwd=cwd, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout.strip()


def for_pip() -> Iterator[str]:
    """What pip reads on this machine, for the container in which it runs."""
    known = {Path("/etc/ssl/certs"), Path("/etc/pip.conf")}
    for line in run("pip", "config", "list").splitlines():
        words = line.partition("=")[2].strip("'").split()
        known |= {Path(word.removeprefix("file://")) for word in words if word.startswith(("/", "file:///"))}
    for path in sorted(known):
        if path.exists():
            yield from ("--volume", f"{path}:{path}:ro")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(TOOLS)}: apt-get install {' '.join(missing or TOOLS)}")
    place = Path(tempfile.mkdtemp(prefix="dragoman-image-"))  # podman takes no longer path than 50 characters
    base = place / "base"
    base.mkdir()
    run(
        "mmdebstrap", "--variant=apt", "--mode=root", "--include=python3,python3-venv,ca-certificates",
        "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*", "bookworm", base / "base.tar",
    )  # fmt: skip
    (base / "Containerfile").write_text("FROM scratch\nADD base.tar /\nRUN ln -s python3 /usr/bin/python\n")
    made = Engine(place)
    made.buildah("bud", "--isolation", "chroot", "-f", "Containerfile", "-t", BASE, ".", cwd=base)
    made.buildah(
        "bud", "--format", "docker", "--isolation", "chroot", "--network", "host", "--pull-never", *for_pip(),
        "-f", "deploy/Containerfile", "--ignorefile", "deploy/.containerignore", "--build-arg", f"PYTHON={PYTHON}",
        "-t", IMAGE, ".",
    )  # fmt: skip
    try:
        yield made
    finally:
        made.podman("rm", "--force", "--all", "--time", "5")
        made.podman("volume", "rm", "--force", "--all")
        made.buildah("rmi", "--all", "--force")
        shutil.rmtree(place, ignore_errors=True)


def test_the_image_is_small(engine: Engine) -> None:
    added = engine.size(IMAGE) - engine.size(BASE)
    assert added < MOST_BYTES, f"{added / 1e6:.0f} MB"


def test_the_image_serves_with_a_read_only_root_and_no_rights_and_keeps_everything_in_its_volume(
    engine: Engine,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        http, grpc = free.getsockname()[1], other.getsockname()[1]
    url = f"http://127.0.0.1:{http}"
    engine.podman(
        "run", "--detach", "--name", "hub", "--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "all",
        "--security-opt", "no-new-privileges", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1000:1000",
        "--volume", "hub:/data", "--env", f"DRAGOMAN_SERVER__PORT={http}",
        "--env", f"DRAGOMAN_SERVER__GRPC_PORT={grpc}",
        "--env", f"DRAGOMAN_PROBE={url}/livez", IMAGE,
    )  # fmt: skip

    def serves() -> bool:
        try:
            with urlopen(f"{url}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    until(serves, "it serves")
    assert engine.podman("exec", "hub", "id", "-u") == "10001"
    rights = engine.podman("exec", "hub", "sh", "-c", "grep -E 'CapEff|NoNewPrivs' /proc/1/status").split()
    assert rights == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1"]
    assert engine.podman("exec", "hub", "sh", "-c", "touch /etc/x 2>/dev/null || echo refused") == "refused"
    assert "answers at" in engine.podman("exec", "hub", "dragoman", "doctor")
    engine.podman("healthcheck", "run", "hub")
    engine.podman("exec", "hub", "dragoman", "agent", "add", "kept", "--protocol", "chiffon")
    engine.podman("stop", "--time", "60", "hub")
    assert engine.podman("inspect", "hub", "--format", "{{.State.ExitCode}}") == "0"
    engine.podman("start", "hub")
    until(serves, "it serves again")
    assert "kept" in engine.podman("exec", "hub", "dragoman", "agent", "ls")
