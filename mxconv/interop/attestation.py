"""Attestations (extra `attest`): who says which bytes are a verified package.

    sign(package, SigningKey(Path("key.pem")), Path("package.attestation.json"))
    attestation = read_attestation(Path("package.attestation.json"))
    check_signature(attestation, package, public_key=Path("public.pem"))

model-signing signs the package's folder, and with `mxconv.json` the certificate in it. Only what it leaves out
is checked here: that the files are those that the manifest lists, that certificates are valid now, and whose they are.
"""

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import read_json_object, sha256_file
from mxconv.errors import MxconvError, PackageError, install_line
from mxconv.package.manifest import FILE_NAME as MANIFEST
from mxconv.package.manifest import read_manifest
from mxconv.system.disk import write_output

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from model_signing import hashing, signing, verifying
except ModuleNotFoundError as error:
    raise MxconvError(
        f"attestations: {(error.name or '').partition('.')[0]} is not installed; it belongs to the extra `attest`. "
        + install_line("attest")
    ) from error

NAMES = (x509.RFC822Name, x509.UniformResourceIdentifier, x509.DNSName)  # of a certificate, as sigstore takes them
# no part of a package, and beside it in a repository: any other file that the manifest does not list is refused
IGNORED = (".cache", "README.md", "attestation.json")


@dataclass(frozen=True)
class SigningKey:
    """Files in PEM: a private key, and the certificate of it where there is one."""

    private_key: Path
    password: bytes | None = None
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()  # from the certificate's issuer on

    def config(self) -> signing.Config:
        """Return the library's signer; raises MxconvError where the files do not make one."""
        with _refused(self.private_key, "with its password, or unencrypted with a certificate of the same key,"):
            if self.certificate is None:
                return signing.Config().use_elliptic_key_signer(private_key=self.private_key, password=self.password)
            return signing.Config().use_certificate_signer(
                private_key=self.private_key,
                signing_certificate=self.certificate,
                certificate_chain=self.chain or (self.certificate,),  # the library reads no empty chain
            )


@dataclass(frozen=True)
class Attestation:
    """A signature as it was read; only `check_signature` says whether it is good."""

    path: Path
    certificates: tuple[x509.Certificate, ...]  # the signer's first; none for a key alone
    signers: tuple[str, ...]  # names in the certificate, or the key's SHA-256
    name: str  # of the folder that was signed
    sha256: str  # over the digests of all files
    digests: Mapping[str, str]  # SHA-256 by file

    def to_json(self) -> dict[str, Any]:
        """Return the object that `verify` and `attest` print."""
        return {
            "signers": list(self.signers),
            "signed_with": "certificate" if self.certificates else "key",
            "subject": {"name": self.name, "sha256": self.sha256},
            "files": [{"path": name, "sha256": digest} for name, digest in sorted(self.digests.items())],
        }


def sign(package: Path, key: SigningKey, path: Path) -> Attestation:
    """Sign a verified package into a file; nothing is written where an error is raised.

    Raises:
        PackageError: no certificate is stored in the package, or a file is damaged or not in its manifest.
        MxconvError: the key cannot sign, or its certificate is not valid now or names nobody.
    """
    recorded = _recorded(package)
    if read_manifest(package).certificate is None:
        raise PackageError(
            f"{package}: no certificate is stored in {MANIFEST}; a verified package is required. "
            f"Run: mxconv verify {package} --write"
        )
    made: list[Attestation] = []

    def write(partial: Path) -> None:
        files = _hashing().set_ignored_paths(paths=[name for name in IGNORED if name not in recorded])
        key.config().set_hashing_config(files).sign(package.resolve(), partial)
        signed = _parse(partial, path)
        for name in _differing(signed.digests, recorded):
            raise PackageError(
                f"{package / name}: SHA-256 {signed.digests.get(name, 'of no file')} was found; "
                f"{recorded.get(name, 'no such file')} of {MANIFEST} is required. Restore or remove the file."
            )
        _check_dates(signed.certificates, str(key.certificate))
        made.append(signed)

    write_output(path, write)
    return made[0]


def read_attestation(path: Path) -> Attestation:
    """Read a signature without trusting it; raises MxconvError where `mxconv attest` cannot have written it."""
    read_json_object(path, unique_keys=True)
    return _parse(path, path)


