"""A2acp's door, from the settings: the broker's name, its keys beside the store, and its clock."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.app.settings import Settings
from dragoman.app.signing import Keys as Keys
from dragoman.bindings.a2acp.names import version_of
from dragoman.core.ids import SECOND, Instant
from dragoman.core.ports import Files, Intake, Store, Vault
from dragoman.protocols.a2acp.types import Agent
from dragoman.server import a2acp
from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.endpoint import Endpoint
from dragoman.server.limits import Limits


def open_auth(settings: Settings, intake: Intake, now: Callable[[], Instant]) -> AuthService:
    """The auth service; its keys are made when they are first needed."""
    of = settings.a2acp
    broker = Agent(agent_id=of.broker_id, domain=of.broker_domain, version=version_of(of.broker_version))
    keys = Keys(settings)
    return AuthService(intake, broker, lambda: keys.authority(now() // SECOND), keys.rotate)


def open_broker(
    settings: Settings,
    intake: Intake,
    store: Store,
    auth: AuthService,
    vault: Vault,
    limits: Limits,
    files: Files | None = None,
) -> tuple[Endpoint, ...]:
    handler = A2acpHandler(intake, store, auth, vault, limits=limits, files=files)
    return a2acp.endpoints(handler, ttl=int(settings.a2acp.token_ttl_seconds))
