"""The keys that tokens are signed with, looked at before anybody needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.app.keys import SigningKeys
from dragoman.app.settings import load
from dragoman.security.keys import KeyProblem
from dragoman.security.private import PrivateFileError

GOOD = "0123456789abcdef0123456789abcdef"


def keys(data: Path, secret: Path | None = None) -> SigningKeys:
    environ = {"DRAGOMAN_DATA": str(data)}
    if secret is not None:
        environ["DRAGOMAN_A2ACP__HS256_SECRET"] = str(secret)
    return SigningKeys(load(environ=environ).settings)


@pytest.mark.parametrize(
    ("said", "mode", "problem"),
    [
        (GOOD, 0o600, None),
        (GOOD[1:], 0o600, "at least 32"),
        ("a" * 40, 0o600, "hardly varies"),
        (GOOD, 0o644, "chmod 600"),
        (None, 0, "Make it: "),
    ],
)
@pytest.mark.parametrize("used", [False, True])
def test_an_unfit_shared_secret_is_refused_at_the_start(
    tmp_path: Path, said: str | None, mode: int, problem: str | None, used: bool
) -> None:
    if used:
        keys(tmp_path).authority(0)
    secret = tmp_path / "secret"
    if said is not None:
        secret.write_text(said)
        secret.chmod(mode)
    if problem is None:
        keys(tmp_path, secret).check()
        return
    with pytest.raises((KeyProblem, PrivateFileError), match=problem):
        keys(tmp_path, secret).check()


def test_damaged_keys_are_refused_at_the_start_and_missing_ones_are_made_later(tmp_path: Path) -> None:
    keys(tmp_path).check()
    assert not (tmp_path / "keys").exists()
    keys(tmp_path).authority(0)
    (tmp_path / "keys" / "signing.json").write_text("{}")
    with pytest.raises(KeyProblem, match="Restore it from a backup, or remove it"):
        keys(tmp_path).check()
