"""The user's torch model with its KV cache: evaluates tokens after those in the cache, and forgets rejected ones."""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from mxconv.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


HANDLED = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", "cache_position"}  # and the KV cache


class TorchTarget:
    """A decoder-only model in the middle of `generate`.

    Args:
        model: the model.
        input_ids: (1, length) the prompt.
        model_kwargs: what `generate` prepared for the forward pass.

    Raises:
        ModelError: drafts cannot serve this model or these arguments.
    """

    def __init__(self, model: "PreTrainedModel", input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
        from transformers import __version__ as version
        from transformers.cache_utils import DynamicCache, DynamicLayer

        if model.config.is_encoder_decoder:
            raise ModelError(f"{_name(model)}: an encoder-decoder; drafts need a decoder-only model. Leave them out.")
        if len(input_ids) != 1:
            raise ModelError(
                f"generate: a batch of {len(input_ids)} sequences (beams and num_return_sequences count); drafts serve "
                "one at a time. Call generate once a prompt."
            )
        foreign = sorted(
            name for name, value in model_kwargs.items() if value is not None and name not in {*HANDLED, cache_name()}
        )
        if foreign:
            raise ModelError(
                f"generate: arguments {', '.join(foreign)} for the model; drafts read text alone, as input_ids. "
                "Leave them out, or decode without drafts."
            )
        cache = model_kwargs.get(cache_name())
        if cache is None and model_kwargs.get("use_cache"):  # early versions of transformers 5 leave it to the model
            cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        if not isinstance(cache, DynamicCache) or getattr(model, "_is_stateful", False):
            kind = "none" if cache is None else type(cache).__name__
            raise ModelError(
                f"generate: {kind} as the KV cache; a DynamicCache is required, which forgets rejected tokens. "
                "Leave use_cache and cache_implementation at their defaults."
            )
        if cache.get_seq_length() >= input_ids.shape[1]:
            raise ModelError(
                f"generate: {cache_name()} with {cache.get_seq_length()} positions and {input_ids.shape[1]} "
                "input_ids; the ids of the whole text are required, since drafts read it too. Pass all of them."
            )
        self._records_past = caches_record_their_past()
        self._is_plain = all(type(layer) is DynamicLayer for layer in cache.layers)  # and forgets nothing by itself
        if not self._is_plain and not self._records_past:
            raise ModelError(
                f"{_name(model)}: sliding windows in transformers {version}, whose caches cannot take tokens back; "
                "5.23 or later is required. Install it: pip install 'transformers>=5.23'."
            )
        self.model = model
        self.cache: DynamicCache = cache
        self._mask: torch.Tensor | None = model_kwargs.get("attention_mask")
        self._positions: torch.Tensor | None = model_kwargs.get("position_ids")
        self._keeps_logits = "logits_to_keep" in model_kwargs
        self._prompt = input_ids

    @property
    def length(self) -> int:
        """Positions in the cache."""
        length: int = self.cache.get_seq_length()
        return length

    def visible(self) -> list[int]:
        """The prompt's tokens that are no padding."""
        ids = self._prompt[0]
        if self._mask is not None:
            ids = ids[self._mask[0, : len(ids)].bool().to(ids.device)]
        visible: list[int] = ids.tolist()
        return visible

    def evaluate(self, sequence: torch.Tensor, num_logits: int) -> torch.Tensor:
        """(num_logits, vocab_size) float32 logits of the last tokens of the (1, length) text so far.

        Those that the cache does not hold yet are evaluated.
        """
        return self.extend(sequence[:, self.length :], num_logits)

    def extend(self, tokens: torch.Tensor, num_logits: int) -> torch.Tensor:
        """Evaluate (1, num_tokens) tokens after those in the cache; returns as `evaluate`."""
        length = self.length + tokens.shape[1]
        is_prompt = self.length < self._prompt.shape[1]
        arguments: dict[str, Any] = {}
        if self._mask is not None:
            grown = length - self._mask.shape[1]
            arguments["attention_mask"] = torch.nn.functional.pad(self._mask, (0, max(grown, 0)), value=1)
        if self._positions is not None:
            arguments["position_ids"] = self._positions_of(length)[:, -tokens.shape[1] :]
        if self._keeps_logits:
            arguments["logits_to_keep"] = num_logits
        arguments[cache_name()] = self.cache
        output = self.model(input_ids=tokens.to(self.model.device), use_cache=True, return_dict=True, **arguments)
        if is_prompt and self._records_past:  # or sliding windows could not go back
            self.cache.activate_past_recording()
        logits: torch.Tensor = output.logits[0, -num_logits:]
        return logits.to(copy=True, dtype=torch.float32, device=tokens.device)

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` positions."""
        num_tokens = self.length - length
        if num_tokens or not self._is_plain:  # windows want it for 0 too: they then drop what has left them
            self.cache.crop(-num_tokens)

    def _positions_of(self, length: int) -> torch.Tensor:
        """(1, length) position ids: the prompt's, then each one more than the last."""
        assert self._positions is not None
        grown = length - self._positions.shape[1]
        if grown <= 0:
            return self._positions[:, :length]
        more = self._positions[:, -1:] + torch.arange(1, grown + 1, device=self._positions.device)
        return torch.cat((self._positions, more), dim=-1)


def _name(model: "PreTrainedModel") -> str:
    return model.config.name_or_path or type(model).__name__


@cache
def caches_record_their_past() -> bool:
    """Whether sliding windows can take tokens back: 5.17 can, but then masks a single token's pass wrongly."""
    from transformers import __version__ as version

    return tuple(map(int, version.split(".")[:2])) >= (5, 23)


@cache
def cache_name() -> str:
    """The name of the KV cache in transformers' arguments and results: `past_key_values`, since 5.24 `cache`."""
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    return "cache" if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__ else "past_key_values"
