"""A2acp's door, from the settings: the broker's name, its keys beside the store, and its clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.app.settings import Settings
from dragoman.app.vault import DIRECTORY
from dragoman.bindings.a2acp.names import version_of
from dragoman.core.ids import SECOND, Instant
from dragoman.core.ports import Files, Intake, Store, Vault
from dragoman.protocols.a2acp.types import Agent
from dragoman.transports.a2acp.desk import A2acpDesk
from dragoman.transports.a2acp.http import A2acpDoor
from dragoman.transports.a2acp.tokens import AuthService
from dragoman.transports.limits import Limits

if TYPE_CHECKING:
    from dragoman.security.jwt import Authority
    from dragoman.security.keys import KeyRing


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
) -> A2acpDoor:
    desk = A2acpDesk(intake, store, auth, vault, limits=limits, files=files)
    return A2acpDoor(desk, ttl=int(settings.a2acp.token_ttl_seconds))


class Keys:
    """The keys in the data directory, and the operator's secret, if there is one."""

    def __init__(self, settings: Settings) -> None:
        self._directory = Path(settings.data) / DIRECTORY
        self._settings = settings.a2acp

    def check(self) -> None:
        """Look at what is there, so that what will not do is said at the start and not to the first agent that comes.
        Raises `KeyProblem` or `PrivateFileError`."""
        from dragoman.security.keys import KeyFile, read_secret

        kept, of = KeyFile(self._directory), self._settings
        if kept.path.exists():
            self._whole(kept.open(0))
        elif of.hs256_secret is not None:
            read_secret(of.hs256_kid, Path(of.hs256_secret))

    def authority(self, now: int) -> Authority:
        """Signs and verifies with them."""
        from dragoman.security.jwt import Authority
        from dragoman.security.keys import KeyFile

        return Authority(self._whole(KeyFile(self._directory).open(now)), issuer=self._settings.issuer)

    def rotate(self, now: int, *, distrust: bool) -> KeyRing:
        from dragoman.security.keys import KeyFile

        return self._whole(KeyFile(self._directory).rotate(now, distrust=distrust))

    def _whole(self, ring: KeyRing) -> KeyRing:
        from dragoman.security.keys import read_secret

        of = self._settings
        if of.hs256_secret is None:
            return ring
        secret = read_secret(of.hs256_kid, Path(of.hs256_secret))
        assert isinstance(secret.material, bytes)
        return ring.with_secret(secret.kid, secret.material)
