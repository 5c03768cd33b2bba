"""Listeners speak TLS 1.3 or nothing, with certificates that are checked first; and `dragoman cert` makes good ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dragoman.security import trust
from dragoman.security.certificates import Authority, CertificateProblem
from dragoman.security.private import PrivateFileError
from dragoman.security.tls import (
    Files,
    Renewal,
    TlsProblem,
    grpc_cipher_suites,
    read_pair,
    server_context,
)
from tests.support.cli import dragoman

TODAY = datetime.now(UTC).replace(microsecond=0)
NOW = int(TODAY.timestamp())
DAY = timedelta(days=1)


def put(place: Path, issued: trustme.LeafCert, name: str = "server") -> Files:
    certificate, key = place / f"{name}.pem", place / f"{name}.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.touch(0o600)
    key.write_bytes(issued.private_key_pem.bytes())
    return Files(certificate=certificate, key=key)


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, ca: trustme.CA) -> Files:
    return put(tmp_path, ca.issue_cert("localhost", "127.0.0.1"))


def trusting(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(context)
    return context


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            peer = writer.get_extra_info("peercert")
            writer.write(f"hello {bool(peer)}\n".encode())
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connect(port: int, context: ssl.SSLContext, name: str = "localhost") -> tuple[str, str, bytes]:
    """The version spoken, the greeting, and the certificate shown."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        told = (await reader.readline()).decode()
        link: ssl.SSLObject = writer.get_extra_info("ssl_object")
        shown, version = link.getpeercert(binary_form=True), link.version()
        writer.transport.abort()
        if not told:  # in 1.3 a client hears of its refusal after its side of the handshake is done
            raise ConnectionResetError
        return str(version), told.strip(), shown or b""


async def test_tls_1_3_is_spoken_and_nothing_older(files: Files, ca: trustme.CA) -> None:
    async with serving(server_context(files, NOW)) as port:
        assert (await connect(port, trusting(ca)))[:2] == ("TLSv1.3", "hello False")
        old = trusting(ca)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):  # it is told why
            await connect(port, old)
    assert said_by_server(server_context(files, NOW), old) == "UNSUPPORTED_PROTOCOL"
    assert said_by_server(server_context(files, NOW), trusting(ca)) is None


