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

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from dragoman.security import private
from dragoman.security.collaboration import Seal
from dragoman.security.exchange import ExchangeError, Handed, Offer, fingerprint, hand_over
from dragoman.security.keys import decode64, encode64
from dragoman.security.masterkey import Locked, MasterKeyFile, MasterKeyProblem, MasterKeys
from dragoman.security.private import PrivateFileError
from dragoman.security.sealing import (
    GRACE,
    MOST_USES,
    SENTENCES,
    CollaborationKey,
    Flaw,
    KeyWornOut,
    NonceWatch,
    Sealed,
    Seals,
    Unopened,
    associated,
)
from tests.security.credentials.conftest import NOW, untimed

IDS = {"message_id": "550e8400-e29b-41d4-a716-446655440000", "source_agent": "a", "target_agent": "b"}
TERMS = {"collaboration_id": "c-1", "source_agent": "a", "target_agent": "b", "mode": "end-to-end", "generation": "1"}
PAYLOAD = b'{"patient":"Jane Roe"}'


def key(byte: int = 1) -> CollaborationKey:
    return CollaborationKey(kid=f"key-{byte}", secret=bytes([byte]) * 32)


def as_json(sealed: Sealed) -> dict[str, Any]:
    return {"alg": sealed.alg, "kid": sealed.kid, "nonce": sealed.nonce, "ciphertext": sealed.ciphertext}


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


def test_the_format_stays_what_it_is() -> None:
    """Whoever seals in another language can hold themselves to these."""
    one = CollaborationKey(kid="key-1", secret=bytes(range(32)))
    assert associated("key-1", IDS) == (
        b'{"alg":"A256GCM","ids":{"message_id":"550e8400-e29b-41d4-a716-446655440000","source_agent":"a",'
        b'"target_agent":"b"},"kid":"key-1"}'
    )
    sealed = Seals(one)._seal(PAYLOAD, IDS, bytes(range(12)))
    assert as_json(sealed) == {
        "alg": "A256GCM",
        "kid": "key-1",
        "nonce": "AAECAwQFBgcICQoL",
        "ciphertext": "PCCmerGMp3X5Y62p-4gWCKOE6FHSBueHLbWSJYPGtCDN9-pMKoA",
    }
    plain = AESGCM(bytes(range(32))).encrypt(bytes(range(12)), PAYLOAD, associated("key-1", IDS))
    assert encode64(plain) == sealed.ciphertext
    assert Seals(one).open(as_json(sealed), IDS, now=NOW) == PAYLOAD


def offer_of(byte: int) -> Offer:
    made = Offer()
    made._private = X25519PrivateKey.from_private_bytes(bytes([byte]) * 32)
    made.public_key = encode64(made._private.public_key().public_bytes_raw())
    return made


def test_the_agreed_key_stays_what_it_is() -> None:
    ours, theirs = offer_of(1), offer_of(2)
    secret = X25519PrivateKey.from_private_bytes(bytes([1]) * 32).exchange(
        X25519PrivateKey.from_private_bytes(bytes([2]) * 32).public_key()
    )
    halves = [X25519PrivateKey.from_private_bytes(bytes([n]) * 32).public_key().public_bytes_raw() for n in (1, 2)]
    salt = hashlib.sha256(b"".join(halves)).digest()
    info = b"dragoman a2acp/1 agreed key\n" + json.dumps(TERMS, sort_keys=True, separators=(",", ":")).encode()
    pseudo = hmac.new(salt, secret, hashlib.sha256).digest()
    first = hmac.new(pseudo, info + b"\x01", hashlib.sha256).digest()
    second = hmac.new(pseudo, first + info + b"\x02", hashlib.sha256).digest()
    agreed = ours.agree(theirs.public_key, TERMS, started=True)
    assert (agreed.secret, agreed.kid) == (first, encode64(second[:12]))
    assert agreed.secret.hex() == "34fc3d4afd130e77f75c8e35fe357e19cb648d4fa1ef50a68cd9c9cf3cf16004"
    assert agreed.kid == "FNGHGzMgmfyBZxTY"


# -- the exchange


