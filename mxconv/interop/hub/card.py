"""The model card of a pushed package: README.md with the metadata that the Hub indexes.

It is written from the package's manifest, the card of its base model and the results of `mxconv bench decode --json`.
"""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from mxconv.checkpoint.hub import is_hub_id
from mxconv.checkpoint.regular_file import read_json_object
from mxconv.errors import MxconvError
from mxconv.package.manifest import Manifest, SourceRecord
from mxconv.report.tables import format_bytes, number

if TYPE_CHECKING:
    from mxconv.interop.attestation import Attestation

FILE_NAME = "README.md"
ATTESTATION = "attestation.json"
TEMPLATE = "card.md.j2"
MAX_CARD_BYTES = 1_000_000
MARKER = "<!-- Written by `mxconv push`, and by the next push again: remove this line to keep your own text. -->"


@dataclass(frozen=True)
class SourceCard:
    """Fields of a model card's metadata, as the Hub spells them; None where the source does not say."""

    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    language: list[str] | None = None
    pipeline_tag: str | None = None


class MeasuredStrategy(BaseModel):
    """The results of one strategy: greedy, a draft alone, or all levels."""

    strategy: str
    num_prompts: int
    tokens_per_second: FiniteFloat
    speedup: FiniteFloat
    acceptance_rates: list[FiniteFloat | None]
    identical_to_greedy: bool


class MeasuredMachine(BaseModel):
    """The processor of a run, and the threads that it took."""

    cpu: str | None = None
    threads: int | None = None


class Measurements(BaseModel):
    """A run of `mxconv bench decode`; `target` is the level that was decoded, where the run says so."""

    machine: MeasuredMachine = MeasuredMachine()
    results: list[MeasuredStrategy] = Field(min_length=1)
    target: str | None = None


def model_card(
    manifest: Manifest,
    repo_id: str,
    source: SourceCard,
    measurements: Measurements | None = None,
    reader: str | None = None,
    *,
    is_recipe: bool = False,
    attestation: "Attestation | None" = None,
) -> str:
    """The text of the card.

    Args:
        manifest: as it is pushed.
        repo_id: where to.
        source: what is known of the base model's card.
        measurements: of decoding with the package, if there are any.
        reader: the kind of draft that the package is, where it is one that reads its target's hidden states.
        is_recipe: whether the repository holds the package's recipe, not its weights.
        attestation: what is pushed with it, if anything.

    Returns:
        Markdown after a block of YAML.
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
    environment.filters |= {"code": code, "figure": number, "bytes": format_bytes}
    sizes = {record.path: record.num_bytes for record in manifest.files}
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
        is_recipe=is_recipe,
        attestation=attestation,
        codec=manifest.options.codec,
        source_name=manifest.source.id.rstrip("/").rpartition("/")[2],
        is_referenced=manifest.levels[0].location == "source",
        num_quantized=sum(record.is_quantized for record in manifest.tensors),
        num_bytes=sum(sizes.values()),
        sizes_of=lambda level: sum(sizes.get(name, 0) for name in level.files),
    )


def read_source_card(source: SourceRecord) -> SourceCard:
    """The card of the source: on the Hub at the recorded commit, or README.md in its folder.

    What cannot be had is left out: a package may outlive the model that it came from.
    """
    try:
        metadata = _from_folder(Path(source.id)) if source.commit is None else _from_hub(source.id, source.commit)
    except Exception:  # the network, the HTTP library, YAML: none of them may stop a push
        return SourceCard()
    found = metadata.get("language")
    languages = found if isinstance(found, list) else [found] if isinstance(found, str) else []
    return SourceCard(
        **{key: _text(metadata.get(key)) for key in ("license", "license_name", "license_link", "pipeline_tag")},
        language=list(map(str, languages)) if languages else None,
    )


def read_measurements(path: Path) -> Measurements:
    """Read the object that `mxconv bench decode --json` printed.

    Raises:
        MxconvError: it is no such object, or its tokens were not those of greedy decoding.
    """
    try:
        found = Measurements.model_validate(read_json_object(path, unique_keys=True))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise MxconvError(
            f"{path}: no result of decoding ({place}: {first['msg']}); the object that "
            "`mxconv bench decode PACKAGE --json` prints is required. Write its last line into the file."
        ) from error
    if not all(result.identical_to_greedy for result in found.results):
        raise MxconvError(
            f"{path}: a strategy whose tokens differ from those of greedy decoding; none may. "
            "Please report this as a defect."
        )
    return found


def code(text: object) -> str:
    """Text of a file as Markdown code: printable, on one line, and unable to end the code or a table's cell."""
    return "`" + "".join(c if c.isprintable() and c not in "`|" else "?" for c in str(text)) + "`"


def _from_hub(repo_id: str, commit: str) -> dict[str, Any]:
    from huggingface_hub import HfApi

    card: Any = HfApi().model_info(repo_id, revision=commit).card_data
    return {} if card is None else dict(card.to_dict())


def _from_folder(folder: Path) -> dict[str, Any]:
    from huggingface_hub.repocard import metadata_load

    path = (folder if folder.is_dir() else folder.parent) / "README.md"
    if not path.is_file() or path.stat().st_size > MAX_CARD_BYTES:
        return {}
    return metadata_load(path) or {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
