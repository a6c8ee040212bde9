"""What all drafts have in common that read the target's hidden states."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32
from mxconv.engine.cache import KVCache
from mxconv.engine.states import Reads
from mxconv.engine.tree import Tree
from mxconv.errors import ModelError


class ReaderSizes(Protocol):
    """Sizes that tell whether a draft can read a model."""

    @property
    def hidden_size(self) -> int:
        """The hidden size of the model that it reads."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def least_layers(self) -> int:
        """The number of layers that the model which it reads must have."""
        ...


class Reader(ReaderSizes, Protocol):
    """A model whose input is what another one computed."""

    @property
    def reads(self) -> Reads:
        """The states that it needs."""
        ...

    @property
    def num_passes(self) -> int:
        """Passes that together read all its weights once."""
        ...


def check_target(reader: ReaderSizes, target: ModelConfig, num_tokens: int, name: str) -> None:
    """What every reader requires of the model that it reads: the same hidden size and tokens, and its layers.

    Args:
        reader: the draft.
        target: what it is to read.
        num_tokens: of the target's tokenizer.
        name: of the reader, for messages.

    Raises:
        ModelError: it has others.
    """
    if reader.hidden_size != target.hidden_size:
        raise ModelError(
            f"{name}: reads states of {reader.hidden_size} numbers, and the target's have {target.hidden_size}; the "
            "same hidden size is required. Use a draft that was trained for this target."
        )
    if reader.least_layers > target.num_hidden_layers:
        raise ModelError(
            f"{name}: reads layers up to {reader.least_layers - 1}, and the target's last is "
            f"{target.num_hidden_layers - 1}; layers of the target, numbered from 0, are required. Use a draft that "
            "was trained for this target."
        )
    if not num_tokens <= reader.vocab_size <= target.vocab_size:
        raise ModelError(
            f"{name}: a vocabulary of {reader.vocab_size} for a target with {num_tokens} tokens in {target.vocab_size} "
            "rows; the target's own is required. Use a draft that was trained for this target."
        )


class FeatureReader(Reader, Protocol):
    """Takes in pairs: a token, and a *feature* of the token before it.

    Of tokens that the target has evaluated features are made of its states; after them it feeds itself with its own.
    """

    def new_cache(self) -> KVCache:
        """For the pairs of one text."""
        ...

    def knows_any(self, vocab_size: int) -> bool:
        """Whether it can say one of the first tokens of the target's vocabulary."""
        ...

    def fuse(self, states: F32) -> F32:
        """The features of tokens that the target evaluated.

        Args:
            states: (num_states, n, hidden size of the target), as `reads` names them.

        Returns:
            (n, hidden_size) float32.
        """
        ...

    def advance(self, features: F32, tokens: Sequence[int], cache: KVCache, tree: Tree | None = None) -> F32:
        """Evaluate pairs after those in the cache, and advance it by them.

        Args:
            features: (n, hidden_size), each of the token before.
            tokens: n ids of the target's vocabulary.
            cache: a place a pair: that of token i + 1 is place i.
            tree: where each pair hangs; None makes them a chain.

        Returns:
            (n, hidden_size) float32: the features of the tokens.
        """
        ...

    def logits(self, features: F32) -> F32:
        """(n, vocab_size) float32: of the target's tokens, minus infinity for those that it cannot say."""
        ...


def reader_of(config: Mapping[str, object]) -> str | None:
    """The kind of reader that a config.json describes; None where it describes anything else."""
    if config.get("speculators_model_type") == "eagle3":
        return "eagle3"
    return {"mlp_speculator": "speculator", "spire": "spire"}.get(str(config.get("model_type")))