def test_two_agents_agree_on_a_key_that_never_travels() -> None:
    ours, theirs = Offer(), Offer()
    mine = ours.agree(theirs.public_key, TERMS, started=True)
    assert theirs.agree(ours.public_key, TERMS, started=False) == mine
    assert fingerprint(ours.public_key, theirs.public_key) == fingerprint(theirs.public_key, ours.public_key)
    assert Seals(mine).open(Seals(mine).seal(PAYLOAD, IDS), IDS, now=NOW) == PAYLOAD


@pytest.mark.parametrize(
    "changed", [{"collaboration_id": "c-2"}, {"target_agent": "x"}, {"mode": "broker"}, {"generation": "2"}]
)
def test_sides_that_saw_other_terms_have_other_keys(changed: Mapping[str, str]) -> None:
    ours, theirs = Offer(), Offer()
    mine = ours.agree(theirs.public_key, TERMS, started=True)
    yours = theirs.agree(ours.public_key, {**TERMS, **changed}, started=False)
    assert (mine.kid, mine.secret) != (yours.kid, yours.secret)
    assert mine.secret != yours.secret
    ours, theirs = Offer(), Offer()
    mine = ours.agree(theirs.public_key, TERMS, started=True)
    assert theirs.agree(ours.public_key, TERMS, started=True).secret != mine.secret


def test_the_broker_hands_one_key_to_both_agents() -> None:
    made = CollaborationKey.new()
    for _ in ("source", "target"):
        offer = Offer()
        handed = hand_over(made, offer.public_key, TERMS)
        assert made.secret not in json.dumps(handed.__repr__()).encode()
        assert offer.take(handed, TERMS) == made


def test_a_handed_key_opens_for_its_receiver_and_handshake_only() -> None:
    made, offer = CollaborationKey.new(), Offer()
    handed = hand_over(made, offer.public_key, TERMS)
    changes: list[dict[str, str]] = [
        {"kid": "other"},
        {"nonce": encode64(bytes(12))},
        {"nonce": ""},
        {"ciphertext": handed.ciphertext[:-4]},
        {"ciphertext": "A" + handed.ciphertext[1:] if handed.ciphertext[0] != "A" else "B" + handed.ciphertext[1:]},
        {"public_key": Offer().public_key},
    ]
    for change in changes:
        told = {name: getattr(handed, name) for name in ("public_key", "kid", "nonce", "ciphertext")} | change
        again = Offer()
        again._private, again.public_key = offer._private, offer.public_key
        with pytest.raises(ExchangeError, match="Shake hands again"):
            again.take(Handed(**told), TERMS)
    with pytest.raises(ExchangeError):
        Offer().take(handed, TERMS)
    again = Offer()
    again._private, again.public_key = offer._private, offer.public_key
    with pytest.raises(ExchangeError):
        again.take(handed, {**TERMS, "source_agent": "mallory"})
    assert offer.take(handed, TERMS) == made


def test_an_offer_is_good_for_one_exchange() -> None:
    offer = Offer()
    offer.agree(Offer().public_key, TERMS, started=True)
    with pytest.raises(ExchangeError, match="new one for every handshake"):
        offer.agree(Offer().public_key, TERMS, started=True)


SMALL_ORDER = ["00" * 32, "01" + "00" * 31, "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
               "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157", "ec" + "ff" * 30 + "7f",
               "ed" + "ff" * 30 + "7f", "ee" + "ff" * 30 + "7f"]  # fmt: skip


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_point_of_small_order_gives_no_key(point: str) -> None:
    with pytest.raises(ExchangeError, match="fresh key"):
        Offer().agree(encode64(bytes.fromhex(point)), TERMS, started=True)
    with pytest.raises(ExchangeError, match="fresh key"):
        hand_over(key(), encode64(bytes.fromhex(point)), TERMS)


@pytest.mark.parametrize("text", ["", "AAAA", "!" * 43, "A" * 44, encode64(bytes(31)), encode64(bytes(33))])
def test_what_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(ExchangeError, match="32 bytes"):
        Offer().agree(text, TERMS, started=True)


# -- attacks on seals


