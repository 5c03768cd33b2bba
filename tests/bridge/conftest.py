"""A hub for the whole bridge, and a caller and a worker at either end of it, in every pair of protocols.

The hub is a real one in this process: HTTP, WebSocket and gRPC on free ports of loopback. Most tests share one, each
with agents of its own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from itertools import product
from typing import Any

import pytest
import pytest_asyncio

from dragoman.messages.features import Carriage, Cell, Feature, carried
from dragoman.protocols.features import FEATURES
from tests.bridge.players import PLAYERS
from tests.bridge.players.neutral import PATIENCE, Caller, Handle, Job, Order, Party, Worker
from tests.bridge.players.stage import Stage, playing

PAIRS = list(product(PLAYERS, PLAYERS))
_names = list(PLAYERS)
SOME = [(name, _names[(place + step) % len(_names)]) for step in (0, 2) for place, name in enumerate(_names)]
"""Each protocol at both ends, with itself and with another: for what costs much, and what the pair as such hardly has
a part in."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with playing(tmp_path_factory.mktemp("bridge")) as running:
        yield running


class Scene:
    """One caller, one worker. `messy` is for tests in which the hub has reason to refuse something."""

    def __init__(self, stage: Stage, names: tuple[str, str]) -> None:
        self.stage = stage
        self.names = names
        self.messy = False
        self.caller: Caller
        self.worker: Worker
        self._parties: list[Party] = []

    async def enter(
        self,
        role: type[Any],
        *,
        seats: int | None = None,
        able: tuple[str, ...] = (),
        offers: tuple[Mapping[str, Any], ...] = (),
        domain: str | None = None,
        **settings: Any,
    ) -> Any:
        """Somebody new, added and connected; `seats` is how many tasks it does at once, `able` its capabilities,
        `offers` what it does on declared terms."""
        id = f"{role.__name__.lower()}-{uuid.uuid4().hex[:12]}"
        token = await self.stage.add(id, role.protocol, seats=seats, able=able, offers=offers, domain=domain)
        party = role(self.stage, id, token)
        for name, value in {"able": able, "offers": offers, **settings}.items():
            setattr(party, name, value)
        await party.connect()
        self._parties.append(party)
        return party

    async def begin(self, **order: Any) -> tuple[Handle, Job]:
        """Work that the worker has in hand."""
        handle = await self.caller.submit(Order(**{"to": self.worker.id, **order}))
        job = await self.worker.take()
        assert job.id == handle.task_id
        return handle, job

    async def given_to(self, worker: Worker) -> Job:
        """Work that this worker has in hand, by the management API."""
        made = await self.stage.admin.post("/api/v1/tasks", json={"type": "examine", "agent": worker.id})
        assert made.status_code == 202, made.text
        return await worker.take()

    async def question(self, handle: Handle, *, status: str = "open") -> dict[str, Any]:
        """The task's question to a person, once it is there."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = (await self.stage.get("questions", task=handle.task_id, status=status))["questions"]
                if found:
                    assert len(found) == 1
                    return dict(found[0])
                await asyncio.sleep(0.005)

    async def leave(self) -> None:
        for party in self._parties:
            await party.leave()
        if not self.messy:
            assert [party.refused for party in self._parties if party.refused] == []


def arrives(feature: Feature, pair: tuple[str, str]) -> Cell:
    """How a feature arrives between a caller's protocol and an agent's."""
    caller, agent = pair
    return carried(feature, FEATURES[caller], FEATURES[agent])


def is_lost(feature: Feature, scene: Scene) -> bool:
    return arrives(feature, scene.names).how is Carriage.LOST


def able_to(feature: Feature, pairs: list[tuple[str, str]] = PAIRS) -> list[tuple[str, str]]:
    """The pairs between which something can be said."""
    return [pair for pair in pairs if arrives(feature, pair).how is not Carriage.LOST]


def told_of(scene: Scene, result: dict[str, Any], text: str) -> dict[str, Any]:
    """How a result with words beside it arrives. An a2acp agent can only say them as a part of it, and an a2acp caller
    hears no others."""
    caller, worker = scene.names
    if worker == "a2acp":
        return {"result": {**result, "output": text}, "text": text}
    return {"result": result} if caller == "a2acp" else {"result": result, "text": text}


@pytest.fixture(params=PAIRS, ids=["-to-".join(pair) for pair in PAIRS])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Who calls, and who works."""
    names: tuple[str, str] = request.param
    return names


@pytest_asyncio.fixture(loop_scope="session")
async def scene(stage: Stage, pair: tuple[str, str]) -> AsyncIterator[Scene]:
    caller, worker = pair
    set_up = Scene(stage, pair)
    set_up.caller = await set_up.enter(PLAYERS[caller].caller)
    set_up.worker = await set_up.enter(PLAYERS[worker].worker)
    yield set_up
    await set_up.leave()


WHOLE = frozenset({"test_work", "test_losses"})
"""What is tried with every pair at every run; the other trials with `SOME`, and with all of them in long runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        pair = getattr(item, "callspec", None) and item.callspec.params.get("pair")  # type: ignore[attr-defined]
        if pair and item.path.parent.name == "bridge" and item.path.stem not in WHOLE and tuple(pair) not in SOME:
            item.add_marker(pytest.mark.soak)
