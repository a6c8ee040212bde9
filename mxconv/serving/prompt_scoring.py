"""What the target makes of a prompt's own tokens, a piece of it at a time."""

from collections.abc import Sequence

from mxconv.arrays import F32
from mxconv.engine.decoder import Decoder

MOST_ROWS = 32  # of a piece, for which running sequences wait


class PromptScoring:
    """Evaluates a prompt once more, with the logits of all rows, in a cache of its own.

    Rows depend on their path alone: the logits are those that would have chosen these tokens, bit for bit.

    Args:
        decoder: of the target.
        tokens: of the prompt, at least one.
    """

    def __init__(self, decoder: Decoder, tokens: Sequence[int]) -> None:
        self._decoder = decoder
        self._tokens = list(tokens)
        self._cache = decoder.new_cache()

    @property
    def is_done(self) -> bool:
        """Whether all tokens but the first, which nothing foretells, have had their logits."""
        return self._cache.length >= len(self._tokens) - 1

    def piece(self) -> list[tuple[int, F32]]:
        """The next tokens, each with the logits, (vocab_size,), of the one before it.

        Raises:
            ModelError: what the decoder raises.
        """
        begin = self._cache.length
        end = min(begin + MOST_ROWS, len(self._tokens) - 1)
        logits = self._decoder.forward(self._tokens[begin:end], self._cache)
        return list(zip(self._tokens[begin + 1 : end + 1], logits, strict=True))
