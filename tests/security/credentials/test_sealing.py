"""Seals: vectors of the standards for what they are made of, vectors of our own for the format, and every way to
break one."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocols.a2acp.sealing import KeyGrant, key_info, key_salt
from dragoman.security import private
from dragoman.security.collaboration import (
    SENTENCES,
    CollaborationKey,
    ExchangeError,
    Flaw,
    NonceWatch,
    Pair,
    Relation,
    Seal,
    Unopened,
    check_public,
    granted,
)
from dragoman.security.keys import decode64, encode64
from dragoman.security.masterkey import Locked, MasterKeyFile, MasterKeyProblem, MasterKeys
from dragoman.security.private import PrivateFileError
from tests.security.credentials.conftest import NOW, untimed

IDS = {"message_id": "550e8400-e29b-41d4-a716-446655440000", "source_agent": "a", "target_agent": "b"}
RELATION = Relation(collaboration="c-1", source="a", target="b")
PAYLOAD = b'{"patient":"Jane Roe"}'


def bound(**changed: str) -> bytes:
    """What a seal is bound to beside the payload."""
    return json.dumps({**IDS, **changed}).encode()


BOUND = bound()


def key(byte: int = 1) -> CollaborationKey:
    return CollaborationKey(kid=f"key-{byte}", secret=bytes([byte]) * 32)


def flaw(outcome: bytes | Unopened) -> Flaw:
    assert isinstance(outcome, Unopened), outcome
    assert "Jane" not in f"{outcome} {outcome!r}"
    return outcome.flaw


# -- vectors


def test_x25519_is_that_of_rfc_7748() -> None:
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    shared = X25519PrivateKey.from_private_bytes(scalar).exchange(X25519PublicKey.from_public_bytes(point))
    assert shared.hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"


def test_hkdf_is_that_of_rfc_5869() -> None:
    made = HKDF(algorithm=SHA256(), length=42, salt=bytes(range(13)), info=bytes(range(0xF0, 0xFA))).derive(
        b"\x0b" * 22
    )
    assert made.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"


def test_aes_256_gcm_is_that_of_nist() -> None:
    """Test case 16 of the GCM specification."""
    cipher = AESGCM(bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2))
    plain = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    data = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    assert cipher.encrypt(bytes.fromhex("cafebabefacedbaddecaf888"), plain, data).hex() == (
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838"
        "c5f61e6393ba7a0abcc9f66276fc6ece0f4e1768cddf8853bb2d551b"
    )


def test_the_format_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever seals in another language can hold themselves to these."""
    monkeypatch.setattr(os, "urandom", lambda number: bytes(range(number)))
    one = CollaborationKey(kid="key-1", secret=bytes(range(32)))
    sealed = Seal(one).shut(PAYLOAD, BOUND)
    plain = AESGCM(bytes(range(32))).encrypt(bytes(range(12)), PAYLOAD, BOUND)
    assert sealed == {
        "alg": "A256GCM",
        "kid": "key-1",
        "nonce": "AAECAwQFBgcICQoL",
        "ciphertext": encode64(plain),
    }
    assert Seal(one).open(sealed, BOUND) == PAYLOAD


def pair_of(byte: int) -> Pair:
    return Pair(X25519PrivateKey.from_private_bytes(bytes([byte]) * 32))


def test_the_agreed_key_stays_what_it_is() -> None:
    ours, theirs = pair_of(1), pair_of(2)
    secret = X25519PrivateKey.from_private_bytes(bytes([1]) * 32).exchange(
        X25519PrivateKey.from_private_bytes(bytes([2]) * 32).public_key()
    )
    salt = key_salt(ours.public_key, theirs.public_key)
    pseudo = hmac.new(salt, secret, hashlib.sha256).digest()
    info = key_info("c-1", "key-1", "a", "b")
    made = hmac.new(pseudo, info + b"\x01", hashlib.sha256).digest()
    assert ours.derived(theirs.public_key, "key-1", RELATION) == made


# -- the exchange


