"""Signed packages: round trips that model-signing's own command confirms, and what is refused with which words."""

import base64
import hashlib
import json
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import model_signing.hashing
import model_signing.signing
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from packages import flip, forge, quantize
from signing_keys import EMAIL, NOW, Pair, certify, make_pair

from mxconv.errors import MxconvError, PackageError
from mxconv.interop.attestation import Attestation, SigningKey, check_signature, check_subject, read_attestation, sign
from mxconv.verify import verify, write_certificate


@dataclass(frozen=True)
class Chain:
    """A root that certifies an issuer, that certifies a signer."""

    root: Pair
    issuer: Pair
    signer: Pair


@pytest.fixture(scope="session")
def verified(tmp_path_factory: pytest.TempPathFactory, mxfp4: Path) -> Path:
    copy = Path(shutil.copytree(mxfp4, tmp_path_factory.mktemp("attested") / "package"))
    write_certificate(copy, verify(copy))
    return copy


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


def check(path: Path, package: Path, **trusted: Any) -> Attestation:
    """What `mxconv verify --attestation` does."""
    attestation = read_attestation(path)
    check_signature(attestation, package, **trusted)
    return attestation


def refused(words: str, path: Path, package: Path, **trusted: Any) -> None:
    with pytest.raises(MxconvError, match=words):
        check(path, package, **trusted)


def model_signing_verifies(
    method: str, package: Path, path: Path, *options: object
) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "model_signing", "verify", method, package, "--signature", path, *options]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


@pytest.fixture
def certified(chain: Chain) -> SigningKey:
    return SigningKey(chain.signer.private, None, chain.signer.certificate, (chain.issuer.certificate,))


@pytest.fixture
def signed(verified: Path, pair: Pair, tmp_path: Path) -> Path:
    path = tmp_path / "attestation.json"
    sign(verified, SigningKey(pair.private), path)
    return path


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_a_key_signs_and_model_signing_verifies(verified: Path, tmp_path: Path, curve: ec.EllipticCurve) -> None:
    pair, other, path = make_pair(tmp_path, "key", curve), make_pair(tmp_path, "other", curve), tmp_path / "a.json"
    made = sign(verified, SigningKey(pair.private), path)
    found = check(path, verified, public_key=pair.public)
    assert found == made and found.to_json()["signed_with"] == "key"
    assert made.signers == (hashlib.sha256(pair.public.read_bytes()).hexdigest(),)
    done = model_signing_verifies("key", verified, path, "--public_key", pair.public)
    assert (done.returncode, done.stdout) == (0, "Verification succeeded\n"), done.stderr
    refused(
        r"is not signed by what .*other\.pub holds \(Key mismatch: .*Trust no", path, verified, public_key=other.public
    )


def test_a_certificate_signs_and_model_signing_verifies(
    verified: Path, chain: Chain, certified: SigningKey, tmp_path: Path
) -> None:
    path = tmp_path / "attestation.json"
    sign(verified, certified, path)
    for identity in (EMAIL, "https://example.org/release"):
        found = check(path, verified, roots=(chain.root.certificate,), identity=identity)
    assert found.signers == (EMAIL, "https://example.org/release")
    done = model_signing_verifies("certificate", verified, path, "--certificate_chain", chain.root.certificate)
    assert (done.returncode, done.stdout) == (0, "Verification succeeded\n"), done.stderr


