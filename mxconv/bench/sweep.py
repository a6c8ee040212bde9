"""Draft length against confidence threshold: how fast, and how much of it is accepted.

Source: the map is that of SPEQ (arXiv 2510.18525), Fig. 9.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mxconv.bench.decode_result import acceptance_rate, geomean, tokens_per_round
from mxconv.bench.decoding import WARM_TOKENS, prompt_ids
from mxconv.errors import ModelError
from mxconv.model.loader import LoadedPackage
from mxconv.progress import Progress, silent
from mxconv.speculative.hierarchy import Generation, Hierarchy

LENGTHS = (1, 2, 4, 8, 16)
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)


@dataclass(frozen=True)
class Sweep:
    """The target with one draft. Tables are [length][threshold]."""

    level: str
    num_draft_tokens: list[int]
    confidence: list[float]
    speedup: list[list[float]]  # over plain decoding, geometric mean over prompts
    acceptance_rate: list[list[float | None]]  # accepted over proposed
    tokens_per_round: list[list[float]]


def sweep_draft(
    loaded: LoadedPackage,
    prompts: Sequence[str],
    max_new_tokens: int,
    progress: Progress = silent,
    lengths: Sequence[int] = LENGTHS,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Sweep:
    """Decode with the target's next level at every length and threshold, plainly before each length's row.

    Raises:
        ModelError: the package has no draft, or a text differs from that of plain decoding.
    """
    if len(loaded.levels) < 2:
        raise ModelError(f"{loaded.package.root}: no draft among its levels; one is required for a sweep. Name one.")
    target, draft = loaded.levels[:2]
    plain = Hierarchy([target])
    cells = {(n, c): Hierarchy([target, draft], [n], [c]) for n in lengths for c in thresholds}
    ratios: dict[tuple[int, float], list[float]] = {cell: [] for cell in cells}
    found: dict[tuple[int, float], list[Generation]] = {cell: [] for cell in cells}
    ids, stop = prompt_ids(loaded.tokenizer, prompts), loaded.tokenizer.eos_token_ids
    for hierarchy in (plain, next(iter(cells.values()))):
        hierarchy.generate(ids[0], min(max_new_tokens, WARM_TOKENS), stop)
    done, total = 0, len(ids) * len(cells)
    for prompt in ids:
        for length in lengths:
            expected = plain.generate(prompt, max_new_tokens, stop)
            for threshold in thresholds:
                progress("sweep", done, total)
                cell = length, threshold
                generation = cells[cell].generate(prompt, max_new_tokens, stop)
                if generation.token_ids != expected.token_ids:
                    raise ModelError(
                        f"{loaded.package.root}: tokens of {draft.name}, {length} a round above {threshold}, differ "
                        "from those of greedy decoding; none may. Please report this as a defect."
                    )
                ratios[cell].append(expected.seconds / generation.seconds)
                found[cell].append(generation)
                done += 1
    progress("sweep", total, total)
    return Sweep(
        level=draft.name,
        num_draft_tokens=list(lengths),
        confidence=list(thresholds),
        speedup=[[geomean(ratios[n, c]) for c in thresholds] for n in lengths],
        acceptance_rate=[[acceptance_rate(found[n, c], 1) for c in thresholds] for n in lengths],
        tokens_per_round=[[tokens_per_round(found[n, c]) for c in thresholds] for n in lengths],
    )