def test_two_agents_agree_on_a_key_that_never_travels() -> None:
    ours, theirs = Pair(), Pair()
    mine = ours.take(KeyGrant(kid="key-1", public_key=theirs.public_key), RELATION, "a")
    assert theirs.take(KeyGrant(kid="key-1", public_key=ours.public_key), RELATION, "b") == mine
    assert Seal(mine).open(Seal(mine).shut(PAYLOAD, BOUND), BOUND) == PAYLOAD


@pytest.mark.parametrize("changed", [{"collaboration": "c-2"}, {"source": "x"}, {"target": "x"}])
def test_sides_that_saw_another_relation_have_other_keys(changed: Mapping[str, str]) -> None:
    ours, theirs = Pair(), Pair()
    mine = ours.derived(theirs.public_key, "key-1", RELATION)
    assert theirs.derived(ours.public_key, "key-1", msgspec.structs.replace(RELATION, **changed)) != mine
    assert theirs.derived(ours.public_key, "key-2", RELATION) != mine


def test_the_broker_hands_one_key_to_both_agents() -> None:
    made = CollaborationKey.new()
    for agent in ("a", "b"):
        pair = Pair()
        grant = granted(made, pair.public_key, RELATION, agent)
        assert encode64(made.secret) not in repr(grant)
        assert pair.take(grant, RELATION, agent) == made


def test_a_handed_key_opens_for_its_receiver_and_collaboration_only() -> None:
    made, pair = CollaborationKey.new(), Pair()
    grant = granted(made, pair.public_key, RELATION, "a")
    assert grant.wrapped is not None
    for change in (
        {"kid": "other"},
        {"nonce": encode64(bytes(12))},
        {"nonce": ""},
        {"wrapped": grant.wrapped[:-4]},
        {"wrapped": ("B" if grant.wrapped[0] == "A" else "A") + grant.wrapped[1:]},
        {"public_key": Pair().public_key},
    ):
        with pytest.raises(ExchangeError, match="Shake hands again"):
            pair.take(msgspec.structs.replace(grant, **change), RELATION, "a")
    with pytest.raises(ExchangeError):
        Pair().take(grant, RELATION, "a")
    with pytest.raises(ExchangeError):
        pair.take(grant, RELATION, "b")
    with pytest.raises(ExchangeError):
        pair.take(grant, msgspec.structs.replace(RELATION, source="mallory"), "a")
    assert pair.take(grant, RELATION, "a") == made


SMALL_ORDER = ["00" * 32, "01" + "00" * 31, "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
               "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157", "ec" + "ff" * 30 + "7f",
               "ed" + "ff" * 30 + "7f", "ee" + "ff" * 30 + "7f"]  # fmt: skip
NO_KEYS = ["", "AAAA", "!" * 43, "A" * 44, encode64(bytes(31)), encode64(bytes(33))]


@pytest.mark.parametrize("text", [*(encode64(bytes.fromhex(point)) for point in SMALL_ORDER), *NO_KEYS])
def test_a_point_of_small_order_and_what_is_no_public_key_give_no_key(text: str) -> None:
    with pytest.raises(ExchangeError, match="32 fresh bytes"):
        check_public(text)
    with pytest.raises(ExchangeError, match="32 fresh bytes"):
        granted(key(), text, RELATION, "a")


# -- attacks on seals


def test_a_sealed_payload_opens_for_its_own_message_only() -> None:
    seal = Seal(key())
    sealed = seal.shut(PAYLOAD, bound())
    assert seal.open({**sealed, "contract_id": "c", "correlation_id": "d"}, bound()) == PAYLOAD
    for moved in (
        bound(message_id="660f9500-f39c-52e5-b827-557766551111"),
        bound(source_agent="b", target_agent="a"),  # reflected to its sender
        bound(source_agent='a","target_agent":"b', target_agent=""),
        b"",
    ):
        assert flaw(seal.open(sealed, moved)) is Flaw.TAMPERED


@untimed
@given(
    field=st.sampled_from(["alg", "kid", "nonce", "ciphertext"]),
    place=st.integers(0, 10_000),
    byte=st.characters(min_codepoint=32, max_codepoint=126),
    payload=st.binary(max_size=200),
)
def test_a_character_changed_in_any_field_is_refused(field: str, place: int, byte: str, payload: bytes) -> None:
    seal = Seal(key())
    sealed = seal.shut(payload, BOUND)
    text = sealed[field]
    place %= len(text)
    if text[place] == byte:
        return
    flaw(seal.open({**sealed, field: text[:place] + byte + text[place + 1 :]}, BOUND))


