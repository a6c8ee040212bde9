"""The model card of a pushed package: README.md with the metadata that the Hub indexes.

It is written from the package's manifest, the card of its base model and the results of `mxconv bench decode --json`.
"""

import math
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mxconv.checkpoint.hub import is_hub_id
from mxconv.checkpoint.regular_file import read_json_object
from mxconv.errors import MxconvError
from mxconv.package.manifest import Manifest, SourceRecord

FILE_NAME = "README.md"
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


@dataclass(frozen=True)
class MeasuredStrategy:
    """The results of one strategy: greedy, a draft alone, or all levels."""

    strategy: str
    tokens_per_second: float
    speedup: float
    acceptance: str


@dataclass(frozen=True)
class Measurements:
    """A run of `mxconv bench decode`."""

    cpu: str | None
    threads: int | None
    num_prompts: int
    rows: tuple[MeasuredStrategy, ...]
    target: str | None = None  # the level that was decoded, where the run says so


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
    members = read_json_object(path, unique_keys=True)
    try:
        results = list(members["results"])
        rows = tuple(_row(result) for result in results)
        if not all(result["identical_to_greedy"] for result in results):
            raise MxconvError(
                f"{path}: a strategy whose tokens differ from those of greedy decoding; none may. "
                "Please report this as a defect."
            )
        machine = dict(members.get("machine") or {})
        cpu, threads, target = machine.get("cpu"), machine.get("threads"), members.get("target")
        return Measurements(
            cpu=cpu if isinstance(cpu, str) else None,
            threads=threads if isinstance(threads, int) else None,
            num_prompts=int(results[0]["num_prompts"]),
            rows=rows,
            target=target if isinstance(target, str) else None,
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MxconvError(
            f"{path}: no result of decoding ({type(error).__name__}: {error}); the object that "
            "`mxconv bench decode PACKAGE --json` prints is required. Write its last line into the file."
        ) from error


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


def _row(result: dict[str, Any]) -> MeasuredStrategy:
    rates = [None if rate is None else float(rate) for rate in result["acceptance_rates"]]
    numbers = float(result["tokens_per_second"]), float(result["speedup"])
    if not all(math.isfinite(number) for number in (*numbers, *(rate for rate in rates if rate is not None))):
        raise ValueError("a number that is not finite")
    return MeasuredStrategy(
        str(result["strategy"]), *numbers, ", ".join("-" if rate is None else f"{rate:.3f}" for rate in rates)
    )


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
