"""schemathesis over our OpenAPI document: an independent idea of good and bad requests, and of what to check.

Left out are the operations that go on for ever (server-sent events, WebSockets) and what a test must not let a hub do;
`openapi` tries the former. Only for `make soak`: it brings a dozen packages that nothing else needs.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, given, settings

from tests.fuzz.openapi import ANYWHERE, LASTING, LEFT_OUT, NEVER, is_no_mistake
from tests.fuzz.stage import PATIENCE, Stage, stage
from tests.fuzz.thoroughness import UNTIMED

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        importlib.util.find_spec("schemathesis") is None,
        reason="schemathesis is not installed: pip install 'dragoman[fuzz]'",
    ),
]

TRIES = settings(UNTIMED, database=None, phases=(Phase.generate,), max_examples=40)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("fuzz")) as on_it:
        yield on_it


def harmless(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what cannot be tried, and without long waits."""
    found = copy.deepcopy(document)
    for path, methods in found["paths"].items():
        for method in list(methods):
            told = methods[method]
            endless = "101" in told["responses"] or "text/event-stream" in told["responses"].get("200", {}).get(
                "content", {}
            )
            if endless or (method, path) in LEFT_OUT or (method.upper(), path) in LASTING:
                del methods[method]
                continue
            for parameter in told["parameters"]:
                if parameter["name"] == "wait":
                    parameter["schema"] = {"type": "number", "minimum": 0, "maximum": 0.01}
    for schema in found["components"]["schemas"].values():
        for name in NEVER & schema.get("properties", {}).keys():
            del schema["properties"][name]
    return found


def test_schemathesis_finds_nothing(hub: Stage) -> None:
    import schemathesis
    from schemathesis import checks

    held = [
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.response_headers_conformance,
    ]
    tried = 0
    for result in schemathesis.openapi.from_dict(harmless(hub.document)).get_all_operations():
        operation = result.ok()
        good, bad = (operation.as_strategy(mode) for mode in schemathesis.GenerationMode)
        TRIES(given(good | bad)(lambda case: check(hub, case, held)))()
        tried += 1
    assert tried > 40
    assert hub.ask("GET", "/readyz").status_code == 200


def check(hub: Stage, case: Any, held: list[Any]) -> None:
    token = hub.tokens.get(case.operation.tags[0], hub.admin)
    answer = case.call(base_url=hub.url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)
    status, told = str(answer.status_code), case.operation.definition.raw["responses"]
    assert is_no_mistake(status, answer.content, told), case.as_curl_command()
    if status in told:
        case.validate_response(answer, checks=held)
    else:
        assert status in ANYWHERE, f"{status} is not declared: {case.as_curl_command()}"
