"""The keys that sign tokens, as the settings and the data directory have them. Apart from the broker that uses them, so
that `dragoman doctor` can look at them without importing a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.app.settings import Settings
from dragoman.app.vault import DIRECTORY

if TYPE_CHECKING:
    from dragoman.security.jwt import Authority
    from dragoman.security.keys import KeyRing


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
