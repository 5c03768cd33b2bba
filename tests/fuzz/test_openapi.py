"""Every operation that the hub documents, asked well and badly: never a 5xx, and always as documented."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, given, settings

from tests.fuzz.openapi import Ask, Operation, asks, check, operations
from tests.fuzz.stage import Stage, stage
from tests.fuzz.thoroughness import UNTIMED, for_a_while

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


def test_a_method_that_an_address_does_not_take_is_named_with_those_it_takes(hub: Stage) -> None:
    """One address answered 422, as if something were wrong with the words of the request."""
    for path, told in hub.document["paths"].items():
        taken = {method.upper() for method in told}
        for method in sorted({"GET", "POST", "PUT", "PATCH", "DELETE"} - taken):
            answer = hub.ask(method, path.replace("{protocol}", "chiffon").replace("{", "").replace("}", ""))
            if answer.status_code == 426:  # a WebSocket's
                continue
            allowed = {word.strip() for word in answer.headers.get("allow", "").split(",")}
            assert (answer.status_code, taken - allowed) == (405, set()), f"{method} {path}"


@pytest.mark.soak
def test_every_operation_answers_as_documented_for_a_while(hub: Stage) -> None:
    for one in operations(hub.document):
        asked(hub, [one], settings(TRIES, max_examples=100))()
    for_a_while(asked(hub, operations(hub.document), TRIES))
    assert hub.ask("GET", "/readyz").status_code == 200
