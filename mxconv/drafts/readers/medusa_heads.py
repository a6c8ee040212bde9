"""Medusa's heads: residual blocks and an output matrix for each token to come, over one state.

Source:
    Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (arXiv 2401.10774),
    section 2.1. Layouts of files: formats/medusa.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from mxconv.arch.elements import Linear
from mxconv.arch.fields import Fields
from mxconv.arrays import F32
from mxconv.engine.decoder import Decoder
from mxconv.engine.states import Reads
from mxconv.engine.weights import CheckedWeights, ModelWeights, Projection
from mxconv.kernels.rowwise import silu
from mxconv.speculation.reader import MOST_STAGES, ReaderSizes, StagedReader

MOST_BLOCKS = 64
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class HeadNames:
    """The names of the tensors of a head, without `.weight` and `.bias`."""

    linear: str  # of {block} of {head}
    output: str  # of {head}, after {blocks}
    linear_has_bias: bool = True

    def linear_of(self, head: int | str, block: int) -> str:
        return self.linear.format(head=head, block=block)

    def output_of(self, head: int, blocks: int) -> str:
        return self.output.format(head=head, blocks=blocks)


MEDUSA = HeadNames("{head}.{block}.linear", "{head}.{blocks}")


@dataclass(frozen=True)
class HeadsConfig:
    """Heads, of which the config.json names a few sizes and the weights tell the others.

    Args:
        names: of the tensors.
        num_heads: tokens of a proposal: the heads that the weights have, of which config.json may name fewer.
        num_blocks: residual blocks of each head.
        hidden_size: of the target.
        vocab_size: tokens that the heads choose from.
        shares_output: whether the weights have no output matrices, and the target's serves all heads.
    """

    names: HeadNames
    num_heads: int
    num_blocks: int
    hidden_size: int
    vocab_size: int
    shares_output: bool

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.hidden_size, self.vocab_size, most_tokens=self.num_heads)

    @classmethod
    def of_medusa(cls, fields: Fields, shapes: Shapes, vocab_size: int) -> "HeadsConfig":
        """Read Medusa's config.json; arguments are those of `sized`.

        Raises:
            ModelError: it is of another kind, or contradicts the weights.
        """
        if fields.values.get("model_type") == "medusa" and "num_heads" in fields.values:
            return cls._of_vllm(fields, shapes, vocab_size)
        return cls.sized(fields, ("medusa_num_heads", "medusa_num_layers"), MEDUSA, shapes, vocab_size)

    @classmethod
    def _of_vllm(cls, fields: Fields, shapes: Shapes, vocab_size: int) -> "HeadsConfig":
        """The layout that vLLM reads."""
        if fields.size("truncated_vocab_size", fields.size("vocab_size")) != fields.values["vocab_size"]:
            fields.reject("truncated_vocab_size", "the same as vocab_size is required", "Use heads of all tokens.")
        output = "lm_heads.0" if fields.flag("original_lm_head", False) else "lm_heads.{head}"
        stem = "medusa_heads." if any(name.startswith("medusa_heads.") for name in shapes) else ""
        linear = f"{stem}blocks.{{head}}.layers.{{block}}"
        names = HeadNames(linear, stem + output, linear_has_bias=fields.flag("medusa_fc_bias", False))
        return cls.sized(fields, ("num_heads", "num_hidden_layers"), names, shapes, vocab_size)

    @classmethod
    def sized(
        cls, fields: Fields, keys: tuple[str, str], names: HeadNames, shapes: Shapes, vocab_size: int
    ) -> "HeadsConfig":
        """The sizes that keys and weights tell.

        Args:
            fields: of config.json.
            keys: of the numbers of heads and of blocks.
            names: of the tensors.
            shapes: of the matrices, by name.
            vocab_size: rows of the target's output matrix, for heads that share it.
        """
        least, num_blocks = fields.size(keys[0]), fields.size(keys[1], 1)
        if num_blocks > MOST_BLOCKS:
            fields.reject(keys[1], f"at most {MOST_BLOCKS} blocks are supported")
        firsts = (f"{names.linear_of(head, 0)}.weight" for head in range(MOST_STAGES))
        num_heads = len(list(takewhile(shapes.__contains__, firsts)))
        if num_heads < least:
            required = f"at most {num_heads} is required, the number of tensors {names.linear_of('N', 0)}.weight"
            fields.reject(keys[0], required)
        hidden_size = shapes[f"{names.linear_of(0, 0)}.weight"][0]
        output = shapes.get(f"{names.output_of(0, num_blocks)}.weight")
        rows = vocab_size if output is None else output[0]
        return cls(names, num_heads, num_blocks, hidden_size, rows, shares_output=output is None)


@dataclass(frozen=True)
class MedusaHead:
    """The weights of one head."""

    blocks: list[Projection]
    output: Projection

    def __call__(self, x: F32) -> F32:
        """The logits (n, vocab_size) of what it takes in, (n, in_features)."""
        for linear in self.blocks:
            x = x + silu(linear(x))
        return self.output(x)


class MedusaHeads(StagedReader):
    """Heads over the state that chose the context's last token: a stage is a head.

    Args:
        config: of the weights.
        weights: by the names of the files.
        target: whose output matrix some heads share.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    reads_tokens = False

    def __init__(self, config: HeadsConfig, weights: ModelWeights, target: Decoder, name: str) -> None:
        super().__init__(config.sizes, Reads(normed_last=True), name)
        self.config = config
        self.num_stages = config.num_heads
        own = CheckedWeights(weights, name)
        self.heads = [_head(config, own, index, target) for index in range(config.num_heads)]

    def advance(self, index: int, states: F32, tokens: Sequence[int]) -> F32:
        return states

    def logits(self, index: int, states: F32) -> F32:
        return self.heads[index](states)


def _head(config: HeadsConfig, weights: CheckedWeights, index: int, target: Decoder) -> MedusaHead:
    size, names = config.hidden_size, config.names
    linears = [Linear(names.linear_of(index, number), names.linear_has_bias) for number in range(config.num_blocks)]
    blocks = [weights.projection(linear, size, size) for linear in linears]
    if config.shares_output:
        return MedusaHead(blocks, target.output)
    output = Linear(names.output_of(index, config.num_blocks))
    return MedusaHead(blocks, weights.projection(output, config.vocab_size, size))
