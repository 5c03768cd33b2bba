"""What the hot cache makes of queues: short ones it knows whole, and of long ones it reads no more than is wanted.

And of direct messages it keeps no more than so many bytes.
"""

from __future__ import annotations

import msgspec
from tests.adapters.records import delivery, task

from dragoman.core.ids import AgentId, DeliveryId
from dragoman.core.lookups import PAGE, DeliveryById, Inbox, Ready
from dragoman.core.model.deliveries import Delivery, DirectMessage
from dragoman.core.ports import Changes
from dragoman.stores.cache import DIRECT_MESSAGE_BYTES, HotCache

FRONT = Ready("code", 4)
WAITING = [task(f"t{n:03}", queue="code", rank=n) for n in range(PAGE)]


def test_a_queue_that_nobody_knows_is_read_as_a_page_and_known_from_then_on() -> None:
    cache = HotCache(1000)
    page = cache.wider(FRONT)
    assert page == Ready("code", PAGE)
    cache.learn(page, WAITING[:10])
    assert cache.answer(FRONT) == WAITING[:4]


def test_of_a_long_queue_only_its_front_is_read_until_it_is_short() -> None:
    cache = HotCache(1000)
    cache.learn(cache.wider(FRONT), WAITING)
    assert cache.answer(FRONT) is None
    assert cache.wider(FRONT) is FRONT
    cache.learn(FRONT, WAITING[:4])
    assert cache.wider(FRONT) is FRONT
    cache.learn(FRONT, WAITING[:3])
    assert cache.answer(FRONT) == WAITING[:3]


def direct_delivery(n: int, size: int) -> Delivery:
    words = DirectMessage(
        sender=AgentId("ann"),
        message_id=f"m{n}",
        kind="HEARTBEAT",
        digest="d",
        raw=msgspec.Raw(b'"' + b"x" * size + b'"'),
        protocol="agentmsg",
    )
    return delivery(f"d{n}", f"d{n}", direct_message=words)


def known(cache: HotCache, count: int) -> list[int]:
    return [n for n in range(count) if cache.answer(DeliveryById(DeliveryId(f"d{n}"))) is not None]


def test_of_messages_only_so_many_bytes_are_cached_and_the_newest_of_them() -> None:
    cache = HotCache(100_000)
    megabyte = 1_000_000
    count = 3 * DIRECT_MESSAGE_BYTES // megabyte
    for n in range(count):
        cache.follow(Changes(added=[direct_delivery(n, megabyte)]), {})
    kept = known(cache, count)
    assert 0 < len(kept) * megabyte <= DIRECT_MESSAGE_BYTES
    assert kept == list(range(kept[0], count))
    cache.follow(Changes(removed=[direct_delivery(n, megabyte) for n in kept]), {})
    for n in range(count, count + 10):  # what went is not counted any more, and what is rewritten counts once
        cache.follow(Changes(added=[direct_delivery(n, megabyte)]), {})
        for _ in range(3):
            cache.follow(Changes(changed=[direct_delivery(n, megabyte)]), {})
    assert known(cache, count + 10) == list(range(count, count + 10))


def test_a_removed_message_leaves_the_cached_inbox_of_its_receiver_too() -> None:
    cache = HotCache(100_000)
    inbox = Inbox(AgentId("bob"), 4)
    cache.learn(inbox, [direct_delivery(0, 10)])
    assert cache.answer(inbox) == [direct_delivery(0, 10)]
    cache.learn(DeliveryById(DeliveryId("d1")), [direct_delivery(1, DIRECT_MESSAGE_BYTES)])
    assert cache.answer(inbox) is None
