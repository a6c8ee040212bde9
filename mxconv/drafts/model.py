"""A small model as a draft: `checkpoint:PATH_OR_ID`, 16 bits as they are, or `package:PATH_OR_ID`, converted.

It may have another tokenizer than the level above; proposals then go through text.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mxconv.arch.model_sizes import ModelSizes
from mxconv.arch.whole_model import checkpoint_config
from mxconv.checkpoint.regular_file import read_json_object, sha256_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.checkpoint.tokenizer_files import Vocabulary
from mxconv.drafts.kind import (
    DraftKind,
    DraftSpec,
    LevelCodec,
    OpenedDraft,
    OpenTarget,
    Parameter,
    Run,
    placed,
    reader_of,
    speaker,
)
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.target_views import FEWER_EXPERTS, SELF_DRAFT, STREAMING, TARGET
from mxconv.engine.stored_weights import dense_weights
from mxconv.errors import ModelError, MxconvError, PackageError
from mxconv.open_source import open_source
from mxconv.package.level_record import LevelRecord, ModelRecord
from mxconv.package.manifest import FILE_NAME, Manifest, read_manifest
from mxconv.package.package import Package
from mxconv.package.package_folder import find_package
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.text.tokenizer import Tokenizer

# kinds with its weights, none searched
OF_MODEL: dict[str, DraftKind] = {kind.name: kind for kind in (TARGET, SELF_DRAFT, STREAMING, FEWER_EXPERTS)}


class CheckpointDraft(DraftKind):
    """A 16-bit model as it is."""

    name = "checkpoint"
    level_kind = "model"
    record_type = ModelRecord
    subject = "PATH_OR_ID"
    has_target_tokens = False

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        draft, ours = self.opened(spec), target.vocabulary
        assert draft.root is not None, "a model has a folder"
        theirs = target.vocabulary = Vocabulary.of_folder(draft.root)
        if theirs.equals(ours):
            for name, vocabulary in ((spec.subject, theirs), (target.checkpoint.id, ours)):  # matrices may be padded
                if vocabulary.vocab_size is not None and vocabulary.num_tokens > vocabulary.vocab_size:
                    raise MxconvError(
                        f"--draft {spec.subject}: {name} has tokens up to {vocabulary.num_tokens - 1} and vocab_size "
                        f"{vocabulary.vocab_size}; a row for each token is required. Choose another model."
                    )
            return draft
        path = draft.root / "tokenizer.json"
        target.tokenizer_sha256 = sha256_file(path) if path.is_file() else ""
        if not (theirs.tokenizer and ours.tokenizer):
            raise MxconvError(
                f"--draft {spec.subject}: {'it' if ours.tokenizer else target.checkpoint.id} has no tokenizer.json; "
                "both are required, to translate between them through text. Copy it from the model's source."
            )
        return replace(draft, same_tokenizer=False)

    def opened(self, spec: DraftSpec) -> OpenedDraft:
        """The model and its files."""
        return open_16_bits(spec)

    def locate(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        draft = self.located(spec, run)
        assert draft.root is not None, "a model has a folder"
        return replace(draft, same_tokenizer=Vocabulary.of_folder(draft.root).equals(run.vocabulary))

    def located(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        """The folder of the model, and the format of its weights."""
        return locate_16_bits(spec, run)

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        folder = placed(record, place, run)
        if record.codec == "package":
            decoder = run.nested(folder, recorded_level(folder, read_manifest(folder), record).name)
        else:
            checkpoint = run.stack.enter_context(open_checkpoint(folder))
            config = checkpoint_config(checkpoint)
            decoder = run.matrices.decoder(config, dense_weights(checkpoint.tensors, config, run.matrices), record.name)
        if not run.levels:
            return LoadedLevel(record, decoder, run.tokenizer, folder=folder, kind=self)
        ours, theirs = run.vocabulary, Vocabulary.of_folder(folder)
        run.vocabulary = theirs
        if "tokenizer" not in record.shares:
            return LoadedLevel(record, decoder, Tokenizer.from_folder(folder), folder=folder, kind=self)
        if theirs.tokenizer is not None and not theirs.equals(ours):
            raise ModelError(
                f"{folder}/tokenizer.json: differs from that of the level above {record.name}, which the manifest says "
                "it shares; the same tokens are required. Convert again."
            )
        rows = decoder.config.vocab_size, run.target.config.vocab_size
        if min(rows) < theirs.num_tokens:
            raise ModelError(
                f"{run.package.root}: level {record.name} and its target have {rows[0]} and {rows[1]} rows of tokens; "
                f"{theirs.num_tokens} tokens need {theirs.num_tokens} rows in both, {min(rows)} are there. "
                "Choose a draft of the same family."
            )
        return LoadedLevel(record, decoder, speaker(run), folder=folder, kind=self)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        assert place is not None, "a model has a folder"
        if record.codec != "package":
            return PassCost.of_folder(place, record, ModelSizes.from_file(place / "config.json"), "small")
        with Package(place) as inner:
            own = PassCost.of_package(inner, inner.manifest.levels[0])
            chosen = recorded_level(place, inner.manifest, record)
            return replace(OF_MODEL[chosen.kind].cost(chosen, None, inner, own), typical="small")


class PackageDraft(CheckpointDraft):
    """A converted model."""

    name = "package"
    parameters = (Parameter("level", text="a level of the package"),)

    def opened(self, spec: DraftSpec) -> OpenedDraft:
        root = find_package(spec.subject)
        draft, manifest = open_package(spec, root)
        return replace(draft, spec=_with_level(spec, root, manifest))

    def located(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        root = find_package(spec.subject)
        return OpenedDraft(_with_level(spec, root, read_manifest(root)), root.resolve().name, root, codec="package")


def _with_level(spec: DraftSpec, root: Path, manifest: Manifest) -> DraftSpec:
    named = spec.parameters.get("level")
    level = draft_level(root, manifest, None if named is None else str(named))
    return replace(spec, parameters={**spec.parameters, "level": level.name})


def draft_level(root: Path, manifest: Manifest, name: str | None = None) -> LevelRecord:
    """The level of a package that drafts for another model.

    Args:
        root: of the package, for messages.
        manifest: its manifest.
        name: of the level; None for its cheapest self-draft, the 4-bit copy, or its target where it has none.

    Raises:
        ModelError: there is no such level, one that is no part of the package's own model, or no model at all.
    """
    path = root / "config.json"
    reader = reader_of(read_json_object(path, unique_keys=False)) if path.is_file() else None
    if reader is not None:
        raise ModelError(
            f"{root}: a draft of the kind {reader}, which reads its target's hidden states; a package of a model is "
            f"required. Use --draft {reader}:{root}."
        )
    if name is None:
        copies = [record for record in manifest.levels if record.kind == "self-draft"]
        return copies[-1] if copies else manifest.levels[0]
    record = next((record for record in manifest.levels if record.name == name), None)
    if record is None:
        raise ModelError(
            f"{root}: level {name!r} is not in this package; one of "
            f"{', '.join(each.name for each in manifest.levels)} is required."
        )
    if record.kind not in OF_MODEL:
        place = f" --draft checkpoint:{root}/{record.path} takes that model." if record.kind == "model" else ""
        names = ", ".join(each.name for each in manifest.levels if each.kind in OF_MODEL)
        raise ModelError(
            f"{root}: level {name} is of the kind {record.kind}; a level with the weights of the package's own model, "
            f"{names}, is required.{place}"
        )
    return record


def recorded_level(root: Path, manifest: Manifest, record: LevelRecord) -> LevelRecord:
    """The level of a package that a level of another package names; its target where it names none.

    Raises:
        ModelError: as `draft_level`.
    """
    return manifest.levels[0] if record.level is None else draft_level(root, manifest, record.level)


def open_package(spec: DraftSpec, root: Path) -> tuple[OpenedDraft, Manifest]:
    """A converted model or reader, all its files, and its manifest.

    Raises:
        PackageError: it is damaged, or does not hold its target.
    """
    with Package(root) as package:
        if not package.has_target:
            raise PackageError(
                f"{root}: references its target; a draft must be whole, and its 4-bit level too takes "
                "embedding and norms from there. Convert it with --target include."
            )
        files = (Path(FILE_NAME), *(Path(record.path) for record in package.manifest.files))
        return OpenedDraft(spec, _name(spec, root), root, files, "package"), package.manifest


def open_16_bits(spec: DraftSpec, other_dtypes: Sequence[str] = ()) -> OpenedDraft:
    """A 16-bit model or reader and all its files.

    Args:
        spec: its path or id.
        other_dtypes: that some of its tensors may have.

    Raises:
        MxconvError: it has no config.json, or weights of another format.
    """
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
        dtypes = {tensor.dtype for tensor in checkpoint.tensors.values()} - {*other_dtypes}
        is_safetensors = checkpoint.container == "safetensors"
        kind = "package" if spec.kind == "checkpoint" else spec.kind
        if not is_safetensors or not dtypes <= {"BF16", "F16"}:
            raise MxconvError(
                f"--draft {spec.kind}:{spec.subject}: holds {', '.join(sorted(dtypes))}"
                f"{'' if is_safetensors else f' in {checkpoint.container} files'}; BF16 or F16 safetensors are "
                f"required. Convert it first and use --draft {kind}:PATH."
            )
        files = tuple(path.relative_to(root) for path in paths)
    return OpenedDraft(spec, _name(spec, root), root, files, "f16" if dtypes == {"F16"} else "bf16")


def locate_16_bits(spec: DraftSpec, run: Run) -> OpenedDraft:
    """The folder of a 16-bit model or reader that is no part of the run's package."""
    checkpoint = run.stack.enter_context(open_checkpoint(spec.subject))
    dtypes = {tensor.dtype for tensor in checkpoint.tensors.values()}
    codec: LevelCodec = "f16" if dtypes & {"BF16", "F16"} == {"F16"} else "bf16"
    return OpenedDraft(spec, checkpoint.root.resolve().name, checkpoint.root, codec=codec)


def _name(spec: DraftSpec, root: Path) -> str:
    """The folder's name; of a repository its own, since its folder in the Hub cache is named by the commit."""
    return root.resolve().name if os.path.lexists(spec.subject) else spec.subject.rpartition("/")[2]


CHECKPOINT, PACKAGE = CheckpointDraft(), PackageDraft()
