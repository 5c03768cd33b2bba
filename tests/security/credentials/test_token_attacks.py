"""Tokens that must not get in (RFC 8725, a2acp-D3, a2acp-D4), and the ones that must."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
from collections.abc import Callable
from typing import Any

import jwt as pyjwt
import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocols.a2acp.types import Claims
from dragoman.security.jwt import LARGEST, Authority, Issued
from dragoman.security.keys import KeyProblem, KeyRing, encode64, new_key, secret_key
from dragoman.security.refusals import SENTENCES, Reason
from tests.security.credentials.conftest import CLAIMS, NOW, SECRET, THEM, US, Forge, part, reason, untimed

Issue = Callable[..., Issued]


def look(authority: Authority, token: Any, **changed: Any) -> Any:
    return authority.verify(token, **{"audience": THEM, "now": NOW, "subject": US, "domain": "a_domain", **changed})


def refused(authority: Authority, token: Any, **changed: Any) -> Reason:
    """Twice, so that nothing refused is remembered as good."""
    first = reason(look(authority, token, **changed), token if isinstance(token, str) else "")
    assert reason(look(authority, token, **changed)) is first
    return first


def test_a_token_we_issued_is_good_until_it_expires(authority: Authority, issue: Issue) -> None:
    issued = issue(ttl=100)
    assert look(authority, issued.token) == issued.claims
    assert look(authority, issued.token, now=NOW + 100 + 59) == issued.claims  # 60 s leeway
    assert refused(authority, issued.token, now=NOW + 100 + 60) is Reason.EXPIRED
    assert issued.token not in repr(issued)


def test_any_other_library_can_verify_what_we_issue_with_the_published_keys(authority: Authority, issue: Issue) -> None:
    token = issue().token
    keys = pyjwt.PyJWKSet.from_dict(authority.ring.jwks(NOW))
    key = keys[pyjwt.get_unverified_header(token)["kid"]]
    options = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
    told = pyjwt.decode(token, key, algorithms=["EdDSA"], audience=THEM, options=options)  # type: ignore[arg-type]
    assert told == {**CLAIMS, "jti": told["jti"]}


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "nOnE", "", " none", "none ", None, 0, [], ["EdDSA"], "ＥdDSA"]
)
@pytest.mark.parametrize("signature", ["", "AA", "kept"])
def test_alg_none_in_every_spelling_is_refused(
    authority: Authority, forge: Forge, issue: Issue, alg: Any, signature: str
) -> None:
    head, body, kept = forge.token(header={"alg": alg}).split(".")
    token = f"{head}.{body}.{kept if signature == 'kept' else signature}"
    assert refused(authority, token) in (Reason.ALGORITHM, Reason.FORM)
    assert refused(authority, f"{part({'alg': alg, 'typ': 'JWT'})}.{body}.{signature}") in (Reason.KEY, Reason.FORM)


def test_hs256_with_the_public_key_as_the_secret_is_refused(authority: Authority, ring: KeyRing) -> None:
    public: Any = ring.signing.verifier
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    raw = public.public_bytes_raw()
    jwk = json.dumps(ring.jwks(NOW)["keys"][0]).encode()
    for secret in (pem, pem.strip(), der, raw, encode64(raw).encode(), raw.hex().encode(), jwk):
        for kid in (ring.signing.kid, "shared"):
            signed = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': kid})}.{part(CLAIMS)}"
            mac = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
            expected = Reason.SIGNATURE if kid == "shared" else Reason.ALGORITHM
            assert refused(authority, f"{signed}.{encode64(mac)}") is expected
    for pretended in (pem, b"ssh-ed25519 " + base64.b64encode(raw) + b" somebody"):
        with pytest.raises(KeyProblem, match="not a secret"):
            secret_key("pretended", pretended)


@pytest.mark.parametrize("alg", ["HS256", "HS384", "HS512", "RS256", "ES256", "PS256", "ES256K", "Ed25519", "eddsa"])
def test_an_algorithm_other_than_the_keys_own_is_refused(authority: Authority, forge: Forge, alg: str) -> None:
    assert refused(authority, forge.token(header={"alg": alg})) is Reason.ALGORITHM


def test_a_secret_verifies_hs256_and_nothing_else(authority: Authority) -> None:
    good = pyjwt.encode(CLAIMS, SECRET, "HS256", headers={"kid": "shared"})
    assert isinstance(look(authority, good), Claims)
    for alg in ("HS384", "HS512"):
        other = pyjwt.PyJWS().encode(json.dumps(CLAIMS).encode(), SECRET + SECRET, alg, headers={"kid": "shared"})
        assert refused(authority, other) is Reason.ALGORITHM
    assert refused(authority, pyjwt.encode(CLAIMS, SECRET[:-1], "HS256", headers={"kid": "shared"})) is Reason.SIGNATURE


@pytest.mark.parametrize("secret", [b"", b"secret", bytes(range(31)), b"a" * 64, b"0" * 32])
def test_a_weak_secret_is_no_key(ring: KeyRing, secret: bytes) -> None:
    with pytest.raises(KeyProblem, match="openssl rand -hex 32"):
        ring.with_secret("weak", secret)


KIDS = [
    "../../../../dev/null", "/dev/null", "/etc/hostname", "signing.json", "..", "", "' OR '1'='1",
    "x'; DROP TABLE keys;--", "$(id)", "|id", "http://169.254.169.254/key", "file:///dev/null", "shared\x00", "SHARED",
    "k" * 900, "*", None, 0, True, ["shared"], {"kid": "shared"},
]  # fmt: skip


@pytest.mark.parametrize("kid", KIDS, ids=[f"kid{n}" for n in range(len(KIDS))])
def test_a_kid_only_names_a_key_of_the_ring(authority: Authority, forge: Forge, kid: Any) -> None:
    """No file, row or address: a token signed with the empty secret of /dev/null is nobody's."""
    assert refused(authority, forge.token(header={"kid": kid})) is Reason.KEY
    signed = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': kid})}.{part(CLAIMS)}"
    mac = hmac.new(b"", signed.encode(), hashlib.sha256).digest()
    assert refused(authority, f"{signed}.{encode64(mac)}") is Reason.KEY