def said_by_server(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """Why the server ends a handshake in memory, if it does."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, there, server_hostname="localhost")
    theirs = server.wrap_bio(there, back, server_side=True)
    for step in (ours, theirs, theirs, ours, theirs):
        try:
            step.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            return error.reason
    return None


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_openssl_sees_tls_1_3_only(files: Files, ca: trustme.CA, tmp_path: Path) -> None:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    async def s_client(*flags: str) -> tuple[int, str]:
        at = ("-connect", f"127.0.0.1:{port}", "-CAfile", str(tmp_path / "ca.pem"), "-verify_return_error")
        process = await asyncio.create_subprocess_exec(
            "openssl",
            "s_client",
            *at,
            *flags,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        async with asyncio.timeout(60):
            said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    async with serving(server_context(files, NOW)) as port:
        code, said = await s_client("-tls1_3")
        assert code == 0
        assert "TLSv1.3" in said
        assert "Verify return code: 0 (ok)" in said
        for older in ("-tls1_2", "-no_tls1_3"):
            code, said = await s_client(older)
            assert code != 0
            assert "Cipher is (NONE)" in said


async def test_client_certificates_are_asked_for_where_a_ca_is_named(
    files: Files, ca: trustme.CA, tmp_path: Path
) -> None:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    known, stranger = trusting(ca), trusting(ca)
    ca.issue_cert("agent").configure_cert(known)
    trustme.CA().issue_cert("agent").configure_cert(stranger)
    optional = Files(certificate=files.certificate, key=files.key, client_ca=tmp_path / "ca.pem")
    required = Files(certificate=files.certificate, key=files.key, client_ca=tmp_path / "ca.pem", clients="required")
    async with serving(server_context(optional, NOW)) as port:
        assert (await connect(port, known))[1] == "hello True"
        assert (await connect(port, trusting(ca)))[1] == "hello False"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect(port, stranger)
    async with serving(server_context(required, NOW)) as port:
        assert (await connect(port, known))[1] == "hello True"
        for nobody, why in ((stranger, "ALERT_UNKNOWN_CA"), (trusting(ca), "ALERT_CERTIFICATE_REQUIRED")):
            with pytest.raises(ssl.SSLError, match=why):
                await connect(port, nobody)


async def renewed(files: Files, ca: trustme.CA) -> None:
    renewal = Renewal(files, NOW)
    async with serving(renewal.context) as port:
        _, _, first = await connect(port, trusting(ca))
        assert renewal.renew(NOW) is False
        put(files.key.parent, ca.issue_cert("localhost", not_after=TODAY + 3 * DAY))
        assert (await connect(port, trusting(ca)))[2] == first  # not yet
        assert renewal.renew(NOW) is True
        version, _, second = await connect(port, trusting(ca))
        assert version == "TLSv1.3"
        assert second != first
        assert renewal.not_after == NOW + 3 * 86_400
        old = trusting(ca)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connect(port, old)
        # A bad pair is not taken: the last good one stays.
        files.certificate.write_bytes(ca.issue_cert("localhost").cert_chain_pems[0].bytes())
        with pytest.raises(TlsProblem, match="belong together"):
            renewal.renew(NOW)
        assert (await connect(port, trusting(ca)))[2] == second
        unnamed = trusting(ca)
        unnamed.check_hostname = False
        assert (await connect(port, unnamed, ""))[2] == second  # a client that names no server


async def test_a_renewed_certificate_is_taken_without_a_restart(files: Files, ca: trustme.CA) -> None:
    await renewed(files, ca)


def test_a_renewed_certificate_is_taken_under_uvloop_as_well(files: Files, ca: trustme.CA) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(renewed(files, ca))


def test_files_that_cannot_serve_are_named_with_what_to_do(files: Files, ca: trustme.CA, tmp_path: Path) -> None:
    def told(**changed: Any) -> str:
        with pytest.raises(TlsProblem) as problem:
            server_context(Files(**{"certificate": files.certificate, "key": files.key, **changed}), NOW)
        assert problem.value.__suppress_context__ or problem.value.__context__ is None
        return str(problem.value)

    nothing, noise = tmp_path / "nothing.pem", tmp_path / "noise.pem"
    noise.touch(0o600)
    noise.write_text("noise")
    other = put(tmp_path, ca.issue_cert("other"), "other")
    assert "there is no certificate" in told(certificate=nothing)
    assert "dragoman cert" in told(certificate=nothing)
    assert "there is no key" in told(key=nothing)
    assert "holds no PEM certificate" in told(certificate=noise)
    assert "holds no PEM key" in told(key=noise)
    assert "belong together" in told(key=other.key)
    assert "there is no CA file" in told(client_ca=nothing)
    assert "no PEM certificate of a CA" in told(client_ca=noise)
    assert "no CA is named" in told(clients="required")
    files.key.chmod(0o640)
    assert f"chmod 600 {files.key}" in told()
    files.key.chmod(0o600)
    over = put(tmp_path, ca.issue_cert("localhost", not_before=TODAY - 9 * DAY, not_after=TODAY - DAY), "over")
    assert "expired on" in told(certificate=over.certificate, key=over.key)
    early = put(tmp_path, ca.issue_cert("localhost", not_before=TODAY + DAY, not_after=TODAY + 2 * DAY), "early")
    assert "Check the clock" in told(certificate=early.certificate, key=early.key)


def test_an_encrypted_or_weak_key_is_refused_without_asking_anybody(files: Files, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    files.key.write_bytes(locked)
    with pytest.raises(TlsProblem, match="openssl pkey"):
        server_context(files, NOW)
    weak = rsa.generate_private_key(65537, 1024)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files.key.write_bytes(weak.private_bytes(*plain))
    with pytest.raises(TlsProblem, match="1024 bits"):
        server_context(files, NOW)


def test_a_checked_pair_shows_no_key(files: Files) -> None:
    pair = read_pair(files, NOW)
    assert set(pair.names) == {"localhost", "127.0.0.1"}
    assert "PRIVATE" not in repr(pair)


GRPC = """
import asyncio, sys, grpc
async def main():
    server = grpc.aio.server()
    pair = (open(sys.argv[1], "rb").read(), open(sys.argv[2], "rb").read())
    print(server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair])), flush=True)
    await server.start()
    await server.wait_for_termination()
