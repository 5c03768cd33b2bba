"""Keys on disk: closed to others, whole or absent, rotated without voiding what is out there."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import jwt as pyjwt
import pytest

from dragoman.protocols.a2acp.types import Claims
from dragoman.security import private
from dragoman.security.jwt import Authority, Issued, grant
from dragoman.security.keys import KeyFile, KeyProblem, KeyRing, decode64, encode64, new_key, read_secret, thumbprint
from dragoman.security.private import PrivateFileError
from dragoman.security.refusals import Reason, Refusal
from tests.security.credentials.conftest import NOW, SECRET, THEM, US

DAY = 86_400


def token(ring: KeyRing, now: int = NOW) -> str:
    issued = Authority(ring).issue(subject=US, audience=THEM, domain="d", capabilities=[], ttl=DAY, now=now)
    assert isinstance(issued, Issued)
    return issued.token


def outcome(ring: KeyRing, text: str, now: int) -> Any:
    told = Authority(ring).verify(text, audience=THEM, now=now)
    return told.reason if isinstance(told, Refusal) else type(told)


def test_the_thumbprint_is_that_of_rfc_8037() -> None:
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    assert thumbprint(jwk) == "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


def test_keys_are_made_once_and_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0)  # even where everything is made open
    try:
        made = KeyFile(tmp_path / "keys").open(NOW)
    finally:
        os.umask(before)
    again = KeyFile(tmp_path / "keys").open(NOW + 5)
    assert again.signing.kid == made.signing.kid
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    assert [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in (tmp_path / "keys").iterdir()] == [
        ("signing.json", 0o600)
    ]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o666, 0o610])
def test_keys_that_others_can_read_are_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.open(NOW)
    keys.path.chmod(mode)
    for act in (keys.open, keys.rotate):
        with pytest.raises(PrivateFileError, match=r"can be read by others .* chmod 600 .*signing\.json"):
            act(NOW)
    keys.path.chmod(0o600)
    keys.directory.chmod(mode | 0o700)
    with pytest.raises(PrivateFileError, match=r"chmod 700 .*keys$"):
        keys.open(NOW)


def test_a_damaged_key_file_is_refused_without_showing_it(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    keys.open(NOW)
    good = keys.path.read_bytes()
    kept = json.loads(good)["keys"][0]
    other = encode64(os.urandom(32))
    for bad in (b"", b"{}", good[:50], good.replace(kept["d"].encode(), other.encode()), good.replace(b"OKP", b"EC ")):
        private.write(keys.path, bad, replace=True)
        with pytest.raises(KeyProblem, match="damaged") as told:
            keys.open(NOW)
        assert kept["d"] not in str(told.value)
        assert told.value.__suppress_context__
    private.write(keys.path, good.replace(b'"version": 1', b'"version": 2'), replace=True)
    with pytest.raises(KeyProblem, match="another version"):
        keys.open(NOW)


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(PrivateFileError, match="plain file"):
            private.read(path)
    with pytest.raises(PrivateFileError, match=r"cannot be made|not a directory"):
        private.directory(tmp_path / "pipe")


def test_the_loser_of_the_race_for_the_first_key_uses_the_winners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KeyFile(tmp_path / "keys")
    link = os.link

    def slower(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        KeyFile(tmp_path / "keys").open(NOW)
        link(source, target)

    monkeypatch.setattr(os, "link", slower)
    ring = keys.open(NOW)
    assert ring.signing.kid == KeyFile(tmp_path / "keys").open(NOW).signing.kid
    assert [path.name for path in keys.directory.iterdir()] == ["signing.json"]


def test_a_failed_write_leaves_the_old_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = KeyFile(tmp_path / "keys")
    before = keys.open(NOW).signing.kid

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PrivateFileError, match="No space left"):
        keys.rotate(NOW)
    monkeypatch.undo()
    assert keys.open(NOW).signing.kid == before
    assert [path.name for path in keys.directory.iterdir()] == ["signing.json"]


def test_a_rotated_key_verifies_until_its_last_token_is_over(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    old = keys.open(NOW)
    text = token(old, NOW + 10)
    new = keys.rotate(NOW + 10)
    assert new.signing.kid != old.signing.kid
    assert outcome(new, text, NOW + 10 + DAY + 59) is Claims
    assert outcome(new, text, NOW + 10 + DAY + 60) is Reason.KEY  # which is when the token is over as well
    assert [key["kid"] for key in new.jwks(NOW + 20)["keys"]] == [new.signing.kid, old.signing.kid]
    assert [key["kid"] for key in new.jwks(NOW + 10 + DAY + 60)["keys"]] == [new.signing.kid]
    later = keys.rotate(NOW + 2 * DAY)
    assert sorted(key.kid for key in later) == sorted([new.signing.kid, later.signing.kid])
    assert old.signing.kid not in keys.path.read_text()  # dropped


def test_a_key_that_may_be_stolen_verifies_nothing_from_now_on(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    text = token(keys.open(NOW))
    ring = keys.rotate(NOW + 1, distrust=True)
    assert outcome(ring, text, NOW + 1) is Reason.KEY
    assert len(list(ring)) == 1


def test_a_clock_set_back_does_not_make_the_old_key_sign(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys")
    kids = [keys.open(NOW).signing.kid, *(keys.rotate(at).signing.kid for at in (NOW, NOW - 1000, NOW - 1000))]
    assert len(set(kids)) == 4
    assert keys.open(NOW).signing.kid == kids[-1]


def test_the_published_keys_hold_nothing_private(ring: KeyRing) -> None:
    shown = ring.jwks(NOW)
    assert [set(key) for key in shown["keys"]] == [{"kty", "crv", "x", "kid", "use", "alg"}]
    assert "shared" not in json.dumps(shown)
    assert pyjwt.PyJWKSet.from_dict(shown).keys[0].key_id == ring.signing.kid
    assert repr(ring.signing) == f"Key({ring.signing.kid}, EdDSA)"
    assert all(SECRET.hex()[:16] not in repr(key) for key in ring)


def test_a_secret_is_read_from_a_file_of_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(KeyProblem, match="openssl rand -hex 32"):
        read_secret("shared", path)
    path.write_text("0123456789abcdef" * 4 + "\n")
    path.chmod(0o644)
    with pytest.raises(PrivateFileError, match="chmod 600"):
        read_secret("shared", path)
    path.chmod(0o600)
    assert len(bytes(read_secret("shared", path).verifier)) == 64  # type: ignore[arg-type]
    with pytest.raises(KeyProblem, match="name of a secret"):
        read_secret("../shared", path)
    with pytest.raises(KeyProblem, match="same kid"):
        KeyRing([new_key(0)]).with_secret("a", SECRET).with_secret("a", SECRET)


def test_only_one_spelling_of_base64url_is_read() -> None:
    assert decode64("_-8") == b"\xff\xef"
    for text in ("_-8=", "/+8", "_-9", "a", "_-8\n", " _-8", "é"):
        with pytest.raises(ValueError, match="base64url"):
            decode64(text)
    assert base64.urlsafe_b64decode("_-9=") == b"\xff\xef"  # others would read it


# -- grants


def test_a_grant_is_what_is_asked_for_and_allowed() -> None:
    allowed = {"read:datasets", "write:test_scenarios"}
    assert grant(["write:test_scenarios", "admin:all", "read:datasets", "read:datasets"], allowed) == (
        "write:test_scenarios",
        "read:datasets",
    )
    assert grant([], allowed) == ()
    assert grant(["admin:all"], allowed) == Refusal(Reason.CAPABILITY, "requested_capabilities", ("admin:all",))
    assert grant(["read:datasets"], ()) == Refusal(Reason.CAPABILITY, "requested_capabilities", ("read:datasets",))
    for overreaching in ("*", "read:*", "READ:datasets", "read:datasets ", "read:datasets\n", ""):
        refused = Refusal(Reason.CAPABILITY, "requested_capabilities", (overreaching,))
        assert grant([overreaching], allowed) == refused
        assert grant([overreaching, "read:datasets"], allowed) == ("read:datasets",)
    assert grant(["read:datasets"] * 65, allowed) == ("read:datasets",)
    many = [f"read:{number}" for number in range(65)]
    assert grant(many, allowed) == Refusal(Reason.CAPABILITY, "requested_capabilities", tuple(many[:64]))
    assert grant(many, many) == Refusal(Reason.TOO_MANY, "requested_capabilities")
    assert grant(["code review", "größe"], ["größe", "code review"]) == ("code review", "größe")
