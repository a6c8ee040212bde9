"""From a package to decoders, one a level; weights stay in the memory-mapped files."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import cast

from mxconv.arrays import F32, U16
from mxconv.checkpoint.manifest import LevelRecord, TensorRecord, read_manifest
from mxconv.checkpoint.package import Package
from mxconv.checkpoint.referenced import open_referenced
from mxconv.checkpoint.source import open_checkpoint
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.float16 import FORMATS
from mxconv.errors import ModelError, PackageError
from mxconv.kernels.engine import choose_engine
from mxconv.kernels.matrix import Matrix
from mxconv.model.config import ModelConfig
from mxconv.model.decoder import Decoder
from mxconv.model.matrices import Matrices
from mxconv.model.tokenizer import Tokenizer
from mxconv.model.weights import Weights

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NUMPY_MATRICES = Matrices()


@dataclass(frozen=True)
class LoadedLevel:
    """A level that can decode; `record` says how it drafts."""

    record: LevelRecord
    decoder: Decoder

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def shares_cache(self) -> bool:
        return "kv_cache" in self.record.shares


class LoadedPackage:
    """The levels of a package, outermost first, and its tokenizer. A context manager: closing unmaps the files."""

    def __init__(
        self,
        path: Path,
        levels: list[str] | None = None,
        kernel: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Load some levels.

        Args:
            path: the package.
            levels: names from the manifest, the target first; None for all.
            kernel: "numpy" or a native implementation; None takes the environment's MXCONV_KERNEL, or else the best.
            num_threads: for native kernels; None takes every processor that this process may use.

        Raises:
            MxconvError: the package is damaged, a level or kernel is unknown, or the architecture is not supported.
        """
        self.matrices = Matrices(choose_engine(kernel, num_threads))
        self._kernel = kernel, num_threads
        self._stack = ExitStack()
        try:
            self.package = self._stack.enter_context(Package(path))
            self.config = ModelConfig.from_file(path / "config.json")
            self.tokenizer = Tokenizer.from_folder(path)
            chosen = _choose(self.package, levels)
            target = self._target_weights()
            self.levels = [self._load(record, target) for record in chosen]
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "LoadedPackage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self, record: LevelRecord, target: Weights) -> LoadedLevel:
        if record.kind == "target":
            return LoadedLevel(record, self.matrices.decoder(self.config, target, record.name))
        if record.kind == "self-draft":
            weights = Weights({**target.matrices, **self._draft_matrices()}, target.vectors)
            return LoadedLevel(record, self.matrices.decoder(self.config, weights, record.name))
        if record.path is None:
            raise PackageError(
                f"{self.package.root}: level {record.name} without a path; a model needs one. Convert again."
            )
        decoder = self._model(record, self.package.root / record.path)
        if decoder.config.vocab_size != self.config.vocab_size:
            raise ModelError(
                f"{self.package.root}: level {record.name} has a vocabulary of {decoder.config.vocab_size} tokens; "
                f"the target's {self.config.vocab_size} are required. Choose a draft of the same family."
            )
        return LoadedLevel(record, decoder)

    def _model(self, record: LevelRecord, folder: Path) -> Decoder:
        """A draft model in a folder of its own: the target of a nested package, or a 16-bit checkpoint."""
        if record.codec == "package":
            target = read_manifest(folder).levels[0].name
            return self._stack.enter_context(LoadedPackage(folder, [target], *self._kernel)).levels[0].decoder
        checkpoint = self._stack.enter_context(open_checkpoint(folder))
        config = ModelConfig.from_file(folder / "config.json")
        weights = dense_weights(checkpoint.tensors, config, self.matrices)
        return self.matrices.decoder(config, weights, record.name)

    def _target_weights(self) -> Weights:
        """The 16-bit weights: dense, or rebuilt from BSFP as they are used."""
        records = self.package.manifest.tensors
        tensors: Mapping[str, SourceTensor]
        if self.package.has_target:
            tensors = {r.name: self.package.kept(r) for r in records if r.name in self.package.arrays}
        else:
            tensors = self._stack.enter_context(open_referenced(self.package)).tensors
        weights = dense_weights(tensors, self.config, self.matrices)
        rebuilt = {r.name: self._bsfp_target(r) for r in records if r.codec == "bsfp"}
        return _tied(Weights({**weights.matrices, **rebuilt}, weights.vectors), self.config)

    def _bsfp_target(self, record: TensorRecord) -> Matrix:
        return self.matrices.bsfp(self.package.bsfp(record), f"{self.package.root}: tensor {record.name}")

    def _draft_matrices(self) -> dict[str, Matrix]:
        """The 4-bit matrices. The embedding stays exact even where it is also the quantized output head."""
        make: dict[str, Callable[[TensorRecord], Matrix]] = {
            "mxfp4": lambda record: self.matrices.mxfp4_draft(self.package.mxfp4(record)),
            "bsfp": lambda record: self.matrices.bsfp_draft(self.package.bsfp(record)),
        }
        drafts = {r.name: make[r.codec](r) for r in self.package.manifest.tensors if r.codec in make}
        if EMBEDDING in drafts:
            drafts[HEAD] = drafts.pop(EMBEDDING)
        return drafts


def _choose(package: Package, names: list[str] | None) -> list[LevelRecord]:
    if names is None:
        return list(package.manifest.levels)
    levels: dict[str, LevelRecord] = {}
    for record in package.manifest.levels:
        levels.setdefault(record.name, record)
    unknown = [name for name in names if name not in levels]
    if unknown or not names or names[0] != package.manifest.levels[0].name:
        raise ModelError(
            f"{package.root}: levels {', '.join(names) or 'none'}; a list that begins with "
            f"{package.manifest.levels[0].name!r}, out of {', '.join(levels)}, is required."
        )
    return [levels[name] for name in names]


def dense_weights(tensors: Mapping[str, SourceTensor], config: ModelConfig, make: Matrices = NUMPY_MATRICES) -> Weights:
    """16-bit matrices as they lie in the file; vectors as float32. Other tensors are no weights of these models."""
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, F32] = {}
    for name, tensor in tensors.items():
        float_format = FORMATS.get(tensor.dtype)
        if len(tensor.shape) == 2 and float_format:
            matrices[name] = make.dense(cast(U16, tensor.array()), float_format)
        elif len(tensor.shape) == 1 and float_format:
            vectors[name] = float_format.decode(cast(U16, tensor.array()))
        elif len(tensor.shape) == 1 and tensor.dtype == "F32":
            vectors[name] = cast(F32, tensor.array())
    return _tied(Weights(matrices, vectors), config)


def _tied(weights: Weights, config: ModelConfig) -> Weights:
    """With tied embeddings the output head is the embedding matrix."""
    if config.tie_word_embeddings and HEAD not in weights.matrices and EMBEDDING in weights.matrices:
        return Weights({**weights.matrices, HEAD: weights.matrices[EMBEDDING]}, weights.vectors)
    return weights
