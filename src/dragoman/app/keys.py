"""The hub's keys: the master key that seals what is kept, the keys that sign tokens, and the token for the metrics.

The master key is opened when the first thing is locked or unlocked, and not at every start. A key is made once. That it
was is noted beside the store (`MADE`), and in the store itself, which knows the ids of the keys that something is
sealed under (`stores.sqlite.master_keys`): so a copy of the store that was put back without its key, or beside another
one, is not taken for a store that needs a new key. `check` looks at the start of a hub.

Cryptography is imported when a key is needed: most hubs never need one, and `dragoman doctor` looks at the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dragoman import durable
from dragoman.app.settings import A2acpSettings, Settings
from dragoman.core.ids import SECOND, Instant
from dragoman.core.ports import StoreFailed
from dragoman.security import private
from dragoman.security.private import PrivateFileError
from dragoman.security.tokens import token_hash
from dragoman.stores.files import sealed_under
from dragoman.stores.sqlite.schema import StoreRefused

if TYPE_CHECKING:
    from dragoman.api.oidc_client import Provider
    from dragoman.security.jwt import Authority
    from dragoman.security.keys import KeyRing
    from dragoman.security.masterkey import MasterKeys

DIRECTORY = "keys"
FILE = "master.json"
FILES = "files"
MADE = "master.made"
VARIABLE = "DRAGOMAN_MASTER_KEY"
"""As `security.masterkey` has it, which is imported where a key is needed."""
SHORTEST_TOKEN = 16


class DataVault:
    """`core.ports.Vault` of a data directory. An unusable key file is read again the next time. `given`: the keys that
    the operator gave in the environment; then the directory has none."""

    def __init__(
        self, data: Path, now: Callable[[], Instant] = lambda: Instant(0), *, given: str | None = None
    ) -> None:
        self._data = data
        self._given = given
        self._directory = data / DIRECTORY
        self._made = data / MADE
        self._now = now

    @cached_property
    def keys(self) -> MasterKeys:
        from dragoman.security.masterkey import MasterKeyFile, MasterKeyProblem, given_keys

        if self._given:
            try:
                return given_keys(self._given)
            except MasterKeyProblem as problem:
                raise StoreFailed(f"personal data is shut: {problem}") from problem
        file = MasterKeyFile(self._directory)
        if self._made.exists() and not file.path.exists():
            raise StoreFailed(self._missing(()))
        try:
            keys = file.open(self._now() // SECOND)
            if not self._made.exists():
                durable.write(self._made)
        except (MasterKeyProblem, PrivateFileError, OSError) as problem:
            raise StoreFailed(f"personal data is shut: {problem}") from problem
        return keys

    @property
    def in_use(self) -> str | None:
        keys: MasterKeys | None = self.__dict__.get("keys")
        return None if keys is None else keys.ids[0]

    def ids(self) -> tuple[str, ...]:
        """The ids of the keys that are there; makes none. Raises `StoreFailed`."""
        from dragoman.security.masterkey import MasterKeyFile, MasterKeyProblem

        if self._given:
            return self.keys.ids
        try:
            return MasterKeyFile(self._directory).ids()
        except (MasterKeyProblem, PrivateFileError, OSError) as problem:
            raise StoreFailed(f"what is sealed in {self._data} stays shut: {problem}") from problem

    def lacking(self, sealed: Collection[str], given_up: Collection[str]) -> frozenset[str]:
        """The ids of the keys that something is sealed under and that are not there. `sealed` are those that the store
        knows; where it knows none, the files are looked at. Raises `StoreFailed` where the key file cannot be used."""
        wanted = frozenset(sealed or sealed_under(self._data / FILES)) - frozenset(given_up)
        return wanted - set(self.ids()) if wanted else wanted

    def check(self, sealed: Collection[str], given_up: Collection[str]) -> None:
        """Raises `StoreRefused` where something is sealed under a key that is not there: no hub serves without it, and
        none makes a new key beside it."""
        try:
            lacking = self.lacking(sealed, given_up)
        except StoreFailed as failed:
            raise StoreRefused(f"what is sealed in {self._data} stays shut", str(failed.__cause__)) from failed
        lost = not self._given and self._made.exists() and not (self._directory / FILE).exists()
        if lacking or lost:
            raise self._missing(lacking)

    def _missing(self, ids: Collection[str]) -> StoreRefused:
        path = self._directory / FILE
        which = f"the master key {' and '.join(sorted(ids))}" if ids else "a master key"
        there = bool(self._given) or path.exists()
        state, put = ("holds another key", "put the right one") if there else ("is not there", "put it")
        return StoreRefused(
            f"files or personal data in {self._data} are sealed with {which}, and {VARIABLE if self._given else path}"
            f" {state}",
            f"{put} back from where you keep your keys, or give up what it sealed: dragoman key give-up --data"
            f" {self._data}",
        )

    def lock(self, data: bytes, about: Mapping[str, str]) -> bytes:
        return self.keys.lock(data, about)

    def unlock(self, record: bytes, about: Mapping[str, str]) -> bytes:
        from dragoman.security.masterkey import Locked

        try:
            return self.keys.unlock(record, about)
        except Locked as locked:
            raise StoreFailed(f"personal data stays shut: {locked}") from locked


class TokenKeys(Protocol):
    """The keys that sign tokens, wherever they are kept. All methods raise `KeyProblem` or `PrivateFileError`, or
    `StoreFailed`."""

    def authority(self, now: int) -> Authority:
        """Signs and verifies with them."""
        ...

    async def rotate(self, now: int, *, distrust: bool) -> KeyRing:
        """Make a new key, and return when it signs. With `distrust`, the old ones verify nothing any more."""
        ...

    async def follow(self, use: Callable[[KeyRing], None]) -> None:
        """Call `use` with the ring whenever another node changed it, for ever."""
        ...


class SigningKeys:
    """The keys in the data directory, and the operator's secret, if there is one."""

    def __init__(self, settings: Settings) -> None:
        self._directory = Path(settings.data) / DIRECTORY
        self._settings = settings.a2acp

    def check(self) -> None:
        """Check the keys that are there at the start, and not when the first agent connects.
        Raises `KeyProblem` or `PrivateFileError`."""
        from dragoman.security.keys import KeyFile, read_secret

        kept, of = KeyFile(self._directory), self._settings
        if kept.path.exists():
            with_secret(kept.open(0), of)
        elif of.hs256_secret is not None:
            read_secret(of.hs256_kid, Path(of.hs256_secret))

    def authority(self, now: int) -> Authority:
        from dragoman.security.jwt import Authority
        from dragoman.security.keys import KeyFile

        return Authority(with_secret(KeyFile(self._directory).open(now), self._settings), issuer=self._settings.issuer)

    async def rotate(self, now: int, *, distrust: bool) -> KeyRing:
        from dragoman.security.keys import KeyFile

        ring = await asyncio.to_thread(KeyFile(self._directory).rotate, now, distrust=distrust)
        return with_secret(ring, self._settings)

    async def follow(self, use: Callable[[KeyRing], None]) -> None:
        """No other process changes these files."""
        await asyncio.Event().wait()