def test_what_is_signed_are_the_files_that_the_manifest_lists(llama: Path, pair: Pair, tmp_path: Path) -> None:
    """A folder, `drafts`, and a file whose name is before it as text; the digests are computed by hand."""
    quantize(llama, package := tmp_path / "package", drafts=(f"checkpoint:{llama}",))
    write_certificate(package, verify(package))
    (package / "README.md").write_text("no part of the package")
    made = sign(package, SigningKey(pair.private), tmp_path / "a.json")
    payload = json.loads(base64.b64decode(json.loads((tmp_path / "a.json").read_bytes())["dsseEnvelope"]["payload"]))
    paths = sorted(path.relative_to(package) for path in package.rglob("*") if path.is_file() and path.suffix != ".md")
    digests = {path.as_posix(): hashlib.sha256((package / path).read_bytes()) for path in paths}
    assert any("/" in name for name in digests) and "mxconv.json" in digests
    assert made.digests == {name: digest.hexdigest() for name, digest in digests.items()}
    assert made.sha256 == hashlib.sha256(b"".join(digest.digest() for digest in digests.values())).hexdigest()
    assert payload["subject"] == [{"name": "package", "digest": {"sha256": made.sha256}}]
    assert payload["_type"] == "https://in-toto.io/Statement/v1"


def test_beside_a_package_there_may_be_what_a_repository_holds_and_no_other_file(
    signed: Path, verified: Path, pair: Pair, tmp_path: Path
) -> None:
    """A card, the attestation itself and the client's notes lie beside the package there."""
    clone = Path(shutil.copytree(verified, tmp_path / "clone"))
    for name in ("README.md", "attestation.json", ".gitattributes"):
        (clone / name).write_text("no part of the package")
    (clone / ".cache").mkdir()
    (clone / ".cache" / "notes").write_text("the client's")
    assert model_signing_verifies("key", clone, signed, "--public_key", pair.public).returncode == 0
    check(signed, clone, public_key=pair.public)
    (clone / "further.txt").write_text("")
    further = r"\(Signature mismatch: .*Extra files found in model 'clone': further\.txt"
    refused(further, signed, clone, public_key=pair.public)
    with pytest.raises(PackageError, match=r"further\.txt: SHA-256 e3b0\w+ was found; no such file of mxconv\.json is"):
        sign(clone, SigningKey(pair.private), tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


def test_a_statement_about_other_bytes_is_refused(
    signed: Path, pair: Pair, verified: Path, bsfp: Path, tmp_path: Path
) -> None:
    message = r"is about 'package', whose mxconv\.json has SHA-256 \w{64}, and not about .*, whose has \w{64}; "
    refused(message + r"\d further files differ\. Get the", signed, bsfp, public_key=pair.public)
    changed = Path(shutil.copytree(verified, tmp_path / "changed"))
    flip(changed / "mxfp4.safetensors", 2000)
    mismatch = r"\(Signature mismatch: .*Hash mismatch for 'mxfp4\.safetensors'"
    refused(mismatch, signed, changed, public_key=pair.public)
    forge(changed)  # the manifest's hashes are true again
    refused(message + r"1 further files differ\. Get", signed, changed, public_key=pair.public)
    # a signer who left weights out
    ignoring = model_signing.hashing.Config().set_ignored_paths(paths=["mxfp4.safetensors"])
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=pair.private)
    config.set_hashing_config(ignoring).sign(verified, path := tmp_path / "part.json")
    with pytest.raises(MxconvError, match=r"whose mxfp4\.safetensors has SHA-256 None, and .*; all other files agree"):
        check_subject(read_attestation(path), verified)


def test_a_changed_statement_or_one_without_a_key_is_refused(
    signed: Path, verified: Path, pair: Pair, chain: Chain
) -> None:
    bundle = json.loads(signed.read_bytes())
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload.replace(b'"package"', b'"another"')).decode()
    signed.write_text(json.dumps(bundle))
    changed = r"pub holds \(the statement was changed, or another key signed it\); a"
    refused(changed, signed, verified, public_key=pair.public)
    # as keyless signing writes them: a certificate of some minutes, and a log's entry
    certificate = x509.load_pem_x509_certificate(chain.signer.certificate.read_bytes())
    raw = base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()
    signed.write_text(json.dumps(bundle | {"verificationMaterial": {"certificate": {"rawBytes": raw}}}))
    refused(r"names no signer; .* without a key is for model-signing's own command", signed, verified)


