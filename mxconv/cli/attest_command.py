"""`mxconv attest`: a signed statement about a package; and what `verify` asks of one."""

import os
import sys
from dataclasses import dataclass
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.common_options import Force, Json
from mxconv.cli.output import Output, check_outputs

if TYPE_CHECKING:
    from mxconv.interop.attestation import Attestation

PASSWORD = "MXCONV_KEY_PASSWORD"


def attest(
    package: Annotated[Path, typer.Argument(help="The package: a folder whose certificate `verify --write` stored.")],
    private_key: Annotated[
        Path, typer.Option(help=f"Key in PEM, on P-256, P-384 or P-521; its password is asked for, or in {PASSWORD}.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write, by default beside the package.")
    ] = None,
    signing_certificate: Annotated[Path | None, typer.Option(help="Certificate of that key, in PEM.")] = None,
    certificate_chain: Annotated[
        list[Path] | None, typer.Option(help="Certificates in PEM, from its issuer on. Repeatable.")
    ] = None,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Sign a verified package.

    What is signed is the SHA-256 of each of its files, the certificate among them. The file is a signature of OpenSSF
    model-signing, whose own command verifies it, too.
    """
    if certificate_chain and signing_certificate is None:
        raise typer.BadParameter("--certificate-chain needs --signing-certificate.")
    place = output or package.resolve().parent / f"{package.resolve().name}.attestation.json"
    check_outputs(force, [], [place])
    from mxconv.interop.attestation import SigningKey, sign
    from mxconv.package.manifest import read_manifest

    out = Output(json_output)
    key = SigningKey(private_key, _password(private_key), signing_certificate, tuple(certificate_chain or ()))
    made = sign(package, key, place)
    out.line(f"wrote {place}: {len(made.digests)} files, signed by {', '.join(made.signers)}")
    if (certificate := read_manifest(package).certificate) is not None:
        out.line(f"stated: {certificate.proof}")
    out.json({"output": str(place), "attestation": made.to_json()})


@dataclass(frozen=True)
class AttestationOptions:
    """The signer whose statement about the package is wanted."""

    attestation: Annotated[Path | None, typer.Option(help="A file of `mxconv attest` to check too.")] = None
    identity: Annotated[
        str | None,
        typer.Option(help="Signer that is required: the e-mail address, URI or DNS name in the certificate."),
    ] = None
    public_key: Annotated[Path | None, typer.Option(help="Public key in PEM that must have signed.")] = None
    certificate_chain: Annotated[
        list[Path] | None, typer.Option(help="Certificates in PEM to trust, down to the root. Repeatable.")
    ] = None

    def check(self, package: Path) -> "Attestation | None":
        """The attestation, if one was given; raises MxconvError unless it is by whom they name, about the package."""
        roots = tuple(self.certificate_chain or ())
        if self.attestation is None:
            if self.identity or self.public_key or roots:
                raise typer.BadParameter("--identity, --public-key and --certificate-chain need --attestation.")
            return None
        if (self.public_key is None) != bool(roots and self.identity) or (self.public_key and roots):
            raise typer.BadParameter("--attestation: --public-key, or --certificate-chain and --identity, is required.")
        from mxconv.interop.attestation import check_signature, read_attestation

        found = read_attestation(self.attestation)
        check_signature(found, package, self.public_key, roots, self.identity)
        return found


def _password(private_key: Path) -> bytes | None:
    """The password of an encrypted key, from the environment or the terminal."""
    with private_key.open("rb") as file:
        if b"ENCRYPTED" not in file.read(1 << 16):
            return None
    given = os.environ.get(PASSWORD)
    if given is None and sys.stdin.isatty():
        given = getpass(f"Password of {private_key}: ")
    return None if given is None else given.encode()
