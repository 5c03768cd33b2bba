"""Writes coven_pb2.py and its types anew from coven.proto: `python .ci/generate_coven.py [FOLDER]`.

A tool for developers who change the .proto, and for the test that insists on fresh code; the generator (grpcio-tools)
is a development dependency.
"""

from __future__ import annotations

import sys
from importlib.resources import files

FOLDER = "dragoman/protocols/coven"


def generate(target: str) -> None:
    """Generate below `target`, in the package's own folder there."""
    from grpc_tools import protoc

    source = files("dragoman")
    arguments = [
        "protoc",
        f"--proto_path={source.joinpath('..')}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        f"{FOLDER}/coven.proto",
    ]
    if protoc.main(arguments):
        raise SystemExit("protoc failed; see its output above")


if __name__ == "__main__":
    generate(sys.argv[1] if len(sys.argv) > 1 else str(files("dragoman").joinpath("..")))
