"""Contracts in use: their terms in the document's form, and the keys that seal and open payloads.

A contract's key lies locked in its row (`core.ports.Vault`). The hub unlocks it once, and keeps its cipher until the
row changes (rotated, renewed, ended).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.contracts import Contract, Secret
from dragoman.core.ports import Vault
from dragoman.messages.faults import Kind, Refused, new_fault, refuse
from dragoman.protocols.a2acp.contracts import Held
from dragoman.protocols.a2acp.sealing import KeyGrant, associated_data
from dragoman.protocols.a2acp.types import Message
from dragoman.security.collaboration import (
    SENTENCES,
    CollaborationKey,
    ExchangeError,
    NonceWatch,
    Relation,
    Seal,
    Unopened,
    check_public,
    granted,
)
from dragoman.security.keys import decode64, encode64
from dragoman.server.a2acp.contracts import held_of

MOST = 20_000
FAR = datetime(9999, 1, 1, tzinfo=UTC)


class Terms(msgspec.Struct, frozen=True):
    """`lasting` is the contract as if it did not end: an agent that was asked in time may answer afterwards."""

    row: Contract
    held: Held
    lasting: Held
    seals: dict[str, Seal]


class ContractKeys:
    """One for all endpoints."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._terms: dict[str, Terms] = {}
        self._watch = NonceWatch()

    def terms(self, row: Contract) -> Terms:
        known = self._terms.get(row.id)
        if known is not None and known.row is row:
            return known
        held = held_of(row)
        forever = msgspec.structs.replace(held.contract, expires_at=FAR)
        lasting = msgspec.structs.replace(held, contract=forever, standing=type(held.standing).ACTIVE)
        if len(self._terms) >= MOST:
            self._terms.clear()
        made = self._terms[row.id] = Terms(row, held, lasting, {})
        return made

    def known(self, contract: str) -> Contract | None:
        """A contract as it was last used here: good enough to seal with, since a rotation passes here too."""
        found = self._terms.get(contract)
        return None if found is None else found.row

    # -- keys

    def secret(self, public_key: str | None, *, end_to_end: bool, of_source: bool = True) -> Secret | None:
        """A new key for the agent with this public key: made here, or, end to end, only named here."""
        if public_key is None:
            return None
        check_public_key(public_key)
        key = CollaborationKey.new()
        locked = None if end_to_end else encode64(self._vault.lock(key.secret, _about(key.kid)))
        owner = "source_key" if of_source else "target_key"
        return msgspec.structs.replace(Secret(kid=key.kid, locked=locked), **{owner: public_key})

    def grant(self, row: Contract, receiver: AgentId) -> KeyGrant | None:
        """The current key for one of the parties."""
        secret = row.secret
        if secret is None or receiver not in row.parties:
            return None
        own, other = secret.source_key, secret.target_key
        if receiver == row.target.agent:
            own, other = other, own
        if row.end_to_end:
            return None if other is None else KeyGrant(kid=secret.kid, public_key=other)
        if own is None or secret.locked is None:
            return None
        relation = Relation(collaboration=row.collaboration, source=row.source.agent, target=row.target.agent)
        return granted(self._key(secret), own, relation, receiver)

    def _key(self, secret: Secret) -> CollaborationKey:
        assert secret.locked is not None
        opened = self._vault.unlock(decode64(secret.locked), _about(secret.kid))
        return CollaborationKey(kid=secret.kid, secret=opened)

    def _seal(self, terms: Terms, secret: Secret) -> Seal:
        found = terms.seals.get(secret.kid)
        if found is None:
            found = terms.seals[secret.kid] = Seal(self._key(secret))
        return found

    # -- payloads

    def shut(self, row: Contract) -> Callable[[bytes, Callable[[str], bytes]], dict[str, str]]:
        assert row.secret is not None
        seal = self._seal(self.terms(row), row.secret)
        return lambda plain, bound: seal.shut(plain, bound(seal.kid))

    def open(self, row: Contract, message: Message, payload: Mapping[str, Any], now: Instant) -> bytes:
        """The plaintext of a sealed payload; raises `Refused`."""
        kid = payload.get("kid")
        secret = next((one for one in row.secrets(now) if one.kid == kid), None)
        if secret is None:
            raise refuse(
                Kind.CONTRACT,
                "the payload is sealed with a key that this contract does not have",
                next="rotate_key, or shake hands",
                field="payload.kid",
                contract_id=row.id,
            )
        seal = self._seal(self.terms(row), secret)
        opened = seal.open(payload, associated_data(message, seal.kid), self._watch)
        if isinstance(opened, Unopened):
            what, advice = SENTENCES[opened.flaw]
            field = f"payload.{opened.field or 'ciphertext'}"
            facts = {"reason": opened.flaw.value, "contract_id": row.id} | ({"pii": True} if row.offer.pii else {})
            raise Refused(new_fault(Kind.FORBIDDEN, what, next=advice, field=field, facts=facts))
        return opened


def check_public_key(public_key: str) -> None:
    """Raises `Refused` for a public key with which no exchange is safe."""
    try:
        check_public(public_key)
    except ExchangeError as error:
        raise refuse(Kind.INVALID, str(error), field="payload.public_key") from None


def _about(kid: str) -> dict[str, str]:
    return {"kind": "collaboration key", "kid": kid}
