"""A2acp's door, from the settings: the broker's name, its keys beside the store, and its clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.app.settings import Settings
from dragoman.app.vault import DIRECTORY, DataVault
from dragoman.bindings.a2acp.names import version_of
from dragoman.core.ids import SECOND, Instant
from dragoman.core.ports import Intake, Store
from dragoman.protocols.a2acp.types import Agent
from dragoman.transports.a2acp.desk import A2acpDesk
from dragoman.transports.a2acp.http import A2acpDoor
from dragoman.transports.a2acp.tokens import AuthService
from dragoman.transports.limits import Limits

if TYPE_CHECKING:
    from dragoman.security.jwt import Authority


def open_broker(
    settings: Settings, intake: Intake, store: Store, now: Callable[[], Instant], limits: Limits
) -> A2acpDoor:
    of = settings.a2acp
    broker = Agent(agent_id=of.broker_id, domain=of.broker_domain, version=version_of(of.broker_version))
    auth = AuthService(intake, broker, lambda: authority(settings, now))
    desk = A2acpDesk(intake, store, auth, DataVault(Path(settings.data), now), limits=limits)
    return A2acpDoor(desk, ttl=int(of.token_ttl_seconds))


def authority(settings: Settings, now: Callable[[], Instant]) -> Authority:
    """Signs and verifies, with the keys in the data directory; they are made when they are first needed."""
    from dragoman.security.jwt import Authority
    from dragoman.security.keys import KeyFile, read_secret

    of = settings.a2acp
    ring = KeyFile(Path(settings.data) / DIRECTORY).open(now() // SECOND)
    if of.hs256_secret is not None:
        secret = read_secret(of.hs256_kid, Path(of.hs256_secret))
        assert isinstance(secret.material, bytes)
        ring = ring.with_secret(secret.kid, secret.material)
    return Authority(ring, issuer=of.issuer)
