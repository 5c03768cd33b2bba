"""TLS for every listener: 1.3 or nothing (a2acp-D18), from files that are checked before the first connection.

    problem with the files                        the error at the start names
    --------------------------------------------  -----------------------------------------------
    missing, unreadable, not PEM                  which file, and `dragoman cert` to make one
    the key can be read by others                 chmod 600
    the key is not the certificate's              which two files
    the key is encrypted                          how to decrypt it (a hub has no terminal for a password)
    expired, or not valid yet                     since when or until when
    no usable CA for client certificates          which file

A renewed certificate needs no restart: `Renewal.renew()` reads the files again, checks them as at the start, and only
then uses them for new handshakes. If they are invalid, the old ones stay in use and `TlsProblem` says why.

gRPC has its own TLS, without a setting for the lowest version. `grpc_cipher_suites` gives it, for TLS 1.2, only suites
that the certificate cannot serve, which leaves 1.3.
"""

from __future__ import annotations

import os
import shlex
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from dragoman.security import private
from dragoman.security.private import Advised, PrivateFileError

Clients = Literal["optional", "required"]

GRPC_SUITES = "GRPC_SSL_CIPHER_SUITES"
"""The environment variable that gRPC reads once, before its first TLS connection, in either role."""

_MAKE = "Make one: dragoman cert"
HOME = Path(".dragoman/tls")
"""Where `dragoman cert` writes certificates by default."""


class TlsProblem(Advised):
    """TLS cannot be served with these files."""


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a listener. `client_ca` signs the certificates of clients, if the listener asks for any."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    clients: Clients = "optional"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate chain and its key that belong together and are valid now, as PEM."""

    chain: bytes
    key: bytes
    not_after: int
    names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Pair({', '.join(self.names)}, until {self.not_after})"


def read_pair(files: Files, now: int) -> Pair:
    """Both files, checked together. Raises `TlsProblem`."""
    chain = _read(files.certificate, "certificate")
    try:
        key_pem = private.read(files.key)
    except FileNotFoundError:
        raise TlsProblem(f"there is no key {files.key}", _MAKE) from None
    except PrivateFileError as error:
        raise TlsProblem(error.problem, error.advice) from None
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
    except (ValueError, UnsupportedAlgorithm):
        raise TlsProblem(f"{files.certificate} holds no PEM certificate", _MAKE) from None
    if _public(_private_key(files.key, key_pem)) != _public(leaf):
        raise TlsProblem(
            f"the key {files.key} is not that of {files.certificate}", "Name the two that belong together."
        )
    if now >= leaf.not_valid_after_utc.timestamp():
        over = f"{leaf.not_valid_after_utc:%Y-%m-%d}"
        raise TlsProblem(f"{files.certificate} expired on {over}", f"Renew it: {how_to_renew(files.certificate)}")
    if now < leaf.not_valid_before_utc.timestamp():
        raise TlsProblem(f"{files.certificate} is valid from {leaf.not_valid_before_utc:%Y-%m-%d}", "Check the clock.")
    return Pair(chain=chain, key=key_pem, not_after=int(leaf.not_valid_after_utc.timestamp()), names=_names(leaf))


def how_to_renew(certificate: Path) -> str:
    """The command that renews it, if `dragoman cert` made it: the CA is beside it."""
    if certificate.name != "server.pem" or not (certificate.parent / "ca.key").exists():
        return "have it signed again"
    there = "" if certificate.parent == HOME else f" --dir {shlex.quote(str(certificate.parent))}"
    return f"dragoman cert{there}"


def server_context(files: Files, now: int) -> ssl.SSLContext:
    """A context that speaks TLS 1.3 and nothing older. Raises `TlsProblem`."""
    return _context(read_pair(files, now), files)