@untimed
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7), payload=st.binary(max_size=300))
def test_a_bit_flipped_in_nonce_ciphertext_or_tag_is_refused(place: int, bit: int, payload: bytes) -> None:
    seal = Seal(key())
    sealed = seal.shut(payload, BOUND)
    whole = bytearray(decode64(sealed["nonce"]) + decode64(sealed["ciphertext"]))
    whole[place % len(whole)] ^= 1 << bit
    changed = {**sealed, "nonce": encode64(bytes(whole[:12])), "ciphertext": encode64(bytes(whole[12:]))}
    assert flaw(seal.open(changed, BOUND)) is Flaw.TAMPERED


def test_a_truncated_or_extended_ciphertext_is_refused() -> None:
    seal = Seal(key())
    sealed = seal.shut(PAYLOAD, BOUND)
    for length in range(len(sealed["ciphertext"])):
        flaw(seal.open({**sealed, "ciphertext": sealed["ciphertext"][:length]}, BOUND))
    flaw(seal.open({**sealed, "ciphertext": sealed["ciphertext"] + "AAAA"}, BOUND))


SHAPES: list[dict[str, Any]] = [
    {"kid": "key-1"},
    {"alg": "A256GCM", "kid": "key-1"},
    {"alg": "A256GCM", "kid": "key-1", "nonce": 1, "ciphertext": ""},
    {"alg": "A256GCM", "kid": "key-1", "nonce": "AAAA", "ciphertext": "A" * 40},
    {"alg": "A256GCM", "kid": "key-1", "nonce": "A" * 16, "ciphertext": ""},
    {"alg": "A128GCM", "kid": "key-1", "nonce": "A" * 16, "ciphertext": "A" * 40},
    {"alg": "none", "kid": "key-1", "nonce": "A" * 16, "ciphertext": "A" * 40},
    {"alg": "A256CBC-HS512", "kid": "key-1", "nonce": "A" * 16, "ciphertext": "A" * 40},
]


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_what_is_no_sealed_payload_is_refused(shape: dict[str, Any]) -> None:
    assert flaw(Seal(key()).open(shape, BOUND)) is Flaw.FORM


def test_another_key_opens_nothing_even_under_the_same_kid() -> None:
    sealed = Seal(key(1)).shut(PAYLOAD, BOUND)
    for shape in (sealed, {}, {"kid": 1}):
        assert flaw(Seal(key(2)).open(shape, BOUND)) is Flaw.KEY
    same_name = CollaborationKey(kid="key-1", secret=bytes([2]) * 32)
    assert flaw(Seal(same_name).open(sealed, BOUND)) is Flaw.TAMPERED


def test_a_replayed_nonce_is_refused_from_any_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda number: bytes(range(number)))  # a sender with a broken random source
    seal, watch, other = Seal(key()), NonceWatch(), bound(message_id="other")
    assert seal.open(seal.shut(PAYLOAD, BOUND), BOUND, watch) == PAYLOAD
    assert flaw(seal.open(seal.shut(b"other", other), other, watch)) is Flaw.NONCE
    assert flaw(seal.open(seal.shut(PAYLOAD, other), other, watch)) is Flaw.NONCE
    elsewhere = Seal(key(2))
    assert elsewhere.open(elsewhere.shut(PAYLOAD, BOUND), BOUND, watch) == PAYLOAD


def test_a_forged_message_cannot_use_up_a_nonce() -> None:
    seal, watch = Seal(key()), NonceWatch()
    sealed = seal.shut(PAYLOAD, BOUND)
    forged = {**sealed, "ciphertext": "A" * len(sealed["ciphertext"])}
    assert flaw(seal.open(forged, BOUND, watch)) is Flaw.TAMPERED
    assert seal.open(sealed, BOUND, watch) == PAYLOAD


