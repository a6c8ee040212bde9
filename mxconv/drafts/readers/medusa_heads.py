"""Medusa's and Hydra's heads: residual blocks and an output matrix for each token to come, over one state.

Source:
    Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (arXiv 2401.10774),
    section 2.1; Ankner et al., "Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding" (arXiv 2402.05109),
    section 3. Layouts of files: formats/medusa.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.elements import Linear
from mxconv.arch.fields import Fields
from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.engine.layer import Layer
from mxconv.engine.rope import Positions
from mxconv.engine.states import Reads
from mxconv.engine.weights import CheckedWeights, ModelWeights, Projection
from mxconv.kernels.rowwise import silu
from mxconv.speculation.reader import ReaderSizes
from mxconv.speculation.stages import MOST_STAGES, StagedReader

MOST_BLOCKS = 64
PREFIX = "prefix_embeding_layer."  # as the files spell it
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class HeadNames:
    """The names of the tensors of a head, without `.weight` and `.bias`."""

    linear: str  # of {block}, or of {place} among others, of {head}
    output: str  # of {head}, after {blocks}
    linear_has_bias: bool = True
    output_has_bias: bool = False

    def linear_of(self, head: int | str, block: int) -> str:
        return self.linear.format(head=head, block=block, place=2 * block + 1)

    def output_of(self, head: int, blocks: int) -> str:
        return self.output.format(head=head, blocks=blocks)


MEDUSA = HeadNames("{head}.{block}.linear", "{head}.{blocks}")
HYDRA = HeadNames("hydra_mlp.{head}.{block}.linear", "hydra_lm_head.{head}", output_has_bias=True)
HYDRA_PREFIX = HeadNames("hydra_mlp.{head}.{place}.linear", "hydra_lm_head.{head}.1", output_has_bias=True)
HYDRA_NAMES = {"mlp": HYDRA, "prefix-mlp": HYDRA_PREFIX}  # by hydra_head_arch


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
        reads_tokens: whether each head also takes the embeddings of the tokens before its own.
        has_prefix: whether a layer over all states makes what the heads take in place of the last state.
        state_offset: layers after the one whose state is read; 0 is the state after the final norm.
    """

    names: HeadNames
    num_heads: int
    num_blocks: int
    hidden_size: int
    vocab_size: int
    shares_output: bool
    reads_tokens: bool = False
    has_prefix: bool = False
    state_offset: int = 0

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.hidden_size, self.vocab_size, max(self.state_offset, 1), self.num_heads)

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
    def of_hydra(cls, fields: Fields, shapes: Shapes, vocab_size: int) -> "HeadsConfig":
        """The same of Hydra's."""
        arch = fields.choice("hydra_head_arch", tuple(HYDRA_NAMES), default="mlp")
        offset = fields.values.get("hidden_state_offset", 0)
        if type(offset) is not int or not 0 <= offset < 1000:
            fields.reject("hidden_state_offset", "an integer from 0 to 999 is required")
        found = cls.sized(fields, ("hydra_num_heads", "hydra_num_layers"), HYDRA_NAMES[arch], shapes, vocab_size)
        reads_tokens, has_prefix = fields.flag("grounded_heads", False), arch == "prefix-mlp"
        return replace(found, reads_tokens=reads_tokens, has_prefix=has_prefix, state_offset=offset)

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

    blocks: list[tuple[Projection, Projection | None]]  # of each what is bent, and what takes the input's place
    output: Projection

    def __call__(self, x: F32) -> F32:
        """The logits (n, vocab_size) of what it takes in, (n, in_features)."""
        for linear, shortcut in self.blocks:
            bent = silu(linear(x))
            x = (x if shortcut is None else shortcut(x)) + bent
        return self.output(x)


class PrefixLayer:
    """A layer of the target's own shape over the states of a text, and the norm after it.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(self, weights: CheckedWeights, target: ModelConfig) -> None:
        self.config = replace(target, layers=target.layers[:1], layer_inputs=None, mtp=None)
        own = weights.under(PREFIX)
        self.layer = Layer(own, self.config, 0, "layers.0.")
        self.norm = own.norm(replace(target.final_norm, name="norm"), target.hidden_size)

    def advance(self, states: F32, tokens: Sequence[int], cache: KVCache) -> F32:
        """(n, hidden_size) float32: what heads take after tokens whose states follow those in the cache."""
        rows = SequenceRows(tokens, cache)
        cache.reserve(len(tokens))
        made = self.norm(self.layer(states, [rows], Positions(rows.positions)))
        cache.advance(len(tokens))
        return made


class MedusaHeads(StagedReader):
    """Heads over the state that chose the context's last token: a stage is a head.

    Args:
        config: of the weights.
        weights: by the names of the files.
        target: whose embedding, output matrix and shape some heads take.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    prefix: PrefixLayer | None = None

    def __init__(self, config: HeadsConfig, weights: ModelWeights, target: Decoder, name: str) -> None:
        num_layers = target.config.num_hidden_layers
        reads = Reads((num_layers - config.state_offset,)) if config.state_offset else Reads(normed_last=True)
        super().__init__(config.sizes, reads, name)
        self.config = config
        self.num_stages = config.num_heads
        self.reads_tokens = config.reads_tokens
        self.embedding = target.embedding
        own = CheckedWeights(weights, name)
        if config.has_prefix:
            self.prefix = PrefixLayer(own, target.config)
        self.heads = [_head(config, own, index, target) for index in range(config.num_heads)]

    def begin(self, states: F32) -> F32:
        """With room for the embeddings of the tokens that heads read, (n, hidden_size * (1 + num_heads))."""
        if not self.reads_tokens:
            return states
        return np.pad(states, ((0, 0), (0, self.num_stages * self.config.hidden_size)))

    def advance(self, index: int, states: F32, tokens: Sequence[int]) -> F32:
        if not self.reads_tokens:
            return states
        size, made = self.config.hidden_size, states.copy()
        made[:, size * (index + 1) : size * (index + 2)] = self.embedding.rows(np.array(tokens, np.intp))
        return made

    def logits(self, index: int, states: F32) -> F32:
        taken = self.config.hidden_size * (index + 2 if self.reads_tokens else 1)
        return self.heads[index](np.ascontiguousarray(states[:, :taken]))


def _head(config: HeadsConfig, weights: CheckedWeights, index: int, target: Decoder) -> MedusaHead:
    size, names = config.hidden_size, config.names

    def projection(name: str, has_bias: bool, out_features: int, in_features: int) -> Projection:
        return weights.projection(Linear(name, has_bias), out_features, in_features)

    def block(number: int) -> tuple[Projection, Projection | None]:
        name, reads_more = names.linear_of(index, number), config.reads_tokens and not number
        taken = size * (index + 2) if reads_more else size
        linear = projection(name, names.linear_has_bias, size, taken)
        if not reads_more:
            return linear, None
        return linear, projection(name.removesuffix("linear") + "res_connection", True, size, taken)

    blocks = [block(number) for number in range(config.num_blocks)]
    if config.shares_output:
        return MedusaHead(blocks, target.output)
    output = names.output_of(index, config.num_blocks)
    return MedusaHead(blocks, projection(output, names.output_has_bias, config.vocab_size, size))
