"""Medusa's and Hydra's heads as drafts, `medusa:PATH_OR_ID` and `hydra:PATH_OR_ID`: they read the target's last state.

Their trees are those of every reader, grown by the heads' own probabilities; fixed shapes are not read.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mxconv.arch.fields import Fields
from mxconv.arrays import F32, I64
from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.feature_draft import num_shared
from mxconv.drafts.readers.medusa_heads import HeadsConfig, MedusaHeads, PrefixLayer, Shapes
from mxconv.drafts.readers.staged_draft import StagedDraft
from mxconv.drafts.speculator import stage_cost
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import Listener
from mxconv.speculation.reader import ReaderSizes


class PrefixedDraft(StagedDraft):
    """Drafts with heads that take what a layer made of all states; the first pass evaluates those since the last."""

    def __init__(self, reader: MedusaHeads, prefix: PrefixLayer, listener: Listener) -> None:
        super().__init__(reader, listener)
        self._prefix = prefix
        self._cache = KVCache(prefix.config)
        self._numbers: I64 = np.empty(0, np.int64)  # of the states in the cache

    def read(self, context: Sequence[int]) -> F32:
        states = self.listener.session.states
        numbers = states.numbers(len(context) - 1)
        start = min(num_shared(self._numbers, numbers), len(numbers) - 1)
        self._cache.truncate(start)
        self._numbers = self._numbers[:start]
        (read,) = states.read(self._reader.reads, start, len(numbers))
        with self.statistics.forward():
            made = self._prefix.advance(read, context[start:-1], self._cache)
        self._numbers = numbers
        return made[-1:]


class MedusaKind(ReaderKind):
    """Heads in one of the layouts of formats/medusa.md."""

    name = "medusa"
    sized: Callable[[Fields, Shapes, int], HeadsConfig] = staticmethod(HeadsConfig.of_medusa)

    def sizes(self, folder: Path, is_package: bool, vocab_size: int) -> ReaderSizes:
        return self._config(folder, is_package, vocab_size).sizes

    def check_layers(self, folder: Path, num_layers: int) -> None:
        pass  # `least_layers` of its sizes says it

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> MedusaHeads:
        assert target is not None, "heads take an embedding or an output matrix from it"
        config = self._config(folder, record.codec == "package", target.config.vocab_size)
        weights, tensors = reader_weights(folder, record, make, stack)
        for name, tensor in tensors.items():
            if len(tensor.shape) == 2 and tensor.dtype not in ("BF16", "F16"):
                raise ModelError(
                    f"{folder}: tensor {name} is {tensor.dtype}; BF16 or F16 is required. Convert it with mxconv "
                    f"quantize --dtype bf16, and use --draft {self.name}:PACKAGE."
                )
        return MedusaHeads(config, weights, target, record.name)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """Every token is a pass of one head, a model without layers."""
        assert place is not None and target is not None and target.sizes is not None, "it has a folder and a target"
        config = self._config(place, record.codec == "package", target.sizes.vocab_size)
        shape = config.hidden_size, config.vocab_size
        cost = stage_cost(place, record, target, shape, config.num_heads, None)
        if not config.shares_output:
            return cost
        head = 2 * shape[0] * shape[1] if target.head_bytes is None else target.head_bytes
        return replace(cost, num_bytes=cost.num_bytes + config.num_heads * head)

    def draft(self, reader: Any, record: LevelRecord, listener: Listener) -> StagedDraft:
        prefix = reader.prefix
        return StagedDraft(reader, listener) if prefix is None else PrefixedDraft(reader, prefix, listener)

    def _config(self, folder: Path, is_package: bool, vocab_size: int) -> HeadsConfig:
        """The sizes that config.json and the weights tell."""
        if is_package:
            with Package(folder) as package:
                shapes: Shapes = {tensor.name: tuple(tensor.shape) for tensor in package.manifest.tensors}
        else:
            with open_checkpoint(folder) as checkpoint:
                shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
        matrices = {name: shape for name, shape in shapes.items() if len(shape) == 2}
        return self.sized(Fields.read(folder / "config.json"), matrices, vocab_size)


class HydraKind(MedusaKind):
    """Heads that may read the tokens guessed before theirs."""

    name = "hydra"
    sized = staticmethod(HeadsConfig.of_hydra)


MEDUSA, HYDRA = MedusaKind(), HydraKind()
