"""Further levels below the codec's own, as `--draft` asks for them, and the files that they take along."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mxconv.arch.families.table import describe_values
from mxconv.arch.gguf.open_source import open_source
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.source import Checkpoint
from mxconv.checkpoint.vocabulary import Vocabulary
from mxconv.conversion.options import Codec
from mxconv.drafts.chosen_levels import draft_level
from mxconv.drafts.draft_spec import LOOK_UPS, READERS, DraftSpec, draft_package
from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.drafts.readers.kinds import CONFIGS
from mxconv.drafts.readers.mlp_speculator import SpeculatorConfig
from mxconv.drafts.readers.mtp_module import check_mtp
from mxconv.drafts.readers.reader import check_target
from mxconv.engine.fewer_experts import check_fewer
from mxconv.engine.skipped import Skipped
from mxconv.errors import MxconvError, PackageError
from mxconv.package.manifest import FILE_NAME, LevelRecord
from mxconv.package.ngram_file import read_ngram_table
from mxconv.package.package import Package
from mxconv.package.staging import PlacedFile

VOCABULARY_DTYPES = ("I64", "I32", "BOOL")  # of a head that knows some of the target's tokens


@dataclass(frozen=True)
class DraftLevel:
    """What becomes a level: which files it takes along, and how it is recorded."""

    spec: DraftSpec
    name: str
    root: Path = Path()
    files: tuple[Path, ...] = ()  # relative to root
    codec: Literal["bf16", "f16", "package"] | None = None
    same_tokenizer: bool = True

    def level(self, folder: str, own_codec: Codec) -> LevelRecord:
        """The level's record, its files in a folder of the package, whose 4-bit level has a codec."""
        path = None
        if self.files:
            path = f"{folder}/{self.files[0].as_posix()}" if self.spec.kind == "ngram" else folder
        codec = own_codec if self.spec.kind == "mtp" else self.codec
        return self.spec.record(self.name, codec, path, self.same_tokenizer)

    def placed(self, folder: str) -> list[PlacedFile]:
        """The model's files, in a folder of the package."""
        return [PlacedFile(f"{folder}/{file.as_posix()}", self.root / file, link=True) for file in self.files]


def open_drafts(specs: Sequence[DraftSpec], target: Checkpoint) -> list[DraftLevel]:
    """Check that all can be levels under this target, one below the other.

    Raises:
        MxconvError: one cannot be opened, has no part in the target, or stands below a look-up.
    """
    if not specs:
        return []
    levels = []
    derived, num_layers = target.derive_files(), (target.config or {}).get("num_hidden_layers")
    vocabulary = Vocabulary.of_folder(target.root, derived if target.container == "GGUF" else None)
    tokenizer_sha256 = sha256_file(path) if (path := target.root / "tokenizer.json").is_file() else ""
    if derived:
        tokenizer_sha256 = hashlib.sha256(derived.get("tokenizer.json", b"")).hexdigest()
    for number, spec in enumerate(specs, 1):
        level = DraftLevel(spec, spec.kind)
        if spec.kind in ("checkpoint", "package"):
            level = _open_model(spec)
            theirs = Vocabulary.of_folder(level.root)
            level = replace(level, same_tokenizer=theirs.equals(vocabulary))
            if level.same_tokenizer:
                _check_padding(spec, theirs, vocabulary, target)
            else:
                path = level.root / "tokenizer.json"
                tokenizer_sha256 = sha256_file(path) if path.is_file() else ""
                if not (theirs.tokenizer and vocabulary.tokenizer):
                    raise MxconvError(
                        f"--draft {spec.subject}: {'it' if vocabulary.tokenizer else target.id} has no tokenizer.json; "
                        "both are required, to translate between them through text. Copy it from the model's source."
                    )
            vocabulary = theirs
        elif spec.kind == "mtp":
            _check_mtp(target)
        elif spec.kind in READERS:
            level = _open_model(spec)
            num_tokens = _check_reader(spec, level.root, target, vocabulary)
            level = replace(level, spec=replace(spec, num_draft_tokens=spec.num_draft_tokens or num_tokens))
        elif spec.kind == "ngram":
            file = Path(spec.subject)
            read_ngram_table(file).check_tokenizer(tokenizer_sha256, str(file))
            level = DraftLevel(spec, file.stem, file.absolute().parent, (Path(file.name),))
        elif spec.kind in ("layer-skip", "swift", "early-exit") and type(num_layers) is int:
            Skipped.at_first(spec.record(spec.kind), num_layers)
        elif spec.kind == "fewer-experts" and target.config is not None:
            check_fewer(describe_values(target.config), int(spec.subject), f"--draft {spec.kind}:{spec.subject}")
        if spec.kind in LOOK_UPS and number < len(specs) and specs[number].kind not in LOOK_UPS:
            raise MxconvError(
                f"--draft {spec.kind}: a look-up, with {specs[number].kind} below it; only a model can use a draft. "
                "Give look-ups last."
            )
        if spec.kind in READERS and number < len(specs) and specs[number].kind not in (*LOOK_UPS, *READERS):
            raise MxconvError(
                f"--draft {spec.kind}: reads the target's states, with {specs[number].kind} below it; only a model can "
                "use a draft. Give it behind the models."
            )
        levels.append(level)
    return levels


