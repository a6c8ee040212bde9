"""`mxconv attest` and `verify --attestation`: options, what is written, the JSON, and refusals."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from packages import flip
from signing_keys import EMAIL, Pair, certify, make_pair

from mxconv.verify import verify, write_certificate


@pytest.fixture
def verified(package: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(package, tmp_path / "package"))
    write_certificate(copy, verify(copy))
    return copy


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path, "key")


@pytest.fixture
def signed(run: Any, verified: Path, pair: Pair) -> Path:
    outcome = run("attest", verified, *pair.options())
    assert outcome.exit_code == 0, outcome.stderr
    return verified.with_name("package.attestation.json")


def test_a_round_trip_with_a_key(run: Any, verified: Path, pair: Pair, tmp_path: Path) -> None:
    made = run("attest", verified, *pair.options(), "-o", tmp_path / "a.json", "--json")
    assert made.exit_code == 0 and f"wrote {tmp_path / 'a.json'}: 10 files, signed by " in made.stderr
    assert re.search(r"stated: (\d+) of \1 tensors bit-exact, rebuilt from the package and ", made.stderr)
    assert set(made.json) == {"output", "attestation"} and made.json["output"] == str(tmp_path / "a.json")
    found = run("verify", verified, "--attestation", tmp_path / "a.json", "--public-key", pair.public, "--json")
    assert found.exit_code == 0 and found.json["ok"] and found.json["attestation"] == made.json["attestation"]
    signers = found.json["attestation"]["signers"]
    assert f"signed by {signers[0]}: " in found.stderr
    trust = ("--attestation", tmp_path / "a.json", "--public-key", pair.public)
    assert run("verify", verified, *trust, "--identity", signers[0]).exit_code == 0
    assert "; me is required" in run("verify", verified, *trust, "--identity", "me").stderr
    both = run("verify", verified, *trust, "--rebuild", "--json").json
    assert both["rebuilt"] and both["attestation"] == made.json["attestation"]
    assert run("verify", verified, "--json").json["attestation"] is None


def test_only_verified_and_whole_packages_are_attested(run: Any, package: Path, verified: Path, pair: Pair) -> None:
    outcome = run("attest", package, *pair.options())
    assert outcome.exit_code == 1 and f"Run: mxconv verify {package} --write\n" in outcome.stderr
    flip(verified / "mxfp4.safetensors", 2000)
    outcome = run("attest", verified, *pair.options())
    assert outcome.exit_code == 1 and re.search(
        r"mxfp4\.safetensors: SHA-256 \w{64} was found; \w{64} of mxconv\.json is", outcome.stderr
    )
    assert not [path for path in verified.parent.iterdir() if "json" in path.name]


def test_a_password_comes_from_the_environment(
    run: Any, verified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = make_pair(tmp_path, "locked", password=b"s3cret")
    for password, message in ((None, "is encrypted"), ("wrong", "Incorrect password")):
        if password:
            monkeypatch.setenv("MXCONV_KEY_PASSWORD", password)
        outcome = run("attest", verified, *locked.options())
        assert outcome.exit_code == 1 and "locked.pem: cannot be used (" in outcome.stderr and message in outcome.stderr
    monkeypatch.setenv("MXCONV_KEY_PASSWORD", "s3cret")
    assert run("attest", verified, *locked.options()).exit_code == 0
    certify(locked, locked, names=[x509.RFC822Name(EMAIL)])
    outcome = run("attest", verified, *locked.options(), "--signing-certificate", locked.certificate, "--force")
    assert outcome.exit_code == 1 and "or unencrypted with a certificate of the same key" in outcome.stderr
    open_key = make_pair(tmp_path, "open")  # the variable may stay where a key has no password
    assert run("attest", verified, *open_key.options(), "--force").exit_code == 0


def test_what_is_no_key_is_refused(run: Any, verified: Path, pair: Pair, tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    (tmp_path / "rsa.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    other = certify(made := make_pair(tmp_path, "other"), made, names=[x509.RFC822Name(EMAIL)])
    for options, message in (
        (("--private-key", tmp_path / "rsa.pem"), "rsa.pem: cannot be used ("),
        (("--private-key", pair.public), "key.pub: cannot be used ("),
        (("--private-key", tmp_path / "gone.pem"), "gone.pem: No such file"),
        ((*pair.options(), "--signing-certificate", other.certificate), "does not match the public key paired"),
    ):
        outcome = run("attest", verified, *options)
        assert outcome.exit_code == 1 and message in outcome.stderr, outcome.stderr
    assert not verified.with_name("package.attestation.json").exists()


def test_a_missing_library_is_named(run: Any, verified: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("mxconv.interop.attestation")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "model_signing", None)
    outcome = run("attest", verified, *pair.options())
    assert outcome.exit_code == 1 and "pip install '.[attest]'" in outcome.stderr
