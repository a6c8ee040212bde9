"""The model card of a pushed package, written from its manifest: README.md with the metadata that the Hub indexes."""

from importlib.resources import files
from typing import Any

from mxconv.checkpoint.hub import is_hub_id
from mxconv.interop.hub.measurements import Measurements
from mxconv.interop.hub.source_card import SourceCard
from mxconv.package.manifest import Manifest

FILE_NAME = "README.md"
TEMPLATE = "card.md.j2"
MARKER = "<!-- Written by `mxconv push`, and by the next push again: remove this line to keep your own text. -->"


def model_card(
    manifest: Manifest,
    repo_id: str,
    source: SourceCard,
    measurements: Measurements | None = None,
    reader: str | None = None,
) -> str:
    """The text of the card.

    Args:
        manifest: as it is pushed.
        repo_id: where to.
        source: what is known of the base model's card.
        measurements: of decoding with the package, if there are any.
        reader: the kind of draft that the package is, where it is one that reads its target's hidden states.

    Returns:
        Markdown behind a block of YAML.
    """
    from huggingface_hub import ModelCardData  # these two imported here: only cards need them
    from jinja2 import Environment, StrictUndefined

    base = manifest.source.id if manifest.source.commit is not None and is_hub_id(manifest.source.id) else None
    metadata = ModelCardData(
        license=source.license,
        license_name=source.license_name,
        license_link=source.license_link,
        language=source.language,
        pipeline_tag=source.pipeline_tag or "text-generation",
        library_name="mxconv",
        tags=["mxconv", manifest.options.codec, "speculative-decoding"],
        base_model=base,
        base_model_relation=None if base is None else "quantized",
    )
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["code"] = code
    template = environment.from_string(files("mxconv.interop.hub").joinpath(TEMPLATE).read_text("utf-8"))
    return template.render(
        metadata=metadata.to_yaml(),
        repo_id=repo_id,
        base=base,
        source=source,
        marker=MARKER,
        manifest=manifest,
        measurements=measurements,
        reader=reader,
        **_facts(manifest),
    )


def _facts(manifest: Manifest) -> dict[str, Any]:
    quantized = [record for record in manifest.tensors if record.codec != "keep"]
    return {
        "codec": manifest.options.codec,
        "source_name": manifest.source.id.rstrip("/").rpartition("/")[2],
        "is_referenced": manifest.levels[0].location == "source",
        "num_quantized": len(quantized),
        "num_bytes": sum(record.num_bytes for record in manifest.files),
    }


def code(text: object) -> str:
    """Text of a file as Markdown code: printable, on one line, and unable to end the code or a table's cell."""
    return "`" + "".join(c if c.isprintable() and c not in "`|" else "?" for c in str(text)) + "`"
