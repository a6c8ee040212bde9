"""From a folder to a draft that reads hidden states: a checkpoint as it is, or one that was converted to 4 bits."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from mxconv.checkpoint.source import open_checkpoint
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.drafts.readers.eagle3_head import Eagle3, target_tokens, with_embedding
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator, SpeculatorConfig
from mxconv.drafts.readers.reader import Reader
from mxconv.drafts.readers.spire_layers import Spire, SpireConfig
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import (
    EMBEDDING,
    HEAD,
    dense_weights,
    exact_matrix,
    four_bit_matrices,
    has_exact_head,
    tied,
)
from mxconv.engine.weights import Weights
from mxconv.errors import PackageError
from mxconv.package.manifest import LevelRecord
from mxconv.package.package import Package


def load_reader(
    folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
) -> Reader:
    """Open the draft of a level.

    Args:
        folder: a checkpoint or, with the codec "package", a package, of which the 4-bit weights are taken.
        record: the level.
        make: its matrices.
        stack: closes the files.
        target: of the run; an MLP speculator needs nothing of it.

    Raises:
        MxconvError: the files are missing or damaged, or are of another kind of model.
    """
    if record.kind == "eagle3":
        assert target is not None
        return _eagle3(folder, record, make, stack, target)
    weights, _ = _weights(folder, record, make, stack)
    if record.kind == "spire":
        sizes = SpireConfig.from_file(folder / "config.json")
        return Spire(sizes, tied(weights, sizes.decoder), make, record.name)
    return MlpSpeculator(SpeculatorConfig.from_file(folder / "config.json"), weights, record.name)


def _eagle3(folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder) -> Eagle3:
    config = Eagle3Config.from_file(folder / "config.json")
    layers = config.layers_of(target.config.num_hidden_layers)
    weights, tensors = _weights(folder, record, make, stack)
    tokens = target_tokens(tensors, config.draft_vocab_size, config.vocab_size, record.name)
    return Eagle3(config, with_embedding(weights, target.embedding), tokens, layers, record.name)


def _weights(
    folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack
) -> tuple[Weights, Mapping[str, SourceTensor]]:
    """The weights, and all tensors that are stored as they are."""
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
    return Weights(made, exact.vectors), stored
