"""Keys and certificates for the tests, in PEM files, made by cryptography."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)  # fmt: skip
from cryptography.x509.oid import NameOID

NOW = datetime.now(UTC)
EMAIL = "release@example.org"


@dataclass(frozen=True)
class Pair:
    """Files of a key pair, and of a certificate for it where it was given one."""

    private: Path
    public: Path
    key: ec.EllipticCurvePrivateKey
    certificate: Path
    name: str

    def options(self) -> tuple[object, ...]:
        return "--private-key", self.private


def make_pair(folder: Path, name: str, curve: ec.EllipticCurve | None = None, password: bytes | None = None) -> Pair:
    """A key pair on P-256 or another curve."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.pub", key, folder / f"{name}.crt", name)
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    pair.private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    pair.public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return pair


def certify(
    pair: Pair,
    issuer: Pair,
    *,
    names: list[x509.GeneralName] | None = None,
    days: tuple[float, float] = (-1, 30),
) -> Pair:
    """Write a certificate by `issuer`, valid between two days from now; without names, one that may issue others."""
    subject, signer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each.name)]) for each in (pair, issuer))
    begin, end = (NOW + timedelta(days=day) for day in days)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(signer).public_key(pair.key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)
    builder = builder.add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
    builder = builder.add_extension(_usage(issues=names is None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    pair.certificate.write_bytes(builder.sign(issuer.key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return pair


def _usage(*, issues: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not issues,
        key_cert_sign=issues,
        crl_sign=issues,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
