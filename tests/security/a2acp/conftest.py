"""One hub for all attacks; at the end of every test honest agents must still be served."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from tests.conformance.a2acp.plain import PROVISION, Bond, Plain
from tests.security.a2acp.ground import INTENT, RECORD
from tests.support.hubproc import HubProcess, running


@pytest.fixture(scope="package")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    settings = {"DRAGOMAN_RULES__IDLE_SECONDS": "600", "DRAGOMAN_LOG__LEVEL": "debug"}
    with running(tmp_path_factory.mktemp("hub"), **settings) as hub:
        yield hub


@pytest.fixture(scope="package")
def everybody(hub: HubProcess) -> dict[str, Plain]:
    """What one attack leaves unanswered has no end within another: its error would be taken for one of that one's."""
    made = {id: Plain(hub, id) for id in ("ada", "bob", "cid", "eve")}
    offers = (PROVISION, RECORD, {**PROVISION, "intent": "other"}, {"intent": "loose", "input_schema": True})
    for id in ("bob", "cid"):
        made[id].serves(*({**offer, "timeout_seconds": 3600} for offer in offers))
    return made


@pytest.fixture(scope="package")
def bond(everybody: dict[str, Plain]) -> Bond:
    return everybody["ada"].shake(everybody["bob"])


@pytest.fixture
def cast(hub: HubProcess, everybody: dict[str, Plain]) -> dict[str, Plain]:
    """With nothing unread that was meant for an earlier test, and nothing to do for one: an agent takes only so much at
    a time."""
    for id in ("bob", "cid"):
        for status in ("assigned", "running", "waiting", "queued"):
            for task in hub.tasks(agent=id, status=status):
                hub.admin.post(f"/api/v1/tasks/{task['id']}/cancel", {})
    for one in everybody.values():
        one.hear()
    return everybody


@pytest.fixture(autouse=True)
def _quiet(cast: dict[str, Plain]) -> None:
    pass


@pytest.fixture(scope="package")
def pair(hub: HubProcess) -> tuple[Plain, Plain]:
    """Two honest agents."""
    return Plain(hub, "asks"), Plain(hub, "does").serves(PROVISION)


@pytest.fixture(autouse=True)
def honest(pair: tuple[Plain, Plain]) -> Iterator[None]:
    """After each attack two honest agents come to terms and work."""
    yield
    asks, does = pair
    bond = asks.shake(does)
    work = bond.ask()
    bond.target.say(bond.response(work, {"dataset_id": bond.id}))
    assert bond.content(bond.source.hears("response", INTENT)) == {"dataset_id": bond.id}


@pytest.fixture
def trap() -> Iterator[tuple[str, Callable[[], bool]]]:
    """An address that the hub must never fetch from, and whether it did."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        def sprung() -> bool:
            try:
                listener.accept()[0].close()
                return True
            except BlockingIOError:
                return False

        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x", sprung
