"""The bill of materials of a package, in CycloneDX 1.6: its files, its source, its licence, and what made it."""

import json
from collections.abc import Mapping
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from mxconv import __version__
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.hub import is_hub_id
from mxconv.checkpoint.regular_file import read_json_object
from mxconv.interop.hub.card import SourceCard
from mxconv.package.manifest import FILE_NAME as MANIFEST
from mxconv.package.manifest import Manifest, SourceRecord, read_manifest


def bill_of_materials(package: Path, card: SourceCard) -> str:
    """The JSON text for a package, whose files are taken to be what its manifest says; the card names the licence."""
    manifest = read_manifest(package)
    digests = {record.path: record.sha256 for record in manifest.files} | {MANIFEST: sha256_file(package / MANIFEST)}
    name = card.license_name if card.license in (None, "other") else card.license
    link = card.license_link or ""  # or the name of a file
    url = XsUri(link) if link.startswith("https://") else None
    model = Component(
        name=package.resolve().name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="package",
        version=manifest.manifest_sha256,
        licenses=[LicenseFactory().make_from_string(name, license_url=url)] if name else [],
        pedigree=Pedigree(ancestors=[_source(manifest.source)]),
        components=_files("package", digests),
        properties=_properties(manifest),
    )
    tool = Component(name="mxconv", version=__version__, type=ComponentType.APPLICATION)
    bom = Bom(metadata=BomMetaData(component=model, tools=ToolRepository(components=[tool])))
    members = json.loads(JsonV1Dot6(bom).output_as_string())
    members["metadata"]["component"]["modelCard"] = {"modelParameters": _parameters(package)}  # no class for it yet
    return json.dumps(members, indent=1) + "\n"


def _source(source: SourceRecord) -> Component:
    """The 16-bit model that was converted; of a local one the folder's name alone."""
    group, _, name = source.id.rstrip("/").rpartition("/")
    on_hub = source.commit is not None and is_hub_id(source.id)
    return Component(
        name=source.id if on_hub else name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="source",
        version=source.commit,
        purl=PackageURL("huggingface", group or None, name, source.commit) if on_hub else None,
        components=_files("source", {record.path: record.sha256 for record in source.files}),
    )


def _files(whose: str, digests: Mapping[str, str]) -> list[Component]:
    return [
        Component(
            name=name,
            type=ComponentType.FILE,
            bom_ref=f"{whose}/{name}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        )
        for name, digest in digests.items()
    ]


def _properties(manifest: Manifest) -> list[Property]:
    """What has no place of its own in the format, under names that begin with `mxconv:`."""
    values = {
        "codec": manifest.options.codec,
        "bits_per_weight": manifest.bits_per_weight,
        "lossless": manifest.lossless,
        "levels": [level.name for level in manifest.levels],
        "certificate": manifest.members()["certificate"],
    }
    return [
        Property(name=f"mxconv:{name}", value=value if isinstance(value, str) else json.dumps(value))
        for name, value in values.items()
    ]


def _parameters(package: Path) -> dict[str, str]:
    """A model card's parameters, from config.json where the package has one."""
    config = package / "config.json"
    found = read_json_object(config, unique_keys=False) if config.is_file() else {}
    architectures = found.get("architectures")
    named = {
        "architectureFamily": found.get("model_type"),
        "modelArchitecture": architectures[0] if isinstance(architectures, list) and architectures else None,
    }
    return {"task": "text-generation"} | {key: text for key, text in named.items() if isinstance(text, str)}
