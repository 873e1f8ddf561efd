"""Certificates and keys for a fleet: an authority, the server's certificate, and a key pair for every device."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from hybridfl.errors import InputError

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def make_certificates(folder: Path, hosts: Sequence[str], days: int = 825) -> list[Path]:
    """`ca.crt`, `server.crt` and `server.key`; the certificate is good for these names and addresses.

    The authority's own key is not kept: nobody can sign another certificate with it, and a new server needs new ones for all.
    """
    paths = [folder / "ca.crt", folder / "server.crt", folder / "server.key"]
    _check_new(paths)
    for host in hosts:
        if not (_HOST.fullmatch(host) or _is_address(host)) or len(host) > 64:
            raise InputError(
                f"--host {host!r} is no name or address of a server: give one like fl.example.org or 10.0.0.7, without a port."
            )
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _name("hybridfl test authority")
    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
        )

    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    of_authority = (
        certificate(authority, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    of_server = (
        certificate(_name(hosts[0]), server_key)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    folder.mkdir(parents=True, exist_ok=True)
    for path, made in zip(paths, (of_authority, of_server), strict=False):
        _write_new(path, made.public_bytes(serialization.Encoding.PEM), FOR_ALL)
    _write_new(paths[2], _private(server_key, serialization.PrivateFormat.PKCS8))
    return paths


def make_keys(folder: Path, names: Sequence[str]) -> list[Path]:
    """A key pair a device, `NAME` and `NAME.pub`, as `ssh-keygen -t ecdsa -b 384` makes them."""
    for name in names:
        if not name or Path(name).name != name:
            raise InputError(f"'{name}' is no name for a key: leave out folders, and choose the folder instead.")
    paths = [folder / name for name in names]
    _check_new([each for path in paths for each in (path, path.with_name(f"{path.name}.pub"))])
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        key = ec.generate_private_key(ec.SECP384R1())
        _write_new(path, _private(key, serialization.PrivateFormat.OpenSSH))
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _write_new(path.with_name(f"{path.name}.pub"), public + f" {path.name}\n".encode(), FOR_ALL)
    return paths


def _check_new(paths: Sequence[Path]) -> None:
    """Devices may trust what is there already; a link to nowhere counts as something."""
    for path in paths:
        if os.path.lexists(path):
            raise _there_already(path)


def _there_already(path: Path) -> InputError:
    return InputError(f"'{path}' is there already: choose another folder, or remove it if no device uses it.")


FOR_OWNER, FOR_ALL = 0o600, 0o644


def _write_new(path: Path, content: bytes, mode: int = FOR_OWNER) -> None:
    """Into a file that nobody else has made or linked to. Nobody else can read a secret, not even for a moment."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)  # Windows has no such links
    try:
        handle = os.open(path, flags, mode)
    except FileExistsError:
        raise _there_already(path) from None
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
