"""A verified package, a key, and a chain of certificates; tests only read them."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from signing_keys import EMAIL, Pair, certify, make_pair

from mxconv.verify import verify, write_certificate


@dataclass(frozen=True)
class Chain:
    """A root that certifies an issuer, that certifies a signer."""

    root: Pair
    issuer: Pair
    signer: Pair


@pytest.fixture(scope="session")
def verified(tmp_path_factory: pytest.TempPathFactory, mxfp4: Path) -> Path:
    package = Path(shutil.copytree(mxfp4, tmp_path_factory.mktemp("attested") / "package"))
    write_certificate(package, verify(package))
    return package


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("keys"), "mine")


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    folder = tmp_path_factory.mktemp("chain")
    root, issuer, signer = (make_pair(folder, name) for name in ("root", "issuer", "signer"))
    certify(root, root, days=(-20, 30))  # tests put signers of last week below it
    certify(issuer, root)
    names = [x509.RFC822Name(EMAIL), x509.UniformResourceIdentifier("https://example.org/release")]
    return Chain(root, issuer, certify(signer, issuer, names=names))
