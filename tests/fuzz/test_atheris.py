"""atheris over every decoder, each for its share of the time."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.atheris_harness import MISSING
from tests.fuzz.decoders import DECODERS
from tests.fuzz.thoroughness import SECONDS

ROOT = Path(__file__).parent.parent.parent

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason=MISSING),
]


@pytest.mark.parametrize("name", DECODERS)
def test_no_branch_of_a_decoder_breaks_its_promise(name: str, tmp_path: Path) -> None:
    options = [f"-max_total_time={int(SECONDS)}", "-timeout=120", "-rss_limit_mb=2048", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.atheris_harness", name, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS + 600,
        check=False,
    )
    found = [path.read_bytes() for path in tmp_path.iterdir()]
    assert (done.returncode, found) == (0, []), done.stderr[-5000:]
