"""The levels of a package as the cost models see them, each as its kind of draft counts it.

They need the manifest and arrays, which an answer about a config.json does without.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from mxconv.cost.counts import multiplied_weights
from mxconv.cost.levels import TYPICAL_ACCEPTANCE, CostLevel, with_acceptance
from mxconv.drafts.kinds import kind_of
from mxconv.drafts.pass_cost import PassCost
from mxconv.package.package import Package, inside

NOT_KNOWN = "nobody measured such a draft; give --acceptance or a trace"


def package_levels(package: Package) -> list[CostLevel]:
    """Every level, the target first, with the acceptance that `mxconv evaluate --write` stored or a published one.

    Raises:
        CheckpointError, ModelError: a config.json is missing, or of a model that is not known.
    """
    levels: list[CostLevel] = []
    target: PassCost | None = None
    for record in package.manifest.levels:
        place = None if record.path is None else inside(package.root, record.path)
        cost = kind_of(record).cost(record, place, package, target)
        unknown = 0.0, "" if target is None else NOT_KNOWN
        target = target or cost
        acceptance, source = TYPICAL_ACCEPTANCE.get(cost.typical or "", unknown)
        level = CostLevel(record.name, cost.codec, cost.sizes, acceptance, source, _num_bytes(cost))
        levels.append(replace(level, is_assumed=bool(levels)))
    if (evaluation := package.manifest.evaluation) is None:
        return levels
    drafts = {each.name: each.agreement for each in evaluation.levels[1:] if each.agreement is not None}
    source = f"evaluation of this package: agreement on {evaluation.num_tokens:,} tokens"
    return with_acceptance(levels, drafts, source)


def package_strategies(levels: Sequence[CostLevel]) -> dict[str, list[CostLevel]]:
    """Greedy, the target with each draft alone, and all levels together: what `mxconv bench decode` measures."""
    target, *drafts = levels
    strategies = {"greedy": [target]} | {draft.name: [target, draft] for draft in drafts}
    if len(drafts) > 1:
        strategies["hierarchy"] = [target, *drafts]
    return strategies


def _num_bytes(cost: PassCost) -> int | None:
    """Bytes of a pass; of a part of a model its share of what the files hold, all experts counted."""
    if cost.sizes is None:
        return None
    share = 1.0 if cost.whole is None else multiplied_weights(cost.sizes, inf) / multiplied_weights(cost.whole, inf)
    return round(cost.num_bytes * share) // cost.num_passes
