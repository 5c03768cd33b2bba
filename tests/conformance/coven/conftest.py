"""Two ends of a stream with nothing between them but bytes."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.protocols.coven.connection import Connection, Event
from dragoman.protocols.coven.types import MessageResponse, ResponseEvent, SendMessage
from dragoman.wire import Role


class Link:
    """A hub and an agent. Each step hands the bytes of one straight to the other, and returns what that one heard."""

    def __init__(self, **settings: Any) -> None:
        self.hub = Connection(Role.HUB, **settings)
        self.agent = Connection(Role.AGENT, **settings)

    def register(self, agent_id: str = "agent-1", **more: Any) -> Event:
        (event,) = self.hub.receive(self.agent.send_register(agent_id, **more))
        return event

    def welcome(self) -> Event:
        (event,) = self.agent.receive(self.hub.send_welcome("gateway-1"))
        return event

    def open(self, **more: Any) -> Link:
        self.register(**more)
        self.welcome()
        return self

    def message(self, request_id: str = "r1", **more: Any) -> Event:
        (event,) = self.agent.receive(self.hub.send(SendMessage(request_id=request_id, **more)))
        return event

    def respond(self, event: ResponseEvent, request_id: str = "r1", **more: Any) -> Event:
        said = MessageResponse(request_id=request_id, event=event, **more)
        (heard,) = self.hub.receive(self.agent.send(said))
        return heard


@pytest.fixture
def link() -> Link:
    """Two fresh ends."""
    return Link()


@pytest.fixture
def make_link() -> type[Link]:
    return Link
