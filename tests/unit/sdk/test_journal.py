"""The lines of a journal: those of earlier versions are read, and written again byte for byte."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.sdk.harness import FakeRuntime

from dragoman.messages.tasks import Failure, Result
from dragoman.sdk.work.journal import Journal

HEAD = (
    '{"type":"done","outcome":{"id":"1","at":"2026-11-18T00:00:00Z","errand":{"task_id":"t","request_id":"r",'
    '"trace_id":"x","sender":"s","about":{"a":"b"}},'
)
TAIL = '},"print":"p","requests":["r"]}'


@pytest.mark.parametrize(
    ("outcome", "content"),
    [
        ('"exit_code":0', Result(exit_code=0)),
        (
            '"exit_code":0,"output":"{}","result":{},"seconds":2,"usage":{"tokens_used":1.0}',
            Result(exit_code=0, output="{}", result=msgspec.Raw(b"{}"), usage={"tokens_used": 1.0}),
        ),
        (
            '"exit_code":1,"output":"ValueError: no","error":{"type":"ValueError","message":"no"}',
            Failure(exit_code=1, output="ValueError: no", report={"type": "ValueError", "message": "no"}),
        ),
    ],
)
async def test_results_of_an_earlier_version_are_read_and_kept_as_they_are(
    outcome: str, content: Result, tmp_path: Path
) -> None:
    path = tmp_path / "a.journal"
    path.write_text(f"{HEAD}{outcome}{TAIL}\n")
    journal = Journal(FakeRuntime(), path)
    (read,) = journal.open()
    await journal.close()
    found = read.content
    if isinstance(found, Failure):
        found = msgspec.structs.replace(found, fault=None)
    assert found == content
    assert path.read_text() == f"{HEAD}{outcome}{TAIL}\n"


async def test_direct_messages_of_an_earlier_version_are_read_and_kept_as_they_are(tmp_path: Path) -> None:
    line = '{"type":"noted","key":"planner/1","at":"2026-11-18T00:00:00Z","letter":{"hello":1}}\n'
    path = tmp_path / "a.journal"
    path.write_text(line)
    journal = Journal(FakeRuntime(), path)
    journal.open()
    await journal.close()
    assert [bytes(noted.message) for noted in journal.undealt()] == [b'{"hello":1}']
    assert path.read_text() == line
