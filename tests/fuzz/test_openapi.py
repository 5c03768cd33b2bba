"""Every operation that the hub documents, asked well and badly: never a 5xx, and always as documented."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, given, settings

from tests.fuzz.openapi import Ask, Operation, asks, check, operations
from tests.fuzz.stage import Stage, stage
from tests.fuzz.test_decoders import UNTIMED, for_a_while

#: The hub's state differs from try to try, so what was found cannot be shrunk; the request is in the message.
TRIES = settings(UNTIMED, database=None, phases=(Phase.generate,), max_examples=max(200, UNTIMED.max_examples))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("fuzz")) as on_it:
        yield on_it


def asked(hub: Stage, among: list[Operation], how: settings) -> Callable[[], None]:
    @how
    @given(asks(hub, among))
    def attempt(ask: Ask) -> None:
        check(hub, ask)

    return attempt


def test_every_operation_answers_as_documented(hub: Stage) -> None:
    asked(hub, operations(hub.document), TRIES)()
    assert hub.ask("GET", "/readyz").status_code == 200


@pytest.mark.soak
def test_every_operation_answers_as_documented_for_a_while(hub: Stage) -> None:
    for one in operations(hub.document):
        asked(hub, [one], settings(TRIES, max_examples=100))()
    for_a_while(asked(hub, operations(hub.document), TRIES))
    assert hub.ask("GET", "/readyz").status_code == 200
