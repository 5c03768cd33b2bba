"""Which port shows what, when it is looked at again, and what the log says of it."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
import trustme

from dragoman.app.certificates import DAY, Certificates
from dragoman.app.settings import Settings, load
from dragoman.security.tls import GRPC_SUITES, TlsProblem

TODAY = datetime.now(UTC).replace(microsecond=0)
NOW = int(TODAY.timestamp())
CA = trustme.CA()


def put(place: Path, name: str = "server", days: int = 90, kind: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
    issued = CA.issue_cert("localhost", not_after=TODAY + timedelta(days=days), key_type=kind)
    for path, data in (
        (place / f"{name}.key", issued.private_key_pem),
        (place / f"{name}.pem", issued.cert_chain_pems[0]),
    ):
        path.touch(0o600)
        path.write_bytes(data.bytes())


def settings(place: Path, **more: object) -> Settings:
    put(place)
    named = {"tls.certificate": str(place / "server.pem"), "tls.key": str(place / "server.key")}
    return load(flags={**named, **more}).settings


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (GRPC_SUITES, "GRPC_VERBOSITY"):
        monkeypatch.setenv(name, "before")


def test_without_settings_there_are_none() -> None:
    none = Certificates(Settings())
    assert (none.http, none.coven, none.shown) == (None, None, "")


def test_gRPC_shows_the_same_unless_it_has_its_own(tmp_path: Path) -> None:
    same = Certificates(settings(tmp_path))
    assert same.coven is same.http
    put(tmp_path, "grpc")
    own = {"coven.tls_certificate": str(tmp_path / "grpc.pem"), "coven.tls_key": str(tmp_path / "grpc.key")}
    other = Certificates(settings(tmp_path, **own))
    assert other.coven is not None
    assert other.coven is not other.http
    assert other.shown == (tmp_path / "server.pem").read_text()
    assert "PRIVATE" not in other.shown


@pytest.mark.parametrize(("kind", "left"), [(trustme.KeyType.ECDSA, "RSA"), (trustme.KeyType.RSA, "ECDSA")])
def test_grpc_is_set_before_it_is_loaded_to_refuse_older_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: trustme.KeyType, left: str
) -> None:
    found = settings(tmp_path)
    put(tmp_path, kind=kind)
    monkeypatch.delitem(sys.modules, "grpc", raising=False)
    Certificates(found)
    assert os.environ[GRPC_SUITES] == f"ECDHE-{left}-AES256-GCM-SHA384"


def test_unfit_files_are_reported_at_the_start(tmp_path: Path) -> None:
    found = settings(tmp_path)
    (tmp_path / "server.key").chmod(0o644)
    with pytest.raises(TlsProblem, match="chmod 600"):
        Certificates(found)


def test_a_problem_is_logged_once_and_again_when_it_changes(tmp_path: Path) -> None:
    certificates = Certificates(settings(tmp_path))
    assert certificates.http is not None
    with structlog.testing.capture_logs() as logs:
        assert certificates.look(certificates.http, NOW) is False
        assert logs == []
        put(tmp_path, days=10)
        assert certificates.look(certificates.http, NOW) is True
        for _ in range(3):
            certificates.look(certificates.http, NOW)
        certificates.look(certificates.http, NOW + DAY)
        (tmp_path / "server.pem").write_text("nothing")
        for _ in range(3):
            assert certificates.look(certificates.http, NOW) is False
    assert [(line["event"], line.get("days")) for line in logs] == [
        ("certificate renewed", 10),
        ("a certificate expires soon", 10),
        ("a certificate expires soon", 9),
        ("a renewed certificate is not used", None),
    ]


def test_a_look_between_the_two_files_of_a_renewal_is_no_complaint(tmp_path: Path) -> None:
    certificates = Certificates(settings(tmp_path))
    assert certificates.http is not None
    old = (tmp_path / "server.pem").read_bytes()
    put(tmp_path, days=90)
    new = (tmp_path / "server.pem").read_bytes()
    (tmp_path / "server.pem").write_bytes(old)
    with structlog.testing.capture_logs() as logs:
        assert certificates.look(certificates.http, NOW) is False  # the new key, and not yet its certificate
        (tmp_path / "server.pem").write_bytes(new)
        assert certificates.look(certificates.http, NOW) is True
    assert [line["event"] for line in logs] == ["certificate renewed"]


async def test_the_log_says_when_new_connections_see_another_certificate(tmp_path: Path) -> None:
    certificates = Certificates(settings(tmp_path, **{"tls.renew_seconds": 0.01}))
    told = asyncio.Event()
    watching = asyncio.create_task(certificates.watch(told.set))
    put(tmp_path)
    async with asyncio.timeout(60):
        await told.wait()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert certificates.shown == (tmp_path / "server.pem").read_text()
