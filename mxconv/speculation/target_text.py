"""A text that the target wrote: how well a draft on the same KV cache would have done, without the target's work."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.speculation.borrowed import borrowed
from mxconv.text.sampling import greedy


@dataclass(frozen=True)
class Drafted:
    """What speculative decoding of a text takes, behind its prompt and the first token, which comes with the prompt.

    Args:
        num_tokens: of the text.
        num_rounds: forward passes of the target.
        num_proposed: tokens of the draft, a forward pass each.
        num_accepted: those that were right.
    """

    num_tokens: int
    num_rounds: int
    num_proposed: int
    num_accepted: int

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over proposed; None where nothing was proposed."""
        return self.num_accepted / self.num_proposed if self.num_proposed else None


@dataclass(frozen=True)
class TargetText:
    """What the target makes of a prompt, greedily, and the keys and values that it left.

    Args:
        tokens: the prompt and what follows.
        num_prompt_tokens: how many of them are the prompt.
        cache: of all tokens but the last; it can be cut back to any of them.
    """

    tokens: list[int]
    num_prompt_tokens: int
    cache: KVCache

    @classmethod
    def write(
        cls, target: Decoder, prompt: Sequence[int], max_new_tokens: int, stop_tokens: Collection[int] = ()
    ) -> "TargetText":
        """Decode plainly until `max_new_tokens`, a stop token, or the end of the target's positions.

        Raises:
            ModelError: no prompt, or one longer than the target's positions.
        """
        cache = target.new_cache(rewinds=True)  # drafts go back to its beginning
        tokens = list(prompt)
        limit = min(len(prompt) + max_new_tokens, target.config.max_position_embeddings + 1)
        while len(tokens) < max(limit, len(prompt) + 1):  # at least one pass, which refuses a prompt that is too long
            tokens.append(int(greedy(target.forward(tokens[cache.length :], cache, last_only=True))[0]))
            if tokens[-1] in stop_tokens:
                break
        return cls(tokens, len(prompt), cache)

    def drafted_by(self, decoder: Decoder, num_draft_tokens: int) -> Drafted:
        """Decode the text again with a draft that shares the target's cache, and asks for no confidence.

        A token is accepted where those before it in its round are, so the draft may be given the text's own tokens:
        one pass over a round's tokens says what was accepted, and the text says what the target would have done.

        Args:
            decoder: of the target's architecture: a variant of it, or its 4-bit copy, or a variant of that.
            num_draft_tokens: asked of the draft in a round, at least one.

        Raises:
            ModelError: a decoder of another architecture.
        """
        first = position = min(self.num_prompt_tokens + 1, len(self.tokens))
        num_rounds = num_proposed = num_accepted = 0
        while position < len(self.tokens):
            wanted = min(num_draft_tokens, len(self.tokens) - position - 1)  # the last token is the target's
            accepted = self._agreed(decoder, position, wanted) if wanted else 0
            num_rounds += 1
            num_proposed += wanted
            num_accepted += accepted
            position += accepted + 1
        return Drafted(position - first, num_rounds, num_proposed, num_accepted)

    def _agreed(self, decoder: Decoder, position: int, count: int) -> int:
        """How many of the `count` tokens from `position` on the draft would say, up to the first that it would not."""
        with borrowed(self.cache, position - 1, count) as cache:
            choices = greedy(decoder.forward(self.tokens[position - 1 : position - 1 + count], cache))
        agreed = 0
        while agreed < count and choices[agreed] == self.tokens[position + agreed]:
            agreed += 1
        return agreed
