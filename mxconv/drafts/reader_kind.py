"""Kinds that read hidden states of the level above: from a folder, a 16-bit checkpoint or a package, to a draft."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from mxconv.checkpoint.source import open_checkpoint
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.drafts.kind import DraftKind, DraftSpec, OpenedDraft, OpenTarget, Run, placed
from mxconv.drafts.model import locate_16_bits, open_16_bits, open_package
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.readers.reader_config import ReaderConfig
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
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
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.reader import Reader, ReaderSizes


class ReaderKind(DraftKind):
    """A kind with a network of its own whose input is what the level above computed."""

    is_reader = True
    subject = "PATH_OR_ID"
    config: type[ReaderConfig]
    other_dtypes: tuple[str, ...] = ()  # of tensors that are no weights

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> Reader:
        """Open the network.

        Args:
            folder: a checkpoint or, with the codec "package", a package, of which the 4-bit weights are taken.
            record: of the level.
            make: its matrices.
            stack: closes the files.
            target: the decoder of the run, for kinds that take a matrix from it.

        Raises:
            MxconvError: the files are missing or damaged, or are of another kind of model.
        """
        raise NotImplementedError

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        root = find_package_or_none(spec.subject)
        draft = open_16_bits(spec, self.other_dtypes) if root is None else open_package(spec, root)[0]
        assert draft.root is not None, "it has a folder"
        config = target.config
        sizes = self.sizes(draft.root, draft.codec == "package", 1 if config is None else config.vocab_size)
        if config is not None:
            sizes.check_target(config, target.vocabulary.num_tokens, f"--draft {spec.subject}")
            self.check_layers(draft.root, config.num_hidden_layers)
        return replace(draft, spec=replace(spec, num_draft_tokens=spec.num_draft_tokens or sizes.most_tokens))

    def sizes(self, folder: Path, is_package: bool, vocab_size: int) -> ReaderSizes:
        """The sizes that the network's files tell; `vocab_size` is the target's, 1 where that is not known."""
        return self.config.from_file(folder / "config.json").sizes

    def check_layers(self, folder: Path, num_layers: int) -> None:
        """Raises ModelError where a target of so many layers lacks one that the network reads."""
        self.config.from_file(folder / "config.json").layers_of(num_layers)

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
        sizes = self.sizes(folder, record.codec == "package", run.target.config.vocab_size)
        sizes.check_target(run.target.config, run.target_vocabulary.num_tokens, str(folder))
        reader = self.reader(folder, record, run.matrices, run.stack, run.target)
        return LoadedLevel(record, None, run.tokenizer, folder=folder, reader=reader, kind=self)


def reader_weights(
    folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack
) -> tuple[ModelWeights, Mapping[str, SourceTensor]]:
    """The weights of a reader, and all its tensors that are stored as they are."""
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
