"""Signed packages: by the library, the command line and through a hub; model-signing's own command confirms them."""

import base64
import hashlib
import importlib
import json
import random
import re
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
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hub_client import Client
from hub_server import HubServer
from packages import flip, forge, quantize
from signing_keys import EMAIL, NOW, Pair, certify, make_pair

from mxconv.errors import MxconvError, PackageError
from mxconv.interop.attestation import Attestation, SigningKey, check_signature, check_subject, read_attestation, sign
from mxconv.interop.hub.card import SourceCard, model_card
from mxconv.package.manifest import read_manifest
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
    card = model_card(read_manifest(verified), "me/tiny", SourceCard(), attestation=found)
    assert f"Signed by `{EMAIL}, https://example.org/release`: `attestation.json`" in card
    assert "--attestation attestation.json --certificate-chain ROOT.pem --identity SIGNER\n" in card


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


def test_a_statement_about_other_bytes_is_refused(
    signed: Path, pair: Pair, verified: Path, bsfp: Path, tmp_path: Path
) -> None:
    message = r"is about 'package', whose mxconv\.json has SHA-256 \w{64}, and not about .*, whose has \w{64}; "
    refused(message + r"\d further files differ\. Get the", signed, bsfp, public_key=pair.public)
    changed = Path(shutil.copytree(verified, tmp_path / "changed"))
    (changed / "further.txt").write_text("")
    further = r"\(Signature mismatch: .*Extra files found in model 'changed': further\.txt"
    refused(further, signed, changed, public_key=pair.public)
    with pytest.raises(PackageError, match=r"further\.txt: SHA-256 e3b0\w+ was found; no such file of mxconv\.json is"):
        sign(changed, SigningKey(pair.private), tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()
    (changed / "further.txt").unlink()
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


def test_the_command_signs_what_it_verifies(client: Client, verified: Path, pair: Pair) -> None:
    out, err = client.output("attest", verified, *pair.options(), "-o", "a.json", "--json")
    made = json.loads(out)
    assert "wrote a.json: 6 files, signed by " in err and set(made) == {"output", "attestation"}
    assert re.search(r"stated: (\d+) of \1 tensors bit-exact, rebuilt from the package and ", err)
    (signer,) = made["attestation"]["signers"]
    trust = ("--attestation", "a.json", "--public-key", pair.public)
    found = client("verify", verified, *trust, "--identity", signer, "--rebuild")
    assert found["ok"] and found["rebuilt"] and found["attestation"] == made["attestation"]
    assert "; me is required" in client.error("verify", verified, *trust, "--identity", "me")
    assert client("verify", verified)["attestation"] is None


def test_what_cannot_sign_and_what_is_not_verified_is_refused(
    client: Client, mxfp4: Path, verified: Path, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = rsa.generate_private_key(65537, 2048)
    (tmp_path / "rsa.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    other = certify(made := make_pair(tmp_path, "other"), made, names=[x509.RFC822Name(EMAIL)])
    locked, where = make_pair(tmp_path, "locked", password=b"s3cret"), ("attest", verified, "-o", "a.json")
    with_certificate = ("--signing-certificate", certify(locked, made, names=[x509.RFC822Name(EMAIL)]).certificate)
    for options, password, message in (
        (("--private-key", tmp_path / "rsa.pem"), "", "rsa.pem: cannot be used ("),
        (("--private-key", pair.public), "", "mine.pub: cannot be used ("),
        (("--private-key", tmp_path / "gone.pem"), "", "gone.pem: No such file"),
        ((*pair.options(), "--signing-certificate", other.certificate), "", "does not match the public key paired"),
        (locked.options(), "", "is encrypted"),
        (locked.options(), "wrong", "locked.pem: cannot be used (Incorrect password"),
        ((*locked.options(), *with_certificate), "s3cret", "or unencrypted with a certificate of the same key"),
    ):
        variables = {"MXCONV_KEY_PASSWORD": password} if password else {}
        assert message in client.error(*where, *options, **variables)
    assert f"Run: mxconv verify {mxfp4} --write" in client.error("attest", mxfp4, *pair.options(), "-o", "a.json")
    assert not (client.folder / "a.json").exists()
    client(*where, *locked.options(), MXCONV_KEY_PASSWORD="s3cret")
    client(*where, *pair.options(), "--force", MXCONV_KEY_PASSWORD="s3cret")  # which needs no password
    monkeypatch.setitem(sys.modules, "model_signing", None)
    monkeypatch.delitem(sys.modules, "mxconv.interop.attestation")
    with pytest.raises(MxconvError, match=r"pip install '\.\[attest\]'"):
        importlib.import_module("mxconv.interop.attestation")


@pytest.fixture
def package(bsfp: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(bsfp, tmp_path / "package"))
    write_certificate(copy, verify(copy))
    return copy


def test_a_pushed_attestation_is_checked_by_those_who_have_only_the_id(
    hub: HubServer, client: Client, package: Path, pair: Pair, bsfp: Path, tmp_path: Path
) -> None:
    """And goes with its package: beside another there is none."""
    signed = Path(client("attest", package, *pair.options())["output"])
    error = client.error("push", bsfp, "me/tiny", "--attestation", signed)
    assert f"{signed}: is about 'package', whose mxconv.json has SHA-256" in error
    assert "me/tiny" not in hub.repositories
    pushed = client("push", package, "me/tiny", "--attestation", signed)
    repository = hub.repositories["me/tiny"]["main"]
    assert "attestation.json" in pushed["files"]
    assert (repository / "attestation.json").read_bytes() == signed.read_bytes()
    trust = ("--attestation", signed, "--public-key", pair.public)
    (signer,) = client("verify", "me/tiny", *trust)["attestation"]["signers"]
    card = (repository / "README.md").read_text()
    assert f"Signed by `{signer}`, the SHA-256 of a public key: `attestation.json` is a signature of OpenSSF" in card
    assert "mxconv verify me/tiny --attestation attestation.json --public-key KEY.pem\n" in card
    client("pull", "me/tiny", "-o", "pulled")
    for folder in (repository, tmp_path / "pulled"):
        done = model_signing_verifies("key", folder, signed, "--public_key", pair.public)
        assert done.returncode == 0, done.stderr
    client("push", bsfp, "me/tiny")
    repository = hub.repositories["me/tiny"]["main"]
    assert not (repository / "attestation.json").exists()
    assert "Signed by" not in (repository / "README.md").read_text()


def test_an_attestation_is_about_the_package_that_a_recipe_builds(hub: HubServer, client: Client, pair: Pair) -> None:
    client("quantize", "org/base", "-o", "made")
    client("verify", "made", "--source", "org/base", "--write")
    signed = client("attest", "made", *pair.options())["output"]
    pushed = client("push", "made", "me/recipe", "--recipe", "--attestation", signed)
    assert {"attestation.json", "mxconv-recipe.json"} <= {*pushed["files"]} and "mxconv.json" not in pushed["files"]
    found = client("verify", "me/recipe", "--attestation", signed, "--public-key", pair.public)
    assert found["ok"] and len(found["attestation"]["files"]) > len(pushed["files"])
