"""Signed statements: round trips that model-signing's own command confirms, and what is refused with which words."""

import base64
import json
import random
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import model_signing.hashing
import model_signing.signing
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from model_signing._signing import signing
from packages import forge
from signing_keys import EMAIL, NOW, Pair, certify, make_pair

from mxconv.errors import MxconvError
from mxconv.interop.attestation.signature import Attestation, SigningKey, check_signature, read_attestation, sign
from mxconv.interop.attestation.statement import MEMBER, check_statement, make_payload


def attested(package: Path, key: SigningKey, path: Path) -> Attestation:
    return sign(make_payload(package), key, path)


def check(path: Path, package: Path, **trusted: Any) -> Attestation:
    """What `mxconv verify --attestation` does."""
    attestation = read_attestation(path)
    check_signature(attestation, **trusted)
    check_statement(attestation.statement, str(path), package)
    return attestation


def model_signing_verifies(
    method: str, package: Path, path: Path, *options: object
) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "model_signing", "verify", method, package, "--signature", path, *options]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


@pytest.fixture
def certified(chain: Any) -> SigningKey:
    return SigningKey(chain.signer.private, None, chain.signer.certificate, (chain.issuer.certificate,))


@pytest.fixture
def signed(verified: Path, pair: Pair, tmp_path: Path) -> Path:
    path = tmp_path / "attestation.json"
    attested(verified, SigningKey(pair.private), path)
    return path


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_a_key_signs_and_model_signing_verifies(verified: Path, tmp_path: Path, curve: ec.EllipticCurve) -> None:
    pair, path = make_pair(tmp_path, "key", curve), tmp_path / "attestation.json"
    made = attested(verified, SigningKey(pair.private), path)
    found = check(path, verified, public_key=pair.public)
    assert found.to_json() == made.to_json() and found.to_json()["signed_with"] == "key"
    assert found.statement.claims == made.statement.claims
    done = model_signing_verifies("key", verified, path, "--public_key", pair.public)
    assert (done.returncode, done.stdout) == (0, "Verification succeeded\n"), done.stderr
    (tmp_path / "copy").mkdir()
    other = make_pair(tmp_path / "copy", "key", curve)
    done = model_signing_verifies("key", verified, path, "--public_key", other.public)
    assert done.returncode == 1 and "Key mismatch" in done.stderr


def test_a_certificate_signs_and_model_signing_verifies(
    verified: Path, chain: Any, certified: SigningKey, tmp_path: Path
) -> None:
    path = tmp_path / "attestation.json"
    attested(verified, certified, path)
    for identity in (EMAIL, "https://example.org/release"):
        found = check(path, verified, roots=(chain.root.certificate,), identity=identity)
    assert found.signers == (EMAIL, "https://example.org/release")
    done = model_signing_verifies("certificate", verified, path, "--certificate_chain", chain.root.certificate)
    assert (done.returncode, done.stdout) == (0, "Verification succeeded\n"), done.stderr


def test_a_clone_of_a_repository_is_what_was_signed(signed: Path, verified: Path, pair: Pair, tmp_path: Path) -> None:
    """A card, the attestation itself and the client's notes lie beside the package there; no other file may."""
    clone = Path(shutil.copytree(verified, tmp_path / "clone"))
    for name in ("README.md", "attestation.json", ".gitattributes"):
        (clone / name).write_text("no part of the package")
    (clone / ".cache").mkdir()
    (clone / ".cache" / "notes").write_text("the client's")
    assert model_signing_verifies("key", clone, signed, "--public_key", pair.public).returncode == 0
    check(signed, clone, public_key=pair.public)
    (clone / "further.safetensors").write_text("")
    done = model_signing_verifies("key", clone, signed, "--public_key", pair.public)
    assert done.returncode == 1 and "Extra files found in model 'clone': further.safetensors" in done.stderr


def test_another_key_is_refused(signed: Path, verified: Path, tmp_path: Path) -> None:
    other = make_pair(tmp_path, "other")
    with pytest.raises(MxconvError, match=r"not signed by what .*other\.pub holds \(Key mismatch: .*Trust no"):
        check(signed, verified, public_key=other.public)


def test_a_changed_statement_is_refused(signed: Path, verified: Path, pair: Pair) -> None:
    bundle = json.loads(signed.read_bytes())
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload.replace(b"mxconv 0", b"mxconv 9")).decode()
    signed.write_text(json.dumps(bundle))
    with pytest.raises(MxconvError, match=r"pub holds \(the statement was changed, or another key signed it\); a"):
        check(signed, verified, public_key=pair.public)


def test_a_statement_about_another_package_is_refused(
    signed: Path, pair: Pair, verified: Path, bsfp: Path, tmp_path: Path
) -> None:
    message = (
        r"is about 'package', whose mxconv\.json has SHA-256 [0-9a-f]{64}, and not about .*, whose has [0-9a-f]{64}; "
    )
    with pytest.raises(MxconvError, match=message + r"\d further files differ, first '\w+\.safetensors'\. Get the"):
        check(signed, bsfp, public_key=pair.public)
    changed = Path(shutil.copytree(verified, tmp_path / "changed"))
    weights = bytearray((changed / "mxfp4.safetensors").read_bytes())
    weights[-1] ^= 1
    (changed / "mxfp4.safetensors").write_bytes(weights)
    forge(changed)  # the manifest's hashes are true again
    with pytest.raises(MxconvError, match=message + r"1 further files differ, first 'mxfp4\.safetensors'\. Get"):
        check(signed, changed, public_key=pair.public)


