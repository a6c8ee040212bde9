"""A package's bill of materials, read and validated by CycloneDX's own library."""

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packages import forge

from mxconv.interop.attestation.bill_of_materials import bill_of_materials
from mxconv.interop.hub.card import SourceCard
from mxconv.package.manifest import read_manifest

FOLDER = "/home/someone/models/secret-base"


def bom_of(package: Path, card: SourceCard) -> tuple[dict[str, Any], Component]:
    """The file, after validation, and its one component."""
    text = bill_of_materials(package, card)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    members: dict[str, Any] = json.loads(text)
    component = Bom.from_json(members).metadata.component  # type: ignore[attr-defined]
    return members, component


def hashes_of(component: Component) -> dict[str, str]:
    return {each.name: each.hashes[0].content for each in component.components}


def test_files_source_and_parameters_are_in_the_bill(verified: Path) -> None:
    members, component = bom_of(verified, SourceCard())
    manifest = read_manifest(verified)
    hashes = hashes_of(component)
    assert hashes.items() >= {(record.path, record.sha256) for record in manifest.files}
    assert hashes.keys() - {record.path for record in manifest.files} == {"mxconv.json"}
    assert component.type is ComponentType.MACHINE_LEARNING_MODEL and component.version == manifest.manifest_sha256
    assert component.pedigree is not None
    (source,) = component.pedigree.ancestors
    assert source.name == "llama" and source.version is None and source.purl is None
    assert hashes_of(source) == {record.path: record.sha256 for record in manifest.source.files}
    assert members["metadata"]["component"]["modelCard"]["modelParameters"] == {
        "task": "text-generation",
        "architectureFamily": "llama",
        "modelArchitecture": "LlamaForCausalLM",
    }
    (tool,) = members["metadata"]["tools"]["components"]
    assert (tool["name"], tool["type"]) == ("mxconv", "application")
    properties = {each.name: each.value for each in component.properties}
    assert properties["mxconv:codec"] == "mxfp4" and properties["mxconv:lossless"] == "true"
    assert manifest.certificate is not None
    assert json.loads(properties["mxconv:certificate"]) == manifest.certificate.model_dump()


@pytest.mark.parametrize(
    ("card", "licences"),
    [
        (SourceCard(), None),
        (SourceCard(license="apache-2.0"), [{"license": {"id": "Apache-2.0"}}]),
        (SourceCard(license="llama3.1"), [{"license": {"name": "llama3.1"}}]),
        (
            SourceCard(license="other", license_name="own", license_link="https://example.org/terms"),
            [{"license": {"name": "own", "url": "https://example.org/terms"}}],
        ),
        (SourceCard(license="other", license_name="own", license_link="LICENSE"), [{"license": {"name": "own"}}]),
    ],
)
def test_the_licence_is_that_of_the_sources_card(verified: Path, card: SourceCard, licences: object) -> None:
    members, _ = bom_of(verified, card)
    assert members["metadata"]["component"].get("licenses") == licences


@pytest.mark.parametrize("commit", ["c0ffee", None])
def test_a_source_on_the_hub_has_a_package_url_and_a_local_one_keeps_its_path(
    verified: Path, tmp_path: Path, commit: str | None
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name in ("mxconv.json", "config.json"):
        (package / name).write_bytes((verified / name).read_bytes())

    def change(members: dict[str, Any]) -> None:
        members["source"] |= {"id": "org/base" if commit else FOLDER, "commit": commit}

    forge(package, change)
    members, _ = bom_of(package, SourceCard())
    (source,) = members["metadata"]["component"]["pedigree"]["ancestors"]
    assert source.get("purl") == ("pkg:huggingface/org/base@c0ffee" if commit else None)
    assert source["name"] == ("org/base" if commit else "secret-base")
    assert "/home/someone" not in json.dumps(members)
