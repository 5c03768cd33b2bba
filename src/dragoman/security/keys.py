"""The keys that sign tokens: where they are stored, which one signs, how long an old one verifies.

    algorithm   made by                        kept in                       published
    ----------  -----------------------------  ----------------------------  ----------------------
    EdDSA       the hub (Ed25519), rotated     signing.json, 0600, in 0700   yes, the public half
    HS256       an operator who insists on it  a file of theirs, 0600        never

An algorithm belongs to its key (a2acp-D4): a lookup by `kid` gives both, and the `alg` of a token chooses nothing. The
`kid` of an Ed25519 key is its RFC 7638 thumbprint, so it cannot name another key; that of a secret is the name that the
operator gave it. Keys come from this ring only: a `kid` is looked up in a dictionary, never in a directory, a database
or a URL.

A rotated key no longer signs, and verifies until the last token that it can have signed has expired. All keys are in
one file that is replaced as a whole, so a crash leaves the old ring or the new one.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dragoman.protocols.a2acp.types import LONGEST_TTL
from dragoman.security import private

LEEWAY = 60
"""Seconds by which clocks may differ (a2acp-D4)."""

SHORTEST_SECRET = 32
KID = re.compile(r"[A-Za-z0-9_-]{1,64}")
FILE = "signing.json"
VERSION = 1


class Algorithm(enum.StrEnum):
    EDDSA = "EdDSA"
    HS256 = "HS256"


class KeyProblem(private.Advised):
    """A key that cannot be used. Its text never shows the key."""


class Key(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One key, with the one algorithm it may be used for."""

    kid: str
    algorithm: Algorithm
    material: Ed25519PrivateKey | bytes
    verifier: Ed25519PublicKey | bytes
    created_at: int = 0
    retired_at: int | None = None

    def __repr__(self) -> str:
        return f"Key({self.kid}, {self.algorithm.value})"

    @property
    def shared(self) -> bool:
        """Whether other programs sign with it, too."""
        return self.algorithm is Algorithm.HS256

    @property
    def verifies_until(self) -> int | None:
        """When the last token that it can have signed expires; None while it signs."""
        return None if self.retired_at is None else self.retired_at + LONGEST_TTL + LEEWAY

    def signs_at(self, now: int) -> bool:
        return self.created_at <= now and (self.retired_at is None or now < self.retired_at)

    def verifies_at(self, now: int) -> bool:
        return self.verifies_until is None or now < self.verifies_until


