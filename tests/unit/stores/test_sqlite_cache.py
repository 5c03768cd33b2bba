"""What the hot cache makes of queues: short ones it knows whole, and of long ones it reads no more than is wanted."""

from __future__ import annotations

from tests.adapters.records import task

from dragoman.core.lookups import PAGE, Ready
from dragoman.stores.sqlite.cache import HotCache

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
