"""The environment of the peers whose dependencies cannot stand beside ours (`.venv-peers`, made by the run itself).

AutoGen pins grpcio and protobuf below what the hub is built on, so the peers get an environment of their own:
the versions of bench/peers-constraints.txt, under the same interpreter. It is made again when that file changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench import procs

WANTED = ("autogen-ext[grpc]", "agent-client-protocol", "msgspec", "picows", "uvloop")
"""The two peers, and what the load generator itself needs."""

PLACE = procs.ROOT / ".venv-peers"
CONSTRAINTS = Path(__file__).resolve().parent / "peers-constraints.txt"


def interpreter() -> str:
    """The python of the peers' environment, made or made anew when needed."""
    python, stamp = PLACE / "bin/python", PLACE / ".made-of"
    digest = hashlib.sha256(CONSTRAINTS.read_bytes() + "".join(WANTED).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        print("setting up .venv-peers …", file=sys.stderr)
        shutil.rmtree(PLACE, ignore_errors=True)
        uv = shutil.which("uv")
        if uv:
            make = [uv, "venv", "-q", "--python", sys.executable, str(PLACE)]
            install = [uv, "pip", "install", "-q", "--python", str(python)]
        else:
            make = [sys.executable, "-m", "venv", str(PLACE)]
            install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run(make, check=True)
        subprocess.run([*install, "-c", str(CONSTRAINTS), *WANTED], check=True, env={**os.environ})
        stamp.write_text(digest)
    return str(python)


def versions(*names: str) -> dict[str, str]:
    """What is pinned for these packages."""
    pins = dict(line.split("==", 1) for line in CONSTRAINTS.read_text().split())
    return {name: pins[name] for name in names}
