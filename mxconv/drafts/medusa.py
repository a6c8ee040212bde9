"""Medusa's heads as drafts, `medusa:PATH_OR_ID`: residual blocks and an output matrix a token, over one state.

Their trees are those of every reader, grown by the heads' own probabilities; fixed shapes are not read.

Source:
    Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (arXiv 2401.10774),
    section 2.1. Layouts of files: formats/medusa.md.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Linear
from mxconv.arch.fields import Fields
from mxconv.arrays import F32
from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.kind import Run
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.speculator import stage_cost
from mxconv.engine.decoder import Decoder
from mxconv.engine.sequence_rows import Reads
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.rowwise import silu
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.speculation.model_draft import StagedDraft
from mxconv.speculation.reader import MOST_STAGES, ReaderSizes, StagedReader

MOST_BLOCKS = 64


class HeadsLayout:
    """Where a folder has its heads: config.json names a few sizes, and the weights tell the others.

    Args:
        folder: of a checkpoint or a package.
        is_package: which of the two.
        vocab_size: rows of the target's output matrix, which serves heads that have none.

    Raises:
        ModelError: the two contradict each other.
    """

    def __init__(self, folder: Path, is_package: bool, vocab_size: int) -> None:
        with Package(folder) if is_package else open_checkpoint(folder) as opened:
            records = opened.manifest.tensors if isinstance(opened, Package) else opened.tensors.values()
            shapes = {each.name: tuple(each.shape) for each in records if len(each.shape) == 2}
        fields = Fields.read(folder / "config.json")
        number, blocks, has_biases = "medusa_num_heads", "medusa_num_layers", True
        linear, output = "{head}.{block}.linear", "{head}.{blocks}"
        if fields.values.get("model_type") == "medusa" and "num_heads" in fields.values:  # as vLLM reads them
            number, blocks, has_biases = "num_heads", "num_hidden_layers", fields.flag("medusa_fc_bias", False)
            if fields.size("truncated_vocab_size", fields.size("vocab_size")) != fields.values["vocab_size"]:
                fields.reject("truncated_vocab_size", "the same as vocab_size is required", "Use heads of all tokens.")
            stem = "medusa_heads." * any(name.startswith("medusa_heads.") for name in shapes)
            linear = f"{stem}blocks.{{head}}.layers.{{block}}"
            output = f"{stem}lm_heads." + ("0" if fields.flag("original_lm_head", False) else "{head}")
        num_blocks, least = fields.size(blocks, 1), fields.size(number)
        if num_blocks > MOST_BLOCKS:
            fields.reject(blocks, f"at most {MOST_BLOCKS} blocks are supported")
        firsts = (f"{linear.format(head=head, block=0)}.weight" for head in range(MOST_STAGES))
        heads = range(len(list(takewhile(shapes.__contains__, firsts))))
        if len(heads) < least:
            first = linear.format(head="N", block=0)
            fields.reject(number, f"at most {len(heads)} is required, the number of tensors {first}.weight")
        self.blocks = [
            [Linear(linear.format(head=head, block=block), has_biases) for block in range(num_blocks)] for head in heads
        ]
        outputs = [Linear(output.format(head=head, blocks=num_blocks)) for head in heads]
        self.outputs = outputs if f"{outputs[0].name}.weight" in shapes else []
        rows = shapes[f"{outputs[0].name}.weight"][0] if self.outputs else vocab_size
        hidden_size = shapes[f"{self.blocks[0][0].name}.weight"][0]
        self.sizes = ReaderSizes(hidden_size, rows, most_tokens=len(heads))


class MedusaHeads(StagedReader):
    """Heads over the state that chose the context's last token: a stage is a head, and reads no tokens."""

    reads_tokens = False

    def __init__(self, layout: HeadsLayout, weights: ModelWeights, target: Decoder, name: str) -> None:
        super().__init__(layout.sizes, Reads(normed_last=True), name)
        own, size, self.num_stages = CheckedWeights(weights, name), layout.sizes.hidden_size, len(layout.blocks)
        self._blocks = [[own.projection(each, size, size) for each in head] for head in layout.blocks]
        outputs = [own.projection(each, layout.sizes.vocab_size, size) for each in layout.outputs]
        self._outputs = outputs or [target.output] * self.num_stages

    def advance(self, index: int, states: F32, tokens: Sequence[int]) -> F32:
        return states

    def logits(self, index: int, states: F32) -> F32:
        for linear in self._blocks[index]:
            states = states + silu(linear(states))
        return self._outputs[index](states)


class MedusaKind(ReaderKind):
    """Heads in one of the layouts of formats/medusa.md."""

    name = "medusa"
    draft_type = StagedDraft

    def sizes(self, folder: Path, is_package: bool, target: ModelConfig | None) -> ReaderSizes:
        return HeadsLayout(folder, is_package, 1 if target is None else target.vocab_size).sizes

    def reader(self, folder: Path, record: LevelRecord, run: Run) -> MedusaHeads:
        weights, tensors = reader_weights(folder, record, run)
        for name, tensor in tensors.items():
            if len(tensor.shape) == 2 and tensor.dtype not in ("BF16", "F16"):
                raise ModelError(
                    f"{folder}: tensor {name} is {tensor.dtype}; BF16 or F16 is required. Convert it with mxconv "
                    f"quantize --dtype bf16, and use --draft {self.name}:PACKAGE."
                )
        layout = HeadsLayout(folder, record.codec == "package", run.target.config.vocab_size)
        return MedusaHeads(layout, weights, run.target, record.name)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """Every token is a pass of one head, a model without layers."""
        assert place is not None and target is not None and target.sizes is not None, "it has a folder and a target"
        layout = HeadsLayout(place, record.codec == "package", target.sizes.vocab_size)
        shape = layout.sizes.hidden_size, layout.sizes.vocab_size
        cost = stage_cost(place, record, target, shape, len(layout.blocks), None)
        head = 0 if layout.outputs else target.head_bytes or 2 * shape[0] * shape[1]
        return replace(cost, num_bytes=cost.num_bytes + len(layout.blocks) * head)


MEDUSA = MedusaKind()