def test_a_sealed_payload_opens_for_its_own_message_only() -> None:
    seals = Seals(key())
    sealed = as_json(seals.seal(PAYLOAD, IDS))
    assert seals.open({**sealed, "contract_id": "c", "correlation_id": "d"}, IDS, now=NOW) == PAYLOAD
    for moved in (
        {**IDS, "message_id": "660f9500-f39c-52e5-b827-557766551111"},
        {**IDS, "source_agent": "b", "target_agent": "a"},  # reflected to its sender
        {**IDS, "more": ""},
        {name: IDS[name] for name in ("message_id", "source_agent")},
        {**IDS, "source_agent": 'a","target_agent":"b', "target_agent": ""},
        {},
    ):
        assert flaw(seals.open(sealed, moved, now=NOW)) is Flaw.TAMPERED


@untimed
@given(
    field=st.sampled_from(["alg", "kid", "nonce", "ciphertext"]),
    place=st.integers(0, 10_000),
    byte=st.characters(min_codepoint=32, max_codepoint=126),
    payload=st.binary(max_size=200),
)
def test_a_character_changed_in_any_field_is_refused(field: str, place: int, byte: str, payload: bytes) -> None:
    seals = Seals(key())
    sealed = as_json(seals.seal(payload, IDS))
    text = sealed[field]
    place %= len(text)
    if text[place] == byte:
        return
    flaw(seals.open({**sealed, field: text[:place] + byte + text[place + 1 :]}, IDS, now=NOW))


@untimed
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7), payload=st.binary(max_size=300))
def test_a_bit_flipped_in_nonce_ciphertext_or_tag_is_refused(place: int, bit: int, payload: bytes) -> None:
    seals = Seals(key())
    sealed = as_json(seals._seal(payload, IDS, bytes(range(12))))
    whole = bytearray(range(12)) + bytearray(
        AESGCM(bytes([1]) * 32).encrypt(bytes(range(12)), payload, associated("key-1", IDS))
    )
    whole[place % len(whole)] ^= 1 << bit
    changed = {**sealed, "nonce": encode64(bytes(whole[:12])), "ciphertext": encode64(bytes(whole[12:]))}
    assert flaw(seals.open(changed, IDS, now=NOW)) is Flaw.TAMPERED


def test_a_truncated_or_extended_ciphertext_is_refused() -> None:
    seals = Seals(key())
    sealed = as_json(seals.seal(PAYLOAD, IDS))
    for length in range(len(sealed["ciphertext"])):
        flaw(seals.open({**sealed, "ciphertext": sealed["ciphertext"][:length]}, IDS, now=NOW))
    flaw(seals.open({**sealed, "ciphertext": sealed["ciphertext"] + "AAAA"}, IDS, now=NOW))


SHAPES: list[Any] = [None, [], "x", 1, {}, {"alg": "A256GCM"},
                     {"alg": "A256GCM", "kid": 1, "nonce": "", "ciphertext": ""},
                     {"alg": "A256GCM", "kid": "key-1", "nonce": "AAAA", "ciphertext": "A" * 40},
                     {"alg": "A256GCM", "kid": "key-1", "nonce": "A" * 16, "ciphertext": ""},
                     {"alg": "A128GCM", "kid": "key-1", "nonce": "A" * 16, "ciphertext": "A" * 40},
                     {"alg": "none", "kid": "key-1", "nonce": "A" * 16, "ciphertext": "A" * 40},
                     {"alg": "A256CBC-HS512", "kid": "key-1", "nonce": "A" * 16, "ciphertext": "A" * 40}]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_what_is_no_sealed_payload_is_refused(shape: Any) -> None:
    assert flaw(Seals(key()).open(shape, IDS, now=NOW)) is Flaw.FORM


def test_another_key_opens_nothing_even_under_the_same_kid() -> None:
    sealed = Seals(key(1)).seal(PAYLOAD, IDS)
    assert flaw(Seals(key(2)).open(sealed, IDS, now=NOW)) is Flaw.KEY
    same_name = CollaborationKey(kid="key-1", secret=bytes([2]) * 32)
    assert flaw(Seals(same_name).open(sealed, IDS, now=NOW)) is Flaw.TAMPERED


