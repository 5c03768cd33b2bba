"""Outputs above 1 MiB: labels, cutting on code points, reassembly in any order, quotas."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bridge.players.stage import Stage
from tests.support import chiffon

from dragoman.protocols.chiffon import chunks, codec
from dragoman.protocols.chiffon.chunks import BLOCK, LARGEST_OUTPUT, Block, ChunkError, Label, Reassembly
from dragoman.protocols.chiffon.errors import InvalidMessage
from dragoman.protocols.chiffon.mapping import results_out
from dragoman.protocols.chiffon.types import WorkResult

TASK = "550e8400-e29b-41d4-a716-446655440004"


def gathered(blocks: list[Block], **settings: Any) -> str:
    value = Reassembly(**settings)
    for block in blocks:
        value = value.feed(block)
    return value.finish()


def block(label: str, text: str) -> Block:
    return Block(chunks.parse(label), text)


@pytest.mark.requirement("CH-LRG-1")
def test_an_output_is_split_above_one_mebibyte_and_not_at_it() -> None:
    whole = "x" * LARGEST_OUTPUT
    assert results_out(TASK, 0, whole) == [WorkResult(task_id=TASK, status="success", exit_code=0, output=whole)]
    assert [part.output_chunk for part in results_out(TASK, 0, whole + "x")] == [
        "bytes 0-262144 of 1048577",
        "bytes 262144-524288 of 1048577",
        "bytes 524288-786432 of 1048577",
        "bytes 786432-1048576 of 1048577",
        "bytes 1048576-1048577 of 1048577",
    ]


@pytest.mark.requirement("CH-LRG-1")
@pytest.mark.parametrize("text", ["x" * (LARGEST_OUTPUT + 1), "é" * (LARGEST_OUTPUT // 2 + 1)])
def test_an_unsplit_output_above_it_is_refused(examples: dict[str, Any], text: str) -> None:
    tree = {**examples["envelope"], "type": "work_result", "payload": {**examples["work_result"], "output": text}}
    with pytest.raises(InvalidMessage) as caught:
        codec.decode(json.dumps(tree).encode())
    assert caught.value.field == "payload.output"


def test_an_output_of_one_mebibyte_fits_however_it_is_escaped(examples: dict[str, Any]) -> None:
    payload = {**examples["work_result"], "output": "\x1b" * LARGEST_OUTPUT}
    tree = {**examples["envelope"], "type": "work_result", "payload": payload}
    codec.decode(json.dumps(tree).encode())


@pytest.mark.requirement("CH-LRG-2", "chiffon-D3")
@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("bytes 0-256k", Label(0, 262144, None, 1023)),
        ("bytes 256k-512k", Label(262144, 524288, None, 1023)),
        ("bytes 0-256k of 512k", Label(0, 262144, 524288, 1023)),
        ("bytes 0-262144 of 524288", Label(0, 262144, 524288)),
        ("bytes 262144-524288 of 524288", Label(262144, 524288, 524288)),
        ("bytes 0-5", Label(0, 5, None)),
    ],
)
def test_every_form_of_the_document_is_read(text: str, label: Label) -> None:
    assert chunks.parse(text) == label


@pytest.mark.requirement("chiffon-D3")
@pytest.mark.parametrize(
    "text",
    ["", "0-5", "bytes 5-5", "bytes 6-5", "bytes 0-6 of 5", "bytes -1-5", "bytes 0-5m", "bytes 0-٥",
     "bytes 0-5 of", "bytes 0-5\n", "bytes 0-" + "9" * 16],
)  # fmt: skip
def test_any_other_label_is_refused_by_name(examples: dict[str, Any], text: str) -> None:
    with pytest.raises(ChunkError):
        chunks.parse(text)
    step = {**examples["work_status"]["step"], "output_chunk": text}
    payload = {**examples["work_status"], "step": step}
    tree = {**examples["envelope"], "type": "work_status", "payload": payload}
    with pytest.raises(InvalidMessage) as caught:
        codec.decode(json.dumps(tree).encode())
    assert caught.value.field == "payload.step.output_chunk"


@pytest.mark.requirement("CH-LRG-3", "chiffon-D3")
@settings(deadline=None)
@given(text=st.text(min_size=1, max_size=300), size=st.integers(4, 40), seed=st.randoms(use_true_random=False))
def test_blocks_in_any_order_and_number_give_the_output_back(text: str, size: int, seed: random.Random) -> None:
    blocks = list(chunks.split(text, size))
    assert "".join(part.text for part in blocks) == text
    assert all(len(part.text.encode()) <= size for part in blocks)
    assert all(chunks.parse(str(part.label)) == part.label for part in blocks)
    doubled = blocks + [part for part in blocks if seed.random() < 0.5]
    seed.shuffle(doubled)
    assert gathered(doubled) == text


@pytest.mark.requirement("CH-LRG-3")
def test_labels_without_total_are_whole_when_the_result_says_so() -> None:
    value = Reassembly().feed(block("bytes 0-256k", "a" * BLOCK))
    assert not value.complete
    value = value.feed(block("bytes 256k-300k", "b" * 44_500))
    assert value.finish() == "a" * BLOCK + "b" * 44_500


@pytest.mark.requirement("chiffon-D4")
@pytest.mark.parametrize(
    ("why", "blocks"),
    [
        ("missing", [("bytes 0-2 of 6", "ab"), ("bytes 4-6 of 6", "ef")]),
        ("missing", [("bytes 0-2 of 6", "ab")]),
        ("missing", [("bytes 2-4", "cd")]),
        ("overlaps", [("bytes 0-4 of 6", "abcd"), ("bytes 2-6 of 6", "cdef")]),
        ("overlaps", [("bytes 2-4 of 6", "cd"), ("bytes 0-6 of 6", "abcdef")]),
        ("overlaps", [("bytes 0-2 of 6", "ab"), ("bytes 0-2 of 6", "xy")]),
        ("total changed", [("bytes 0-2 of 6", "ab"), ("bytes 2-4 of 8", "cd")]),
        ("of an output of", [("bytes 4-8", "efgh"), ("bytes 0-4 of 6", "abcd")]),
        ("quota", [("bytes 0-2 of 2000", "ab")]),
        ("quota", [("bytes 1500-1502", "ab")]),
        ("do not fit", [("bytes 0-3 of 6", "ab")]),
    ],
)
def test_gaps_overlaps_and_quotas_are_refused(why: str, blocks: list[tuple[str, str]]) -> None:
    with pytest.raises(ChunkError, match=why):
        gathered([block(*one) for one in blocks], quota=1000)


@pytest.mark.requirement("chiffon-D4")
def test_a_sender_of_tiny_blocks_is_stopped() -> None:
    tiny = [Block(Label(start, start + 1, None), "x") for start in range(chunks.MOST_BLOCKS + 1)]
    with pytest.raises(ChunkError, match="more than"):
        gathered(tiny)


@pytest.mark.requirement("chiffon-D4")
async def test_a_split_result_ends_the_task_with_its_last_block(
    hub: Stage, boss: Any, infra: Any, work: dict[str, Any]
) -> None:
    whole = "é" * LARGEST_OUTPUT
    parts = [msgspec.to_builtins(part) for part in results_out(chiffon.task_of(work), 0, whole)]
    for part in parts:
        assert (await hub.task(chiffon.task_of(work)))["status"] in ("assigned", "running")
        await infra.tells(chiffon.envelope("work_result", part, work))
    task = await hub.task(chiffon.task_of(work))
    assert (task["status"], task["output"]) == ("completed", whole)
    value = Reassembly()
    for _ in parts:
        payload = (await boss.hear())["payload"]
        value = value.feed(block(payload["output_chunk"], payload["output"]))
    assert value.finish() == whole


@pytest.mark.requirement("chiffon-D4")
@pytest.mark.parametrize("label", ["bytes 2-4 of 4", "bytes 2-4", "bytes 4-6", "bytes 2-6"])
async def test_a_block_that_would_change_a_whole_set_is_refused_and_not_the_result_behind_it(
    hub: Stage, infra: Any, work: dict[str, Any], label: str
) -> None:
    for place, text in (("bytes 0-2 of 4", "ab"), ("bytes 2-4 of 4", "cd")):
        await infra.tells(chiffon.work_status(work, output=text, output_chunk=place))
    start, end = chunks.parse(label)[:2]
    changed = chiffon.work_status(work, output="x" * (end - start), output_chunk=label)
    for _ in range(2):
        refused = await infra.refused(changed)
        assert (refused["error_code"], refused["error_context"]["field_name"]) == (5003, "payload.step.output_chunk")
    await infra.tells(chiffon.work_result(work, "done"))
    assert (await hub.task(chiffon.task_of(work)))["status"] == "completed"


@pytest.mark.requirement("chiffon-D4")
async def test_a_step_may_send_a_second_set_in_any_order(hub: Stage, infra: Any, work: dict[str, Any]) -> None:
    for place, text in (
        ("bytes 0-2 of 4", "ab"), ("bytes 2-4 of 4", "cd"), ("bytes 3-5 of 5", "gh"), ("bytes 0-3 of 5", "def"),
    ):  # fmt: skip
        await infra.tells(chiffon.work_status(work, output=text, output_chunk=place))
    await infra.tells(chiffon.work_result(work, "done"))
    assert (await hub.task(chiffon.task_of(work)))["status"] == "completed"


@pytest.mark.requirement("chiffon-D4")
async def test_a_results_block_must_say_the_total(infra: Any, work: dict[str, Any]) -> None:
    refused = await infra.refused(chiffon.work_result(work, "ab", payload={"output_chunk": "bytes 0-2"}))
    assert refused["error_context"]["field_name"] == "payload.output_chunk"
