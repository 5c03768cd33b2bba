"""Encryption at rest, of collaboration keys and of personal data in the store.

The hub's master keys are in `master.json`, 0600, in a 0700 directory, or the operator gives them in the environment
(`VARIABLE`): not in the store, so that a copy of the store alone opens nothing. The newest key locks; older ones unlock
the records that they locked, until those are locked again.

    a locked record     1 byte version, 8 bytes the master key's id, 16 bytes salt, 12 bytes nonce, ciphertext, tag

Each record has a key of its own, derived from the master key and a random salt by HKDF-SHA256, so the number of records
under one master key is not limited. The record is bound to its table and row (`about`): in another row it does not
open.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dragoman.security import private
from dragoman.security.keys import decode64, encode64

KEY_BYTES, NONCE_BYTES, TAG_BYTES = 32, 12, 16
FILE = "master.json"
VARIABLE = "DRAGOMAN_MASTER_KEY"
"""The environment variable with the master key, where an operator gives it to the hub so; then no file is used."""
VERSION = 1
_MARK = b"\x01"
_ID, _SALT = 8, 16
_HEAD = 1 + _ID + _SALT + NONCE_BYTES
_LABEL = b"dragoman record key"


class Locked(Exception):
    """A record that cannot be opened. The sentence ends with what to do."""


class MasterKeyProblem(Exception):
    """The file of master keys cannot be used. The sentence ends with what to do."""


class _Kept(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    key: str
    created_at: int


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    version: int
    keys: list[_Kept]


class MasterKeys:
    """The keys that lock what is kept, newest first."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not secrets or any(len(secret) != KEY_BYTES for secret in secrets):
            raise ValueError(f"master keys have {KEY_BYTES} bytes")
        self._secrets = {_id(secret): secret for secret in secrets}
        self._newest = _id(secrets[0])

    def __repr__(self) -> str:
        return f"MasterKeys({', '.join(id.hex() for id in self._secrets)})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys, the newest first."""
        return tuple(id.hex() for id in self._secrets)

    def lock(self, data: bytes, about: Mapping[str, str]) -> bytes:
        salt, nonce = os.urandom(_SALT), os.urandom(NONCE_BYTES)
        head = _MARK + self._newest + salt + nonce
        cipher = AESGCM(_record_key(self._secrets[self._newest], salt))
        return head + cipher.encrypt(nonce, data, head + _about(about))

    def unlock(self, record: bytes, about: Mapping[str, str]) -> bytes:
        """The data of a locked record. Raises `Locked`."""
        if len(record) < _HEAD + TAG_BYTES or record[:1] != _MARK:
            raise Locked("this is no locked record. Restore it from a backup.")
        head, id, salt = record[:_HEAD], record[1 : 1 + _ID], record[1 + _ID : 1 + _ID + _SALT]
        secret = self._secrets.get(id)
        if secret is None:
            raise Locked(
                f"the record was locked with the master key {id.hex()}, which is not here. Restore {FILE} of that time."
            )
        try:
            cipher = AESGCM(_record_key(secret, salt))
            return cipher.decrypt(head[-NONCE_BYTES:], record[_HEAD:], head + _about(about))
        except InvalidTag:
            raise Locked("the record was changed, or is another row's. Restore it from a backup.") from None

    def current(self, record: bytes) -> bool:
        """Whether the newest key locked it; other records must be locked again before an old key goes."""
        return record[1 : 1 + _ID] == self._newest


class MasterKeyFile:
    """The master keys on disk, made at the first start. Without them the store's sealed records are lost."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE

    def open(self, now: int) -> MasterKeys:
        private.directory(self.directory)
        try:
            return self._keys(self._read())
        except FileNotFoundError:
            pass
        try:
            self._write([_fresh(now)], replace=False)
        except FileExistsError:  # another process was faster: its key is used
            pass
        return self._keys(self._read())

    def ids(self) -> tuple[str, ...]:
        """The ids of the keys on disk; makes none."""
        try:
            return self._keys(self._read()).ids
        except FileNotFoundError:
            return ()

    def rotate(self, now: int) -> MasterKeys:
        """Make a new key that locks; the old ones stay for the records that they locked."""
        kept = [_fresh(now), *self._read()]
        self._write(kept, replace=True)
        return self._keys(kept)

    def _read(self) -> list[_Kept]:
        try:
            file = msgspec.json.decode(private.read(self.path), type=_File)
            self._keys(file.keys)
        except (msgspec.DecodeError, ValueError):
            raise MasterKeyProblem(
                f"{self.path} is damaged. Restore it from a backup: without it nothing opens."
            ) from None
        if file.version != VERSION:
            raise MasterKeyProblem(f"{self.path} is of another version. Use the release that wrote it.")
        return file.keys

    def _write(self, keys: list[_Kept], *, replace: bool) -> None:
        private.write(self.path, msgspec.json.encode(_File(version=VERSION, keys=keys)) + b"\n", replace=replace)

    def _keys(self, kept: Sequence[_Kept]) -> MasterKeys:
        return MasterKeys([decode64(one.key) for one in kept])


def given_keys(text: str) -> MasterKeys:
    """The keys of `VARIABLE`, the newest first, with commas between them: each 64 hexadecimal digits, or 32 bytes as
    base64. Raises `MasterKeyProblem`, which does not show them."""
    secrets = [_secret(one) for one in (part.strip() for part in text.split(",")) if one]
    if not secrets or None in secrets:
        raise MasterKeyProblem(f"{VARIABLE} holds no master key. Make one: openssl rand -hex 32")
    return MasterKeys([secret for secret in secrets if secret is not None])


def _secret(text: str) -> bytes | None:
    try:
        if len(text) == 2 * KEY_BYTES:
            return bytes.fromhex(text)
        found = decode64(text.rstrip("=").replace("+", "-").replace("/", "_"))
    except ValueError:
        return None
    return found if len(found) == KEY_BYTES else None


def _fresh(now: int) -> _Kept:
    return _Kept(key=encode64(os.urandom(KEY_BYTES)), created_at=now)


def _id(secret: bytes) -> bytes:
    return hashlib.sha256(b"dragoman master key id" + secret).digest()[:_ID]


def _record_key(secret: bytes, salt: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=_LABEL).derive(secret)


def _about(about: Mapping[str, str]) -> bytes:
    return msgspec.json.encode(dict(about), order="sorted")
