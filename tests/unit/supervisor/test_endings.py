"""How a child ended, in words."""

from __future__ import annotations

import pytest

from dragoman.supervisor.spawner_client import Ended


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended(code=0), "exit code 0"),
        (Ended(code=7), "exit code 7"),
        (Ended(code=137), "exit code 137 (a program in it was killed by SIGKILL)"),
        (Ended(code=139), "exit code 139 (a program in it was killed by SIGSEGV)"),
        (Ended(code=128), "exit code 128"),
        (Ended(code=255), "exit code 255"),
        (Ended(signal=9), "killed by SIGKILL"),
        (Ended(signal=200), "killed by signal 200"),
        (Ended(failed="it cannot be started now"), "it cannot be started now"),
    ],
)
def test_an_end_is_described_in_a_sentence(ended: Ended, said: str) -> None:
    assert str(ended) == said
