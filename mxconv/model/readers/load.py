"""From a folder to a draft that reads hidden states: a checkpoint as it is, or one that was converted to 4 bits."""

from contextlib import ExitStack
from pathlib import Path

from mxconv.checkpoint.manifest import LevelRecord
from mxconv.checkpoint.package import Package
from mxconv.checkpoint.source import open_checkpoint
from mxconv.errors import PackageError
from mxconv.model.matrices import Matrices
from mxconv.model.readers.speculator import MlpSpeculator
from mxconv.model.readers.speculator_config import SpeculatorConfig
from mxconv.model.readers.spire import Spire
from mxconv.model.readers.spire_config import SpireConfig
from mxconv.model.stored_weights import EMBEDDING, HEAD, dense_weights, exact_matrix, four_bit_matrices, tied
from mxconv.model.weights import Weights


def load_reader(folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack) -> MlpSpeculator | Spire:
    """Open the draft of a level.

    Args:
        folder: a checkpoint or, with the codec "package", a package, of which the 4-bit weights are taken.
        record: the level.
        make: its matrices.
        stack: closes the files.

    Raises:
        MxconvError: the files are missing or damaged, or are of another kind of model.
    """
    path = folder / "config.json"
    if record.kind == "spire":
        sizes = SpireConfig.from_file(path)
        return Spire(sizes, tied(_weights(folder, record, make, stack), sizes.decoder), make, record.name)
    config = SpeculatorConfig.from_file(path)
    return MlpSpeculator(config, _weights(folder, record, make, stack), record.name)


def _weights(folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack) -> Weights:
    if record.codec != "package":
        return dense_weights(stack.enter_context(open_checkpoint(folder)).tensors, make=make)
    package = stack.enter_context(Package(folder))
    if not package.has_target:
        raise PackageError(f"{folder}: references its target; a draft must be whole. Convert it with its target.")
    kept = {tensor.name for tensor in package.manifest.tensors if tensor.codec == "keep"}
    exact = dense_weights({name: tensor for name, tensor in package.arrays.items() if name in kept}, make=make)
    made = {**exact.matrices, **four_bit_matrices(package, make)}
    records = {tensor.name: tensor for tensor in package.manifest.tensors}
    if EMBEDDING in records and records[EMBEDDING].codec != "keep":  # the output head too; look-ups stay exact
        made[HEAD] = made[EMBEDDING]
        made[EMBEDDING] = exact_matrix(package, records[EMBEDDING], make)
    return Weights(made, exact.vectors)
