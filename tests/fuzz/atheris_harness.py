"""`python -m tests.fuzz.atheris_harness DECODER [libFuzzer's options]`: one decoder, guided by the branches it takes.

atheris mutates the good samples and keeps what reaches code that nothing reached before. Without options it goes on
until it is stopped; `-max_total_time=60` is a minute. What it finds is written to a file, and shown.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

MISSING = "atheris is not installed: pip install 'dragoman[fuzz]' (Linux on x86-64, Python below 3.14)"


def main(arguments: list[str]) -> int:
    if importlib.util.find_spec("atheris") is None:
        print(MISSING, file=sys.stderr)
        return 2
    import atheris

    with atheris.instrument_imports(include=["dragoman"]):
        from tests.fuzz.decoders import DECODERS
        from tests.fuzz.test_decoders import try_once
    if not arguments or arguments[0] not in DECODERS:
        print(f"which decoder? One of: {', '.join(DECODERS)}", file=sys.stderr)
        return 2
    decoder = DECODERS[arguments[0]]
    with tempfile.TemporaryDirectory(prefix="dragoman-corpus-") as folder:
        for number, data in enumerate(decoder.samples()):
            (Path(folder) / str(number)).write_bytes(data)
        atheris.Setup([sys.argv[0], *arguments[1:], folder], lambda data: try_once(decoder, data, counted=False))
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
