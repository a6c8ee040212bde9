"""Hierarchies with a draft that reads hidden states, over the small trained model."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tiny_levels import by_hand, decoder_of, record_of, speculate
from trained_levels import PROMPTS

from mxconv.drafts.kind import DraftSpec
from mxconv.drafts.kinds import KINDS, parse_draft
from mxconv.engine.matrices import Matrices
from mxconv.kernels.engine import choose_engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling

SELECTIONS = {"greedy": GREEDY, "coupled": Selection(Sampling(0.8, top_p=0.95), "coupled", 7)}
HIDDEN_SIZE, VOCAB_SIZE, NUM_LAYERS = 64, 1024, 3  # of the trained model

# levels and the size of trees, in pairs of which every one with every draft would be too many
PLACES = {
    "below the target": (["target"], "chain"),
    "in trees": (["target"], 12),
    "below a copy, in trees": (["target", "mxfp4"], 12),
    "below a copy": (["target", "mxfp4"], "chain"),
    "of a copy": (["mxfp4"], 12),
    "as often as it pays": (["target", "mxfp4"], "auto"),
}


def specs(folder: Path, *texts: str) -> list[DraftSpec]:
    return [parse_draft(text.replace("HERE", str(folder))) for text in texts]


def open_reader(kind: str, folder: Path, kernel: str = "numpy", target: Any = None) -> Any:
    """The network in a folder, alone: of its target it takes what is given."""
    with ExitStack() as stack:
        run: Any = SimpleNamespace(matrices=Matrices(choose_engine(kernel)), stack=stack, target=target)
        reader: Any = KINDS[kind]
        return reader.reader(folder, record_of(parse_draft(f"{kind}:anywhere"), "head", "f16"), run)


def check_all(levels: Sequence[Any], lengths: Any, tree: Any, selection: Selection, num_tokens: int = 20) -> np.ndarray:
    """Decode some prompts and compare with the target alone.

    Returns:
        (number of drafts, 2): tokens that were proposed and that were accepted.
    """
    hierarchy = Hierarchy(levels, lengths, [0.0] * (len(levels) - 1) if lengths != "auto" else None, tree)
    counts = np.zeros((len(levels) - 1, 2), int)
    for prompt in PROMPTS:
        ids = levels[0].tokenizer.encode(prompt)
        found, generation = speculate(hierarchy, ids, num_tokens, (), selection)
        if selection.accept == "coupled":  # others' tokens are drawn in another way, of the same distribution
            assert found == by_hand(decoder_of(levels[0]), ids, num_tokens, (), selection)
        counts += [(level.num_proposed, level.num_accepted) for level in generation.trace.statistics[1:]]
    return counts


def check_place(levels: Sequence[Any], tree: int | str, selection: Selection) -> np.ndarray:
    """As `check_all`, at one of the places; the last level's counts, of which some tokens were proposed."""
    lengths = "auto" if tree == "auto" else [3] * (len(levels) - 1)
    counts = check_all(levels, lengths, tree, selection)[-1]
    assert tree == "auto" or counts[0] > 0
    return counts
