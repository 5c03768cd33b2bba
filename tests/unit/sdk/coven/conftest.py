"""The gateway of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.unit.sdk.coven.gateway import Gateway

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    async with Gateway() as gateway:
        yield gateway
