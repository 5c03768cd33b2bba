"""A page of another site makes a browser ask with cookies, and at any address; never with our header."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("name", ["token", "access_token", "admin_token", "authorization", "session"])
async def test_a_token_that_a_browser_would_send_by_itself_is_none(world: Any, name: str) -> None:
    token = world.client.headers["authorization"].removeprefix("Bearer ")
    for value in (token, f"Bearer {token}"):
        for how in ({"headers": {"cookie": f"{name}={value}"}}, {"params": {name: value}}):
            answer = await world.stranger.post("/api/v1/agents", json={}, **how)
            assert (answer.status_code, answer.json()["kind"]) == (401, "unauthenticated")
    assert world.intake.asked == []