class Renewal:
    """A context whose certificate is renewed while it is in use: every handshake gets the newest good one."""

    def __init__(self, files: Files, now: int) -> None:
        self.files = files
        self.pair = read_pair(files, now)
        self.context = _context(self.pair, files)
        self._newest = self.context
        self.context.sni_callback = self._hand_out

    @property
    def not_after(self) -> int:
        """When the certificate in use expires, for a warning before that."""
        return self.pair.not_after

    def renew(self, now: int) -> bool:
        """Read the files; gives whether new ones are in use now. Raises `TlsProblem`, and changes nothing, if they are
        invalid."""
        pair = read_pair(self.files, now)
        if pair == self.pair:
            return False
        self._newest = _context(pair, self.files)
        self.pair = pair
        return True

    def _hand_out(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        # OpenSSL asks this for every handshake, whether the client names a server or not.
        connection.context = self._newest


def grpc_cipher_suites(pair: Pair) -> str:
    """The value for `GRPC_SUITES` with which a gRPC server of this certificate speaks 1.3 only."""
    kind = serialization.load_pem_private_key(pair.key, None)
    other = "ECDSA" if isinstance(kind, rsa.RSAPrivateKey) else "RSA"
    return f"ECDHE-{other}-AES256-GCM-SHA384"


class _Handshake(ssl.SSLObject):
    """A handshake that reports its failure to the client. Event loops drop OpenSSL's alert, and the client sees a
    reset. So this delays the failure, as if there were more to read: then the loop writes the alert. The client
    disconnects, or the handshake times out."""

    outgoing: ssl.MemoryBIO
    failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if not self.outgoing.pending:
                raise
            self.failure = error
            raise ssl.SSLWantReadError from error


class _Listening(ssl.SSLContext):
    sslobject_class = _Handshake

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **more)
        assert isinstance(made, _Handshake)
        made.outgoing = outgoing
        return made


def _context(pair: Pair, files: Files) -> ssl.SSLContext:
    context = _Listening(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The ssl module loads from files only. The original files are not read again, so that the checked data are used.
    with _as_file(pair.key.rstrip() + b"\n" + pair.chain) as both:
        try:
            context.load_cert_chain(both, password=_no_password)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or "unusable"
            raise TlsProblem(f"{files.certificate} cannot be served ({reason})", _MAKE) from None
    if files.client_ca is not None:
        _trust(context, files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if files.clients == "required" else ssl.CERT_OPTIONAL
    elif files.clients == "required":
        raise TlsProblem("client certificates are required, but no CA is named that signs them", "Name its file.")
    return context


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which the data can be read by this process, in memory only where the system can do that."""
    if not hasattr(os, "memfd_create"):  # pragma: no cover - not on Linux
        with tempfile.NamedTemporaryFile() as file:  # 0600
            file.write(data)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as memory:
            memory.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    text = _read(ca, "CA file")
    try:
        context.load_verify_locations(cadata=text.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise TlsProblem(f"{ca} holds no PEM certificate of a CA", "Name the file that does.") from None


def _no_password() -> str:
    """Instead of a prompt on a terminal."""
    return ""


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise TlsProblem(f"there is no {what} {path}", _MAKE) from None
    except OSError as error:
        raise TlsProblem(
            f"the {what} {path} cannot be read: {error.strerror}", "Check its path and permissions."
        ) from None


def _private_key(path: Path, data: bytes) -> PrivateKeyTypes:
    try:
        key = serialization.load_pem_private_key(data, None)
    except TypeError:
        raise TlsProblem(
            f"{path} is encrypted", f"Decrypt it: openssl pkey -in {path} -out PLAIN (and chmod 600 it)"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise TlsProblem(f"{path} holds no PEM key", _MAKE) from None
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size < 2048:
        raise TlsProblem(f"{path} is an RSA key of {key.key_size} bits; 2048 is the least", _MAKE)
    if not isinstance(
        key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey, ed25519.Ed25519PrivateKey, ed448.Ed448PrivateKey)
    ):
        raise TlsProblem(f"{path} is not a key that TLS 1.3 signs with", _MAKE)
    return key


def _public(of: PrivateKeyTypes | x509.Certificate) -> bytes:
    return of.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
