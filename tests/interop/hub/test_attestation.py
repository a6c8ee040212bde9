"""An attestation that is pushed with its package, and what the card says of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from hub_client import Client
from hub_server import HubServer
from signing_keys import EMAIL, Pair, certify, make_pair

from mxconv.interop.attestation import SigningKey, sign
from mxconv.interop.hub.card import SourceCard, model_card
from mxconv.package.manifest import read_manifest
from mxconv.verify import verify, write_certificate


@pytest.fixture
def package(bsfp: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(bsfp, tmp_path / "package"))
    write_certificate(copy, verify(copy))
    return copy


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path, "key")


@pytest.fixture
def signed(client: Client, package: Path, pair: Pair) -> Path:
    return Path(client("attest", package, *pair.options())["output"])


def test_a_pushed_attestation_is_checked_by_those_who_have_only_the_id(
    hub: HubServer, client: Client, package: Path, pair: Pair, signed: Path, tmp_path: Path
) -> None:
    pushed = client("push", package, "me/tiny", "--attestation", signed)
    repository = hub.repositories["me/tiny"]["main"]
    assert "attestation.json" in pushed["files"]
    assert (repository / "attestation.json").read_bytes() == signed.read_bytes()
    card = (repository / "README.md").read_text()
    (signer,) = client("verify", "me/tiny", "--attestation", signed, "--public-key", pair.public)["attestation"][
        "signers"
    ]
    assert f"Signed by `{signer}`, the SHA-256 of a public key: `attestation.json` is a signature of OpenSSF" in card
    assert "mxconv verify me/tiny --attestation attestation.json --public-key KEY.pem\n" in card
    client("pull", "me/tiny", "-o", "pulled")
    for folder in (repository, tmp_path / "pulled"):
        words = [sys.executable, "-m", "model_signing", "verify", "key", str(folder)]
        words += ["--signature", str(repository / "attestation.json"), "--public_key", str(pair.public)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_an_attestation_is_about_the_package_that_a_recipe_builds(hub: HubServer, client: Client, pair: Pair) -> None:
    client("quantize", "org/base", "-o", "made")
    client("verify", "made", "--source", "org/base", "--write")
    signed = client("attest", "made", *pair.options())["output"]
    pushed = client("push", "made", "me/recipe", "--recipe", "--attestation", signed)
    assert {"attestation.json", "mxconv-recipe.json"} <= {*pushed["files"]} and "mxconv.json" not in pushed["files"]
    found = client("verify", "me/recipe", "--attestation", signed, "--public-key", pair.public)
    assert found["ok"] and len(found["attestation"]["files"]) > len(pushed["files"])


def test_an_attestation_is_of_this_package_and_goes_with_it(
    hub: HubServer, client: Client, package: Path, signed: Path, bsfp: Path
) -> None:
    error = client.error("push", bsfp, "me/tiny", "--attestation", signed)
    assert f"{signed}: is about 'package', whose mxconv.json has SHA-256" in error
    assert "me/tiny" not in hub.repositories
    client("push", package, "me/tiny", "--attestation", signed)
    client("push", bsfp, "me/tiny")
    repository = hub.repositories["me/tiny"]["main"]
    assert not (repository / "attestation.json").exists()
    assert "Signed by" not in (repository / "README.md").read_text()


def test_the_card_names_a_certificates_signer(package: Path, pair: Pair, tmp_path: Path) -> None:
    root = make_pair(tmp_path, "root")
    certify(pair, root, names=[x509.RFC822Name(EMAIL)])
    made = sign(package, SigningKey(pair.private, None, pair.certificate), tmp_path / "attestation.json")
    card = model_card(read_manifest(package), "me/tiny", SourceCard(), attestation=made)
    assert f"Signed by `{EMAIL}`: `attestation.json`" in card
    assert "--attestation attestation.json --certificate-chain ROOT.pem --identity SIGNER\n" in card
