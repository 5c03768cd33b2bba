"""A private certificate authority: enough to start with TLS, and to test.

    file         mode   what
    -----------  -----  -----------------------------------------------------------------
    ca.pem       0600   give this to clients: they trust certificates that it signed
    ca.key       0600   signs; clients that trust ca.pem trust its holder
    server.pem   0600   the server's certificate, then the CA's
    server.key   0600
    NAME.pem …   0600   a client's certificate and key, where clients show one

The CA is made once and kept, so that clients that trusted the last certificate trust the renewed one. Keys are on
P-256, which every TLS library supports. The CA signs leaves only (path length 0).
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dragoman.security import private

CA_DAYS = 3650
DAYS = 397
"""The longest validity of a server's certificate that browsers accept."""

HOSTS = ("localhost", "127.0.0.1", "::1")
_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_HOST = re.compile(rf"(?=.{{1,253}}$)(\*\.)?{_LABEL}(\.{_LABEL})*")
_CLIENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_EARLY = datetime.timedelta(minutes=5)


class CertificateProblem(Exception):
    """The certificate cannot be made. The sentence ends with what to do."""


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """The files that were written."""

    ca: Path
    certificate: Path
    key: Path
    names: tuple[str, ...]
    not_after: datetime.datetime
    new_ca: bool


class Authority:
    """The CA in a directory, made if there is none."""

    def __init__(self, directory: Path, now: datetime.datetime) -> None:
        self.directory = private.directory(directory)
        self.path, self._key_path = directory / "ca.pem", directory / "ca.key"
        self.new = not self.path.exists() and not self._key_path.exists()
        if self.new:
            self._make(now)
        try:
            self._certificate = x509.load_pem_x509_certificate(private.read(self.path))
            key = serialization.load_pem_private_key(private.read(self._key_path), None)
        except FileNotFoundError as error:
            raise CertificateProblem(
                f"half of the CA is missing: {error.filename}. Restore it, or name another --dir."
            ) from None
        except (ValueError, TypeError):
            raise CertificateProblem(
                f"the CA in {directory} cannot be read. Restore it, or name another --dir."
            ) from None
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != self._certificate.public_key():
            raise CertificateProblem(
                f"ca.pem and ca.key in {directory} are no pair. Restore them, or name another --dir."
            )
        if self._certificate.not_valid_after_utc <= now:
            raise CertificateProblem(
                f"the CA in {directory} is expired. Name another --dir, and give clients its ca.pem."
            )
        self._key = key

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names in the existing server certificate; without one, those of this machine."""
        try:
            [made, *_] = x509.load_pem_x509_certificates((self.directory / "server.pem").read_bytes())
            names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, x509.ExtensionNotFound):
            return HOSTS
        return tuple(str(name.value) for name in names)

    def server(self, hosts: Sequence[str], *, now: datetime.datetime, days: int = DAYS) -> Made:
        """Make a certificate for these names and addresses, in the place of an existing one."""
        names = [_name(host) for host in hosts]
        return self._leaf("server", hosts[0], names, ExtendedKeyUsageOID.SERVER_AUTH, now, days)

    def client(self, name: str, *, now: datetime.datetime, days: int = DAYS) -> Made:
        """Make a certificate for a client of this name."""
        if not _CLIENT.fullmatch(name) or name in ("ca", "server"):
            raise CertificateProblem(
                "a client's name is letters, digits, . _ and -, and not ca or server. Choose another."
            )
        return self._leaf(name, name, [x509.DNSName(name)], ExtendedKeyUsageOID.CLIENT_AUTH, now, days)

    def _leaf(
        self,
        file: str,
        common: str,
        names: Sequence[x509.GeneralName],
        usage: x509.ObjectIdentifier,
        now: datetime.datetime,
        days: int,
    ) -> Made:
        if not 1 <= days <= CA_DAYS:
            raise CertificateProblem(f"a certificate lasts from 1 to {CA_DAYS} days. Choose --days in between.")
        key = generate_private_key(SECP256R1())
        until = min(now + datetime.timedelta(days=days), self._certificate.not_valid_after_utc)
        issuer_id = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        built = (
            _builder(_subject(common), self._certificate.subject, key, now - _EARLY, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id), critical=False)
            .sign(self._key, SHA256())
        )
        made = Made(
            ca=self.path,
            certificate=self.directory / f"{file}.pem",
            key=self.directory / f"{file}.key",
            names=tuple(str(name.value) for name in names),
            not_after=until,
            new_ca=self.new,
        )
        # The key first: a server that reads in between sees a pair that does not match, and keeps the one it has.
        private.write(made.key, _pem(key), replace=True)
        private.write(made.certificate, _text(built) + _text(self._certificate), replace=True)
        return made

    def _make(self, now: datetime.datetime) -> None:
        key = generate_private_key(SECP256R1())
        subject = _subject(f"Dragoman CA {x509.random_serial_number():x}"[:24])
        until = now + datetime.timedelta(days=CA_DAYS)
        built = (
            _builder(subject, subject, key, now - _EARLY, until)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, SHA256())
        )
        private.write(self._key_path, _pem(key), replace=False)
        private.write(self.path, _text(built), replace=False)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not _HOST.fullmatch(host) or re.fullmatch(r"[0-9.]+", host):
        raise CertificateProblem(f"{host!r} is neither a host name nor an address. Name it as clients will.")
    return x509.DNSName(host.lower())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    since: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _text(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