def test_a_token_without_kid_is_refused(authority: Authority, forge: Forge) -> None:
    assert refused(authority, forge.token(header={"kid": ...})) is Reason.KEY


@pytest.mark.parametrize("name", ["jku", "jwk", "x5u", "x5c", "x5t", "x5t#S256"])
def test_a_key_that_a_token_brings_or_points_to_is_neither_used_nor_fetched(
    authority: Authority, forge: Forge, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a token made us connect")

    monkeypatch.setattr(socket.socket, "connect", never)
    mine = Ed25519PrivateKey.generate()
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": encode64(mine.public_key().public_bytes_raw())}
    value = {"jwk": jwk, "x5c": ["MIIB"]}.get(name, "https://127.0.0.1:1/keys.json")
    assert refused(authority, forge.token(header={name: value})) is Reason.EMBEDDED_KEY
    forge.key = new_key(NOW)  # signed with the attacker's own
    assert refused(authority, forge.token(header={name: value})) is Reason.EMBEDDED_KEY
    assert refused(authority, forge.token()) is Reason.KEY


@pytest.mark.parametrize("extra", [{"crit": ["exp"]}, {"crit": []}, {"crit": ["b64"], "b64": True}, {"b64": False},
                                   {"crit": "exp"}, {"crit": None}, {"crit": ["x"], "x": 1}])  # fmt: skip
def test_an_unknown_critical_extension_is_refused(authority: Authority, forge: Forge, extra: dict[str, Any]) -> None:
    assert refused(authority, forge.token(header=extra)) is Reason.CRITICAL


@pytest.mark.parametrize("typ", [..., None, "", "JWE", "at+jwt", "secevent+jwt", 1, ["JWT"]])
def test_a_token_of_another_type_is_refused(authority: Authority, forge: Forge, typ: Any) -> None:
    assert refused(authority, forge.token(header={"typ": typ})) is Reason.TYPE


@pytest.mark.parametrize("exp", [NOW - 61, NOW - 60, NOW - 60.5])
def test_an_expired_token_is_refused(authority: Authority, forge: Forge, exp: float) -> None:
    assert refused(authority, forge.token(exp=exp, iat=NOW - 3600, nbf=NOW - 3600)) is Reason.EXPIRED


def test_a_token_within_the_leeway_is_good(authority: Authority, forge: Forge) -> None:
    assert isinstance(look(authority, forge.token(exp=NOW - 59, iat=NOW - 3600, nbf=NOW - 3600)), Claims)
    assert isinstance(look(authority, forge.token(nbf=NOW + 60, iat=NOW + 60)), Claims)
    assert isinstance(look(authority, forge.token(nbf=..., jti=..., iat=NOW - 0.5)), Claims)  # the document's own set


@pytest.mark.parametrize("claim", ["nbf", "iat"])
@pytest.mark.parametrize("ahead", [61, 60.5, 3000])
def test_a_token_from_the_future_is_refused(authority: Authority, forge: Forge, claim: str, ahead: float) -> None:
    assert refused(authority, forge.token(**{claim: NOW + ahead})) is Reason.NOT_YET


@pytest.mark.parametrize("exp", [NOW + 86_401, NOW + 10**9, 2**53, NOW, NOW - 1])
def test_a_token_that_lives_longer_than_a_day_or_not_at_all_is_refused(
    authority: Authority, forge: Forge, exp: int
) -> None:
    assert refused(authority, forge.token(exp=exp)) is Reason.LIFETIME


@pytest.mark.parametrize("ttl", [0, -1, 86_401, 10**9, True, 1.5, "3600", None])
def test_no_ttl_beyond_a_day_is_issued(authority: Authority, ttl: Any) -> None:
    told = authority.issue(subject=US, audience=THEM, domain="d", capabilities=[], ttl=ttl, now=NOW)
    assert reason(told) is Reason.LIFETIME  # type: ignore[arg-type]


@pytest.mark.parametrize("aud", [[THEM], [THEM, "other"], [], {"a": THEM}, None, 1, ...])
def test_an_audience_that_is_not_one_string_is_refused(authority: Authority, forge: Forge, aud: Any) -> None:
    assert refused(authority, forge.token(aud=aud)) is Reason.AUDIENCE


@pytest.mark.parametrize("aud", ["other", THEM.upper(), THEM + " ", THEM[:-1], "*", f"{THEM},other"])
def test_a_token_for_another_audience_is_refused(authority: Authority, forge: Forge, aud: str) -> None:
    assert refused(authority, forge.token(aud=aud)) is Reason.AUDIENCE


def test_another_agents_token_is_refused(authority: Authority, forge: Forge) -> None:
    assert refused(authority, forge.token(sub="somebody-else")) is Reason.SUBJECT
    assert refused(authority, forge.token(domain="elsewhere")) is Reason.DOMAIN
    assert refused(authority, forge.token(iss="a_domain-auth-service ")) is Reason.ISSUER
    assert refused(authority, forge.token(), subject="somebody-else") is Reason.SUBJECT


@pytest.mark.parametrize("claim", ["sub", "iss", "aud", "exp", "iat", "capabilities", "domain"])
def test_every_claim_the_document_requires_is_required(authority: Authority, forge: Forge, claim: str) -> None:
    told = look(authority, forge.token(**{claim: ...}))
    assert reason(told) in (Reason.CLAIM, Reason.AUDIENCE)
    assert told.field == claim


WRONG = [("exp", str(NOW + 10)), ("exp", True), ("exp", None), ("exp", -1), ("exp", 2**60), ("iat", "now"),
         ("nbf", "0"), ("sub", ""), ("sub", 1), ("sub", ["x"]), ("capabilities", "read:datasets"), ("domain", {}),
         ("capabilities", [1]), ("capabilities", ["c"] * 65), ("jti", 1), ("jti", "x" * 300)]  # fmt: skip


@pytest.mark.parametrize(("claim", "value"), WRONG)
def test_a_claim_of_the_wrong_type_is_refused_by_name(
    authority: Authority, forge: Forge, claim: str, value: Any
) -> None:
    told = look(authority, forge.token(**{claim: value}))
    assert (reason(told), told.field) == (Reason.CLAIM, claim)


def test_duplicate_names_in_claims_or_header_are_refused(authority: Authority, forge: Forge, ring: KeyRing) -> None:
    plain = json.dumps(CLAIMS).encode()
    for twice in (b'"sub": "admin", ', b'"s\\u0075b": "admin", ', b'"aud": "other", ', b'"exp": 99999999999, '):
        assert refused(authority, forge.token(claims=b"{" + twice + plain[1:])) is Reason.JSON
    nested = plain[:-1] + b', "more": {"a": 1, "a": 2}}'
    assert refused(authority, forge.token(claims=nested)) is Reason.JSON
    head = json.dumps({"alg": "EdDSA", "typ": "JWT", "kid": ring.signing.kid}).encode()
    assert refused(authority, forge.token(header=b'{"alg": "none", ' + head[1:])) is Reason.JSON


@pytest.mark.parametrize("claims", [b"[]", b'"x"', b"null", b"", b"{", b"{}x", b'{"exp": NaN}', b"\xff", b"{" * 5000,
                                    b'{"a":' * 20 + b"1" + b"}" * 20])  # fmt: skip
def test_a_body_that_is_no_strict_json_object_is_refused(authority: Authority, forge: Forge, claims: bytes) -> None:
    assert refused(authority, forge.token(claims=claims)) in (Reason.JSON, Reason.SIZE, Reason.FORM)
    assert refused(authority, forge.token(header=claims)) in (Reason.JSON, Reason.SIZE, Reason.FORM)


def test_an_oversized_token_is_refused_before_it_is_read(authority: Authority, forge: Forge) -> None:
    assert refused(authority, "a" * (LARGEST + 1)) is Reason.SIZE
    assert refused(authority, forge.token(padding="x" * LARGEST)) is Reason.SIZE
    assert refused(authority, forge.token(header={"padding": "x" * 2000})) is Reason.JSON


@pytest.mark.parametrize("token", [None, 1, b"a.b.c", [], "", ".", "..", "a.b", "a.b.c.d", "a..c", " a.b.c", "a.b.c\n",
                                   "é.b.c", "\ud800.b.c", "a.b.c="])  # fmt: skip
def test_what_is_no_token_is_refused(authority: Authority, token: Any) -> None:
    assert refused(authority, token) is Reason.FORM


def test_a_truncated_token_is_refused_at_every_length(authority: Authority, issue: Issue) -> None:
    token = issue().token
    for length in range(len(token)):
        assert isinstance(reason(look(authority, token[:length])), Reason)
    assert isinstance(look(authority, token), Claims)


@untimed
@given(place=st.integers(0, 10_000), bit=st.integers(0, 5))
def test_a_flipped_bit_anywhere_is_refused(place: int, bit: int) -> None:
    authority = Authority(RING)
    issued = authority.issue(subject=US, audience=THEM, domain="d", capabilities=["a:b"], ttl=60, now=NOW)
    assert isinstance(issued, Issued)
    token = issued.token
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    place %= len(token)
    if token[place] == ".":
        return
    changed = alphabet[alphabet.index(token[place]) ^ (1 << bit)]
    assert isinstance(authority.verify(token, audience=THEM, now=NOW), Claims)  # remembered
    reason(authority.verify(token[:place] + changed + token[place + 1 :], audience=THEM, now=NOW))


@untimed
@given(st.text(alphabet='abcdefXYZ019-_.{}"=+/ \x00é', max_size=200))
def test_no_text_makes_verifying_fail_in_another_way(text: str) -> None:
    reason(Authority(RING).verify(text, audience=THEM, now=NOW))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


@untimed
@given(
    st.dictionaries(st.sampled_from(sorted(CLAIMS)), JSON),
    st.dictionaries(st.sampled_from(["alg", "typ", "kid", "crit"]), JSON),
)
def test_signed_nonsense_is_refused_or_understood_but_never_an_error(claims: Any, header: Any) -> None:
    told = Authority(RING).verify(Forge(RING).token(header=header, claims=claims), audience=THEM, now=NOW, subject=US)
    if isinstance(told, Claims):
        assert (told.aud, told.sub, told.iss) == (THEM, US, "a_domain-auth-service")
        assert told.exp - told.iat <= 86_400


RING = KeyRing([new_key(NOW - 1000)])


# -- what is remembered


def test_what_is_remembered_outlives_neither_expiry_nor_its_key(
    authority: Authority, ring: KeyRing, issue: Issue
) -> None:
    issued = issue(ttl=100)
    other = issue(ttl=100)
    assert look(authority, issued.token) == issued.claims
    assert look(authority, other.token) == other.claims
    assert reason(look(authority, issued.token, audience="other")) is Reason.AUDIENCE
    assert reason(look(authority, issued.token, subject="other")) is Reason.SUBJECT
    assert reason(look(authority, issued.token, now=NOW - 3600)) is Reason.NOT_YET
    assert refused(authority, other.token, now=NOW + 1000) is Reason.EXPIRED
    assert look(authority, issued.token) == issued.claims
    authority.use(KeyRing([new_key(NOW)]))
    assert refused(authority, issued.token) is Reason.KEY


def test_what_is_remembered_ends_with_the_time_of_its_key(ring: KeyRing, forge: Forge) -> None:
    """A retired key verifies as long as a token of its time can live; a clock ahead of that finds no key."""
    retired = msgspec.structs.replace(ring.signing, retired_at=NOW - 86_400)
    authority = Authority(KeyRing([retired, new_key(NOW)]))
    token = forge.token(exp=NOW + 60, iat=NOW - 3600, nbf=NOW - 3600)
    assert isinstance(look(authority, token), Claims)  # remembered
    assert refused(authority, token, now=NOW + 60) is Reason.KEY  # though the token itself would be good


def test_a_secret_replaced_under_the_same_name_voids_its_tokens(authority: Authority, ring: KeyRing) -> None:
    token = pyjwt.encode(CLAIMS, SECRET, "HS256", headers={"kid": "shared"})
    assert isinstance(look(authority, token), Claims)
    authority.use(KeyRing([ring.signing]).with_secret("shared", SECRET[::-1]))
    assert refused(authority, token) is Reason.SIGNATURE


def test_only_so_many_tokens_are_remembered_and_none_of_them_in_clear(ring: KeyRing) -> None:
    authority = Authority(ring, remembered=3)
    for n in range(10):
        issued = authority.issue(subject=US, audience=THEM, domain="d", capabilities=[], ttl=60 + n, now=NOW)
        assert isinstance(issued, Issued)
        assert isinstance(look(authority, issued.token, domain=None), Claims)
        assert issued.token not in repr(vars(authority))
    assert len(authority._good) == 3


def test_every_reason_says_what_to_do() -> None:
    assert set(SENTENCES) == set(Reason)
    assert all(what and advice for what, advice in SENTENCES.values())