def test_a_replayed_nonce_is_refused_from_any_sender() -> None:
    seals, watch = Seals(key()), NonceWatch()
    nonce = bytes(range(12))
    sealed = seals._seal(PAYLOAD, IDS, nonce)
    other_ids = {**IDS, "message_id": "other"}
    assert seals.open(sealed, IDS, now=NOW, watch=watch) == PAYLOAD
    assert flaw(seals.open(sealed, IDS, now=NOW, watch=watch)) is Flaw.NONCE
    again = seals._seal(b"other", other_ids, nonce)  # a sender with a broken random source
    assert flaw(seals.open(again, other_ids, now=NOW, watch=watch)) is Flaw.NONCE
    elsewhere = Seals(key(2))
    assert elsewhere.open(elsewhere._seal(PAYLOAD, IDS, nonce), IDS, now=NOW, watch=watch) == PAYLOAD


def test_a_forged_message_cannot_use_up_a_nonce() -> None:
    seals, watch = Seals(key()), NonceWatch()
    sealed = seals.seal(PAYLOAD, IDS)
    forged = {**as_json(sealed), "ciphertext": "A" * len(sealed.ciphertext)}
    assert flaw(seals.open(forged, IDS, now=NOW, watch=watch)) is Flaw.TAMPERED
    assert seals.open(sealed, IDS, now=NOW, watch=watch) == PAYLOAD


def test_a_message_that_was_refused_for_now_may_come_again_as_it_is() -> None:
    seal, watch = Seal(key()), NonceWatch()
    sealed, other = seal.shut(PAYLOAD, b"bound"), seal.shut(b"other", b"bound")
    assert [seal.open(sealed, b"bound", watch) for _ in range(2)] == [PAYLOAD, PAYLOAD]
    assert seal.open(other, b"bound", watch) == b"other"
    nonce, cipher = decode64(sealed["nonce"]), AESGCM(key().secret)
    reused = {**sealed, "ciphertext": encode64(cipher.encrypt(nonce, b"other", b"bound"))}
    assert flaw(seal.open(reused, b"bound", watch)) is Flaw.NONCE


def test_the_watch_is_bounded_and_forgets_the_oldest() -> None:
    watch = NonceWatch(room=3)
    assert [watch.first("k", bytes([n]) * 12) for n in (1, 2, 3, 4, 2, 1)] == [True, True, True, True, False, True]
    assert len(watch._seen) == 3


def test_nonces_do_not_repeat() -> None:
    seals = Seals(key())
    assert len({seals.seal(b"", IDS).nonce for _ in range(5000)}) == 5000


def test_a_key_seals_only_so_often() -> None:
    seals = Seals(key(), uses=MOST_USES - 1)
    sealed = seals.seal(PAYLOAD, IDS)
    with pytest.raises(KeyWornOut, match="rotate_key"):
        seals.seal(PAYLOAD, IDS)
    assert seals.open(sealed, IDS, now=NOW) == PAYLOAD
    seals.rotate(key(2), NOW)
    assert seals.seal(PAYLOAD, IDS).kid == "key-2"


def test_a_rotated_key_opens_what_is_on_its_way_and_then_nothing() -> None:
    seals = Seals(key(1))
    old = seals.seal(PAYLOAD, IDS)
    seals.rotate(key(2), NOW)
    seals.rotate(key(2), NOW + 5)  # told twice
    seals.rotate(key(1), NOW + 5)  # an old one told again does not come back
    assert (seals.kid, [held.kid for held in seals.keys]) == ("key-2", ["key-2", "key-1"])
    assert seals.open(old, IDS, now=NOW + GRACE - 1) == PAYLOAD
    assert flaw(seals.open(old, IDS, now=NOW + GRACE)) is Flaw.KEY
    seals.rotate(key(3), NOW + GRACE)
    assert [held.kid for held in seals.keys] == ["key-3", "key-2"]


def test_no_key_is_shown() -> None:
    made = CollaborationKey.new()
    offer = Offer()
    master = MasterKeys([bytes(range(32))])
    for shown in (repr(made), str(made), f"{made}", repr(offer), repr(master), repr(Seals(made))):
        assert made.secret.hex() not in shown
        assert str(made.secret) not in shown
        assert bytes(range(32)).hex() not in shown
    with pytest.raises(TypeError):
        pickle.dumps(offer)


def test_every_flaw_says_what_to_do() -> None:
    assert set(SENTENCES) == set(Flaw)
    assert all(";" in sentence for sentence in SENTENCES.values())


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
