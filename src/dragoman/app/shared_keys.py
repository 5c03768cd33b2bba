"""What the nodes of a realm share beside rows and files: keys that sign, the admin's token, environments of children.

    of one machine                   of a realm: a sealed record (`stores.postgres.sealed`)
    -------------------------------  --------------------------------------------------------
    keys/signing.json                signing keys
    admin.token                      admin token; the key of session cookies follows from it
    vault/NAME                       environment/NAME
    keys/master.json                 not there: operators give it to every node

A realm takes the admin's token of its first node. Every node can say it to the commands that are typed beside it, which
is why the token itself is sealed, and not its hash.

*A new key signs when all nodes know it*: the node that rotates the keys writes the ring at once, and the new key signs
`SETTLE` seconds later, while the nodes look every second. With `distrust` it signs at once, since the old tokens are
void anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec
import structlog

from dragoman.app.keys import DataVault, with_secret
from dragoman.app.settings import A2acpSettings
from dragoman.core.ids import SECOND, Instant
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Kind, refuse
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.postgres.sealed import Record, SealedRecords
from dragoman.stores.sqlite.schema import StoreRefused

if TYPE_CHECKING:
    from dragoman.security.jwt import Authority
    from dragoman.security.keys import KeyRing

log = structlog.get_logger("dragoman.keys")

SIGNING = "signing keys"
ADMIN_TOKEN = "admin token"
ENVIRONMENT = "environment/"

LOOK_SECONDS = 1.0
SETTLE = 3
"""Seconds until a new key signs."""
YOUNG = 3600.0
"""An environment that is younger may be that of a child which another node is adding."""

_values = msgspec.json.Decoder(dict[str, str]).decode


class SharedKeys:
    """All of it, opened. `admin_token` is the realm's."""

    def __init__(self, records: SealedRecords, admin_token: str, signing: SharedSigningKeys) -> None:
        self.admin_token = admin_token
        self.signing = signing
        self.environments = SharedEnvironments(records)


async def open_shared_keys(
    pool: Pool,
    realm: str,
    vault: DataVault,
    of: A2acpSettings,
    *,
    now: Callable[[], Instant],
    own_token: Callable[[], str],
) -> SharedKeys:
    """Raises `StoreRefused` for a node with another master key than the realm's, and `StoreFailed`."""
    records = SealedRecords(pool, realm, vault)
    try:
        has_key = bool(vault.ids())
    except StoreFailed as failed:
        raise StoreRefused(str(failed)) from failed
    await records.check_key(has_key=has_key)
    token = await records.get(ADMIN_TOKEN)
    if token is None:
        token = await records.agreed(ADMIN_TOKEN, own_token().encode())
    signing = SharedSigningKeys(records, of, now)
    await signing.open()
    return SharedKeys(records, token.data.decode(), signing)


class SharedSigningKeys:
    """The same as `app.keys.SigningKeys`, for all nodes of a realm."""

    def __init__(
        self, records: SealedRecords, of: A2acpSettings, now: Callable[[], Instant], *, settle: int = SETTLE
    ) -> None:
        self._records = records
        self._settings = of
        self._now = now
        self._settle = settle
        self._known: Record | None = None

    async def open(self) -> None:
        """Read the ring, made by the first node."""
        from dragoman.security.keys import encode_keys, new_key

        self._known = await self._records.get(SIGNING)
        if self._known is None:
            self._known = await self._records.agreed(SIGNING, encode_keys([new_key(self._now() // SECOND)]))
        self._ring(self._now() // SECOND)

    def authority(self, now: int) -> Authority:
        from dragoman.security.jwt import Authority

        return Authority(self._ring(now), issuer=self._settings.issuer)

    async def rotate(self, now: int, *, distrust: bool) -> KeyRing:
        """Returns when the new key signs. Raises `KeyProblem` or `StoreFailed`."""
        from dragoman.security.keys import decode_keys, encode_keys, rotated

        while True:
            found = await self._records.get(SIGNING)
            before = [] if found is None else decode_keys(found.data, SIGNING)
            data = encode_keys(rotated(before, now, distrust=distrust, after=self._settle))
            if await self._records.put(SIGNING, data, seen=0 if found is None else found.version):
                break
        self._known = await self._records.get(SIGNING)
        if not distrust:
            await asyncio.sleep(self._settle)
        return self._ring(now if distrust else now + self._settle)

    async def follow(self, use: Callable[[KeyRing], None]) -> None:
        """Call `use` with the ring whenever a node changed it, or another of its keys begins to sign; for ever."""
        signs = self._ring(self._now() // SECOND).signing.kid
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            ring = await self.changed(signs)
            if ring is not None:
                signs = ring.signing.kid
                use(ring)

    async def changed(self, signs: str) -> KeyRing | None:
        """The ring, if it is not the one that was read last, or if this key does not sign any more."""
        from dragoman.security.keys import KeyProblem

        before = self._known
        try:
            if before is None or await self._records.version(SIGNING) != before.version:
                self._known = await self._records.get(SIGNING) or before
            ring = self._ring(self._now() // SECOND)
        except (StoreFailed, KeyProblem) as problem:
            log.warning("the keys that sign tokens stay as they were", why=str(problem))
            self._known = before
            return None
        return ring if self._known is not before or ring.signing.kid != signs else None

    def _ring(self, now: int) -> KeyRing:
        from dragoman.security.keys import KeyRing, decode_keys

        assert self._known is not None
        return with_secret(KeyRing(decode_keys(self._known.data, SIGNING), at=now), self._settings)


class SharedEnvironments:
    """`supervisor.environment.Environments` of a realm."""

    def __init__(self, records: SealedRecords) -> None:
        self._records = records

    async def keep(self, values: Mapping[str, str], name: str) -> None:
        try:
            kept = await self._records.put(ENVIRONMENT + name, msgspec.json.encode(values), seen=0)
        except StoreFailed as failed:
            raise refuse(Kind.OVERLOADED, f"{failed}", next="try again later", retryable=True) from failed
        if not kept:
            raise FileExistsError(name)

    async def fetch(self, name: str) -> dict[str, str]:
        found = await self._records.get(ENVIRONMENT + name)
        if found is None:
            raise FileNotFoundError("its environment is gone; add it again")
        return _values(found.data)

    async def drop(self, name: str) -> None:
        try:
            await self._records.drop(ENVIRONMENT + name)
        except StoreFailed as failed:  # it goes with those that no agent has any more
            log.warning("the environment of a child that is gone could not be removed", why=str(failed))

    async def clear_out(self, wanted: Collection[str]) -> None:
        try:
            await self._records.clear_out(ENVIRONMENT, [ENVIRONMENT + name for name in wanted], YOUNG)
        except StoreFailed as failed:
            log.warning("environments of children that are gone could not be removed", why=str(failed))
