"""Kinds that read hidden states of the level above: from a folder, a 16-bit checkpoint or a package, to a draft."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from mxconv.arch.config import ModelConfig
from mxconv.arch.fields import Fields
from mxconv.checkpoint.source import open_checkpoint
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.drafts.kind import DraftKind, DraftSpec, OpenedDraft, OpenTarget, Run, placed
from mxconv.drafts.model import locate_16_bits, open_16_bits, open_package
from mxconv.drafts.pass_cost import PassCost
from mxconv.engine.stored_weights import (
    EMBEDDING,
    HEAD,
    dense_weights,
    exact_matrix,
    four_bit_matrices,
    has_exact_head,
)
from mxconv.engine.weights import ModelWeights
from mxconv.errors import PackageError
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.package.package_folder import find_package_or_none
from mxconv.speculation.loaded_level import DraftInputs, LoadedLevel
from mxconv.speculation.proposal import Draft
from mxconv.speculation.reader import Reader, ReaderSizes


class ReaderConfig(ABC):
    """The config.json of a network that reads hidden states; names follow the file."""

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a config.json.

        Raises:
            CheckpointError: the file is missing, or no JSON object.
            ModelError: it is of another kind, or a key is missing, ill-typed, out of range or not supported.
        """
        return cls.from_fields(Fields.read(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """The same from the parsed content of config.json."""
        return cls.from_fields(Fields(values, "config.json"))

    @classmethod
    @abstractmethod
    def from_fields(cls, fields: Fields) -> Self: ...

    @property
    @abstractmethod
    def sizes(self) -> ReaderSizes: ...

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The states that it reads of a target of `num_layers`, where the file names them or leaves them to its depth.

        Raises:
            ModelError: the target does not have them.
        """
        return ()


class ReaderKind(DraftKind):
    """A kind with a network of its own whose input is what the level above computed."""

    is_reader = True
    subject = "PATH_OR_ID"
    config: type[ReaderConfig]
    draft_type: Callable[[Any, DraftInputs], Draft]  # makes the draft of a text with the network
    other_dtypes: tuple[str, ...] = ()  # of tensors that are no weights

    def reader(self, folder: Path, record: LevelRecord, run: Run) -> Reader:
        """Open the network.

        Args:
            folder: a checkpoint or, with the codec "package", a package, of which the 4-bit weights are taken.
            record: of the level.
            run: the levels above, of whose target some kinds take a matrix.

        Raises:
            MxconvError: the files are missing or damaged, or are of another kind of model.
        """
        raise NotImplementedError

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        root = find_package_or_none(spec.subject)
        draft = open_16_bits(spec, self.other_dtypes) if root is None else open_package(spec, root)[0]
        assert draft.root is not None, "it has a folder"
        config = target.config
        sizes = self.sizes(draft.root, draft.codec == "package", config)
        if config is not None:
            sizes.check_target(config, target.vocabulary.num_tokens, f"--draft {spec.subject}")
        return replace(draft, spec=replace(spec, num_draft_tokens=spec.num_draft_tokens or sizes.most_tokens))

    def sizes(self, folder: Path, is_package: bool, target: ModelConfig | None) -> ReaderSizes:
        """The sizes that the network's files tell. Raises ModelError where the target lacks a layer that it reads."""
        config = self.config.from_file(folder / "config.json")
        if target is not None:
            config.layers_of(target.num_hidden_layers)
        return config.sizes

    def locate(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        root = find_package_or_none(spec.subject)
        if root is None:
            return locate_16_bits(spec, run)
        return OpenedDraft(spec, root.resolve().name, root, codec="package")

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        assert place is not None, "it has a folder"
        return PassCost.of_folder(place, record, None, None)

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        folder = placed(record, place, run)
        sizes = self.sizes(folder, record.codec == "package", run.target.config)
        sizes.check_target(run.target.config, run.target_vocabulary.num_tokens, str(folder))
        reader = self.reader(folder, record, run)
        return LoadedLevel(record, None, run.tokenizer, folder=folder, reader=reader, kind=self)

    def draft(self, reader: Any, record: LevelRecord, inputs: DraftInputs) -> Draft:
        return self.draft_type(reader, inputs)


def reader_weights(folder: Path, record: LevelRecord, run: Run) -> tuple[ModelWeights, Mapping[str, SourceTensor]]:
    """The weights of a reader, and all its tensors that are stored as they are."""
    make, stack = run.matrices, run.stack
    if record.codec != "package":
        tensors = stack.enter_context(open_checkpoint(folder)).tensors
        return dense_weights(tensors, make=make), tensors
    package = stack.enter_context(Package(folder))
    if not package.has_target:
        raise PackageError(f"{folder}: references its target; a draft must be whole. Convert it with its target.")
    kept = {tensor.name for tensor in package.manifest.tensors if tensor.codec == "keep"}
    stored = {name: tensor for name, tensor in package.arrays.items() if name in kept}
    exact = dense_weights(stored, make=make)
    made = {**exact.matrices, **four_bit_matrices(package, make, (HEAD, EMBEDDING))}
    records = {tensor.name: tensor for tensor in package.manifest.tensors}
    if EMBEDDING in records and records[EMBEDDING].codec != "keep":  # the output head too; look-ups stay exact
        embedding = exact_matrix(package, records[EMBEDDING], make)
        made[HEAD] = made.get(EMBEDDING, embedding)
        made[EMBEDDING] = embedding
    elif has_exact_head(package) and HEAD in records:
        made[HEAD] = exact_matrix(package, records[HEAD], make)
    return ModelWeights(made, exact.vectors, arrays=exact.arrays), stored
