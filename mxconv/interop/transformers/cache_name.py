"""What transformers calls a model's KV cache, in arguments and in results."""

from functools import cache


@cache
def cache_name() -> str:
    """`past_key_values`; since transformers 5.24 `cache`."""
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    return "cache" if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__ else "past_key_values"
