"""Who made a statement: signing with a key, alone or with a certificate, and checking such signatures.

    sign(make_payload(package), SigningKey(Path("key.pem")), Path("package.attestation.json"))
    attestation = read_attestation(Path("package.attestation.json"))
    check_signature(attestation, Trust(public_key=Path("public.pem")))
    check_statement(attestation.statement, str(attestation.path), package)

Keys, envelopes and bundles are those of model-signing; only what it leaves out is checked here: that certificates are
valid now, and whose they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from model_signing._signing import sign_certificate, sign_ec_key, signing
from model_signing._signing.sign_sigstore_pb import Signature

from mxconv.checkpoint.regular_file import check_regular_file, read_json_object
from mxconv.errors import MxconvError
from mxconv.interop.attestation.statement import Statement, parse_statement
from mxconv.report.output_file import write_output

NAMES = (x509.RFC822Name, x509.UniformResourceIdentifier, x509.DNSName)  # of a certificate, as sigstore takes them


@dataclass(frozen=True)
class SigningKey:
    """A private key on P-256, P-384 or P-521 in PEM, and the certificate for it where there is one."""

    private_key: Path
    password: bytes | None = None
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()  # from the certificate's issuer on

    def signer(self) -> sign_ec_key.Signer:
        """The library's signer.

        Raises:
            MxconvError: a file cannot be read or is no such key or certificate, or they do not belong together.
        """
        _check_files(self.private_key, self.certificate, *self.chain)
        if self.certificate is not None and self.password is not None:
            raise MxconvError(
                f"{self.private_key}: has a password; model-signing signs with a certificate and an unencrypted key "
                "alone. Decrypt it into a file that nobody else can read."
            )
        try:
            if self.certificate is None:
                return sign_ec_key.Signer(self.private_key, self.password)
            # it does not take an empty chain, and does not mind a certificate that is there twice
            return sign_certificate.Signer(self.private_key, self.certificate, self.chain or (self.certificate,))
        except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:  # the latter two: of other keys
            raise MxconvError(
                f"{self.private_key}: cannot sign ({error}); a private key on P-256, P-384 or P-521 in PEM, its "
                "password, and a certificate of the same key where one is given, are required. Check the files."
            ) from error


@dataclass(frozen=True)
class Trust:
    """What a reader trusts: one key, or certificates and whom they must name."""

    public_key: Path | None = None
    roots: tuple[Path, ...] = ()
    identity: str | None = None


@dataclass(frozen=True)
class Attestation:
    """A signed statement as it was read; only `check_signature` says whether the signature is good."""

    path: Path
    signature: Signature
    certificates: tuple[x509.Certificate, ...]  # the signer's first; none for a key alone
    signers: tuple[str, ...]  # names in the certificate, or the key's SHA-256
    statement: Statement

    def to_json(self) -> dict[str, Any]:
        """As `verify` and `attest` print it."""
        claims, digests = self.statement.claims, self.statement.digests
        return {
            "signers": list(self.signers),
            "signed_with": "certificate" if self.certificates else "key",
            "subject": {"name": self.statement.name, "sha256": self.statement.sha256},
            "files": [{"path": name, "sha256": digest} for name, digest in sorted(digests.items())],
            "created_by": claims.created_by,
            "created_at": claims.created_at,
        }


def sign(payload: signing.Payload, key: SigningKey, path: Path) -> Attestation:
    """Write a bundle, beside its place first.

    Raises:
        MxconvError: the key cannot sign, its certificate is not valid now or names nobody, or the file system refuses.
    """
    made = _attestation(key.signer().sign(payload), path)
    _check_dates(made.certificates, str(key.certificate))
    write_output(path, made.signature.write)
    return made


def read_attestation(path: Path) -> Attestation:
    """Read a bundle without trusting it.

    Raises:
        MxconvError: it is no bundle that `mxconv attest` could have written.
    """
    read_json_object(path, unique_keys=True)
    try:
        return _attestation(Signature.read(path), path)
    except MxconvError:
        raise
    except Exception as error:  # a stranger's file, which the library takes for its own
        raise MxconvError(
            f"{path}: no bundle of sigstore ({type(error).__name__}: {' '.join(str(error).split())}); the file that "
            "`mxconv attest` wrote is required. Get it again."
        ) from error


def _attestation(signature: Signature, path: Path) -> Attestation:
    material = signature.bundle.verification_material
    chain, key = material.x509_certificate_chain, material.public_key
    found = () if chain is None else tuple(x509.load_der_x509_certificate(c.raw_bytes) for c in chain.certificates)
    signers = _names(found[0]) if found else (key.hint,) if key is not None and key.hint else ()
    if not signers:
        raise MxconvError(
            f"{path}: names no signer; a key's SHA-256, or a certificate with an e-mail address, URI or DNS name as "
            "its alternative name, is required. What was signed without a key is for model-signing's own command."
        )
    return Attestation(
        path, signature, found, signers, parse_statement(signature.bundle.dsse_envelope.payload, str(path))
    )


def check_signature(attestation: Attestation, trust: Trust) -> None:
    """Check that the statement is signed by who is trusted.

    Raises:
        MxconvError: the signature is another's or bad, a certificate does not lead to a trusted one, is not valid now,
            or names somebody else.
    """
    label = str(attestation.path)
    if bool(attestation.certificates) != bool(trust.roots):
        kind, option = ("certificate", "--certificate-chain") if attestation.certificates else ("key", "--public-key")
        raise MxconvError(f"{label}: signed with a {kind}; something to check it with is required. Give {option}.")
    verifier = _verifier(trust)
    try:
        verifier.verify(attestation.signature)
    except InvalidSignature as error:
        raise MxconvError(
            f"{label}: the signature is not that of the statement; an unchanged file is required. Get it again."
        ) from error
    except Exception as error:  # a stranger's file: whatever the library stumbles over
        with_what = ", ".join(map(str, trust.roots or (trust.public_key,)))
        raise MxconvError(
            f"{label}: cannot be verified with {with_what} ({str(error).strip() or type(error).__name__}); a signature "
            f"by {trust.identity or 'that key'} is required. Trust no file that somebody else signed."
        ) from error
    roots = [root for path in trust.roots for root in x509.load_pem_x509_certificates(path.read_bytes())]
    issuers = {certificate.issuer for certificate in attestation.certificates}
    _check_dates([*attestation.certificates, *(root for root in roots if root.subject in issuers)], label)
    if trust.identity is not None and trust.identity not in attestation.signers:
        raise MxconvError(
            f"{label}: signed by {', '.join(attestation.signers)}; {trust.identity} is required. "
            "Trust no file that somebody else signed."
        )


def _verifier(trust: Trust) -> sign_ec_key.Verifier | sign_certificate.Verifier:
    _check_files(trust.public_key, *trust.roots)
    try:
        if trust.public_key is None:
            return sign_certificate.Verifier(trust.roots)
        return sign_ec_key.Verifier(trust.public_key)
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        raise MxconvError(
            f"{trust.public_key or trust.roots[0]}: cannot be trusted ({error}); a public key on P-256, P-384 or P-521 "
            "or certificates, in PEM, are required. Check the file."
        ) from error


def _check_files(*paths: Path | None) -> None:
    for path in paths:
        if path is not None:
            check_regular_file(path)


def _check_dates(certificates: Iterable[x509.Certificate], label: str) -> None:
    """model-signing takes a certificate as if it were signed with on its first day; here it must be valid now."""
    now = datetime.now(UTC)
    for each in certificates:
        if not each.not_valid_before_utc <= now <= each.not_valid_after_utc:
            raise MxconvError(
                f"{label}: the certificate of {each.subject.rfc4514_string()!r} is valid from "
                f"{each.not_valid_before_utc:%Y-%m-%d %H:%M} to {each.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; one "
                f"that is valid now, {now:%Y-%m-%d %H:%M}, is required, since nothing proves when it was signed. "
                "Have the package attested again."
            )


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(name for kind in NAMES for name in found.get_values_for_type(kind))
