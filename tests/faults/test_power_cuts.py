"""The power goes, at any moment: the hub starts again by itself, with everything that it acknowledged before the cut.

moment              chosen by
------------------  ---------------------------------------------------------------------------------------------
while it starts     how many files its data directory has, on a disk that has never seen a hub
at its first work   how many acknowledgments there were, a few
under load          likewise, some hundreds

Nothing is synced before a cut but by the hub itself. Senders of several protocols write down when they were
acknowledged, and only what was acknowledged before the cut began is held against the hub. It is judged twice: the hub
as it is must lose nothing, and one that does not sync its log (`synchronous=NORMAL`) must be caught losing something.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.conformance.a2acp.plain import Plain as Contracted
from tests.conformance.agentmsg.plain import Plain
from tests.support.hubproc import HubProcess, running, until
from tests.support.machine import ROOT, Machine
from tests.support.senders import Senders

CUTS = 24
MANY = 100
ALWAYS = 3
"""How many of them are made in every run: one of each kind."""
SEEDS = [*range(ALWAYS), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(ALWAYS, CUTS))]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.power_off()


def cut(machine: Machine, hub: HubProcess) -> float:
    """When the cut began."""
    began = time.monotonic()
    machine.cut_power()
    return began


def back(machine: Machine, hub: HubProcess) -> None:
    """The machine is on again, and its hub with it, without anybody's help."""
    hub.kill()
    machine.restart()
    hub.start(PYTHONPATH=None)


def files_of(data: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(data))


def lost_in_a_power_cut(machine: Machine, home: Path, after: int, *names: str, **settings: Any) -> dict[str, set[str]]:
    """What is gone after so many acknowledgments and a cut."""
    with running(home, data=machine.place / "data", **settings) as hub:
        senders = Senders(hub)
        with senders.sending(*names):
            until(lambda: senders.count >= after, f"{after} acknowledgments")
            assert after < MANY or all(senders.acknowledged.values())
            cut_at = cut(machine, hub)
        token = hub.ready["admin_token"]
        back(machine, hub)
        assert hub.ready["admin_token"] == token
        lost = senders.lost(cut_at)
        assert apsw.Connection(str(hub.database), flags=apsw.SQLITE_OPEN_READONLY).pragma("integrity_check") == "ok"
        assert hub.stop() == 0
        return lost


@ROOT
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_in_a_power_cut(machine: Machine, tmp_path: Path, seed: int) -> None:
    moment = random.Random(seed)
    if seed % ALWAYS == 0:
        hub = HubProcess(tmp_path / "home", data=machine.place / "new" / "data")
        try:
            hub.launch()
            files = moment.randint(1, 7)
            until(lambda: files_of(hub.data) >= files, f"{files} files of a hub that starts")
            cut(machine, hub)
            back(machine, hub)
            assert hub.stop() == 0
        finally:
            hub.kill()
        return
    after = moment.randint(0, 20) if seed % ALWAYS == 1 else moment.randint(MANY, 800)
    assert lost_in_a_power_cut(machine, tmp_path / "home", after) == {}


@ROOT
def test_a_hub_that_does_not_wait_for_the_disk_is_caught_by_the_power_cut(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "careless").mkdir()
    (tmp_path / "careless" / "sitecustomize.py").write_text(CARELESS)
    careless = str(tmp_path / "careless")
    assert lost_in_a_power_cut(machine, tmp_path / "home", 100, "chiffon", "forge", PYTHONPATH=careless)


CARELESS = """
import apsw

class Careless(apsw.Connection):
    def execute(self, sql, *args, **kwargs):
        if sql == "PRAGMA synchronous":
            sql = "SELECT 2"
        return super().execute(sql.replace("synchronous = FULL", "synchronous = NORMAL"), *args, **kwargs)

    def pragma(self, name, *args, **kwargs):
        return 2 if name == "synchronous" else super().pragma(name, *args, **kwargs)

apsw.Connection = Careless
"""
"""A `sitecustomize` under which no commit waits for the disk, and the hub believes it did."""


# -- at most once


def doubled_in_a_power_cut(machine: Machine, home: Path) -> set[str]:
    """Which direct messages a receiver heard before the cut and, when their sender repeated them, once more after
    it."""
    with running(home, data=machine.place / "data") as hub:
        ada, bob = Plain(hub, "ada"), Plain(hub, "bob")
        said: list[dict[str, Any]] = []
        heard: list[str] = []
        with bob.link() as link:
            link.settled()
            with ada.link() as wire:
                for _ in range(40):
                    said += [wire.say("HEARTBEAT", "bob", {"agent_id": "ada"}, priority="low") for _ in range(10)]
                    while len(heard) < len(said):
                        heard.append(link.hears("HEARTBEAT")["id"])
                cut(machine, hub)
        back(machine, hub)
        again: set[str] = set()
        with bob.link() as link, ada.link() as wire:
            for message in said:
                wire.socket.send(json.dumps(message))
            new = wire.say("HEARTBEAT", "bob", {"agent_id": "ada"}, priority="low")
            while new["id"] not in again:
                again.add(link.hears("HEARTBEAT")["id"])
        return set(heard) & again


@ROOT
@pytest.mark.requirement("AM-DLV-2")
def test_what_is_promised_at_most_once_is_never_delivered_twice_over_a_power_cut(
    machine: Machine, tmp_path: Path
) -> None:
    assert doubled_in_a_power_cut(machine, tmp_path / "home") == set()


@ROOT
def test_a_hub_that_does_not_wait_for_the_ring_of_messages_is_caught_by_the_power_cut(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "careless").mkdir()
    (tmp_path / "careless" / "sitecustomize.py").write_text("import os\nos.fdatasync = lambda file: None\n")
    real = HubProcess.start

    def careless(hub: HubProcess, **settings: Any) -> HubProcess:
        return real(hub, **{"PYTHONPATH": str(tmp_path / "careless"), **settings})

    monkeypatch.setattr(HubProcess, "start", careless)
    assert doubled_in_a_power_cut(machine, tmp_path / "home")


# -- what a cut, or a hand, can leave of a small file


TORN = [b"", bytes(64), b'{"ver']
MADE_ANEW = ("admin.token", "brood.id", "hub.json", "lock", "hub.passed", "master.made")
EXPLAINED = ("keys/signing.json",)


@pytest.mark.parametrize("torn", TORN, ids=["empty", "zeros", "half"])
def test_a_hub_starts_beside_a_torn_file_or_says_what_to_do(tmp_path: Path, torn: bytes) -> None:
    with running(tmp_path) as hub:
        agent = Contracted(hub, "una")
        agent.token("vic")  # makes the keys that sign
        assert hub.admin.ask("POST", "/api/v1/files?name=x", b"data").status == 201  # and the master key
        hub.kill()
        for name in MADE_ANEW:
            assert (hub.data / name).exists(), name
            (hub.data / name).write_bytes(torn)
        hub.start()
        assert hub.admin.get("/api/v1/agents").status == 200
        assert hub.stop() == 0
        for name in EXPLAINED:
            whole = (hub.data / name).read_bytes()
            (hub.data / name).write_bytes(torn)
            hub.log.write_text("")
            hub.launch()
            assert hub.died() == 4
            said = hub.log.read_text()
            assert f"{name} is damaged" in said
            assert "remove it" in said
            assert "Traceback" not in said
            (hub.data / name).write_bytes(whole)
        hub.start()
        assert "Traceback" not in hub.log.read_text()
