"""The plug-ins of examples/papers: merged trees, n-grams of probabilities, recycled candidates, parts left out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from packages import quantize
from plug_ins import PAPERS, RECYCLING, STAND, plug_in_module
from tiny_levels import (
    assert_lossless,
    by_hand,
    decoder_of,
    dense,
    look_up,
    norms,
    paths_of,
    record,
    record_of,
    self_draft,
    speculate,
    target_level,
    tiny_config,
    tiny_values,
)

from mxconv.codecs.float16 import BF16
from mxconv.drafts.kinds import KINDS, parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.engine.tree import TreeLimits
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.speculation.acceptance import CoupledAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.statistics import LevelStatistics
from mxconv.speculation.trees import grow_best_first
from mxconv.text.distribution import Sampling

MERGED = f"{PAPERS / 'rasd.py'}:MergedKind"


@st.composite
def trees(draw: st.DrawFn) -> Proposal:
    """As a draft grows it out of a random table: up to ten nodes of four tokens."""
    table = np.random.default_rng(draw(st.integers(0, 2**32))).dirichlet(np.ones(4), size=5)
    most_depth, count = draw(st.integers(0, 4)), draw(st.integers(0, 10))

    def continuations(last: int) -> list[tuple[int, float, int]]:
        return [(token, float(table[last, token]), token) for token in range(4)]

    return grow_best_first(4, continuations, TreeLimits(most_depth, [0.0] * count))


def surest(proposals: Sequence[Proposal]) -> dict[tuple[int, ...], float]:
    """Every path of any tree, with the product of the highest probabilities that its nodes have anywhere."""
    highest: dict[tuple[int, ...], float] = {}
    for proposal in proposals:
        for path, probability in zip(paths_of(proposal), proposal.probabilities, strict=True):
            highest[path] = max(highest.get(path, 0.0), probability)
    return {path: float(np.prod([highest[path[:n]] for n in range(1, len(path) + 1)])) for path in highest}


@given(st.lists(trees(), max_size=3), st.lists(st.floats(0, 0.5), max_size=12).map(sorted))
def test_floors_leave_the_likeliest_paths_of_the_union(proposals: list[Proposal], floors: list[float]) -> None:
    look_up(MERGED)
    found = plug_in_module(MERGED).merge(proposals, TreeLimits(99, floors))
    falling = sorted(surest(proposals).values(), reverse=True)
    enough = [chance >= floor for chance, floor in zip(falling, floors, strict=False)]
    count = next((place for place, is_enough in enumerate(enough) if not is_enough), len(enough))
    assert found.chances == pytest.approx(falling[:count])
    assert set(paths_of(found)) <= set(surest(proposals)) and len(set(paths_of(found))) == count


Stand = plug_in_module(STAND).Stand
ALL = [0.0] * 12


def stand(vocab_size: int = 4, max_ngram: int = 3, num_candidates: int | None = None, confidence: float = 0.0) -> Any:
    return Stand(LevelStatistics("stand"), max_ngram, num_candidates or vocab_size, confidence)


# drawn tokens


@given(st.integers(0, 2**64 - 1), st.integers(1, 60), st.sampled_from([Sampling(), Sampling(0.6), Sampling(1.5)]))
def test_candidates_come_in_the_order_in_which_the_noise_draws_them(seed: int, length: int, sampling: Sampling) -> None:
    """With what the target believes in the table, the first candidate is what the target draws, at any depth."""
    draft, rule = stand(), CoupledAcceptance(sampling, seed)
    draft.acceptance = rule
    rows = np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32)
    for token in range(4):
        draft.observe([token], Proposal([]), rows[token : token + 1])
    context = [seed % 4] * length
    text = list(context)
    for _ in range(4):
        text.append(CoupledAcceptance(sampling, seed).draw(rows[text[-1]], len(text)))
    assert draft.propose(context, TreeLimits.chain(4)).tokens == text[length:]
    tree = draft.propose(context, TreeLimits(1, ALL))
    scores = CoupledAcceptance(sampling, seed).ranking(rows[context[-1]], length)
    np.testing.assert_array_equal(tree.tokens, np.argsort(-scores))
    np.testing.assert_allclose(tree.probabilities, np.sort(np.exp(scores) / np.exp(scores).sum())[::-1], rtol=1e-3)


TokenRecycling = plug_in_module(RECYCLING).TokenRecycling


def recycling(vocab_size: int, num_candidates: int = 3, confidence: float = 0.0) -> Any:
    return TokenRecycling(LevelStatistics("token-recycling"), vocab_size, num_candidates, confidence)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return powers / powers.sum()


@given(st.data())
def test_the_chain_is_that_of_a_dictionary(data: st.DataObject) -> None:
    """Through many rounds: the best follower of the last logits seen, until it was doubtful or never seen."""
    vocab_size = 6
    confidence = data.draw(st.sampled_from([0.0, 0.3, 0.6]))
    draft = recycling(vocab_size, confidence=confidence)
    best: dict[int, tuple[int, float]] = {}
    for _ in range(data.draw(st.integers(1, 5))):
        tokens = data.draw(st.lists(st.integers(0, vocab_size - 1), min_size=1, max_size=4))
        logits = data.draw(arrays(np.float32, (len(tokens), vocab_size), elements=st.integers(-4, 4).map(float)))
        draft.observe(tokens[:1], Proposal(tokens[1:]), logits)
        for token, row in zip(tokens, logits, strict=True):
            best[token] = int(row.argmax()), float(softmax(row).max())
        last = data.draw(st.integers(0, vocab_size - 1))
        num_tokens = data.draw(st.integers(0, 7))
        expected, token = [], last
        while len(expected) < num_tokens and token in best and best[token][1] >= confidence:
            token = best[token][0]
            expected.append(token)
        assert draft.propose([3, last], TreeLimits.chain(num_tokens)).tokens == expected


SWIFT, EARLY_EXIT = f"{PAPERS / 'swift.py'}:SwiftKind", f"{PAPERS / 'swift.py'}:EarlyExitKind"
COUPLED = Selection(Sampling(0.9), "coupled", 3)
PROMPT = [3, 1, 4, 1, 5, 9, 2]
SIZES = {"num_layers": 6, "max_position_embeddings": 400}
PYLIB = Path(__file__).parents[2] / "examples" / "models" / "pylib-0.2m"  # three layers


def level_of(spec: str, target: LoadedLevel) -> tuple[LoadedLevel, Any]:
    """A level of a target, and its choice of parts."""
    found = parse_draft(spec)
    kind: Any = KINDS[found.kind]
    made = record_of(found, kind.name)
    choice = kind.choice(decoder_of(target), made)
    return LoadedLevel(made, None, reader=choice, kind=kind), choice


@pytest.mark.parametrize("spec", [SWIFT, EARLY_EXIT])
@pytest.mark.parametrize("selection", [GREEDY, COUPLED])
@pytest.mark.parametrize("tree", [6, "chain"])
def test_tokens_and_logits_are_the_targets_own(spec: str, selection: Selection, tree: int | str) -> None:
    target = target_level(**SIZES)
    for levels in ([target], [target, self_draft(**SIZES)]):
        draft, choice = level_of(spec, target)
        assert_lossless(Hierarchy([*levels, draft], [4], [0.0], tree), PROMPT, 40, (), selection)  # type: ignore[arg-type]
        assert any(known.weight > 2 for known in choice.known.values())
    found, _ = speculate(Hierarchy([*levels, draft, look_up(RECYCLING)], "auto"), PROMPT, 40, (), selection)
    assert found == by_hand(decoder_of(target), PROMPT, 40, (), selection)


@pytest.mark.parametrize(
    ("spec", "idle"),
    [
        (f"{SWIFT},skip=0.2,confidence=0", {("layer", 2)}),
        (f"{EARLY_EXIT},confidence=0", {("layer", 3), ("layer", 4), ("layer", 5)}),
    ],
)
def test_a_draft_comes_to_leave_out_what_the_target_does_without(spec: str, idle: set[tuple[str, int]]) -> None:
    config = tiny_config(**SIZES)
    values = tiny_values(config, 5)
    for part, layer in idle:
        for name in ["mlp.down_proj"] + ["self_attn.o_proj"] * (part == "layer"):
            values[f"model.layers.{layer}.{name}.weight"][:] = 0
    target = LoadedLevel(record("target"), Decoder(config, ModelWeights(dense(values, BF16), norms(config)), "target"))
    draft, choice = level_of(spec, target)
    hierarchy = Hierarchy([target, draft])
    for number in range(3):
        generation = hierarchy.generate([number, *PROMPT], 150, selection=Selection(Sampling(1.0), seed=1))
    assert choice.best == idle
    assert generation.trace.statistics[1].acceptance_rate == 1.0


def test_what_cannot_leave_anything_out_is_refused(tmp_path: Path) -> None:
    quantize(PYLIB, tmp_path / "package")
    with pytest.raises(ModelError, match=r"^swift: no part of target to leave out; one at least is required\."):
        LoadedPackage(tmp_path / "package", ["target"], drafts=[parse_draft(f"{SWIFT},skip=0.1")])
    specs = [parse_draft(f"checkpoint:{PYLIB}"), parse_draft(SWIFT)]
    with pytest.raises(ModelError, match=r"^level swift: below pylib-0\.2m, which has a cache of its own"):
        LoadedPackage(tmp_path / "package", ["target"], drafts=specs)
