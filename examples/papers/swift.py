"""SWIFT and DEL: the target without some of its layers drafts for it; which ones is found while it decodes.

    mxconv generate PACKAGE --levels target --draft examples/papers/swift.py:SwiftKind,skip=0.45 --prompt TEXT --check
    mxconv generate PACKAGE --levels target --draft examples/papers/swift.py:EarlyExitKind --prompt TEXT --check

Source:
    SWIFT, arXiv 2410.06916, section 4: sets of layers are optimized on the generated context. Its Bayesian steps are
    left out, and attention is left out with its MLP alone.
    DEL, arXiv 2504.05598: an exit by tokens per layer. There agreement comes from hidden states of every layer.
"""

from collections.abc import Sequence
from copy import copy
from functools import cache, lru_cache
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from mxconv.arch.description import Attending
from mxconv.cost.speedup import speedup
from mxconv.drafts.kind import DraftKind, Parameter, Run
from mxconv.drafts.pass_cost import PassCost
from mxconv.engine.decoder import Decoder
from mxconv.engine.sequence_rows import Reads, SequenceRows
from mxconv.engine.tree import TreeLimits
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelBase, LevelRecord, Share
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import DraftInputs, LoadedLevel, num_layer_weights
from mxconv.speculation.model_draft import ModelDraft
from mxconv.speculation.pace import FixedPace
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.speculation.reader import Reader, ReaderSizes
from mxconv.speculation.round import Level
from mxconv.speculation.session import Session, borrowed
from mxconv.speculation.statistics import Chance

FIRST_STUDIES, ROUNDS_A_STUDY = 16, 16  # a study in each of the first rounds, then in one of so many
MOST_TOKENS, FEWEST_TOKENS = 16, 4  # of a study
LENGTH, MOST_SETS = 8, 64  # tokens of the proposals for which sets are compared; sets that are tried
Parts = frozenset[tuple[str, int]]  # ("layer" or "mlp", its number): what a draft leaves out


class PartChoice(Reader):
    """The sets of parts that a model may leave out: what a pass without them costs, how often it agrees with the text.

    `first` are the sets to begin with, `others` the parts that a search exchanges for those of a set.
    """

    def __init__(self, model: Decoder, first: list[Parts], others: list[tuple[str, int]], name: str) -> None:
        super().__init__(ReaderSizes(model.config.hidden_size, model.config.vocab_size), Reads(), name)
        if not any(first):
            raise ModelError(f"{name}: no part of {model.name} to leave out; one at least is required. Leave out more.")
        self.without = lru_cache(16)(lambda parts: _without(model, parts, name))
        size = cache(lambda parts: np.prod(model.head.shape) + num_layer_weights(self.without(parts)))
        self.price = lambda parts: float(size(parts) / size(frozenset()))
        self.known = {parts: Chance(0.5, weight=2.0) for parts in first}
        self.num_rounds, self._others, self._random = 0, others, np.random.default_rng(0)

    @property
    def best(self) -> Parts:
        """The set with the greatest known worth."""
        return self._most_worth({parts: known.value for parts, known in self.known.items()})

    def to_study(self) -> Parts | None:
        """The set to study in this round, the one that may be worth most; None where none is."""
        self.num_rounds += 1
        if self.num_rounds > FIRST_STUDIES and self.num_rounds % ROUNDS_A_STUDY:
            return None
        if self._others and len(self.known) < MOST_SETS:
            parts, new = sorted(self.best), self._others[self._random.integers(len(self._others))]
            parts[self._random.integers(len(parts))] = new
            self.known.setdefault(frozenset(parts), Chance(self.known[self.best].value, weight=2.0))
        return self._most_worth(
            {parts: min(known.value + 1 / sqrt(known.weight), 1.0) for parts, known in self.known.items()}
        )

    def learn(self, parts: Parts, num_agreed: int, num_compared: int) -> None:
        """Learn from a study of a set."""
        for known in self.known.values():
            known.fade()
        self.known[parts].add(num_agreed, num_compared)

    def _most_worth(self, agreements: dict[Parts, float]) -> Parts:
        def worth(parts: Parts) -> float:
            return max(speedup(agreements[parts], length, self.price(parts)) for length in range(1, LENGTH + 1))

        return max(agreements, key=worth)


