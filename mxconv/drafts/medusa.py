"""Medusa's heads as drafts, `medusa:PATH_OR_ID`: they read the target's last state.

Their trees are those of every reader, grown by the heads' own probabilities; fixed shapes are not read.
"""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from mxconv.arch.fields import Fields
from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.medusa_heads import HeadsConfig, MedusaHeads, Shapes
from mxconv.drafts.speculator import stage_cost
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.model_draft import StagedDraft
from mxconv.speculation.reader import ReaderSizes


class MedusaKind(ReaderKind):
    """Heads in one of the layouts of formats/medusa.md."""

    name = "medusa"

    def sizes(self, folder: Path, is_package: bool, vocab_size: int) -> ReaderSizes:
        return self._config(folder, is_package, vocab_size).sizes

    def check_layers(self, folder: Path, num_layers: int) -> None:
        pass  # `least_layers` of its sizes says it

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> MedusaHeads:
        assert target is not None, "heads may take the output matrix from it"
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

    def draft(self, reader: Any, record: LevelRecord, inputs: DraftInputs) -> StagedDraft:
        return StagedDraft(reader, inputs)

    def _config(self, folder: Path, is_package: bool, vocab_size: int) -> HeadsConfig:
        """The sizes that config.json and the weights tell."""
        if is_package:
            with Package(folder) as package:
                shapes: Shapes = {tensor.name: tuple(tensor.shape) for tensor in package.manifest.tensors}
        else:
            with open_checkpoint(folder) as checkpoint:
                shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
        matrices = {name: shape for name, shape in shapes.items() if len(shape) == 2}
        return HeadsConfig.of_medusa(Fields.read(folder / "config.json"), matrices, vocab_size)


MEDUSA = MedusaKind()
