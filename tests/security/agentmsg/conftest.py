"""Attacks by agentmsg agents, at one hub. Whatever is tried, honest agents are served afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.conformance.agentmsg.plain import Plain
from tests.support.hubproc import HubProcess, running


@pytest.fixture(scope="package")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    settings = {"DRAGOMAN_RULES__IDLE_SECONDS": "60", "DRAGOMAN_SERVER__MAX_MESSAGE_BYTES": str(1 << 20)}
    with running(tmp_path_factory.mktemp("hub"), **settings) as hub:
        yield hub


@pytest.fixture(scope="package")
def cast(hub: HubProcess) -> dict[str, Plain]:
    return {id: Plain(hub, id) for id in ("ada", "bob", "cid", "eve")}


@pytest.fixture(autouse=True)
def honest(hub: HubProcess) -> Iterator[None]:
    """After each attack two honest agents work together."""
    yield
    boss, hand = Plain(hub, f"boss-{uuid.uuid4().hex[:8]}"), Plain(hub, f"hand-{uuid.uuid4().hex[:8]}")
    name = f"honest {uuid.uuid4().hex[:8]}"
    hand.works(boss, name)
    hand.say("TASK_COMPLETE", boss.id, {"task_id": name, "result": 1})
    assert boss.hears("TASK_COMPLETE")["payload"]["result"] == 1
    assert "Traceback" not in hub.log.read_text()


@pytest.fixture
def task(cast: dict[str, Plain]) -> Iterator[str]:
    """A task of `ada`'s that `bob` has in hand: whatever `eve` tries, he finishes it."""
    ada, bob = cast["ada"], cast["bob"]
    for one in cast.values():
        one.hear()
    name = f"secret {uuid.uuid4().hex[:6]}"
    bob.works(ada, name)
    yield name
    assert ada.task(name)["assigned_agent"] == "bob"
    bob.say("TASK_COMPLETE", "ada", {"task_id": name, "result": "bob's"})
    done = ada.hears("TASK_COMPLETE")
    assert (done["from"], done["payload"]["result"]) == ("bob", "bob's")
    assert ada.hear() == []
