"""Signed checkpoints of the audit chain: that it had so many records at a time, and the hash of the last one.

A program that can write the database can write another chain with valid hashes, and its newest record too. A checkpoint
that is kept elsewhere reveals that: the chain must still have its record, with its hash. It is signed
with the key that signs tokens (Ed25519), whose public half it carries; the `kid` is that key's thumbprint, as in
`/.well-known/jwks.json`.

    signed bytes    JSON, no spaces: ["dragoman audit checkpoint",1,chain,seq,hash,at,kid]
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta

from dragoman.security.keys import KeyRing, decode64, encode64, thumbprint

KIND = "dragoman audit checkpoint"
VERSION = 1
LARGEST = 64 * 1024


class CheckpointProblem(Exception):
    """The checkpoint cannot be used. The sentence ends with what to do."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`public_key` is the Ed25519 key as in a JWK (`x`), `signature` over the bytes above; both base64url."""

    kind: Literal["dragoman audit checkpoint"] = "dragoman audit checkpoint"
    version: Literal[1] = 1
    chain: str = "main"
    seq: Annotated[int, Meta(ge=0)]
    hash: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    at: str
    kid: str
    public_key: str
    signature: str = ""

    @property
    def signed(self) -> bytes:
        return msgspec.json.encode([KIND, VERSION, self.chain, self.seq, self.hash, self.at, self.kid])


def sign(ring: KeyRing, seq: int, hash: str, at: str) -> Checkpoint:
    key = ring.signing
    assert isinstance(key.material, Ed25519PrivateKey)
    assert isinstance(key.verifier, Ed25519PublicKey)
    made = Checkpoint(seq=seq, hash=hash, at=at, kid=key.kid, public_key=encode64(key.verifier.public_bytes_raw()))
    return msgspec.structs.replace(made, signature=encode64(key.material.sign(made.signed)))


def read(data: bytes, name: str) -> Checkpoint:
    """A checkpoint whose signature holds; raises `CheckpointProblem`."""
    try:
        found = msgspec.json.decode(data[:LARGEST], type=Checkpoint)
        raw = decode64(found.public_key)
        key = Ed25519PublicKey.from_public_bytes(raw)
        if thumbprint({"kty": "OKP", "crv": "Ed25519", "x": encode64(raw)}) != found.kid:
            raise CheckpointProblem(f"{name} names another key than it carries. Use the file as it was written.")
        key.verify(decode64(found.signature), found.signed)
    except InvalidSignature:
        raise CheckpointProblem(f"{name} was changed after it was signed. Use the file as it was written.") from None
    except (msgspec.DecodeError, ValueError):
        raise CheckpointProblem(f"{name} is no checkpoint. Make one: dragoman audit checkpoint FILE") from None
    return found