def _check_reader(spec: DraftSpec, root: Path, target: Checkpoint, vocabulary: Vocabulary) -> int | None:
    """That a draft which reads hidden states was made for this target; nothing is known of one without config.json.

    Returns:
        How many tokens it proposes at most; None where there is no limit.
    """
    reader = CONFIGS[spec.kind].from_file(root / "config.json")
    if target.config is not None:
        config = describe_values(target.config)
        check_target(reader, config, vocabulary.num_tokens, f"--draft {spec.subject}")
        if isinstance(reader, Eagle3Config):
            reader.layers_of(config.num_hidden_layers)
    return reader.n_predict if isinstance(reader, SpeculatorConfig) else None


def _check_mtp(target: Checkpoint) -> None:
    """Raises MxconvError where the target has no config.json, is of an unknown family, or has no MTP module."""
    if target.config is None:
        raise MxconvError(
            f"--draft mtp: {target.id} has no config.json; the one that says which family it is is required. Copy it "
            "from the model's source."
        )
    check_mtp(describe_values(target.config), target.tensors.keys(), target.id)


def _check_padding(spec: DraftSpec, ours: Vocabulary, theirs: Vocabulary, target: Checkpoint) -> None:
    """Matrices may be padded to different sizes, but every token must have a row in both."""
    for name, vocabulary in ((spec.subject, ours), (target.id, theirs)):
        if vocabulary.vocab_size is not None and vocabulary.num_tokens > vocabulary.vocab_size:
            raise MxconvError(
                f"--draft {spec.subject}: {name} has tokens up to {vocabulary.num_tokens - 1} and vocab_size "
                f"{vocabulary.vocab_size}; a row for each token is required. Choose another model."
            )


def _open_model(spec: DraftSpec) -> DraftLevel:
    """A model and the files that it consists of."""
    if (root := draft_package(spec)) is not None:
        with Package(root) as package:
            if not package.has_target:
                raise PackageError(
                    f"{root}: references its target; a draft must be whole, and its 4-bit level too takes "
                    "embedding and norms from there. Convert it with --target include."
                )
            files = (Path(FILE_NAME), *(Path(record.path) for record in package.manifest.files))
            if spec.kind == "package":
                spec = replace(spec, level=draft_level(root, package.manifest, spec.level).name)
        return DraftLevel(spec, _name(spec, root), root, files, "package")
    with open_source(spec.subject) as checkpoint:
        root = checkpoint.root
        if checkpoint.config is None:
            raise MxconvError(
                f"--draft {spec.kind}:{spec.subject}: no config.json; a folder with it and the weights is required. "
                "Pass the folder of the model."
            )
        paths = [*checkpoint.weight_files, *checkpoint.companion_files]
        if checkpoint.index_file is not None:
            paths.append(checkpoint.index_file)
        dtypes = {tensor.dtype for tensor in checkpoint.tensors.values()}
        if spec.kind == "eagle3":
            dtypes -= {*VOCABULARY_DTYPES}
        is_safetensors = checkpoint.container == "safetensors"
        if not is_safetensors or not dtypes <= {"BF16", "F16"}:
            raise MxconvError(
                f"--draft {spec.kind}:{spec.subject}: holds {', '.join(sorted(dtypes))}"
                f"{'' if is_safetensors else f' in {checkpoint.container} files'}; BF16 or F16 safetensors are "
                "required. Convert it first and use --draft package:PATH."
            )
        files = tuple(path.relative_to(root) for path in paths)
    return DraftLevel(spec, _name(spec, root), root, files, "f16" if dtypes == {"F16"} else "bf16")


def _name(spec: DraftSpec, root: Path) -> str:
    """The folder's name; of a repository its own, since its folder in the Hub cache is named by the commit."""
    return root.resolve().name if os.path.lexists(spec.subject) else spec.subject.rpartition("/")[2]