def check_subject(attestation: Attestation, package: Path) -> None:
    """Raise MxconvError unless an attestation is about a package whose files are what its manifest says."""
    found, stated = _recorded(package), attestation.digests
    if differing := _differing(stated, found):
        name = MANIFEST if MANIFEST in differing else differing[0]
        others = f"; {len(differing) - 1} further files differ" if differing[1:] else "; all other files agree"
        raise MxconvError(
            f"{attestation.path}: is about {attestation.name!r}, whose {name} has SHA-256 {stated.get(name)}, and not "
            f"about {package}, whose has {found.get(name)}{others}. Get the attestation of this package, or this "
            "package as it was signed."
        )


def check_signature(
    attestation: Attestation,
    package: Path,
    public_key: Path | None = None,
    roots: Sequence[Path] = (),
    identity: str | None = None,
) -> None:
    """Raise MxconvError unless a key signed this package, or `identity` by a certificate below `roots`, valid now."""
    label = str(attestation.path)
    check_subject(attestation, package)
    if bool(attestation.certificates) != bool(roots):
        kind, option = ("certificate", "--certificate-chain") if attestation.certificates else ("key", "--public-key")
        raise MxconvError(f"{label}: signed with a {kind}; something to check it with is required. Give {option}.")
    trusted, verifier = public_key or roots[0], verifying.Config().set_hashing_config(_hashing())
    with _refused(trusted, "or certificates,"):
        if public_key:
            verifier.use_elliptic_key_verifier(public_key=public_key)
        else:
            verifier.use_certificate_verifier(certificate_chain=roots)
    try:
        verifier.verify(package.resolve(), attestation.path)
    except Exception as error:  # a stranger's file: whatever the library stumbles over
        found = str(error).strip() or "the statement was changed, or another key signed it"
        raise MxconvError(
            f"{label}: {package} is not signed by what {trusted} holds ({found}); a signature by {identity or 'it'} "
            "is required. Trust no file that somebody else signed or changed."
        ) from error
    authorities = [root for path in roots for root in x509.load_pem_x509_certificates(path.read_bytes())]
    issuers = {certificate.issuer for certificate in attestation.certificates}
    _check_dates([*attestation.certificates, *(root for root in authorities if root.subject in issuers)], label)
    if identity is not None and identity not in attestation.signers:
        raise MxconvError(
            f"{label}: signed by {', '.join(attestation.signers)}; {identity} is required. "
            "Trust no file that somebody else signed."
        )


def _parse(path: Path, label: Path) -> Attestation:
    try:
        bundle = json.loads(path.read_bytes())
        material = bundle["verificationMaterial"]
        chain = material.get("x509CertificateChain", {"certificates": []})["certificates"]
        certificates = tuple(x509.load_der_x509_certificate(b64decode(each["rawBytes"])) for each in chain)
        hint = material.get("publicKey", {}).get("hint")
        signers = _names(certificates[0]) if certificates else (str(hint),) if hint else ()
        statement = json.loads(b64decode(bundle["dsseEnvelope"]["payload"]))
        subject = statement["subject"][0]
        name, sha256 = str(subject["name"]), str(subject["digest"]["sha256"])
        digests = {str(each["name"]): str(each["digest"]) for each in statement["predicate"]["resources"]}
    except Exception as error:  # a stranger's file, which is read as if it were ours
        raise MxconvError(
            f"{label}: no attestation ({type(error).__name__}: {' '.join(str(error).split())}); the file that `mxconv "
            "attest` wrote is required. Get it again; other signatures are for model-signing's own command."
        ) from error
    if not signers:
        raise MxconvError(
            f"{label}: names no signer; a key's SHA-256, or a certificate with an e-mail address, URI or DNS name as "
            "its alternative name, is required. What was signed without a key is for model-signing's own command."
        )
    return Attestation(label, certificates, signers, name, sha256, digests)


def _hashing() -> hashing.Config:
    """SHA-256 of every file; packages in the Hub's cache are folders of links."""
    return hashing.Config().use_file_serialization().set_allow_symlinks(True)


def _recorded(package: Path) -> dict[str, str]:
    """Return the recorded SHA-256 of a package's files, and that of its manifest."""
    records = read_manifest(package).files
    return {record.path: record.sha256 for record in records} | {MANIFEST: sha256_file(package / MANIFEST)}


def _differing(found: Mapping[str, str], required: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*found, *required} if found.get(name) != required.get(name))


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