@pytest.mark.parametrize("days", [(-9, -2), (2, 9)], ids=["expired", "of the future"])
def test_a_certificate_that_is_not_valid_now_is_refused(
    verified: Path, chain: Chain, tmp_path: Path, days: tuple[float, float]
) -> None:
    """model-signing itself takes it: it judges a certificate as of its first day."""
    path, old = tmp_path / "attestation.json", make_pair(tmp_path, "old")
    certify(old, chain.root, names=[x509.RFC822Name(EMAIL)], days=days)
    key = SigningKey(old.private, None, old.certificate)
    begin, end = (f"{NOW + timedelta(days=day):%Y-%m-%d %H:%M}" for day in days)
    dates = f"valid from {begin} to {end} UTC; one that is valid now, {NOW:%Y-%m-%d}"
    with pytest.raises(MxconvError, match=rf"old\.crt: the certificate of 'CN=old' is {dates}"):
        sign(verified, key, path)
    assert not path.exists()
    key.config().sign(verified, path)
    trusted = {"roots": (chain.root.certificate,), "identity": EMAIL}
    refused(rf"json: the certificate of 'CN=old' is {dates}", path, verified, **trusted)


def test_an_expired_issuer_and_a_certificate_without_a_name_are_refused(
    verified: Path, chain: Chain, tmp_path: Path
) -> None:
    path = tmp_path / "attestation.json"
    root, signer, nameless = (make_pair(tmp_path, name) for name in ("root", "signer", "nameless"))
    certify(root, root, days=(-9, -2))
    certify(signer, root, names=[x509.RFC822Name(EMAIL)], days=(-8, 30))
    certify(nameless, chain.root, names=[])
    with pytest.raises(MxconvError, match=r"names no signer; .* alternative name, is required"):
        sign(verified, SigningKey(nameless.private, None, nameless.certificate), path)
    assert not path.exists()
    sign(verified, SigningKey(signer.private, None, signer.certificate), path)
    valid = r"the certificate of 'CN=root' is valid from"
    refused(valid, path, verified, roots=(root.certificate,), identity=EMAIL)


def test_other_roots_and_identities_are_refused(
    verified: Path, chain: Chain, certified: SigningKey, pair: Pair, signed: Path, tmp_path: Path
) -> None:
    path, stranger = tmp_path / "certified.json", make_pair(tmp_path, "root")
    certify(stranger, stranger)
    sign(verified, certified, path)
    roots = (chain.root.certificate,)
    for attestation, trusted, words in (
        (path, {"roots": (stranger.certificate,), "identity": EMAIL}, r"not signed by what .*root\.crt holds \(.*\); "),
        (path, {"roots": roots, "identity": "me@example.org"}, rf"{EMAIL}, https://example.org/release; me@example"),
        (path, {"public_key": pair.public}, r"signed with a certificate; .* Give --certificate-chain"),
        (signed, {"roots": roots, "identity": EMAIL}, r"signed with a key; .* Give --public-key"),
        (signed, {"public_key": chain.signer.certificate}, r"signer\.crt: cannot be used \(.*\); a key on P-256"),
    ):
        refused(words, attestation, verified, **trusted)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"verificationMaterial": 3}', "[" * 100_000, "\x00"])
def test_what_is_no_bundle_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "attestation.json").write_text(text)
    with pytest.raises(MxconvError, match=r"attestation\.json: "):
        read_attestation(tmp_path / "attestation.json")


def test_a_flipped_bit_is_refused_or_changes_nothing(signed: Path, verified: Path, pair: Pair) -> None:
    raw, chosen, num_refused = signed.read_bytes(), random.Random(0), 0
    honest = check(signed, verified, public_key=pair.public).to_json()
    for _ in range(300):
        changed = bytearray(raw)
        changed[chosen.randrange(len(raw))] ^= 1 << chosen.randrange(8)
        signed.write_bytes(changed)
        try:
            assert check(signed, verified, public_key=pair.public).to_json() == honest
        except MxconvError:
            num_refused += 1
    assert num_refused > 250
