"""A draft without a model: what followed the last time that the context ended like this.

It costs microseconds and is right where text repeats itself: code being edited, a document being quoted, lists.
"""

from collections.abc import Iterator, Sequence

from mxconv.drafts.kind import DraftSpec, LookUp, LookUpKind, Parameter
from mxconv.errors import ModelError
from mxconv.package.level_record import PromptLookupRecord
from mxconv.speculation.loaded_level import LoadedLevel, Proposer
from mxconv.speculation.session import common_length
from mxconv.speculation.statistics import LevelStatistics

Places = tuple[tuple[int, int, int], ...]  # in the text, tokens before it that agree, where the text continues from
# chance of a token after an n-gram of 1, 2, ... tokens; the pace learns by how much this is wrong
TRUST = (0.3, 0.5, 0.7, 0.8, 0.85, 0.9)


class PromptLookup(LookUp[Places]):
    """Finds the longest n-gram at the end of the context that occurs in it before, and proposes what followed there.

    Of several places the latest is taken. Where the text ends too soon after it, it repeats: after `a b a b` come
    `a b a b a b ...`. Only tokens that are new since the last call are indexed.

    Raises:
        ModelError: no n-grams of `min_ngram` to `max_ngram` tokens.

    Source:
        Saxena, "Prompt Lookup Decoding" (2023), github.com/apoorvumang/prompt-lookup-decoding.
    """

    def __init__(self, statistics: LevelStatistics, max_ngram: int = 3, min_ngram: int = 1) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ModelError(
                f"prompt-lookup: n-grams of {min_ngram} to {max_ngram} tokens; 1 <= min_ngram <= max_ngram is "
                "required. Choose other lengths."
            )
        super().__init__(statistics)
        self.max_ngram = max_ngram
        self.min_ngram = min_ngram
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> index of what follows its latest place
        self._replaced: list[list[int | None]] = []  # [end - 1]: the entries of `_ends` before the n-grams ending there

    def state(self, context: Sequence[int]) -> Places:
        """The places after earlier occurrences of the n-grams at the end, the longest n-gram first."""
        self._follow(context)
        found = ((self._ends.get(tuple(self._tokens[-n:])), n) for n in self._lengths(len(self._tokens)))
        return tuple((begin, n, begin) for begin, n in found if begin is not None)

    def continuations(self, state: Places) -> Iterator[tuple[int, float, Places]]:
        """The tokens at some places, each with the places where it occurs, moved on by one.

        A token's probability follows from the length of the n-gram before it, its own path counted.
        """
        by_token: dict[int, list[tuple[int, int, int]]] = {}
        for at in state:
            by_token.setdefault(self._tokens[at[0]], []).append(at)
        left = 1.0
        for token, own in by_token.items():
            chance = TRUST[min(own[0][1], len(TRUST)) - 1]
            yield token, left * chance, tuple(self._next(*at) for at in own)
            left *= 1 - chance

    def _next(self, place: int, length: int, begin: int) -> tuple[int, int, int]:
        return place + 1 if place + 1 < len(self._tokens) else begin, length + 1, begin

    def _follow(self, context: Sequence[int]) -> None:
        """Bring the index from the last context to this one."""
        length = common_length(self._tokens, context)
        while len(self._replaced) > max(length - 1, 0):
            self._forget_last()
        del self._tokens[length:]
        self._tokens += context[length:]
        # the n-grams at the very end wait until something follows them
        for end in range(len(self._replaced) + 1, len(self._tokens)):
            ngrams = [tuple(self._tokens[end - n : end]) for n in self._lengths(end)]
            self._replaced.append([self._ends.get(ngram) for ngram in ngrams])
            self._ends.update(dict.fromkeys(ngrams, end))

    def _forget_last(self) -> None:
        """Undo the last end indexed."""
        end = len(self._replaced)
        for n, before in zip(self._lengths(end), self._replaced.pop(), strict=True):
            ngram = tuple(self._tokens[end - n : end])
            if before is None:
                del self._ends[ngram]
            else:
                self._ends[ngram] = before

    def _lengths(self, end: int) -> range:
        """The lengths of the n-grams that end there, longest first."""
        return range(min(self.max_ngram, end), self.min_ngram - 1, -1)


class PromptLookupKind(LookUpKind):
    """`prompt-lookup:max_ngram=3,min_ngram=1`."""

    name = "prompt-lookup"
    record_type = PromptLookupRecord
    parameters = (Parameter("max_ngram", 1, 64, default=3), Parameter("min_ngram", 1, 64, default=1))

    def check(self, spec: DraftSpec) -> None:
        least, most = (self.members(spec)[name] for name in ("min_ngram", "max_ngram"))
        if int(str(least)) > int(str(most)):
            raise ValueError(
                f"min_ngram is {least} and max_ngram {most}; min_ngram may be max_ngram at most. Give both."
            )

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        most, least = loaded.record.max_ngram or 3, loaded.record.min_ngram or 1
        return lambda statistics, _: PromptLookup(statistics, most, least)


PROMPT_LOOKUP = PromptLookupKind()
