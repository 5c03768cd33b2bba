"""One effect per request id, as an agent remembers it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dragoman.protocols.chiffon.events import RequestReceived, ResultReceived
from dragoman.protocols.chiffon.idempotency import Decision, Memory, fingerprint
from dragoman.protocols.chiffon.state import State
from dragoman.protocols.chiffon.types import WorkRequest

NOW = datetime(2026, 1, 19, tzinfo=UTC)
CONTENT = b"content"


@pytest.mark.requirement("CH-IDM-1", "CH-IDM-2", "all-D5")
def test_a_repeated_request_gets_the_first_result() -> None:
    memory = Memory()
    assert memory.begin("r", CONTENT, NOW) is Decision.START
    assert memory.begin("r", CONTENT, NOW) is Decision.JOIN
    memory.finish("r", (b"result",), NOW)
    assert memory.begin("r", CONTENT, NOW) == (b"result",)


@pytest.mark.requirement("all-D5")
def test_other_content_under_the_same_id_is_refused() -> None:
    memory = Memory()
    memory.begin("r", CONTENT, NOW)
    assert memory.begin("r", b"other", NOW) is Decision.CONFLICT
    memory.finish("r", (b"result",), NOW)
    assert memory.begin("r", b"other", NOW) is Decision.CONFLICT


@pytest.mark.requirement("all-D5")
def test_an_error_is_never_remembered() -> None:
    memory = Memory()
    memory.begin("r", CONTENT, NOW)
    memory.fail("r")
    assert memory.begin("r", CONTENT, NOW) is Decision.START


@pytest.mark.requirement("all-D5")
def test_results_are_kept_a_day_and_survive_a_restart() -> None:
    memory = Memory()
    memory.begin("r", CONTENT, NOW)
    journal = [memory.finish("r", (b"result",), NOW)]
    again = Memory()
    for line in journal:
        again.restore(line)
    assert again.begin("r", CONTENT, NOW + timedelta(hours=24)) == (b"result",)
    assert again.begin("r", CONTENT, NOW + timedelta(hours=24, seconds=1)) is Decision.START


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    memory = Memory(most=2)
    for name in "abc":
        memory.begin(name, CONTENT, NOW)
        memory.finish(name, (name.encode(),), NOW)
    assert memory.begin("c", CONTENT, NOW) == (b"c",)
    assert memory.begin("a", CONTENT, NOW) is Decision.START


def test_the_order_of_keys_is_no_content() -> None:
    def request(parameters: dict[str, Any]) -> WorkRequest:
        return WorkRequest(task_id="t", work_type="w", parameters=parameters)

    assert fingerprint(request({"a": 1, "b": 2})) == fingerprint(request({"b": 2, "a": 1}))
    assert fingerprint(request({"a": 1})) != fingerprint(request({"a": 2}))


@pytest.mark.requirement("CH-IDM-2")
def test_a_lost_result_is_sent_again_over_the_link(link: Any) -> None:
    link.agent.receive(link.request())
    lost = link.result()
    [event] = link.agent.receive(link.request())
    assert isinstance(event, RequestReceived)
    [frame] = link.agent.repeat([lost])
    assert frame == lost
    assert isinstance(link.hub.receive(frame)[0], ResultReceived)
    assert link.agent.state(link.about.request_id) is State.DONE
