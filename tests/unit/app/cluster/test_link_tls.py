"""Who may follow a leader: nodes with a certificate of the realm's authority, each under its own name, over TLS 1.3."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.nodes import SECONDS, FollowedWorld

from dragoman.app.cluster.certificates import Contexts, contexts
from dragoman.app.cluster.link import LeaderPort, LinkRefused
from dragoman.security.certificates import Authority

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Contexts]:
    """The contexts of a node of this name, with certificates of this authority."""

    def make(node: str, authority: str = "ours") -> Contexts:
        signing = Authority(tmp_path / authority, NOW)
        signing.server([node], now=NOW)
        signing.client(node, now=NOW)
        return contexts(str(tmp_path / authority), node)

    return make


@pytest.fixture
async def leading(made: Callable[..., Contexts]) -> AsyncIterator[FollowedWorld]:
    world = FollowedWorld()
    await world.leader.start()
    world.port = LeaderPort(world.leader, host="127.0.0.1", port=0, tls=made("n1").listening)
    await world.port.start()
    yield world
    await world.stop()


async def test_a_node_with_its_own_certificate_follows_over_tls(
    leading: FollowedWorld, made: Callable[..., Contexts]
) -> None:
    leading.intake = await leading.follow("n2", tls=made("n2").connecting, leader="n1")  # type: ignore[assignment]
    await leading.add("boss", "orchestrator")
    await leading.add("i1", "infra")
    agent = await leading.connect("i1")
    task = await leading.submit(input={"text": "x" * 500_000})
    assert agent.work == [task.id]


async def test_a_node_under_the_name_of_another_is_refused(
    leading: FollowedWorld, made: Callable[..., Contexts]
) -> None:
    with pytest.raises(LinkRefused, match="the certificate shown is not that of node 'n3'"):
        await leading.follow("n3", tls=made("n2").connecting, leader="n1")
    assert leading.port.nodes == []


async def test_a_node_of_another_authority_does_not_get_in(
    leading: FollowedWorld, made: Callable[..., Contexts], tmp_path: Path
) -> None:
    theirs = made("n2", "theirs").connecting
    assert theirs is not None
    theirs.load_verify_locations(tmp_path / "ours" / "ca.pem")  # it believes the leader, and the leader not it
    with pytest.raises((LinkRefused, OSError)):
        await leading.follow("n2", tls=theirs, leader="n1")
    assert leading.port.nodes == []


async def test_a_node_does_not_follow_a_leader_that_another_authority_vouches_for(
    leading: FollowedWorld, made: Callable[..., Contexts]
) -> None:
    with pytest.raises(LinkRefused, match="TLS with the leader"):
        await leading.follow("n2", tls=made("n2", "theirs").connecting, leader="n1")


async def test_a_node_does_not_follow_a_leader_of_another_name(
    leading: FollowedWorld, made: Callable[..., Contexts]
) -> None:
    with pytest.raises(LinkRefused, match="TLS with the leader"):
        await leading.follow("n2", tls=made("n2").connecting, leader="n9")


async def test_one_without_a_certificate_or_without_tls_does_not_get_in(
    leading: FollowedWorld, made: Callable[..., Contexts], tmp_path: Path
) -> None:
    made("n2")
    bare = ssl.create_default_context(cafile=str(tmp_path / "ours" / "ca.pem"))
    bare.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises((LinkRefused, OSError)):
        await asyncio.wait_for(leading.follow("n2", tls=bare, leader="n1"), SECONDS)
    with pytest.raises(OSError):
        await leading.follow("n2", tls=None, seconds=2.0)
    assert leading.port.nodes == []


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "node.example"])
def test_without_tls_nodes_meet_on_loopback_only(host: str) -> None:
    with pytest.raises(ValueError, match="needs TLS"):
        LeaderPort(FollowedWorld().leader, host=host, port=0, tls=None)


def test_tls_that_asks_for_no_certificate_or_is_older_is_not_taken() -> None:
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    lax.minimum_version = ssl.TLSVersion.TLSv1_3
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.verify_mode = ssl.CERT_REQUIRED
    for context in (lax, old):
        with pytest.raises(ValueError, match=r"TLS 1\.3 and the certificates of both ends"):
            LeaderPort(FollowedWorld().leader, host="127.0.0.1", port=0, tls=context)
