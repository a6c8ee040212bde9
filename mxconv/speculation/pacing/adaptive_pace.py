"""A pace that maximizes expected tokens a second, and does no harm where drafts are useless.

From the rounds so far it knows how often a proposed token stands, how often a draft keeps its confidence, what a
proposed token costs and what verifying some number of tokens costs; from these it predicts the rate of every (draft,
length), no draft included, and takes the best. Drafts that are not the best are tried again now and then, the cheaper
the oftener, and those that stay far behind another one more and more seldom.

Within a proposal it is the draft that knows best when to stop: a further token pays while the chance that all so far
and it will stand is worth its price. How its probabilities turn into that chance is learned too, and so a draft is
told how improbable its proposal may become, which takes the place of a confidence threshold.

A draft that grows trees is asked for a tree. A node is added while the chance that its path stands is worth the price
of a row, and a model goes a depth further while the chances of all its nodes there are worth a pass; where siblings are
not worth their rows, the tree is a chain.

Whatever it takes it must afford. It keeps an account in rounds of plain decoding: what drafts gain or lose is booked
there, and a round may lose no more than there is. A little is there from the start, and a small share of all rounds
is added. So drafts that never help cost no more than these two, whatever the text, and what one of them takes to read
the prompt behind which it is first tried: that is done where a usual draft would earn it back before the text ends.

Texts that are decoded side by side share one pass, and a text is charged its part of what all rows cost together. Under
load rows are dear where memory is no longer the limit, and then fewer pay, or none: this is goodput as SmartSpec
(arXiv 2406.14066) has it, with measured prices and learned chances.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Self

from mxconv.drafts.passes import ALONE, Load
from mxconv.drafts.running_mean import MOST_UNUSUAL, RunningMean
from mxconv.speculation.pacing.account import Account
from mxconv.speculation.pacing.estimates import FEW_BEHIND, USUAL_SHARE, DraftEstimate
from mxconv.speculation.pacing.level_prices import LevelPrices
from mxconv.speculation.pacing.options import Option, Options, best, rate
from mxconv.speculation.pacing.pace import PLAIN, Choice, Outcome
from mxconv.speculation.pacing.rest import Rest
from mxconv.speculation.pacing.row_growth import Growth
from mxconv.speculation.pacing.tree_estimate import TreeEstimate
from mxconv.speculation.pacing.trial import Trial

NO_GROWERS: Mapping[int, bool] = {}
NO_READS: Mapping[int, float] = {}
MAX_ADAPTIVE_TOKENS = 16
MAX_ADAPTIVE_NODES = 48
ENOUGH = 0.98  # of the highest rate, for a longer proposal that the draft may cut short
CLOSE = 0.8  # drafts clearly behind the best are tried more and more seldom,
MOST_PATIENCE, MOST_PATIENCE_WITHOUT = 6.0, 4.0  # to these factors: behind another draft, and behind none
DOUBTFUL = 1.2  # behind a token that a draft doubts the next one is less likely to stand than others are
MOST_FIRST_LOSS = 0.8  # and booked


class AdaptivePace:
    """Chooses by what has paid.

    Args:
        num_drafts: between which to choose.
        max_tokens: the most to ask for.
        sets_floors: whether to tell drafts how improbable a proposal may become, instead of their own thresholds.
        growers: the drafts that grow trees, and whether each is a model.
        reads: of models among the drafts, what one of their passes is expected to take, in those of the level; 0 where
            they share its cache and need not read what they have missed of a text.
        most_nodes: of a tree.
        growth: what more rows of a pass read; None is nothing more.
    """

    def __init__(
        self,
        num_drafts: int,
        max_tokens: int = MAX_ADAPTIVE_TOKENS,
        sets_floors: bool = True,
        growers: Mapping[int, bool] = NO_GROWERS,
        reads: Mapping[int, float] = NO_READS,
        most_nodes: int = MAX_ADAPTIVE_NODES,
        growth: Growth | None = None,
    ) -> None:
        self.max_tokens = max_tokens
        self.most_nodes = most_nodes
        self.growers = growers
        self._own_caches = [draft for draft in reads if reads[draft]]
        self._sets_floors = sets_floors
        self._known = [
            TreeEstimate(*expected, by_depth=growers[draft]) if draft in growers else DraftEstimate(*expected)
            for draft in range(num_drafts)
            for expected in ((reads.get(draft) or USUAL_SHARE, reads.get(draft) == 0),)
        ]
        self._prices = LevelPrices(growth)
        self._prompt_token = RunningMean()  # seconds of the level's own
        self._account = Account()
        self._behind = [0] * num_drafts  # tokens of this text that each draft has missed
        self._rest = Rest()

    def of_text(self) -> Self:
        made = copy.copy(self)
        made._behind, made._rest = [0] * len(self._known), Rest()
        return made

    def choose(self, limit: int, load: Load = ALONE) -> Choice:
        if not self._prices.knows(load) or self._rest.goes_on(load, self._account.num_tries):
            return PLAIN
        options = self._options(limit, load)
        chosen = Option(DraftEstimate(), PLAIN, 1.0, 1.0, options.prices.plain, 0.0)
        trials, rests = [], load.num_texts > 1  # whether to rest if all are too dear
        for draft, known in enumerate(self._known):
            affordable = options.affordable(draft, known, self._behind[draft])
            if not affordable:
                continue
            if not known.seconds.weight:
                if known.is_left_to_others(self._behind[draft]):
                    rests = False
                elif options.is_promising(draft, known, self._behind[draft], chosen):
                    known.reserve(load.num_texts)
                    return self._with_floor(affordable[0], chosen, options)
                continue
            own = best(affordable, ENOUGH if known.heeds_floors else 1.0)
            trials.append(Trial(own, max(option.highest_rate for option in affordable)))
            chosen = max(chosen, own, key=rate)
        for trial in trials:
            own, known = trial.option, trial.option.known
            if own is chosen:
                known.patience = 1.0
            elif not known.is_left_to_others(self._behind[own.choice.draft]) and trial.wait(chosen, load) <= 0:
                known.reserve(load.num_texts)
                most = MOST_PATIENCE if chosen.choice.num_tokens else MOST_PATIENCE_WITHOUT
                known.patience = min(2 * known.patience, most) if own.rate < CLOSE * chosen.rate else 1.0
                return self._with_floor(own, chosen, options)
        if rests and not chosen.choice.num_tokens:
            wait = min((trial.wait(chosen, load) for trial in trials), default=math.inf)
            self._rest.begin(load, self._account.num_tries, wait, load.num_texts * options.prices.plain)
        return self._with_floor(chosen, chosen, options)

    def _options(self, limit: int, load: Load) -> Options:
        prices = self._prices.at(load)
        most_loss = self._account.rounds * prices.plain
        most_catch_up = self._account.saved * prices.plain * load.num_texts
        return Options(prices, most_loss, most_catch_up, limit, self.max_tokens, self.most_nodes)

    def _with_floor(self, option: Option, chosen: Option, options: Options) -> Choice:
        """The choice, to end where a further token is not worth its price at the rate of the best option."""
        known, choice = option.known, option.choice
        if isinstance(known, TreeEstimate):
            return self._with_floors(known, choice, chosen.rate, options)
        if not self._sets_floors or not choice.num_tokens:
            return choice
        further = options.prices.further(choice.num_tokens)
        each = known.seconds.each(options.prices.num_texts) if known.seconds.weight else 0.0
        return replace(choice, floor=known.floor(DOUBTFUL * (each + further) * chosen.rate))

    def _with_floors(self, known: TreeEstimate, choice: Choice, best_rate: float, options: Options) -> Choice:
        """The tree without nodes that are not worth a row, and a model's without depths that are not worth a pass."""
        rows = [options.prices.rows(1 + nodes) for nodes in range(len(choice.floors) + 1)]
        each = options.each(known)
        node = 0.0 if known.by_depth else each
        prices = [(wider - narrower + node) * best_rate for narrower, wider in pairwise(rows)]
        floor = None
        if known.by_depth and self._sets_floors:
            count = max(min(round(known.nodes.value), len(prices)), 1)
            rows_of_a_depth = sum(prices[:count]) / max(known.depth.value, 1.0)
            floor = DOUBTFUL * (each * best_rate + rows_of_a_depth) / known.trust
        return replace(choice, floors=known.floors(prices), floor=floor)

    def learn(self, choice: Choice, outcome: Outcome) -> None:
        num_missed = outcome.num_evaluated - 1 - outcome.num_proposed
        is_prompt = num_missed > FEW_BEHIND
        if is_prompt:
            self._learn_prompt(outcome)
        else:
            self._prices.add(outcome)
        if self._prices.knows(outcome.load):
            self._book(choice, outcome, is_prompt)
        for draft, known in enumerate(self._known):
            known.fade()
            if choice.num_tokens and draft == choice.draft:
                known.learn(choice.num_tokens, outcome, self._behind[draft])
                self._behind[draft] = 0
            else:
                known.miss(outcome)
                self._behind[draft] = outcome.num_evaluated + (0 if is_prompt else self._behind[draft])

    def _learn_prompt(self, outcome: Outcome) -> None:
        self._prompt_token.fade()
        self._prompt_token.add(outcome.level_seconds, outcome.num_evaluated)
        for draft in self._own_caches:
            self._known[draft].expect_catch_up(self._prompt_token.value)

    def _book(self, choice: Choice, outcome: Outcome, is_prompt: bool) -> None:
        prices, num_tokens = self._prices.at(outcome.load), 1 + outcome.num_accepted
        loss = catch_up = 0.0
        if choice.num_tokens:
            known, num_behind = self._known[choice.draft], self._behind[choice.draft]
            num_further = outcome.num_proposed
            level_seconds = prices.plain + prices.further(num_further) * num_further
            if choice.floors or outcome.joint is not None:
                level_seconds = prices.rows(1 + num_further)
            # where the level was slower than it should be, so was the machine
            speed = 1.0
            if not is_prompt and outcome.joint is not None:
                speed = 1 / self._prices.slowness(outcome)
            elif not is_prompt:
                speed = level_seconds / outcome.level_seconds
            draft_seconds = outcome.draft_seconds * speed
            each = known.seconds.each(outcome.draft_sharers) if known.seconds.weight else known.share * prices.plain
            usual = known.units(outcome) * each
            if known.seconds.weight or num_behind > FEW_BEHIND:
                expected = known.catch_up_seconds(num_behind)
                catch_up = min(max(draft_seconds - usual, 0.0), MOST_UNUSUAL * expected)
                draft_seconds = min(draft_seconds - catch_up, MOST_UNUSUAL * usual)
            loss = (draft_seconds + level_seconds) / prices.plain - num_tokens
            loss = loss if known.was_asked else min(loss, MOST_FIRST_LOSS)
            self._account.num_tries += 1
        self._account.book(num_tokens, loss, catch_up / prices.plain, outcome.load.num_texts)
