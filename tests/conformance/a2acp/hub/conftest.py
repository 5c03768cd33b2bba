"""Two agents that never met, and a real hub between them: the document's lifecycle, step by step, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conformance.a2acp.plain import PROVISION, Bond, Plain
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running


@pytest.fixture(scope="package")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_RULES__IDLE_SECONDS="600") as hub:
        yield hub


@pytest.fixture(scope="package")
def cast(hub: HubProcess) -> tuple[Plain, Plain]:
    """The document's two agents, of two domains, as a person adds them."""
    agents = []
    for id, domain, version in (
        ("sdlc-test-agent", "a_domain", "1.2.3"),
        ("dataset-provisioning-agent", "medtronic_poc", "2.1.0"),
    ):
        added = dragoman(
            "agent", "add", id, "--protocol", "a2acp", "--domain", domain, "--version", version,
            "--capability", "read:datasets", "--capability", "write:test_scenarios", "-o", "json", hub=hub,
        )  # fmt: skip
        assert added.code == 0, added
        grants = ("read:datasets", "write:test_scenarios")
        agents.append(Plain(hub, id, domain, grants=grants, version=version, secret=added.json["token"]))
    assert dragoman("policy", "allow", "a_domain", "medtronic_poc", hub=hub).code == 0
    agents[1].serves(PROVISION)
    return agents[0], agents[1]


@pytest.fixture(autouse=True)
def empty(cast: tuple[Plain, Plain]) -> None:
    for one in cast:
        one.hear()


@pytest.fixture
def bond(cast: tuple[Plain, Plain]) -> Bond:
    return cast[0].shake(cast[1])
