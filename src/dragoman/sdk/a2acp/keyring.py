"""The keys of an agent's collaborations (a2acp-D12): made in handshakes, kept as long as they can be needed.

    pair     X25519, a fresh one for every handshake and every rotation by this agent; kept with its collaboration,
             because a key that the other side asks for comes under this agent's last public key
    key      by its `kid`; the newest one seals, the ones before it open for `OVERLAP` more seconds
    contract names the collaboration, and so the keys; a renewal adds a name

With a file, which only its owner can read, the ring survives a restart. Without one, an agent that restarts asks the
broker for a new key (`rotate_key`) when it gets a payload that it cannot open.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from msgspec import Struct, field

from dragoman.protocols.a2acp.contracts import Contract
from dragoman.protocols.a2acp.sealing import KEY_MESSAGES, KeyGrant, associated_data
from dragoman.protocols.a2acp.types import RESERVED, Message
from dragoman.sdk.errors import DragomanError, Misconfigured
from dragoman.sdk.runtime import Runtime
from dragoman.security import collaboration, private
from dragoman.security.collaboration import CollaborationKey, ExchangeError
from dragoman.security.keys import decode64, encode64

OVERLAP = timedelta(seconds=600)
"""For payloads that were sealed before a rotation and still wait."""
MOST_PAIRS = 3
MOST_KEYS = 8


class Unopened(DragomanError):
    """A payload cannot be opened. `is_lost`: the agent has no such key, and a new one would help."""

    def __init__(self, why: str, *, is_lost: bool) -> None:
        super().__init__(why)
        self.is_lost = is_lost


class Pair(collaboration.Pair):
    """This agent's side of an exchange, as it can be kept."""

    def __init__(self, kept: str | None = None) -> None:
        key = X25519PrivateKey.generate() if kept is None else X25519PrivateKey.from_private_bytes(decode64(kept))
        super().__init__(key)
        self.kept = encode64(key.private_bytes_raw())


class Key(Struct):
    kid: str
    secret: str
    retired_at: datetime | None = None
    uses: int = 0

    def __repr__(self) -> str:
        return f"Key({self.kid})"


class Relation(Struct):
    """What is known of a collaboration: the newest key and pair first."""

    source: str
    target: str
    mode: str
    pairs: list[str] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Relation({self.source} → {self.target}, {len(self.keys)} keys)"


class _Ring(Struct):
    relations: dict[str, Relation] = {}
    contracts: dict[str, str] = {}


