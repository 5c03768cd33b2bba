"""Sealed payloads: AES-256-GCM under a key that belongs to one collaboration (a2acp-D12).

    {"alg": "A256GCM", "kid": …, "nonce": …, "ciphertext": …}    base64url, unpadded; the tag ends the ciphertext

Beside these a payload may carry in clear what the broker routes by (`contract_id`, `correlation_id`); whatever the
caller names as `ids` is bound to the seal, so a ciphertext moved to another message does not open. The associated data
is the canonical JSON `{"alg":…,"ids":{…},"kid":…}`: names sorted, no spaces, UTF-8.

Nonces are 96 random bits, never a counter: a counter that goes back (a restored backup, two processes with one key)
repeats a nonce, and two messages under one nonce give the key stream away. Random ones need no memory, but only so
many: after `MOST_USES` the next seal is refused and the key has to be rotated. At 2^24 uses the chance of a repeat
is below 2^-49 (NIST SP 800-38D allows 2^32); a contract of a day under its rate limit uses 144,000.

On the other side a nonce that comes a second time under one key is refused, whatever message brings it: its sender is
broken, or somebody replays. `NonceWatch` remembers as many as can come while a message counts as fresh (a2acp-D15).

Who holds the key decides the mode, not the format: see `security/exchange.py`.
"""

from __future__ import annotations

import enum
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dragoman.security.keys import decode64, encode64

ALGORITHM = "A256GCM"
KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
MOST_USES = 2**24
GRACE = 600
"""Seconds for which a rotated key still opens: what was sealed before is on its way, or waits for its receiver."""

REMEMBERED = 2**16
"""Nonces: the broker's 10,000 messages a minute for the 6 minutes in which one is fresh."""


class Flaw(enum.StrEnum):
    FORM = "form"
    KEY = "key"
    TAMPERED = "tampered"
    NONCE = "nonce"


SENTENCES = {
    Flaw.FORM: "this is no sealed payload; send alg A256GCM, kid, nonce and ciphertext as base64url without padding",
    Flaw.KEY: "no key of that kid is in use for this collaboration; shake hands, or rotate_key",
    Flaw.TAMPERED: "the payload does not open; seal it for this message, with its own ids, under the key its kid names",
    Flaw.NONCE: "this nonce was used before under this key; draw a new one for every message",
}


class Unopened(msgspec.Struct, frozen=True):
    """Why a payload stays shut. Nothing of it is in here."""

    flaw: Flaw
    field: str | None = None

    @property
    def message(self) -> str:
        return SENTENCES[self.flaw]

    def __str__(self) -> str:
        return f"{self.message} ({self.field})" if self.field else self.message


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed payload as it travels; other members beside these are the caller's."""

    alg: str
    kid: str
    nonce: str
    ciphertext: str


class KeyWornOut(Exception):
    """The key has sealed as often as it may. The sentence ends with what to do."""


class CollaborationKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key and its name. Shown without the key, compared with it."""

    kid: str
    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"a collaboration key has {KEY_BYTES} bytes")

    def __repr__(self) -> str:
        return f"CollaborationKey({self.kid})"

    @staticmethod
    def new() -> CollaborationKey:
        """A key of our own making, which the broker hands to both agents."""
        return CollaborationKey(kid=encode64(os.urandom(12)), secret=os.urandom(KEY_BYTES))


class NonceWatch:
    """Nonces that were seen, the oldest forgotten first. One for all collaborations; memory only.

    Nonces of messages that the hub accepted are rows as well (`core.policy.replay.sealed_once`), which a
    restart does not forget. Only here is known which ones came with messages that were then refused.
    """

    def __init__(self, room: int = REMEMBERED) -> None:
        self._room = room
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    def first(self, kid: str, nonce: bytes, ciphertext: bytes | None = None) -> bool:
        """Whether it is new, or comes with the `ciphertext` that it came with: a message that was refused for now may
        be sent again as it is, and whether it was accepted before, its id says."""
        mark, what = nonce + kid.encode(), hash(ciphertext)
        if mark in self._seen:
            return ciphertext is not None and self._seen[mark] == what
        self._seen[mark] = what
        if len(self._seen) > self._room:
            self._seen.popitem(last=False)
        return True


class _Held:
    """A key in use: its cipher, how often it sealed here, and since when it only opens."""

    __slots__ = ("cipher", "key", "retired_at", "uses")

    def __init__(self, key: CollaborationKey, uses: int = 0) -> None:
        self.key = key
        self.cipher = AESGCM(key.secret)
        self.uses = uses
        self.retired_at: int | None = None


class Seals:
    """The keys of one collaboration on one side: the newest seals, those before it open for a while."""

    def __init__(self, key: CollaborationKey, *, uses: int = 0) -> None:
        self._held: list[_Held] = [_Held(key, uses)]

    @property
    def kid(self) -> str:
        return self._held[0].key.kid

    @property
    def keys(self) -> Sequence[CollaborationKey]:
        return [held.key for held in self._held]

    def rotate(self, key: CollaborationKey, now: int) -> None:
        """The new key seals from now on. A key that is known already changes nothing (the same news twice)."""
        if any(held.key.kid == key.kid for held in self._held):
            return
        if self._held[0].retired_at is None:
            self._held[0].retired_at = now
        self._held = [_Held(key), *(held for held in self._held if not _over(held, now))]

    def seal(self, payload: bytes, ids: Mapping[str, str]) -> Sealed:
        """The payload for the message of these ids. Raises `KeyWornOut`."""
        return self._seal(payload, ids, os.urandom(NONCE_BYTES))

    def _seal(self, payload: bytes, ids: Mapping[str, str], nonce: bytes) -> Sealed:
        held = self._held[0]
        if held.uses >= MOST_USES:
            raise KeyWornOut(f"the key {held.key.kid} has sealed {held.uses:,} payloads. Rotate it: rotate_key")
        held.uses += 1
        ciphertext = held.cipher.encrypt(nonce, payload, associated(held.key.kid, ids))
        return Sealed(alg=ALGORITHM, kid=held.key.kid, nonce=encode64(nonce), ciphertext=encode64(ciphertext))

    def open(
        self, sealed: Any, ids: Mapping[str, str], *, now: int, watch: NonceWatch | None = None
    ) -> bytes | Unopened:
        """What is inside, if it was sealed for the message of these ids. `sealed` is a `Sealed` or parsed JSON."""
        read = _parts(sealed)
        if isinstance(read, Unopened):
            return read
        kid, nonce, ciphertext = read
        held = next((held for held in self._held if held.key.kid == kid), None)
        if held is None or _over(held, now):
            return Unopened(Flaw.KEY, "kid")
        try:
            payload = held.cipher.decrypt(nonce, ciphertext, associated(kid, ids))
        except InvalidTag:
            return Unopened(Flaw.TAMPERED)
        # Only now: whoever holds no key cannot make us refuse a nonce to its owner.
        if watch is not None and not watch.first(kid, nonce):
            return Unopened(Flaw.NONCE, "nonce")
        return payload


def associated(kid: str, ids: Mapping[str, str]) -> bytes:
    """What a seal is bound to beside the payload."""
    return msgspec.json.encode({"alg": ALGORITHM, "ids": dict(ids), "kid": kid}, order="sorted")


def _over(held: _Held, now: int) -> bool:
    return held.retired_at is not None and now >= held.retired_at + GRACE


def _parts(sealed: Any) -> tuple[str, bytes, bytes] | Unopened:
    if not isinstance(sealed, Sealed):
        try:
            sealed = msgspec.convert(sealed, Sealed)
        except msgspec.ValidationError:
            return Unopened(Flaw.FORM)
    if sealed.alg != ALGORITHM:
        return Unopened(Flaw.FORM, "alg")
    try:
        nonce = decode64(sealed.nonce)
    except ValueError:
        nonce = b""
    if len(nonce) != NONCE_BYTES:
        return Unopened(Flaw.FORM, "nonce")
    try:
        ciphertext = decode64(sealed.ciphertext)
    except ValueError:
        ciphertext = b""
    if len(ciphertext) < TAG_BYTES:
        return Unopened(Flaw.FORM, "ciphertext")
    return sealed.kid, nonce, ciphertext
