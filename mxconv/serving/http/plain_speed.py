"""How fast the target decodes without drafts: what the page compares with."""

from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY
from mxconv.speculation.text_model import TextModel

MOST_TOKENS = 48
MOST_SECONDS = 1.5


def plain_tokens_per_second(model: TextModel) -> float | None:
    """Of one short text on an idle machine; None where there is nothing to compare with, or no room for it."""
    hierarchy = Hierarchy(model.loaded.levels[:1])
    generation = hierarchy.begin()
    first = model.loaded.tokenizer.bos_token_id or 0
    for _ in hierarchy.stream([first], MOST_TOKENS, (), GREEDY, generation):
        if generation.seconds > MOST_SECONDS:
            break
    return generation.decoding_tokens_per_second
