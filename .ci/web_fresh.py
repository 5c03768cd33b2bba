"""Whether the built dashboard in the package is that of the sources in `web/`. It compares hashes, and needs no node.

python .ci/web_fresh.py            exits with 1 if `make web` must be run
python .ci/web_fresh.py --write    notes the hash; `make web` does, after a build
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WEB = ROOT / "web"
BUILT = ROOT / "src" / "dragoman" / "api" / "dashboard"
NOTE = BUILT / "build.json"
SOURCES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts", "public", "src")


def sources() -> str:
    """One hash of every file that a build reads."""
    found = hashlib.sha256()
    for name in SOURCES:
        place = WEB / name
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file():
                found.update(path.relative_to(WEB).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def built() -> dict[str, str]:
    return {
        path.relative_to(BUILT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(BUILT.rglob("*"))
        if path.is_file() and path != NOTE
    }


def main(arguments: list[str]) -> int:
    now = {"sources": sources(), "files": built()}
    if arguments == ["--write"]:
        NOTE.write_text(json.dumps(now, indent=1) + "\n")
        return 0
    if not NOTE.is_file() or json.loads(NOTE.read_text()) != now:
        sys.stderr.write(
            "the built dashboard is not that of web/; run `make web` and commit src/dragoman/api/dashboard\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
