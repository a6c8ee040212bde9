"""Who made a statement: signing with a key, alone or with a certificate, and checking such signatures.

    sign(make_payload(package), SigningKey(Path("key.pem")), Path("package.attestation.json"))
    attestation = read_attestation(Path("package.attestation.json"))
    check_signature(attestation, Path("public.pem"))
    check_statement(attestation.statement, str(attestation.path), package)

Keys, envelopes and bundles are those of model-signing; only what it leaves out is checked here: that certificates are
valid now, and whose they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from model_signing._signing import sign_certificate, sign_ec_key, signing
from model_signing._signing.sign_sigstore_pb import Signature

from mxconv.checkpoint.regular_file import read_json_object
from mxconv.errors import MxconvError
from mxconv.interop.attestation.statement import Statement, parse_statement
from mxconv.report.output_file import write_output

NAMES = (x509.RFC822Name, x509.UniformResourceIdentifier, x509.DNSName)  # of a certificate, as sigstore takes them


@dataclass(frozen=True)
class SigningKey:
    """Files in PEM: a private key, and the certificate of it where there is one."""

    private_key: Path
    password: bytes | None = None
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()  # from the certificate's issuer on

    def signer(self) -> sign_ec_key.Signer:
        """The library's signer; raises MxconvError where the files do not make one."""
        with _refused(self.private_key, "with its password, or unencrypted with a certificate of the same key,"):
            if self.certificate is None:
                return sign_ec_key.Signer(self.private_key, self.password)
            # it does not take an empty chain, and does not mind a certificate that is there twice
            return sign_certificate.Signer(self.private_key, self.certificate, self.chain or (self.certificate,))


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
            "recipe_sha256": claims.recipe.recipe_sha256,
        }


def sign(payload: signing.Payload, key: SigningKey, path: Path) -> Attestation:
    """Write a bundle; raises MxconvError where the key cannot sign, or its certificate is not valid or names nobody."""
    made = _attestation(key.signer().sign(payload), path)
    _check_dates(made.certificates, str(key.certificate))
    write_output(path, made.signature.write)
    return made


def read_attestation(path: Path) -> Attestation:
    """Read a bundle without trusting it; raises MxconvError where `mxconv attest` cannot have written it."""
    read_json_object(path, unique_keys=True)
    try:
        return _attestation(Signature.read(path), path)
    except MxconvError:
        raise
    except Exception as error:  # a stranger's file, which the libraries take for their own
        raise MxconvError(
            f"{path}: no attestation ({type(error).__name__}: {' '.join(str(error).split())}); the file that `mxconv "
            "attest` wrote is required. Get it again; other signatures are for model-signing's own command."
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
    return Attestation(path, signature, found, signers, parse_statement(signature.bundle.dsse_envelope.payload))


def check_signature(
    attestation: Attestation, public_key: Path | None = None, roots: Sequence[Path] = (), identity: str | None = None
) -> None:
    """Raise MxconvError unless a key signed the statement, or `identity` by a certificate below `roots`, valid now."""
    label = str(attestation.path)
    if bool(attestation.certificates) != bool(roots):
        kind, option = ("certificate", "--certificate-chain") if attestation.certificates else ("key", "--public-key")
        raise MxconvError(f"{label}: signed with a {kind}; something to check it with is required. Give {option}.")
    trusted = public_key or roots[0]
    with _refused(trusted, "or certificates,"):
        verifier = sign_ec_key.Verifier(public_key) if public_key else sign_certificate.Verifier(roots)
    try:
        verifier.verify(attestation.signature)
    except Exception as error:  # a stranger's file: whatever the library stumbles over
        found = str(error).strip() or "the statement was changed, or another key signed it"
        raise MxconvError(
            f"{label}: not signed by what {trusted} holds ({found}); a signature by {identity or 'it'} is required. "
            "Trust no file that somebody else signed or changed."
        ) from error
    authorities = [root for path in roots for root in x509.load_pem_x509_certificates(path.read_bytes())]
    issuers = {certificate.issuer for certificate in attestation.certificates}
    _check_dates([*attestation.certificates, *(root for root in authorities if root.subject in issuers)], label)
    if identity is not None and identity not in attestation.signers:
        raise MxconvError(
            f"{label}: signed by {', '.join(attestation.signers)}; {identity} is required. "
            "Trust no file that somebody else signed."
        )


@contextmanager
def _refused(path: Path, what: str) -> Iterator[None]:
    """Turn what the libraries raise for a file that is no key or certificate into an error that names it."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        raise MxconvError(
            f"{path}: cannot be used ({error}); a key on P-256, P-384 or P-521, {what} in PEM is required. "
            "Check the files."
        ) from error


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