def test_a_digest_that_is_not_the_manifests_is_refused(verified: Path, pair: Pair, tmp_path: Path) -> None:
    """A careless signer hashed a damaged file as it was."""
    damaged, path = Path(shutil.copytree(verified, tmp_path / "package")), tmp_path / "attestation.json"
    (damaged / "mxfp4.safetensors").write_bytes(b"damaged")
    payload, honest = signing.Payload(model_signing.hashing.hash(damaged)), make_payload(verified)
    payload.statement.pb.predicate.update({MEMBER: honest.statement.pb.predicate[MEMBER]})
    SigningKey(pair.private).signer().sign(payload).write(path)
    with pytest.raises(MxconvError, match=r"'mxfp4\.safetensors' has SHA-256 [0-9a-f]{64} there and [0-9a-f]{64} in"):
        check(path, verified, public_key=pair.public)


def test_a_bundle_without_a_key_is_left_to_model_signing(signed: Path, chain: Any) -> None:
    """As keyless signing writes them: a certificate of some minutes, and a log's entry."""
    bundle = json.loads(signed.read_bytes())
    certificate = x509.load_pem_x509_certificate(chain.signer.certificate.read_bytes())
    raw = base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()
    bundle["verificationMaterial"] = {"certificate": {"rawBytes": raw}, "tlogEntries": []}
    signed.write_text(json.dumps(bundle))
    with pytest.raises(MxconvError, match=r"names no signer; .* without a key is for model-signing's own command"):
        read_attestation(signed)


@pytest.mark.parametrize("days", [(-9, -2), (2, 9)], ids=["expired", "of the future"])
def test_a_certificate_that_is_not_valid_now_is_refused(
    verified: Path, chain: Any, tmp_path: Path, days: tuple[float, float]
) -> None:
    """model-signing itself takes it: it judges a certificate as of its first day."""
    path, old = tmp_path / "attestation.json", make_pair(tmp_path, "old")
    certify(old, chain.root, names=[x509.RFC822Name(EMAIL)], days=days)
    key = SigningKey(old.private, None, old.certificate)
    begin, end = (f"{NOW + timedelta(days=day):%Y-%m-%d %H:%M}" for day in days)
    dates = f"valid from {begin} to {end} UTC; one that is valid now, {NOW:%Y-%m-%d}"
    with pytest.raises(MxconvError, match=rf"old\.crt: the certificate of 'CN=old' is {dates}"):
        attested(verified, key, path)
    assert not path.exists()
    key.signer().sign(make_payload(verified)).write(path)
    with pytest.raises(MxconvError, match=rf"json: the certificate of 'CN=old' is {dates}"):
        check(path, verified, roots=(chain.root.certificate,), identity=EMAIL)


def test_an_expired_issuer_is_refused(verified: Path, tmp_path: Path) -> None:
    path = tmp_path / "attestation.json"
    root, signer = make_pair(tmp_path, "root"), make_pair(tmp_path, "signer")
    certify(root, root, days=(-9, -2))
    certify(signer, root, names=[x509.RFC822Name(EMAIL)], days=(-8, 30))
    attested(verified, SigningKey(signer.private, None, signer.certificate), path)
    with pytest.raises(MxconvError, match=r"the certificate of 'CN=root' is valid from"):
        check(path, verified, roots=(root.certificate,), identity=EMAIL)


def test_other_roots_and_identities_are_refused(
    verified: Path, chain: Any, certified: SigningKey, pair: Pair, signed: Path, tmp_path: Path
) -> None:
    path, stranger = tmp_path / "certified.json", make_pair(tmp_path, "root")
    certify(stranger, stranger)
    attested(verified, certified, path)
    with pytest.raises(MxconvError, match=r"not signed by what .*root\.crt holds \(.*\); a signature by release"):
        check(path, verified, roots=(stranger.certificate,), identity=EMAIL)
    with pytest.raises(
        MxconvError, match=rf"signed by {EMAIL}, https://example.org/release; me@example.org is required"
    ):
        check(path, verified, roots=(chain.root.certificate,), identity="me@example.org")
    with pytest.raises(MxconvError, match=r"signed with a certificate; .* Give --certificate-chain"):
        check(path, verified, public_key=pair.public)
    with pytest.raises(MxconvError, match=r"signed with a key; .* Give --public-key"):
        check(signed, verified, roots=(chain.root.certificate,), identity=EMAIL)
    with pytest.raises(MxconvError, match=r"signer\.crt: cannot be used \(.*\); a key on P-256"):
        check(signed, verified, public_key=chain.signer.certificate)


def test_a_certificate_without_a_name_signs_nothing(verified: Path, chain: Any, tmp_path: Path) -> None:
    nameless, path = make_pair(tmp_path, "nameless"), tmp_path / "attestation.json"
    certify(nameless, chain.root, names=[])
    with pytest.raises(MxconvError, match=r"names no signer; .* alternative name, is required"):
        attested(verified, SigningKey(nameless.private, None, nameless.certificate), path)
    assert not path.exists()


def test_a_signature_without_claims_is_refused(verified: Path, pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "model.sig"
    model_signing.signing.Config().use_elliptic_key_signer(private_key=pair.private).sign(verified, path)
    with pytest.raises(
        MxconvError, match=r"model\.sig: no attestation \(ValidationError: .* for Claims Input .*; other signatures are"
    ):
        read_attestation(path)


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
