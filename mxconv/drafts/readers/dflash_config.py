"""The sizes of a DFlash head, read from its config.json: formats/dflash.md."""

from dataclasses import dataclass
from typing import Literal, Self

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe
from mxconv.arch.fields import Fields
from mxconv.drafts.readers.eagle3_config import LAYER_TYPES, checked_layers, read_layers
from mxconv.drafts.readers.reader_config import ReaderConfig
from mxconv.speculation.reader import ReaderSizes

MOST_IN_BLOCK = 64
LAYER_IDS = "aux_hidden_state_layer_ids"
AS_PUBLISHED = "dflash_config"  # of a config.json as the method's authors write it


@dataclass(frozen=True)
class DflashConfig(ReaderConfig):
    """A DFlash head.

    Args:
        name: of the file, for messages.
        layer: its own layers, Qwen 3's whatever the file calls them, and the target's vocabulary.
        draft_vocab_size: tokens that it can propose.
        block_size: rows of its pass.
        mask_token_id: what stands in the block for tokens to come.
        layer_ids: whose states are fused, as `Eagle3Config` has them.
        is_shifted: whether each row of the block chooses the token after its own, so that the first, of the context's
            last token, chooses one too.
        sees: whether layers with a window see the whole block, as `SequenceRows` has it.

    Source:
        vllm-project/speculators 0.9, DFlashSpeculatorConfig; arXiv 2602.06036.
    """

    name: str
    layer: ModelConfig
    draft_vocab_size: int
    block_size: int
    mask_token_id: int
    layer_ids: tuple[int, ...] | None
    is_shifted: bool = False
    sees: Literal["block", "block, causal in windows"] = "block, causal in windows"

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        if AS_PUBLISHED in fields.values:
            return cls._as_published(fields)
        fields.choice("speculators_model_type", ("dflash",))
        layer = _layer(fields.section("transformer_layer_config"))
        draft_vocab_size = fields.size("draft_vocab_size")
        if draft_vocab_size > layer.vocab_size:
            fields.reject("draft_vocab_size", f"at most the target's vocabulary, {layer.vocab_size}, is required")
        if fields.size("target_hidden_size", layer.hidden_size) != layer.hidden_size:
            fields.reject(
                "target_hidden_size", f"the layers' own hidden_size, {layer.hidden_size}, or null is required"
            )
        non_causal = fields.flag("sliding_window_non_causal", False)
        return cls(
            name=fields.name,
            layer=layer,
            draft_vocab_size=draft_vocab_size,
            block_size=_block_size(fields),
            mask_token_id=_mask_token(fields, layer),
            layer_ids=read_layers(fields, LAYER_IDS),
            is_shifted=fields.flag("sample_from_anchor", False),
            sees="block" if non_causal else "block, causal in windows",
        )

    @classmethod
    def _as_published(cls, fields: Fields) -> Self:
        """The same of a head of the method's authors, who number a layer by what goes into it."""
        own, layer = fields.section(AS_PUBLISHED), _layer(fields)
        layers = read_layers(own, "target_layer_ids")
        if layers is None:
            own.reject("target_layer_ids", "a list of layer numbers is required")
        return cls(
            name=fields.name,
            layer=layer,
            draft_vocab_size=layer.vocab_size,
            block_size=_block_size(fields if "block_size" in fields.values else own),
            mask_token_id=_mask_token(own, layer),
            layer_ids=tuple(number + 1 for number in layers),
            sees="block",
        )

    @property
    def vocab_size(self) -> int:
        """The size of the target's vocabulary."""
        return self.layer.vocab_size

    @property
    def first_row(self) -> int:
        """The row of a block that chooses the first token."""
        return int(not self.is_shifted)

    @property
    def num_layers(self) -> int:
        return self.layer.num_hidden_layers

    @property
    def most_tokens(self) -> int:
        """How many a block proposes."""
        return self.block_size - self.first_row

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.layer.hidden_size, self.vocab_size, most_tokens=self.most_tokens)

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The states that it reads of a target of `num_layers`, in the order of the fusion.

        Raises:
            ModelError: the target does not have them.
        """
        return checked_layers(self.name, LAYER_IDS, self.layer_ids, num_layers)


def _layer(section: Fields) -> ModelConfig:
    """The description of the layers, which norm queries and keys even where the file calls them Llama's."""
    values = {**section.values, "model_type": "qwen3"}
    if section.choice("model_type", LAYER_TYPES) == "llama" and values.get("head_dim") is None:
        values["head_dim"] = section.size("hidden_size") // section.size("num_attention_heads")
    return describe(Fields(values, section.name))


def _block_size(fields: Fields) -> int:
    count = fields.size("block_size")
    if not 2 <= count <= MOST_IN_BLOCK:
        fields.reject("block_size", f"2 to {MOST_IN_BLOCK} rows are required")
    return count


def _mask_token(fields: Fields, layer: ModelConfig) -> int:
    token = fields.values.get("mask_token_id")
    if type(token) is not int or not 0 <= token < layer.vocab_size:
        fields.reject("mask_token_id", f"a token from 0 to {layer.vocab_size - 1} is required")
    return token
