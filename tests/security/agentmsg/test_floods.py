"""Floods, and readers that do not read."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.plain import Plain
from tests.support.hubproc import HubProcess, running, until


def resident(hub: HubProcess) -> int:
    """Megabytes."""
    lines = Path(f"/proc/{hub.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


def test_a_flood_for_an_absent_receiver_holds_up_nobody(hub: HubProcess, cast: dict[str, Plain]) -> None:
    """What was accepted is kept; the hub's memory does not grow with it, and others are served meanwhile."""
    eve = cast["eve"]
    absent, other = Plain(hub, "absent"), Plain(hub, "other")
    before = resident(hub)
    filler = "x" * 4096
    with eve.link() as link:
        said = []
        for n in range(2000):
            said.append(link.say("ERROR_REPORT", "absent", words.error("eve", message=f"{n} {filler}")))
            if n % 200 == 199:
                link.acked(*said[-200:])
        urgent = eve.say("ERROR_REPORT", "other", words.error("eve", message="and you"))
        assert other.hears("ERROR_REPORT")["id"] == urgent["id"]
    assert resident(hub) - before < 80
    first = absent.poll(60, 50)
    assert [one["message"]["id"] for one in first] == [one["id"] for one in said[:50]]
    assert absent.ack(*first) == 50
    assert absent.poll(60, 1)[0]["message"]["id"] == said[50]["id"]


def test_a_connection_that_never_acknowledges_gets_a_bounded_window(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_RULES__LINK_WINDOW="20", DRAGOMAN_AGENTMSG__RETRY_BASE_SECONDS="60") as own:
        ada, bob = Plain(own, "ada"), Plain(own, "bob")
        with bob.link() as link:
            link.settled()
            for n in range(60):
                ada.say("ERROR_REPORT", "bob", words.error("ada", message=str(n)))
            link.settled()
            got = [one for one in link.heard if one["type"] == "ERROR_REPORT"]
            assert len(got) == 20
            link.ack(*got)
            until(lambda: link.hears("ERROR_REPORT") and len(link.heard) > 40, "the next ones")


def test_a_watcher_that_does_not_read_holds_up_nobody(hub: HubProcess, cast: dict[str, Plain]) -> None:
    """Both kinds of watch stand still; the writer goes on, memory stays, and a reader loses nothing."""
    eve, ada = cast["eve"], cast["ada"]
    address = urlsplit(hub.url)
    stuck = socket.create_connection((address.hostname, address.port), timeout=60)
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    cursor = ada.get("/state").json["cursor"]
    head = f"Host: localhost\r\nAuthorization: Bearer {eve.token}"
    stuck.sendall(f"GET /agentmsg/state/watch?cursor={cursor} HTTP/1.1\r\n{head}\r\n\r\n".encode())
    name = f"big {uuid.uuid4().hex[:6]}"
    before = resident(hub)
    with eve.link(max_queue=1) as link:
        link.say("STATE_QUERY", "hub", {"watch": True, "entity_type": "TASK", "cursor": cursor})
        for version in range(400):
            changes = {"context": {"filler": f"{version} " + "x" * 50_000}}
            update = words.change("UPDATE" if version else "CREATE", "TASK", name, changes, version, words.now())
            assert ada.post("/state", update).status == 200  # nobody waits for them
        assert resident(hub) - before < 100
        seen: list[int] = []
        while len(seen) < 400:
            told = link.hears("STATE_UPDATE")["payload"]
            if told["entity_id"] == name:
                seen.append(told["version"])
        assert seen == list(range(1, 401))
    stuck.close()


def test_too_many_watches_on_one_connection_are_refused(cast: dict[str, Plain]) -> None:
    with cast["eve"].link() as link:
        asked = [
            link.say("STATE_QUERY", "hub", {"watch": True, "entity_type": "TASK", "entity_id": f"t{n}"})
            for n in range(40)
        ]
        link.settled()
        refused = [one for one in link.heard if one["type"] == "ERROR_REPORT"]
        assert len(refused) == len(asked) - 16
        assert {one["payload"]["error_type"] for one in refused} == {"RESOURCE_EXHAUSTED"}
