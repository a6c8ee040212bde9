"""Further models that become levels below the codec's own: `--draft checkpoint:PATH` and `--draft package:PATH`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mxconv.checkpoint.json_file import read_json_object
from mxconv.checkpoint.manifest import FILE_NAME, LevelRecord, read_manifest
from mxconv.checkpoint.package import Package
from mxconv.checkpoint.source import Checkpoint, open_checkpoint
from mxconv.conversion.staging import Staging
from mxconv.errors import MxconvError, PackageError

DEFAULT_NUM_DRAFT_TOKENS = 8
DEFAULT_CONFIDENCE = 0.4
DEFAULT_BSFP_CONFIDENCE = 0.6


@dataclass(frozen=True)
class DraftSpec:
    """One `--draft`: KIND:PATH_OR_ID[,num_draft_tokens=N][,confidence=P]."""

    kind: Literal["checkpoint", "package"]
    source: str
    num_draft_tokens: int = DEFAULT_NUM_DRAFT_TOKENS
    confidence: float = DEFAULT_CONFIDENCE


@dataclass(frozen=True)
class DraftModel:
    """A model that becomes a level: which files it takes along, and how it is recorded."""

    spec: DraftSpec
    name: str
    root: Path
    files: tuple[Path, ...]  # relative to root
    codec: Literal["bf16", "f16", "package"]

    def level(self, folder: str) -> LevelRecord:
        return LevelRecord(
            name=self.name,
            kind="model",
            codec=self.codec,
            location="package",
            files=[],
            path=folder,
            shares=["tokenizer"],
            num_draft_tokens=self.spec.num_draft_tokens,
            confidence=self.spec.confidence,
        )

    def place(self, staging: Staging, folder: str) -> None:
        """Hard-link (or copy) the model's files into the package."""
        for file in self.files:
            staging.place_file(f"{folder}/{file.as_posix()}", self.root / file, link=True)


def parse_draft(text: str) -> DraftSpec:
    """Parse a draft specification.

    Raises:
        MxconvError: an unknown kind or parameter, or a value out of range.
    """
    kind, colon, rest = text.partition(":")
    source, *parameters = rest.split(",")
    if kind not in ("checkpoint", "package") or not colon or not source:
        raise MxconvError(f"--draft {text}: kind {kind!r}; checkpoint:PATH_OR_ID or package:PATH_OR_ID is required.")
    num_draft_tokens, confidence = DEFAULT_NUM_DRAFT_TOKENS, DEFAULT_CONFIDENCE
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        try:
            if key == "num_draft_tokens":
                num_draft_tokens = int(value)
            elif key == "confidence":
                confidence = float(value)
            else:
                raise MxconvError(f"--draft {text}: parameter {key!r}; num_draft_tokens or confidence is required.")
        except ValueError as error:
            raise MxconvError(f"--draft {text}: {key} is {value!r}; a number is required.") from error
    if not 1 <= num_draft_tokens <= 64 or not 0 <= confidence <= 1:
        raise MxconvError(
            f"--draft {text}: num_draft_tokens {num_draft_tokens}, confidence {confidence}; "
            "1 to 64 and 0 to 1 are required."
        )
    return DraftSpec("checkpoint" if kind == "checkpoint" else "package", source, num_draft_tokens, confidence)


def open_draft(spec: DraftSpec, target: Checkpoint) -> DraftModel:
    """Check that a model can be a level under this target.

    Raises:
        MxconvError: it cannot be opened, or its tokenizer or vocabulary is another one.
    """
    if spec.kind == "package":
        root = Path(spec.source)
        with Package(root) as package:
            if not package.has_target:
                raise PackageError(f"{root}: references its target; a draft must be whole. Convert it with its target.")
            files = (Path(FILE_NAME), *(Path(record.path) for record in read_manifest(root).files))
        model = DraftModel(spec, root.resolve().name, root, files, "package")
    else:
        with open_checkpoint(spec.source) as checkpoint:
            root = checkpoint.root
            if checkpoint.config is None:
                raise MxconvError(
                    f"--draft checkpoint:{spec.source}: no config.json; a folder with it and the weights is required. "
                    "Pass the folder of the model."
                )
            paths = [*checkpoint.weight_files, *checkpoint.companion_files]
            if checkpoint.index_file is not None:
                paths.append(checkpoint.index_file)
            dtypes = {tensor.dtype for tensor in checkpoint.tensors.values()}
            if checkpoint.is_legacy or not dtypes <= {"BF16", "F16"}:
                raise MxconvError(
                    f"--draft checkpoint:{spec.source}: holds {', '.join(sorted(dtypes))}"
                    f"{' in .bin files' if checkpoint.is_legacy else ''}; BF16 or F16 safetensors are required. "
                    "Convert it first and use --draft package:PATH."
                )
            files = tuple(path.relative_to(root) for path in paths)
            codec: Literal["bf16", "f16"] = "f16" if dtypes == {"F16"} else "bf16"
        model = DraftModel(spec, root.resolve().name, root, files, codec)
    _check_vocabulary(model, target)
    return model


def _check_vocabulary(model: DraftModel, target: Checkpoint) -> None:
    ours, theirs = _vocabulary(target.root), _vocabulary(model.root)
    if ours != theirs:
        raise MxconvError(
            f"--draft {model.spec.source}: its tokenizer.json differs from that of {target.id}; "
            "the same vocabulary is required. Choose a draft of the same family."
        )
    sizes = {"target": _vocab_size(target.root), "draft": _vocab_size(model.root)}
    if sizes["target"] != sizes["draft"]:
        raise MxconvError(
            f"--draft {model.spec.source}: vocab_size {sizes['draft']}, and {sizes['target']} in {target.id}; "
            "the same size is required."
        )


def _vocabulary(root: Path) -> Any:
    """What a tokenizer is made of, without the settings of padding and truncation."""
    path = root / "tokenizer.json"
    if not path.is_file():
        return None
    members = read_json_object(path, unique_keys=False)
    return [members.get(key) for key in ("model", "added_tokens", "normalizer", "pre_tokenizer")]


def _vocab_size(root: Path) -> Any:
    path = root / "config.json"
    return read_json_object(path, unique_keys=False).get("vocab_size") if path.is_file() else None
