"""What a statement holds, computed by hand as formats/attestation.md says."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from packages import quantize
from signing_keys import Pair

from mxconv.conversion.recipe_files import make_recipe
from mxconv.errors import MxconvError
from mxconv.interop.attestation.signature import SigningKey, read_attestation, sign
from mxconv.interop.attestation.statement import IGNORED, MEMBER, make_payload
from mxconv.package.manifest import read_manifest
from mxconv.verify import verify, write_certificate

PAGE = (Path(__file__).parents[3] / "formats" / "attestation.md").read_text()


def statement_in(path: Path) -> dict[str, Any]:
    """The payload, without mxconv or model-signing."""
    envelope = json.loads(path.read_bytes())["dsseEnvelope"]
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    statement: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return statement


@pytest.fixture(scope="session")
def nested(tmp_path_factory: pytest.TempPathFactory, llama: Path) -> Path:
    """A verified package with a folder, `drafts`, and a file whose name is before it as text and after it as a path."""
    package = tmp_path_factory.mktemp("nested") / "package"
    quantize(llama, package, drafts=(f"checkpoint:{llama}",))
    write_certificate(package, verify(package))
    return package


def test_a_statement_is_what_the_format_says(nested: Path, pair: Pair, tmp_path: Path) -> None:
    sign(make_payload(nested), SigningKey(pair.private), tmp_path / "a.json")
    statement, manifest = statement_in(tmp_path / "a.json"), read_manifest(nested)
    paths = sorted(path.relative_to(nested) for path in nested.rglob("*") if path.is_file())
    assert any(len(path.parts) > 1 for path in paths)
    digests = [hashlib.sha256((nested / path).read_bytes()) for path in paths]
    assert [(each["name"], each["digest"], each["algorithm"]) for each in statement["predicate"]["resources"]] == [
        (path.as_posix(), digest.hexdigest(), "sha256") for path, digest in zip(paths, digests, strict=True)
    ]
    whole = hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()
    assert statement["subject"] == [{"name": "package", "digest": {"sha256": whole}}]
    assert f"`{statement['_type']}`" in PAGE and f"`{statement['predicateType']}`" in PAGE
    serialization = statement["predicate"]["serialization"]
    assert serialization.pop("ignore_paths") == list(IGNORED) and all(f"`{name}`" in PAGE for name in IGNORED)
    assert serialization == {"method": "files", "hash_type": "sha256", "allow_symlinks": False}
    claims = statement["predicate"]["mxconv"]
    assert list(claims) != [] and set(claims) == set(
        re.findall(r"^\| `(\w+)` \|", PAGE.split("| claim |")[1], re.M)[:4]
    )
    found = read_attestation(tmp_path / "a.json")
    recipe = found.statement.claims.recipe
    assert found.to_json()["recipe_sha256"] == recipe.recipe_sha256
    assert recipe.to_bytes() == make_recipe(nested, tmp_path / "further").to_bytes()
    assert manifest.certificate is not None and recipe.package.certificate == manifest.certificate
    assert (tmp_path / "a.json").stat().st_size < 30_000


def test_a_keys_name_is_the_digest_of_its_file(verified: Path, pair: Pair, tmp_path: Path) -> None:
    made = sign(make_payload(verified), SigningKey(pair.private), tmp_path / "a.json")
    assert made.signers == (hashlib.sha256(pair.public.read_bytes()).hexdigest(),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"for Claims version Input should be 1"),
        ({"judge": "me"}, r"for Claims judge Extra inputs are not permitted"),
        ({"created_at": 3}, r"for Claims created_at Input should be a valid string"),
    ],
)
def test_claims_of_another_kind_are_refused(
    verified: Path, pair: Pair, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    payload, path = make_payload(verified), tmp_path / "attestation.json"
    payload.statement.pb.predicate[MEMBER].update(change)
    SigningKey(pair.private).signer().sign(payload).write(path)
    with pytest.raises(MxconvError, match=rf"no attestation \(ValidationError: .* {message}"):
        read_attestation(path)