asyncio.run(main())
"""


@pytest.mark.parametrize("kind", [trustme.KeyType.ECDSA, trustme.KeyType.RSA])
def test_a_grpc_port_refuses_tls_1_2_with_the_suites_we_give_it(tmp_path: Path, ca: trustme.CA, kind: Any) -> None:
    files = put(tmp_path, ca.issue_cert("localhost", key_type=kind))
    suites = grpc_cipher_suites(read_pair(files, NOW))
    child = subprocess.Popen(
        [sys.executable, "-c", GRPC, str(files.key), str(files.certificate)],
        env={**os.environ, "GRPC_SSL_CIPHER_SUITES": suites},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        for version, spoken in ((ssl.TLSVersion.TLSv1_3, "TLSv1.3"), (ssl.TLSVersion.TLSv1_2, None)):
            context = trusting(ca)
            context.set_alpn_protocols(["h2"])
            context.maximum_version = version
            with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
                if spoken is None:
                    with pytest.raises((ssl.SSLError, ConnectionError)):
                        context.wrap_socket(plain, server_hostname="localhost")
                else:
                    with context.wrap_socket(plain, server_hostname="localhost") as link:
                        assert link.version() == spoken
    finally:
        child.kill()
        child.wait(60)
        child.stdout.close()  # type: ignore[union-attr]


# -- dragoman cert


async def test_the_cert_command_makes_a_ca_and_a_certificate_that_clients_trust(tmp_path: Path) -> None:
    place = tmp_path / "tls"
    said = await asyncio.to_thread(dragoman, "cert", "--dir", str(place), "--host", "localhost", "--host", "127.0.0.1")
    assert said.code == 0, said.err
    assert f"dragoman dev --certificate {place}/server.pem --key {place}/server.key" in said.err
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == dict.fromkeys(
        ("ca.key", "ca.pem", "server.key", "server.pem"), 0o600
    )
    files = Files(certificate=place / "server.pem", key=place / "server.key")
    async with serving(server_context(files, int(time.time()) + 1)) as port:
        strict = trust.context("", {trust.CA: str(place / "ca.pem")})
        strict.verify_flags |= ssl.VERIFY_X509_STRICT  # what newer Pythons demand
        for name in ("localhost", "127.0.0.1"):
            assert (await connect(port, strict, name))[0] == "TLSv1.3"
        for name, context in (("elsewhere", strict), ("localhost", trust.context("", {}))):
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(port, context, name)


def test_the_same_ca_signs_again_and_clients_too(tmp_path: Path) -> None:
    place = tmp_path / "tls"
    first = dragoman("cert", "--dir", str(place), "-o", "json").json
    second = dragoman("cert", "--dir", str(place), "--days", "10", "--client", "agent-7", "-o", "json").json
    assert (first["new_ca"], second["new_ca"]) == (True, False)
    assert first["names"] == ["localhost", "127.0.0.1", "::1"]
    assert second["certificate"] == str(place / "agent-7.pem")
    leaf, ca = x509.load_pem_x509_certificates((place / "agent-7.pem").read_bytes())
    leaf.verify_directly_issued_by(ca)
    assert ca.public_bytes(serialization.Encoding.PEM) == (place / "ca.pem").read_bytes()


def test_a_certificate_that_is_made_again_keeps_its_names(tmp_path: Path) -> None:
    """`doctor` and the log say `dragoman cert`, and a hub takes what that makes at once: nobody may be locked out."""
    place = tmp_path / "tls"
    named = ["hub.example", "10.0.0.7", "::1"]
    for hosts, made in ((named, named), ([], named), (["other"], ["other"])):
        options = [word for host in hosts for word in ("--host", host)]
        assert dragoman("cert", "--dir", str(place), *options, "-o", "json").json["names"] == made
    (place / "server.pem").write_text("noise")
    assert dragoman("cert", "--dir", str(place), "-o", "json").json["names"] == ["localhost", "127.0.0.1", "::1"]


def test_the_advice_to_renew_a_certificate_names_the_command_that_made_it(tmp_path: Path, ca: trustme.CA) -> None:
    place = tmp_path / "tls"
    ours = Authority(place, TODAY - 9 * DAY).server(["a"], now=TODAY - 9 * DAY, days=8)
    theirs = put(tmp_path, ca.issue_cert("localhost", not_before=TODAY - 9 * DAY, not_after=TODAY - DAY), "over")
    for certificate, key, fix in (
        (ours.certificate, ours.key, f"dragoman cert --dir {place}"),
        (theirs.certificate, theirs.key, "have it signed again"),
    ):
        with pytest.raises(TlsProblem) as problem:
            server_context(Files(certificate=certificate, key=key), NOW)
        assert str(problem.value).endswith(f"Renew it: {fix}")


@pytest.mark.parametrize("host", ["", "a b", "x\n", "-a", "http://x", "1.2.3", "a" * 64, "é", "*", "a..b", "/etc"])
def test_what_is_no_host_gets_no_certificate(tmp_path: Path, host: str) -> None:
    with pytest.raises(CertificateProblem, match="neither a host name nor an address"):
        Authority(tmp_path / "tls", TODAY).server([host], now=TODAY)


@pytest.mark.parametrize("name", ["", "ca", "server", "../x", "a/b", "a b", "-x"])
def test_a_clients_name_cannot_name_another_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(CertificateProblem, match="Choose another"):
        Authority(tmp_path / "tls", TODAY).client(name, now=TODAY)


def test_a_ca_that_is_broken_open_or_over_signs_nothing(tmp_path: Path) -> None:
    place = tmp_path / "tls"
    Authority(place, TODAY)
    with pytest.raises(CertificateProblem, match="days"):
        Authority(place, TODAY).server(["a"], now=TODAY, days=0)
    with pytest.raises(CertificateProblem, match="expired"):
        Authority(place, TODAY + 3651 * DAY)
    late = Authority(place, TODAY + 3600 * DAY).server(["a"], now=TODAY + 3600 * DAY)
    assert late.not_after == TODAY + 3650 * DAY  # never longer than its CA
    (place / "ca.key").chmod(0o644)
    with pytest.raises(PrivateFileError, match="chmod 600"):
        Authority(place, TODAY)
    (place / "ca.key").unlink()
    with pytest.raises(CertificateProblem, match="half of the CA"):
        Authority(place, TODAY)
    said = dragoman("cert", "--dir", str(place))
    assert said.code == 2
    assert "half of the CA" in said.err