class _Kept(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An Ed25519 key in the file: a JWK with its dates."""

    kty: str
    crv: str
    x: str
    d: str
    kid: str
    created_at: int
    retired_at: int | None = None


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    version: int
    keys: list[_Kept]


class KeyRing:
    """Every key that signs or verifies. A value: rotation gives another ring.

    The newest key that is not retired signs. With `at`, the one of that moment does, where there is one: nodes that
    share a ring verify with a new key before any of them signs with it.
    """

    def __init__(self, keys: Sequence[Key], *, at: int | None = None) -> None:
        self._keys: Mapping[str, Key] = {key.kid: key for key in keys}
        self._at = at
        if len(self._keys) != len(keys):
            raise KeyProblem("two keys have the same kid", "Give each secret a name of its own.")
        ours = [key for key in keys if key.algorithm is Algorithm.EDDSA]
        signing = [key for key in ours if key.retired_at is None]
        if not signing:
            raise KeyProblem("no key to sign with", "Rotate the keys: that makes one.")
        if at is not None:
            signing = [key for key in ours if key.signs_at(at)] or signing
        self.signing = max(signing, key=lambda key: key.created_at)

    def __iter__(self) -> Any:
        return iter(self._keys.values())

    def find(self, kid: object, now: int) -> Key | None:
        """The key of that name, if it may still verify."""
        key = self._keys.get(kid) if isinstance(kid, str) else None
        return key if key is not None and key.verifies_at(now) else None

    def jwks(self, now: int) -> dict[str, list[dict[str, str]]]:
        """The public halves, for `/.well-known/jwks.json`: the signing one first. Secrets have no public half."""
        shown = [key for key in self._keys.values() if key.algorithm is Algorithm.EDDSA and key.verifies_at(now)]
        shown.sort(key=lambda key: (key.kid != self.signing.kid, -key.created_at))
        return {"keys": [{**_public_jwk(key), "kid": key.kid, "use": "sig", "alg": "EdDSA"} for key in shown]}

    def with_secret(self, kid: str, secret: bytes) -> KeyRing:
        """The ring and one HS256 secret, under the name that pins it."""
        return KeyRing([*self._keys.values(), secret_key(kid, secret)], at=self._at)


class KeyFile:
    """The ring on disk. One process writes it: the hub, or a command while no hub runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE

    def open(self, now: int) -> KeyRing:
        """The ring, made at the first start."""
        private.directory(self.directory)
        try:
            return self._read()
        except FileNotFoundError:
            pass
        try:
            self._write([new_key(now)], replace=False)
        except FileExistsError:  # another process was faster: its key is used
            pass
        return self._read()

    def rotate(self, now: int, *, distrust: bool = False) -> KeyRing:
        """Make a new signing key. The old ones verify until their last token expires, or, if they may have been stolen
        (`distrust`), not at all: every issued token is void. Keys that verify nothing any more are dropped."""
        private.directory(self.directory)
        try:
            before = list(self._read())
        except FileNotFoundError:
            before = []
        self._write(rotated(before, now, distrust=distrust), replace=True)
        return self._read()

    def _read(self) -> KeyRing:
        return KeyRing(decode_keys(private.read(self.path), str(self.path)))

    def _write(self, keys: Sequence[Key], *, replace: bool) -> None:
        private.write(self.path, encode_keys(keys), replace=replace)


def rotated(before: Sequence[Key], now: int, *, distrust: bool, after: int = 0) -> list[Key]:
    """The keys of a ring, with a new one that signs `after` so many seconds. The old ones sign until then; with
    `distrust` they are gone, and the new one signs at once."""
    known = [key for key in before if key.verifies_at(now)]
    since = now if distrust else now + after
    kept = [
        msgspec.structs.replace(key, retired_at=since) if key.retired_at is None else key
        for key in known
        if not distrust
    ]
    # The newest signs: a clock that was set back must not make an old key the newest.
    return [*kept, new_key(max([since, *(key.created_at + 1 for key in known)]))]


def encode_keys(keys: Sequence[Key]) -> bytes:
    """The private keys, for a place where nobody else reads them."""
    file = _File(version=VERSION, keys=[_jwk(key) for key in keys])
    return msgspec.json.format(msgspec.json.encode(file)) + b"\n"


def decode_keys(data: bytes, where: str) -> list[Key]:
    """The opposite; raises `KeyProblem`, which names the place."""
    try:
        file = msgspec.json.decode(data, type=_File)
        if file.version != VERSION:
            raise KeyProblem(f"{where} is of another version ({file.version})", "Use the release that wrote it.")
        return [_from_jwk(kept) for kept in file.keys]
    except (msgspec.DecodeError, ValueError):
        raise KeyProblem(
            f"{where} is damaged",
            "Restore it from a backup, or remove it: new keys are made at the next start, and agents fetch new tokens.",
        ) from None


def new_key(now: int) -> Key:
    """A fresh Ed25519 key."""
    return _ed25519(Ed25519PrivateKey.generate(), now)


def secret_key(kid: str, secret: bytes) -> Key:
    """An HS256 key. Text of 32 characters has far fewer than 256 bits; the operator must take care of that."""
    if not KID.fullmatch(kid):
        raise KeyProblem("the name of a secret is 1 to 64 letters, digits, - and _", "Choose another kid.")
    if len(secret) < SHORTEST_SECRET:
        raise KeyProblem(
            f"the secret {kid} has {len(secret)} bytes; HS256 needs at least {SHORTEST_SECRET}",
            "Make one: openssl rand -hex 32",
        )
    if len(set(secret)) < 8:
        raise KeyProblem(f"the secret {kid} hardly varies", "Make a random one: openssl rand -hex 32")
    if b"-----BEGIN" in secret or secret.startswith((b"ssh-", b"ecdsa-")):
        # A key that others know, such as a public one, must never become a secret: that is the confusion attack.
        raise KeyProblem(f"the secret {kid} is a key in a file format, not a secret", "Make one: openssl rand -hex 32")
    return Key(kid=kid, algorithm=Algorithm.HS256, material=secret, verifier=secret)


def read_secret(kid: str, path: Path) -> Key:
    """The HS256 secret in a file of the operator's; a line end after it is not part of it."""
    try:
        return secret_key(kid, private.read(path).rstrip(b"\r\n"))
    except FileNotFoundError:
        raise KeyProblem(f"there is no {path}", f"Make it: umask 077; openssl rand -hex 32 > {path}") from None


def thumbprint(jwk: Mapping[str, str]) -> str:
    """RFC 7638: the SHA-256 of the required members, in order, without spaces."""
    canonical = msgspec.json.encode(jwk, order="sorted")
    return encode64(hashlib.sha256(canonical).digest())


def encode64(data: bytes) -> str:
    """base64url without padding, as everywhere in JOSE."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


_ALPHABET = re.compile(r"[A-Za-z0-9_-]*")


def decode64(text: str) -> bytes:
    """Accepts only the canonical form: no padding, no other alphabet, no stray bits. Raises `ValueError`."""
    if not _ALPHABET.fullmatch(text) or len(text) % 4 == 1:
        raise ValueError("not base64url")
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode64(data) != text:
        raise ValueError("not canonical base64url")
    return data


def _ed25519(private_key: Ed25519PrivateKey, created_at: int, retired_at: int | None = None) -> Key:
    public = private_key.public_key()
    return Key(
        kid=thumbprint({"kty": "OKP", "crv": "Ed25519", "x": encode64(public.public_bytes_raw())}),
        algorithm=Algorithm.EDDSA,
        material=private_key,
        verifier=public,
        created_at=created_at,
        retired_at=retired_at,
    )


def _public_jwk(key: Key) -> dict[str, str]:
    assert isinstance(key.verifier, Ed25519PublicKey)
    return {"kty": "OKP", "crv": "Ed25519", "x": encode64(key.verifier.public_bytes_raw())}


def _jwk(key: Key) -> _Kept:
    assert isinstance(key.material, Ed25519PrivateKey)
    return _Kept(
        **_public_jwk(key),
        d=encode64(key.material.private_bytes_raw()),
        kid=key.kid,
        created_at=key.created_at,
        retired_at=key.retired_at,
    )


def _from_jwk(kept: _Kept) -> Key:
    key = _ed25519(Ed25519PrivateKey.from_private_bytes(decode64(kept.d)), kept.created_at, kept.retired_at)
    if kept.kty != "OKP" or kept.crv != "Ed25519" or (key.kid, _public_jwk(key)["x"]) != (kept.kid, kept.x):
        raise ValueError("the halves do not belong together")
    return key
