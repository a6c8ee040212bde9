"""How often drafts of one trained target stand, by position: what batch_maps.py takes for tokens a round.

    python examples/acceptance_by_position.py > examples/acceptance_by_position.json

The target is the embedded pylib-1.5m; its drafts are its own 4 bits over the whole cache, itself over a sink and a
window (MagicDec) in 16 bits and in 4, and the two that were trained for it. Behind contexts of held-out text, sources
of the standard library, it decodes greedily. Chains have one length, without a threshold, so that `accepted` is of all
rounds: [i] is the mean of "tokens 1 to i + 1 stood". Of the speculator's candidate trees come tokens a round and the
rows that they take.

Positions of the target end where its training did: contexts and new tokens together are 256.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from train_tiny_pair import read_library

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kind import DraftSpec
from mxconv.drafts.loader import LoadedLevel, LoadedPackage
from mxconv.engine.sight import SinkWindow
from mxconv.speculation.hierarchy import Hierarchy

MODELS = Path(__file__).parent / "models"
TARGET = MODELS / "pylib-1.5m"
SINK, WINDOW = 1, 64  # of MagicDec, as SPIRe (arXiv 2504.06419) has it
LONGEST, STAGES = 8, 4  # tokens of a chain; of a speculator's
CANDIDATES = (2, 4, 8, 16)
DRAFT_ROWS = [1, 5, 20, 39]  # of the trees that candidates are chosen from, by `grow_candidates` and its config.json
MLP_REPORT: dict[int, tuple[list[int], dict[int, float]]] = {  # by heads: such rows; tokens a step by candidates
    3: ([1, 6, 18], {1: 2.10, 2: 2.45, 4: 2.70, 8: 2.99, 16: 3.13}),
    5: ([1, 6, 18, 20, 20], {1: 2.16, 2: 2.52, 4: 2.96, 8: 3.32}),
    7: ([1, 6, 11, 11, 11, 11, 11], {1: 2.20, 2: 2.50, 4: 3.05, 8: 3.59}),
}
CONTEXT, NEW_TOKENS = 184, 64  # and a last proposal
CHAINS: dict[str, tuple[str, list[str], list[DraftSpec]]] = {  # by kind: name, levels of the package, further ones
    "self-draft-4": ("self-draft, 4 bits", ["mxfp4"], []),
    "magicdec-16": ("MagicDec, 16 bits", [], [DraftSpec("streaming", parameters={"sink": SINK, "window": WINDOW})]),
    "magicdec-4": ("MagicDec, 4 bits", ["mxfp4"], []),
    "spire-16": ("SPIRe, 16 bits", [], [DraftSpec("spire", str(MODELS / "pylib-1.5m-spire"))]),
}
SPECULATOR = DraftSpec("speculator", str(MODELS / "pylib-1.5m-speculator"))
Levels = Sequence[LoadedLevel]


def chain(levels: Levels, contexts: Sequence[list[int]], length: int) -> list[float]:
    """By position, the mean of "this token and those before it stood"."""
    rounds = list(_rounds(Hierarchy(levels, [length], [0.0], "chain"), contexts, length))
    return [round(sum(stood > place for stood, _ in rounds) / len(rounds), 4) for place in range(length)]


def candidates(levels: Levels, contexts: Sequence[list[int]], count: int) -> dict[str, Any]:
    """Tokens a round of candidate trees, and the rows that a pass has for them."""
    rounds = list(_rounds(Hierarchy(levels, [STAGES], [0.0], 64), contexts, STAGES))
    tokens, rows = (sum(column) / len(rounds) for column in zip(*rounds, strict=True))
    return plan(STAGES, count, round(rows, 2), round(1 + tokens, 4), DRAFT_ROWS)


def _rounds(hierarchy: Hierarchy, contexts: Sequence[list[int]], length: int) -> Iterator[tuple[int, int]]:
    """Tokens that stood and nodes of every proposal that was whole; the prompt's round has none."""
    for context in contexts:
        made = hierarchy.generate(context, NEW_TOKENS + length)
        draft = made.trace.statistics[1].name
        yield from (
            (entry.num_accepted, entry.num_nodes)
            for entry in made.trace.entries
            if entry.level == draft and entry.num_proposed == length
        )


def methods(package: Path, contexts: Sequence[list[int]]) -> Iterator[dict[str, Any]]:
    """Those of batch_maps.py."""
    source = f"examples/acceptance_by_position.py: pylib-1.5m, {len(contexts)} contexts of {CONTEXT} tokens, greedy"
    for draft, (name, own, specs) in CHAINS.items():
        with _loaded(package, ["target", *own], specs) as loaded:
            levels = [loaded.levels[0], _sparse(loaded.levels[1])] if draft == "magicdec-4" else loaded.levels
            accepted = chain(levels, contexts, LONGEST)
        yield {"method": name, "draft": draft, "source": source, "accepted": accepted}
    with _loaded(package, ["target"], [SPECULATOR]) as loaded:
        accepted, plans = chain(loaded.levels, contexts, STAGES), []
    for count in CANDIDATES:
        with _loaded(package, ["target"], [replace(SPECULATOR, num_candidates=count)]) as loaded:
            plans.append(candidates(loaded.levels, contexts, count))
    yield {"method": "MLP speculator", "draft": "speculator", "source": source, "accepted": accepted, "plans": plans}
    yield {
        "method": "MLP speculator, 3 to 7 heads",
        "draft": "speculator",
        "source": "docs/benchmarks.md, examples/mlp_report.py: stories260K, 30 stories, greedy; rows as "
        "arXiv 2404.19124 counts them, paths that share none",
        "plans": [
            plan(heads, count, heads * count, tokens, draft_rows)
            for heads, (draft_rows, rates) in MLP_REPORT.items()
            for count, tokens in rates.items()
        ],
    }


def plan(heads: int, count: int, rows: float, tokens: float, draft_rows: list[int]) -> dict[str, Any]:
    """As batch_plans.py reads it."""
    return {
        "heads": heads,
        "candidates": count,
        "rows": rows,
        "tokens_a_round": tokens,
        "draft_rows": draft_rows,
    }


def _loaded(package: Path, levels: list[str], drafts: Sequence[DraftSpec] = ()) -> LoadedPackage:
    return LoadedPackage(package, levels, num_threads=1, drafts=drafts)  # so small a model gains nothing by more


def _sparse(level: LoadedLevel) -> LoadedLevel:
    """The 4-bit level over a sink and a window of the target's cache."""
    assert level.decoder is not None
    return replace(level, decoder=level.decoder.variant(sink_window=SinkWindow(SINK, WINDOW)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, default=32)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_checkpoint(TARGET) as checkpoint:
        package = Path(folder, "package")
        convert(checkpoint, package, QuantizeOptions(codec="mxfp4"))
        with _loaded(package, ["target"]) as loaded:
            ids = [loaded.tokenizer.encode(text) for text in read_library()[1]]
        long = [tokens for tokens in ids if len(tokens) > CONTEXT]
        held_out = [token for tokens in long for token in tokens]
        starts = [number * (len(held_out) - CONTEXT) // given.contexts for number in range(given.contexts)]
        contexts = [held_out[start : start + CONTEXT] for start in starts]
        print(json.dumps(list(methods(package, contexts)), indent=1))


if __name__ == "__main__":
    main()
