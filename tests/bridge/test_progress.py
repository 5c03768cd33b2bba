"""What a worker tells on the way reaches the caller, in order and unchanged."""

from __future__ import annotations

import hashlib

import pytest

from dragoman.messages.features import Feature
from tests.bridge.conftest import Scene, is_lost
from tests.bridge.players.neutral import File, Unsayable, heard

pytestmark = pytest.mark.asyncio(loop_scope="session")

PIECES = 50
BINARY = b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(1250))
"""40,000 bytes that are no text, more than any frame's own little buffers."""


async def test_progress_arrives_in_order(scene: Scene) -> None:
    handle, job = await scene.begin()
    steps = [{"number": n, "name": f"step {n}", "total": 3} for n in (1, 2, 3)]
    for percent, step in zip((10, 50, 90), steps, strict=True):
        await scene.worker.say(job, percent=percent, message=f"at {percent}", step=step)
    await scene.worker.finish(job, text="done")
    history = await scene.caller.history(handle)

    told = [piece for piece in history[:-1] if "message" in piece]
    assert [piece["message"] for piece in told] == ["at 10", "at 50", "at 90"]
    assert [piece["percent"] for piece in told] == [10, 50, 90]
    assert [piece["step"] for piece in told] == steps


async def test_fifty_pieces_of_output_arrive_complete_and_in_order(scene: Scene) -> None:
    handle, job = await scene.begin()
    pieces = [f"piece {n};" for n in range(PIECES)]
    for piece in pieces:
        await scene.worker.say(job, output=piece)
    await scene.worker.finish(job, result={"pieces": PIECES})
    history = await scene.caller.history(handle)

    assert "".join(heard(history[:-1], "output")) == "".join(pieces)
    task = await scene.stage.task(handle.task_id)
    assert task["output"] == "".join(pieces)


async def test_a_whole_answer_after_its_pieces_is_returned_once(scene: Scene) -> None:
    handle, job = await scene.begin()
    pieces = [f"line {n}\n" for n in range(5)]
    for piece in pieces:
        await scene.worker.say(job, output=piece)
    await scene.worker.finish(job, text="".join(pieces))
    history = await scene.caller.history(handle)

    assert "".join(heard(history[:-1], "output")) == "".join(pieces)
    assert history[-1]["text"] == "".join(pieces)
    assert (await scene.stage.task(handle.task_id))["output"] == "".join(pieces)


async def test_thinking_and_tools_arrive_in_order(scene: Scene) -> None:
    handle, job = await scene.begin()
    used = {"id": "t1", "name": "measure", "input": {"span": [1, 2]}}
    worked = {"id": "t1", "output": "42 m", "is_error": False}
    broke = {"id": "t2", "output": "no such pier", "is_error": True}
    await scene.worker.say(job, thinking="hmm")
    await scene.worker.say(job, tool_use=used)
    await scene.worker.say(job, tool_result=worked)
    await scene.worker.say(job, tool_result=broke)
    await scene.worker.finish(job, text="done")
    history = await scene.caller.history(handle)

    names = ("thinking", "tool_use", "tool_result")
    told = [(name, piece[name]) for piece in history for name in names if name in piece]
    assert told == [("thinking", "hmm"), ("tool_use", used), ("tool_result", worked), ("tool_result", broke)]


async def test_a_produced_file_arrives_byte_for_byte(scene: Scene) -> None:
    handle, job = await scene.begin()
    file = File("plan ü.bin", BINARY)
    if is_lost(Feature.FILE, scene):
        with pytest.raises(Unsayable):
            await scene.worker.say(job, file=file)
        return
    await scene.worker.say(job, file=file)
    await scene.worker.finish(job, text="done")
    assert heard(await scene.caller.history(handle), "file") == [file]


async def test_attached_files_arrive_byte_for_byte(scene: Scene) -> None:
    files = (File("survey.bin", BINARY), File("empty.txt", b""), File("ü.txt", "grüße\x00".encode()))
    if is_lost(Feature.ATTACHMENT, scene):
        with pytest.raises(Unsayable):
            await scene.begin(attachments=files)
        return
    handle, job = await scene.begin(attachments=files)
    assert job.attachments == files
    await scene.worker.finish(job, text="done")
    assert (await scene.caller.history(handle))[-1]["final"] == "completed"
