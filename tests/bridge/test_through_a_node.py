"""The core cases of the bridge once more, where callers and workers are connected at a node that follows the hub: what
they hear must not differ."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dragoman.app import wiring
from tests.bridge.players.stage import Stage, playing
from tests.bridge.test_contracts import test_what_fits_the_terms_goes_both_ways as test_a_contract_binds_both
from tests.bridge.test_endings import test_a_cancel_reaches_the_worker_and_the_children as test_a_cancel_reaches_all
from tests.bridge.test_handovers import (
    test_the_new_owner_knows_the_whole_task_and_the_caller_gets_the_outcome as test_a_task_changes_hands,
)
from tests.bridge.test_progress import test_attached_files_arrive_byte_for_byte as test_files_arrive
from tests.bridge.test_progress import test_fifty_pieces_of_output_arrive_complete_and_in_order as test_output_arrives
from tests.bridge.test_questions import test_a_question_is_answered_once_and_the_work_goes_on as test_a_person_answers
from tests.bridge.test_work import test_every_character_arrives_as_it_was_sent as test_every_character_arrives
from tests.bridge.test_work import (
    test_work_arrives_with_its_type_and_input_and_the_result_comes_back as test_work_and_result_arrive,
)
from tests.support.nodes import Followed

__all__ = (
    "test_a_cancel_reaches_all",
    "test_a_contract_binds_both",
    "test_a_person_answers",
    "test_a_task_changes_hands",
    "test_every_character_arrives",
    "test_files_arrive",
    "test_output_arrives",
    "test_work_and_result_arrive",
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "Intake", Followed)
        async with playing(tmp_path_factory.mktemp("nodes")) as running:
            yield running
