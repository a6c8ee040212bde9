"""What carries over from the card of the base model: its licence, its languages, its task."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv.package.manifest import SourceRecord

MAX_CARD_BYTES = 1_000_000


@dataclass(frozen=True)
class SourceCard:
    """Fields of a model card's metadata, as the Hub spells them; None where the source does not say."""

    license: str | None = None
    license_name: str | None = None
    license_link: str | None = None
    language: list[str] | None = None
    pipeline_tag: str | None = None


def read_source_card(source: SourceRecord) -> SourceCard:
    """The card of the source: on the Hub at the recorded commit, or README.md in its folder.

    What cannot be had is left out: a package may outlive the model that it came from.
    """
    try:
        metadata = _from_folder(Path(source.id)) if source.commit is None else _from_hub(source.id, source.commit)
    except Exception:  # the network, the HTTP library, YAML: none of them may stop a push
        return SourceCard()
    languages = metadata.get("language")
    return SourceCard(
        **{key: _text(metadata.get(key)) for key in ("license", "license_name", "license_link", "pipeline_tag")},
        language=[str(name) for name in languages] if isinstance(languages, list) else _listed(languages),
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


def _listed(value: object) -> list[str] | None:
    return [value] if isinstance(value, str) else None
