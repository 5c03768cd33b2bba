"""How two sides come to one key: X25519 with ephemeral keys, then HKDF-SHA256 (a2acp-D12).

Each side makes an `Offer` for a handshake, sends its public half, and uses it up at once: a recorded handshake opens
nothing later, even with everything that is on the disks.

    mode         who makes the key                               how it comes to the agents
    -----------  ----------------------------------------------  ---------------------------------------------
    end-to-end   both agents, from each other's offers           it does not travel; the broker passes offers on
    broker       the broker                                      handed over to each offer, under a key made by
                                                                 X25519 with an offer of the broker's own

Every key is bound to the handshake it is made in: both public halves are the salt, and the terms (collaboration,
agents, mode, generation) are in the info. Two sides that saw different terms have different keys, and nothing opens.

A broker that passes on other offers than it got could sit in the middle of an end-to-end collaboration. Agents that
must exclude it compare `fingerprint`s by a way of their own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dragoman.security.keys import decode64, encode64
from dragoman.security.sealing import KEY_BYTES, NONCE_BYTES, CollaborationKey

KID_BYTES = 12
_AGREED = b"dragoman a2acp/1 agreed key\n"
_HANDED = b"dragoman a2acp/1 handed key\n"

Terms = Mapping[str, str]


class ExchangeError(Exception):
    """No key comes of this. The sentence ends with what to do, and shows no key."""


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """A key on its way from the broker to the owner of an offer."""

    public_key: str
    kid: str
    nonce: str
    ciphertext: str


class Offer:
    """One side's ephemeral key, good for one exchange."""

    def __init__(self) -> None:
        self._private: X25519PrivateKey | None = X25519PrivateKey.generate()
        self.public_key = encode64(self._private.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"Offer({self.public_key})"

    def agree(self, theirs: str, terms: Terms, *, started: bool) -> CollaborationKey:
        """The key that the other side makes of our offer. `started`: whether the handshake is ours."""
        secret = self._secret(theirs)
        first, second = (self.public_key, theirs) if started else (theirs, self.public_key)
        made = _derive(secret, first, second, _AGREED, terms, KEY_BYTES + KID_BYTES)
        return CollaborationKey(kid=encode64(made[KEY_BYTES:]), secret=made[:KEY_BYTES])

    def take(self, handed: Handed, terms: Terms) -> CollaborationKey:
        """The key that the broker handed over."""
        wrapping = _derive(
            self._secret(handed.public_key), handed.public_key, self.public_key, _HANDED, terms, KEY_BYTES
        )
        try:
            nonce, ciphertext = decode64(handed.nonce), decode64(handed.ciphertext)
            secret = AESGCM(wrapping).decrypt(nonce, ciphertext, handed.kid.encode())
            return CollaborationKey(kid=handed.kid, secret=secret)
        except (InvalidTag, ValueError):
            raise ExchangeError("the key that was handed over does not open. Shake hands again.") from None

    def _secret(self, theirs: str) -> bytes:
        private, self._private = self._private, None
        if private is None:
            raise ExchangeError("this offer was used before. Make a new one for every handshake.")
        return _exchange(private, theirs)


def hand_over(key: CollaborationKey, to: str, terms: Terms) -> Handed:
    """The broker's key, for the owner of the offer `to` only."""
    ours = X25519PrivateKey.generate()
    public_key = encode64(ours.public_key().public_bytes_raw())
    wrapping = _derive(_exchange(ours, to), public_key, to, _HANDED, terms, KEY_BYTES)
    nonce = os.urandom(NONCE_BYTES)
    ciphertext = AESGCM(wrapping).encrypt(nonce, key.secret, key.kid.encode())
    return Handed(public_key=public_key, kid=key.kid, nonce=encode64(nonce), ciphertext=encode64(ciphertext))


def fingerprint(one: str, other: str) -> str:
    """What two people can read to each other: the same on both sides if nobody sits in between."""
    digest = hashlib.sha256("\n".join(sorted((one, other))).encode()).hexdigest()
    return " ".join(digest[place : place + 4] for place in range(0, 32, 4))


def _public(text: str) -> X25519PublicKey:
    try:
        return X25519PublicKey.from_public_bytes(decode64(text))
    except ValueError:
        raise ExchangeError(
            "public_key is not an X25519 key. Send its 32 bytes as base64url without padding."
        ) from None


def _exchange(private: X25519PrivateKey, theirs: str) -> bytes:
    try:
        return private.exchange(_public(theirs))
    except ValueError:
        # A point of small order: the secret would be the same whoever we are.
        raise ExchangeError("public_key is a point that gives no secret. Make a fresh key.") from None


def _derive(secret: bytes, first: str, second: str, label: bytes, terms: Terms, length: int) -> bytes:
    salt = hashlib.sha256(decode64(first) + decode64(second)).digest()
    info = label + msgspec.json.encode(dict(terms), order="sorted")
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)
