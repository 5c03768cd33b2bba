"""A protocol that the hub does not ship joins the bridge: two files (`sixth/protocol.py`, `sixth/endpoint.py`) and one
row in the wiring's table. It passes the core cases of the bridge with every other protocol, in both roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dragoman.app.endpoints import ENDPOINTS
from tests.bridge.conftest import Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.stage import Stage, playing
from tests.bridge.sixth import endpoint, protocol
from tests.bridge.sixth.player import ECHO
from tests.bridge.test_endings import (
    test_a_cancel_reaches_the_worker_and_the_children,
    test_a_failure_reaches_the_caller_with_its_message_and_is_not_retried,
    test_a_result_that_comes_after_the_cancel_changes_nothing,
)
from tests.bridge.test_progress import (
    test_a_whole_answer_after_its_pieces_is_returned_once,
    test_fifty_pieces_of_output_arrive_complete_and_in_order,
    test_progress_arrives_in_order,
)
from tests.bridge.test_work import (
    test_a_result_of_text_alone_comes_back_as_text,
    test_a_result_without_text_reaches_callers_that_only_read_text,
    test_work_arrives_with_its_type_and_input_and_the_result_comes_back,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

CORE_CASES = (
    test_a_cancel_reaches_the_worker_and_the_children,
    test_a_failure_reaches_the_caller_with_its_message_and_is_not_retried,
    test_a_result_of_text_alone_comes_back_as_text,
    test_a_result_that_comes_after_the_cancel_changes_nothing,
    test_a_result_without_text_reaches_callers_that_only_read_text,
    test_a_whole_answer_after_its_pieces_is_returned_once,
    test_fifty_pieces_of_output_arrive_complete_and_in_order,
    test_progress_arrives_in_order,
    test_work_arrives_with_its_type_and_input_and_the_result_comes_back,
)
"""The same functions that hold the shipped protocols: pytest runs them here with the fixtures below."""

SIX = {**PLAYERS, protocol.NAME: ECHO}
WITH_ECHO = [(name, protocol.NAME) for name in SIX] + [(protocol.NAME, name) for name in PLAYERS]
"""Every pair with echo in it."""
MOST_LINES = 300


@pytest.fixture(params=WITH_ECHO, ids="-to-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    names: tuple[str, str] = request.param
    return names


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    endpoints = {**ENDPOINTS, protocol.NAME: endpoint.endpoints}
    async with playing(tmp_path_factory.mktemp("sixth"), endpoints=endpoints) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def scene(stage: Stage, pair: tuple[str, str]) -> AsyncIterator[Scene]:
    caller, worker = pair
    set_up = Scene(stage, pair)
    set_up.caller = await set_up.enter(SIX[caller].caller)
    set_up.worker = await set_up.enter(SIX[worker].worker)
    yield set_up
    await set_up.leave()


async def test_a_protocol_needs_fewer_than_three_hundred_lines() -> None:
    files = [Path(str(module.__file__)) for module in (protocol, endpoint)]
    assert sum(len(file.read_text().splitlines()) for file in files) < MOST_LINES