class PartsDraft(Draft):
    """The draft of one text: the best set drafts on the cache of the level above, which is left as it was."""

    def __init__(self, choice: PartChoice, inputs: DraftInputs) -> None:
        self.statistics = inputs.statistics
        self._choice, self._inputs = choice, inputs
        self._first_written = 0  # position of the first token that the level above chose, from the first round on

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        above, self._first_written = self._inputs, self._first_written or len(context) - 1
        session = Session(above.session.cache, above.session.passes)  # whose hidden states nobody reads
        session.tokens = list(above.session.tokens)
        if (parts := self._choice.to_study()) is not None:
            self._study(parts, context, session)
        model, rule = self._choice.without(self._choice.best), above.acceptance
        level = Level(model, session, True, above.vocab_size, rule, above.statistics, [], FixedPace(1))
        return ModelDraft(level, above.confidence, above.sharpness).propose(context, limits)

    def learn(self, limits: TreeLimits, proposal: Proposal, tokens: Sequence[int]) -> None:
        if not limits.is_chain:
            self._inputs.sharpness.learn(proposal, tokens)

    def _study(self, parts: Parts, context: Sequence[int], session: Session) -> None:
        """Compare what is left without some parts with the last tokens of the text, in one pass."""
        stop = len(session.tokens)
        start = max(self._first_written - 1, stop - MOST_TOKENS, 0)
        is_cached = session.cache.reachable(start) == start and list(context[:stop]) == session.tokens
        if stop - start >= FEWEST_TOKENS and stop < len(context) and is_cached:
            with self.statistics.timed_pass(), borrowed(session.cache, start, stop - start) as kept:
                rows = SequenceRows(context[start:stop], kept)
                logits = session.passes.forward(self._choice.without(parts), rows)
            rank, size = self._inputs.acceptance.ranking, self._inputs.vocab_size
            chosen = [int(rank(row[:size], start + 1 + place).argmax()) for place, row in enumerate(logits)]
            agreed = sum(map(int.__eq__, chosen, context[start + 1 : stop + 1]))
            self._choice.learn(parts, agreed, stop - start)


def _without(model: Decoder, parts: Parts, name: str) -> Decoder:
    """A model without some of its parts."""
    layers = [copy(layer) for layer in model.layers if ("layer", layer.index) not in parts]
    for layer in layers:
        if ("mlp", layer.index) in parts:
            layer.mlp = layer.layer_input = None
    return model.variant(name=name, layers=layers)


def removable(model: Decoder) -> list[tuple[str, int]]:
    """The layers after the first one that keep no state and whose keys no other layer reads."""
    mixers = [layer.parts.mixer for layer in model.layers]
    sources = {mixer.source for mixer in mixers if isinstance(mixer, Attending)}
    return [("layer", n) for n, mixer in enumerate(mixers) if n and n not in sources and isinstance(mixer, Attending)]


class EarlyExitKind(DraftKind):
    """`swift.py:EarlyExitKind`: the first layers, as many as pay, then the final norm and the head."""

    name = "early-exit"
    record_type: type[LevelRecord] = LevelBase

    def choice(self, model: Decoder, record: LevelRecord) -> PartChoice:
        """The sets of parts to choose from."""
        count, may_go = len(model.layers), {*removable(model)}
        tails = [frozenset(("layer", n) for n in range(stop, count)) for stop in range(1, count)]
        return PartChoice(model, [tail for tail in tails if tail <= may_go], [], record.name)

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        if alone := [level.name for level in run.levels[1:] if level.decoder and not level.shares_cache]:
            raise ModelError(
                f"level {record.name}: below {alone[0]}, which has a cache of its own; the target's cache is required. "
                "Leave one of them out."
            )
        return LoadedLevel(record, None, run.tokenizer, reader=self.choice(run.target, record), kind=self)

    def draft(self, reader: Any, record: LevelRecord, inputs: DraftInputs) -> PartsDraft:
        return PartsDraft(reader, inputs)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        return target or PassCost.of_package(package, package.manifest.levels[0])


class SwiftRecord(LevelBase):
    """Its parameter: the share of all layers that is left out, whole or their MLPs."""

    skip: Share


class SwiftKind(EarlyExitKind):
    """`swift.py:SwiftKind,skip=0.45`: a share of the inner layers or of their MLPs, which a search chooses."""

    name = "swift"
    record_type = SwiftRecord
    parameters = (Parameter("skip", is_whole=False, default=0.45),)  # as in the paper

    def choice(self, model: Decoder, record: LevelRecord) -> PartChoice:
        inner = range(1, len(model.layers) - 1)
        mlps = [("mlp", n) for n in inner if model.layers[n].mlp is not None]
        number = min(int(record.skip * len(model.layers)), len(mlps))
        first = frozenset(mlps[n] for n in np.linspace(0, len(mlps) - 1, number).astype(int))
        others = [*mlps, *(part for part in removable(model) if part[1] in inner)]
        return PartChoice(model, [first], others, record.name)