def test_a_message_that_was_refused_for_now_may_come_again_as_it_is() -> None:
    seal, watch = Seal(key()), NonceWatch()
    sealed, other = seal.shut(PAYLOAD, BOUND), seal.shut(b"other", BOUND)
    assert [seal.open(sealed, BOUND, watch) for _ in range(2)] == [PAYLOAD, PAYLOAD]
    assert seal.open(other, BOUND, watch) == b"other"
    nonce, cipher = decode64(sealed["nonce"]), AESGCM(key().secret)
    reused = {**sealed, "ciphertext": encode64(cipher.encrypt(nonce, b"other", BOUND))}
    assert flaw(seal.open(reused, BOUND, watch)) is Flaw.NONCE


def test_the_watch_is_bounded_and_forgets_the_oldest() -> None:
    watch = NonceWatch(room=3)
    found = [watch.first("k", bytes([n]) * 12, bytes([place])) for place, n in enumerate((1, 2, 3, 4, 2, 1))]
    assert found == [True, True, True, True, False, True]
    assert len(watch._seen) == 3


def test_nonces_do_not_repeat() -> None:
    seal = Seal(key())
    assert len({seal.shut(b"", BOUND)["nonce"] for _ in range(5000)}) == 5000


def test_no_key_is_shown() -> None:
    made = CollaborationKey.new()
    pair = Pair()
    master = MasterKeys([bytes(range(32))])
    for shown in (repr(made), str(made), f"{made}", repr(pair), repr(master), repr(Seal(made))):
        assert made.secret.hex() not in shown
        assert str(made.secret) not in shown
        assert bytes(range(32)).hex() not in shown
    with pytest.raises(TypeError):
        pickle.dumps(pair)


def test_every_flaw_says_what_to_do() -> None:
    assert set(SENTENCES) == set(Flaw)
    assert all(what and advice for what, advice in SENTENCES.values())


# -- at rest


def test_a_secret_at_rest_opens_for_its_own_row_only(tmp_path: Path) -> None:
    master, secret, about = MasterKeyFile(tmp_path / "keys").open(NOW), os.urandom(32), {"kind": "key", "id": "c-1"}
    record = master.lock(secret, about)
    assert secret not in record
    assert MasterKeyFile(tmp_path / "keys").open(NOW).unlock(record, about) == secret
    for other in ({**about, "id": "c-2"}, {**about, "kind": "other"}):
        with pytest.raises(Locked, match="another row"):
            master.unlock(record, other)
    for place in range(len(record)):
        changed = bytearray(record)
        changed[place] ^= 1
        with pytest.raises(Locked):
            master.unlock(bytes(changed), about)
    for length in (0, 1, 36, len(record) - 1):
        with pytest.raises(Locked):
            master.unlock(record[:length], about)
    assert master.lock(secret, about) != record


def test_a_new_master_key_locks_and_the_old_one_unlocks(tmp_path: Path) -> None:
    keys = MasterKeyFile(tmp_path / "keys")
    first = keys.open(NOW)
    record = first.lock(b"data", {"row": "1"})
    second = keys.rotate(NOW)
    assert second.unlock(record, {"row": "1"}) == b"data"
    assert (first.current(record), second.current(record)) == (True, False)
    again = second.lock(b"data", {"row": "1"})
    assert second.current(again)
    assert keys.open(NOW).unlock(again, {"row": "1"}) == b"data"
    with pytest.raises(Locked, match=r"is not here\. Restore master\.json"):
        first.unlock(again, {"row": "1"})


def test_master_keys_that_others_can_read_or_that_are_damaged_are_refused(tmp_path: Path) -> None:
    keys = MasterKeyFile(tmp_path / "keys")
    keys.open(NOW)
    keys.path.chmod(0o640)
    with pytest.raises(PrivateFileError, match="chmod 600"):
        keys.open(NOW)
    for bad in (b"", b"{}", b'{"version":1,"keys":[]}', b'{"version":1,"keys":[{"key":"AAAA","created_at":1}]}'):
        private.write(keys.path, bad, replace=True)
        with pytest.raises(MasterKeyProblem, match="damaged"):
            keys.open(NOW)
