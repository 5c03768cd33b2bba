"""Load over three nodes while the lead goes from one to the next, again and again: judged by the ledger.

`make soak` runs it for `MINUTES` (10) with a failover every `FAILOVER_SECONDS` (20); with `-s` it prints its figures.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from statistics import quantiles

import jwt
import pytest
from tests.e2e.a2acp.speaking import BROKER, Speaker
from tests.support.chiffon import HttpClient
from tests.support.cluster import Cluster, cluster
from tests.support.cluster_load import LONG, AtMostOnce, Load, TimedLedger, audit_is_whole, command
from tests.support.fleet import BROKEN
from tests.support.hubproc import PATIENCE, until
from tests.support.postgres import Pair, need_postgres

MINUTES = float(os.environ.get("MINUTES", "10"))
EVERY = float(os.environ.get("FAILOVER_SECONDS", "20"))
FAULTS = ("kill", "step-down", "stop", "promotion")


class Failovers:
    """Takes the lead from the node that has it, and mends what it broke."""

    def __init__(self, hub: Cluster, pair: Pair) -> None:
        self.hub = hub
        self.pair = pair

    def happens(self, fault: str) -> None:
        leader = self.hub.leader()
        match fault:
            case "kill":
                leader.kill()
                self.hub.leader()
                leader.return_to_its_port()
            case "stop":
                leader.freeze()
                self.hub.leader()
                leader.thaw()
                until(lambda: not leader.leads, "the leader that slept is fenced")
            case "step-down":
                done = command(self.hub, "cluster", "step-down", "--hub", self.hub.follower().url)
                assert done.returncode == 0, done.stdout + done.stderr
            case "promotion":
                self.pair.promote()
                self.hub.leader()
                self.pair.rebuild()
        until(lambda: all(node.is_ready for node in self.hub.nodes.values()), "all nodes serve")


def figures(ledger: TimedLedger, pauses: dict[str, list[float]], seconds: float) -> str:
    def percentiles(values: list[float]) -> str:
        cuts = quantiles(values, n=100)
        return f"p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms"

    rows = [f"{len(ledger.accepted)} acknowledged in {seconds:.0f} s, {len(ledger.accepted) / seconds:.0f} a second"]
    rows += [f"{fault}: {len(of)} times, longest pause {max(of):.2f} s" for fault, of in sorted(pauses.items())]
    rows += [f"acknowledgment {percentiles(ledger.waits)}", f"outcome {percentiles(ledger.round_trips)}"]
    return "\n".join(("", *rows, f"load of the machine {os.getloadavg()[0]:.1f}"))


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_over_minutes_of_failovers(tmp_path: Path) -> None:
    need_postgres()
    pair, ledger, rng = Pair("minutes"), TimedLedger(), random.Random(1)
    pauses: dict[str, list[float]] = defaultdict(list)
    try:
        with cluster(tmp_path, pair.url, "abc", **LONG) as hub:
            failovers = Failovers(hub, pair)
            with AtMostOnce(hub) as once, Load(hub, ledger=ledger, senders=4, workers=3) as load:
                began = time.monotonic()
                waiting: list[str] = []
                while time.monotonic() < began + 60 * MINUTES:
                    waiting = waiting or rng.sample(FAULTS, len(FAULTS))
                    fault, start = waiting.pop(), time.monotonic()
                    failovers.happens(fault)
                    load.more()
                    threading.Event().wait(start + EVERY - time.monotonic())  # the pace is what is asked for
                    pauses[fault].append(ledger.longest_pause(start, time.monotonic()))
                seconds = time.monotonic() - began
            assert once.taken > 0
            assert [id for id, count in once.came.items() if count > 1] == []
            audit_is_whole(hub)
        print(figures(ledger, pauses, seconds), f"at most once: {once.taken} taken, {len(once.came)} came", sep="\n")
    finally:
        pair.remove()


@pytest.mark.long
def test_nothing_acknowledged_is_lost_when_primaries_die_in_turn(tmp_path: Path) -> None:
    """The standby is promoted, a new one joins it and is promoted as well."""
    need_postgres()
    pair = Pair("turns")
    try:
        with cluster(tmp_path, pair.url, "ab", **LONG) as hub:
            with AtMostOnce(hub) as once, Load(hub) as load:
                Failovers(hub, pair).happens("promotion")
                load.more()
                pair.promote()
                load.more()
            assert once.taken > 0
            assert [id for id, count in once.came.items() if count > 1] == []
            audit_is_whole(hub)
    finally:
        pair.remove()


def lost_of(kept: Mapping[str, bytes], client: HttpClient) -> list[str]:
    """The files that a task cannot be given, or that come back otherwise."""
    lost: list[str] = []
    for ids in batched(kept, 50):
        made = client.post("/api/v1/tasks", {"type": "build", "kind": "infra", "input": {}, "attachments": ids})
        assert made.status == 202, made
        lost += (id for id in ids if client.get(f"/api/v1/tasks/{made.json['id']}/files/{id}").body != kept[id])
    return lost


def batched(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    waiting = iter(ids)
    while batch := list(islice(waiting, size)):
        yield batch


@pytest.mark.long
def test_files_and_keys_that_were_kept_just_before_a_promotion_are_there_afterwards(tmp_path: Path) -> None:
    """Files that a node acknowledged, a key that was rotated, tokens: at every node, and at one that starts anew."""
    need_postgres()
    pair = Pair("kept")
    kept: dict[str, bytes] = {}
    over = threading.Event()
    try:
        with cluster(tmp_path, pair.url, "ab", **LONG) as hub:

            def upload() -> None:
                while not over.is_set():
                    data = os.urandom(5000)
                    try:
                        answer = HttpClient(hub.url, hub.ready["admin_token"]).ask("POST", "/api/v1/files?name=x", data)
                    except BROKEN:
                        continue
                    if answer.status == 201:
                        kept[answer.json["id"]] = data

            hub.token("i1", "infra")
            ada = Speaker(hub)
            uploads = threading.Thread(target=upload, daemon=True)
            uploads.start()
            try:
                until(lambda: len(kept) >= 5, "files are kept")
                done = command(hub, "key", "rotate", "--hub", hub.leader().url, "-o", "json")
                assert done.returncode == 0, done.stdout + done.stderr
                rotated = json.loads(done.stdout)["keys"][0]["kid"]
                token = ada.token(BROKER)
                pair.promote()
                before = len(kept)
                hub.leader()
                until(lambda: len(kept) >= before + 5, "files are kept again")
            finally:
                over.set()
                uploads.join(PATIENCE)
            killed = hub.follower()
            killed.kill()
            killed.return_to_its_port()
            for node in hub.nodes.values():
                until(lambda: node.is_ready, "it serves")  # noqa: B023
                assert lost_of(kept, HttpClient(node.url, hub.ready["admin_token"], keep=True)) == []
                published = {one["kid"] for one in HttpClient(node.url).get("/.well-known/jwks.json").json["keys"]}
                assert {rotated, jwt.get_unverified_header(token)["kid"]} <= published
            until(lambda: jwt.get_unverified_header(ada.token(BROKER))["kid"] == rotated, "the new key signs")
    finally:
        pair.remove()