def with_secret(ring: KeyRing, of: A2acpSettings) -> KeyRing:
    """The ring, and the operator's secret where the settings name one. Raises `KeyProblem` or `PrivateFileError`."""
    from dragoman.security.keys import read_secret

    if of.hs256_secret is None:
        return ring
    secret = read_secret(of.hs256_kid, Path(of.hs256_secret))
    assert isinstance(secret.material, bytes)
    return ring.with_secret(secret.kid, secret.material)


def provider_of(settings: Settings) -> Provider | None:
    """The identity provider that the settings name, if any."""
    of = settings.oidc
    if of.issuer is None:
        return None

    from dragoman.api.oidc_client import Provider

    secret: str | None = None
    if of.client_secret is not None:
        try:
            secret = private.read(Path(of.client_secret)).decode().strip()
        except (OSError, UnicodeDecodeError, PrivateFileError) as error:
            raise PrivateFileError(
                f"oidc.client_secret: {of.client_secret} cannot be read ({error})", "Put the secret into it."
            ) from None
    return Provider(of.issuer.rstrip("/"), of.client_id, secret, of.role_claim, of.public_url)


def metrics_token_hash(settings: Settings) -> str | None:
    """The hash of the token that `/metrics` needs, where the settings name one."""
    if settings.server.metrics_token is None:
        return None
    path = Path(settings.server.metrics_token)
    try:
        token = private.read(path).decode().strip()
    except (OSError, UnicodeDecodeError, PrivateFileError) as error:
        raise PrivateFileError(
            f"server.metrics_token: {path} cannot be read ({error})", "Put a token into it."
        ) from None
    if len(token) < SHORTEST_TOKEN:
        raise PrivateFileError(
            f"server.metrics_token: the token in {path} has less than {SHORTEST_TOKEN} characters",
            "Put a longer one into it.",
        )
    return token_hash(token)