class KeyRing:
    def __init__(self, runtime: Runtime, me: str, path: Path | None = None) -> None:
        self._runtime = runtime
        self._me = me
        self._path = path
        self._ring = _Ring(relations={}, contracts={})
        if path is not None:
            self._load(path)

    # --- getting keys ---

    def pair(self, contract: Contract) -> Pair:
        """A new pair for a collaboration that is being agreed on."""
        pair = Pair()
        self.adopt(contract, pair)
        return pair

    def adopt(self, contract: Contract, pair: Pair) -> None:
        """The pair is for this collaboration."""
        relation = self._relation(contract)
        relation.pairs.insert(0, pair.kept)
        del relation.pairs[MOST_PAIRS:]
        self._save()

    def agreed(self, contract: Contract, grant: KeyGrant | None) -> None:
        """The contract is in force. A repetition changes nothing."""
        if grant is not None:
            self._relation(contract)
            self._ring.contracts[contract.contract_id] = contract.collaboration_id
            self.take(contract.collaboration_id, grant)

    def replace(self, collaboration_id: str, pair: Pair) -> None:
        """The pair of a rotation by this agent."""
        relation = self._ring.relations.get(collaboration_id)
        if relation is not None:
            relation.pairs.insert(0, pair.kept)
            del relation.pairs[MOST_PAIRS:]

    def take(self, collaboration_id: str, grant: KeyGrant) -> None:
        """A key for this agent: the newest from now on."""
        relation = self._ring.relations.get(collaboration_id)
        if relation is None:
            raise Unopened(f"nothing is known of collaboration {collaboration_id}", is_lost=True)
        if any(key.kid == grant.kid for key in relation.keys):
            return
        secret = self._unwrap(collaboration_id, relation, grant)
        now = self._runtime.now()
        for key in relation.keys:
            key.retired_at = key.retired_at or now
        relation.keys = [
            Key(kid=grant.kid, secret=encode64(secret)),
            *(key for key in relation.keys if _opens(key, now)),
        ]
        del relation.keys[MOST_KEYS:]
        self._save()

    def forget(self, collaboration_id: str) -> None:
        """The collaboration is over."""
        if self._ring.relations.pop(collaboration_id, None) is not None:
            names = self._ring.contracts
            self._ring.contracts = {name: held for name, held in names.items() if held != collaboration_id}
            self._save()

    def _unwrap(self, collaboration_id: str, relation: Relation, grant: KeyGrant) -> bytes:
        bound = collaboration.Relation(collaboration=collaboration_id, source=relation.source, target=relation.target)
        for kept in relation.pairs:
            try:
                return Pair(kept).take(grant, bound, self._me).secret
            except ExchangeError:
                continue  # it was made for another pair
        raise Unopened("the key that was handed over does not open; shake hands again", is_lost=True)

    # --- using them ---

    def collaboration(self, contract_id: str | None) -> str | None:
        return self._ring.contracts.get(contract_id or "")

    def is_private(self, contract_id: str | None) -> bool:
        """Whether only the two agents have the key, and not the broker."""
        relation = self._ring.relations.get(self.collaboration(contract_id) or "")
        return relation is not None and relation.mode == "end-to-end"

    def is_worn(self, contract_id: str) -> bool:
        """Whether the newest key has sealed as often as it should."""
        keys = self._keys(contract_id)
        return bool(keys) and keys[0].uses >= KEY_MESSAGES

    def seal(self, message: Message) -> dict[str, Any]:
        """The payload of a message, sealed for it; the protocol's own fields stay in clear."""
        keys = self._keys(message.contract_id)
        if not keys:
            raise Unopened(f"there is no key for contract {message.contract_id}", is_lost=True)
        key, payload = keys[0], message.payload or {}
        key.uses += 1
        clear = {name: payload[name] for name in RESERVED if name in payload}
        content = {name: value for name, value in payload.items() if name not in clear}
        bound = associated_data(message, key.kid)
        return {**_seal(key).shut(msgspec.json.encode(content), bound), **clear}

    def open(self, message: Message) -> dict[str, Any]:
        """The content of a sealed payload, and the fields that travelled in clear."""
        payload = message.payload or {}
        kid, now = payload.get("kid"), self._runtime.now()
        key = next((key for key in self._keys(message.contract_id) if key.kid == kid and _opens(key, now)), None)
        if key is None:
            raise Unopened("the payload is sealed with a key that we do not have", is_lost=True)
        data = _seal(key).open(payload, associated_data(message, key.kid))
        if isinstance(data, collaboration.Unopened):
            raise Unopened(data.message, is_lost=False)
        content = msgspec.json.decode(data)
        if not isinstance(content, dict):
            raise Unopened("what is sealed is no JSON object", is_lost=False)
        return {**content, **{name: payload[name] for name in RESERVED if name in payload}}

    def _keys(self, contract_id: str | None) -> list[Key]:
        relation = self._ring.relations.get(self.collaboration(contract_id) or "")
        return [] if relation is None else relation.keys

    def _relation(self, contract: Contract) -> Relation:
        known = self._ring.relations.get(contract.collaboration_id)
        if known is None:
            source, target = contract.parties
            known = Relation(source=source, target=target, mode=contract.security.mode)
            self._ring.relations[contract.collaboration_id] = known
        return known

    # --- on the disk ---

    def _load(self, path: Path) -> None:
        try:
            private.directory(path.parent)
            self._ring = msgspec.json.decode(private.read(path), type=_Ring)
        except FileNotFoundError:
            return
        except private.PrivateFileError as error:
            raise Misconfigured(str(error)) from None
        except msgspec.DecodeError:
            raise Misconfigured(f"{path} holds no keys of an agent; move it away") from None

    def _save(self) -> None:
        if self._path is not None:
            private.write(self._path, msgspec.json.encode(self._ring), replace=True)


def path_for(state_dir: str | Path | None, agent_id: str) -> Path | None:
    """Where an agent of this id keeps its keys: apart, in a directory that is closed to others."""
    if state_dir is None:
        return None
    return Path(state_dir) / "keys" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', agent_id)}.json"


def _opens(key: Key, now: datetime) -> bool:
    return key.retired_at is None or now < key.retired_at + OVERLAP


def _seal(key: Key) -> collaboration.Seal:
    return collaboration.Seal(CollaborationKey(kid=key.kid, secret=decode64(key.secret)))
