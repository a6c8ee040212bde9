"""MLP speculators in hierarchies: the state that they read, their trees, and the target's own tokens as ever."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from packages import quantize
from speculators import speculator_config, write_speculator
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import PROMPTS, write_noisy, write_padded

from mxconv.arrays import F32
from mxconv.drafts.acceptance import GreedyAcceptance
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator
from mxconv.drafts.speculator import SpeculatorDraft, grow_candidates
from mxconv.engine.cache import KVCache
from mxconv.engine.states import States
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.errors import ModelError, MxconvError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling
from mxconv.text.penalties import Penalties

SELECTIONS = {
    "greedy": GREEDY,
    "coupled": Selection(Sampling(0.8, top_p=0.95), "coupled", 7),
}
HIDDEN_SIZE, VOCAB_SIZE = 64, 1024  # of the trained model
CONFIG = speculator_config(HIDDEN_SIZE, VOCAB_SIZE, {"scale_input": True})


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A speculator that guesses at random, a 4-bit copy of it, and a package that has it as a level."""
    folder = tmp_path_factory.mktemp("speculators")
    speculator = write_speculator(folder / "speculator", CONFIG, "BF16")
    quantize(speculator, folder / "speculator-mxfp4", lm_head="quantize")
    drafts = (f"checkpoint:{write_noisy(folder / 'noisy')}", f"speculator:{speculator}", "prompt-lookup")
    quantize(write_noisy(folder / "source", 0.0), folder / "package", drafts=drafts)
    return folder / "package"


def specs(folder: Path, *texts: str) -> list[object]:
    return [parse_draft(text.replace("HERE", str(folder))) for text in texts]


def check_all(levels: Sequence[object], lengths: object, tree: object, selection: Selection) -> np.ndarray:
    hierarchy = Hierarchy(levels, lengths, [0.0] if lengths != "auto" else None, tree)  # type: ignore[arg-type]
    counts = np.zeros(len(levels) - 1)
    for prompt in PROMPTS:
        ids = levels[0].tokenizer.encode(prompt)  # type: ignore[attr-defined]
        found, generation = speculate(hierarchy, ids, 20, (), selection)
        assert found == by_hand(decoder_of(levels[0]), ids, 20, (), selection)  # type: ignore[arg-type]
        counts += [level.num_proposed for level in generation.trace.statistics[1:]]
    return counts


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("tree", ["chain", 12, "auto"])
@pytest.mark.parametrize("levels", [["target"], ["target", "mxfp4"], ["mxfp4"]], ids=" <- ".join)
@pytest.mark.parametrize("spec", ["HERE/speculator", "HERE/speculator,num_candidates=4", "HERE/speculator-mxfp4"])
def test_the_text_is_the_targets(
    package: Path, spec: str, levels: list[str], tree: int | str, selection: Selection
) -> None:
    with LoadedPackage(package, levels, drafts=specs(package.parent, f"speculator:{spec}")) as loaded:
        lengths = "auto" if tree == "auto" else [3] * len(levels)
        proposed = check_all(loaded.levels, lengths, tree, selection)
    assert proposed[-1] > 0 or tree == "auto"


@pytest.mark.parametrize(("spec", "tree"), [("", "chain"), ("", 12), (",num_candidates=4", 12)])
def test_with_penalties_too(package: Path, spec: str, tree: int | str) -> None:
    draft = specs(package.parent, f"speculator:HERE/speculator{spec}")
    selection = Selection(penalties=Penalties(1.3, 0.5, 0.25))
    with LoadedPackage(package, ["target"], drafts=draft) as loaded:  # type: ignore[arg-type]
        assert check_all(loaded.levels, [3], tree, selection)[-1] > 0


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_a_package_has_it_as_a_level_between_models_and_look_ups(package: Path, selection: Selection) -> None:
    with LoadedPackage(package) as loaded:
        assert [level.name for level in loaded.levels] == ["target", "mxfp4", "noisy", "speculator", "prompt-lookup"]
        check_all(loaded.levels, "auto", "auto", selection)


def test_it_reads_the_state_that_chose_the_last_token(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a plain pass over the text, bit for bit, whatever stood in between."""
    seen: list[tuple[list[int], F32]] = []
    contexts: list[list[int]] = []
    propose, begin = SpeculatorDraft.propose, MlpSpeculator.begin

    def note_context(self: SpeculatorDraft, context: Sequence[int], *rest: object) -> Proposal:
        contexts.append(list(context))
        return propose(self, context, *rest)  # type: ignore[arg-type]

    def note_state(self: MlpSpeculator, states: F32) -> F32:
        seen.append((contexts[-1], states.copy()))
        return begin(self, states)

    monkeypatch.setattr(SpeculatorDraft, "propose", note_context)
    monkeypatch.setattr(MlpSpeculator, "begin", note_state)
    with LoadedPackage(package, ["target", "speculator"]) as loaded:
        check_all(loaded.levels, [3], "chain", GREEDY)
        decoder = decoder_of(loaded.levels[0])
        assert len(seen) > 20
        for context, state in seen:
            states = States(normed_last=True)
            decoder.forward(context, KVCache(decoder.config), states=states)
            assert states.values is not None
            np.testing.assert_array_equal(state, states.values[0, -2:-1])


def test_the_candidate_tree_is_the_likeliest_paths_of_all() -> None:
    """Against all 4 x 3 x 2 paths, from logits that depend on a path alone."""
    top_k, vocab_size = (4, 3, 2), 20

    def logits(path: tuple[int, ...]) -> F32:
        rng = np.random.default_rng([1, *path])
        return rng.standard_normal(vocab_size).astype(np.float32) * 2

    paths: list[tuple[int, ...]] = []

    def evaluate(tokens: Sequence[int], tree: Tree) -> F32:
        for token, parent in zip(tokens, tree.parents[tree.num_cached :], strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return np.array([logits(path) for path in paths[-len(tokens) :]])

    acceptance = GreedyAcceptance()

    def chance(path: tuple[int, ...]) -> float:
        total = 1.0
        for depth, token in enumerate(path):
            guesses = acceptance.guesses(logits(path[:depth]), depth, 0.0, top_k[depth])
            total *= dict(zip(guesses.tokens, guesses.chances, strict=True)).get(token, 0.0)
        return total

    every = sorted(product(range(vocab_size), repeat=3), key=chance, reverse=True)
    assert chance(every[23]) > 0 == chance(every[24])
    for num_candidates in (1, 2, 5, 24):
        paths.clear()
        proposal = grow_candidates(logits(()), 0, evaluate, acceptance, top_k, num_candidates)
        assert proposal.parents is not None
        found: list[tuple[int, ...]] = []
        for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), token))
        assert {path for path in found if len(path) == 3} == set(every[:num_candidates])
        assert set(found) == {path[:depth] for path in every[:num_candidates] for depth in (1, 2, 3)}


@pytest.mark.parametrize("num_heads", [4, 5, 8, 12])
def test_a_deep_tree_has_a_share_of_a_pass_at_every_depth_and_fits_into_one(num_heads: int) -> None:
    top_k, num_rows = (6, 3, 2, *(1,) * num_heads)[:num_heads], 0
    random = np.random.default_rng(num_heads)

    def evaluate(tokens: Sequence[int], tree: Tree) -> F32:
        nonlocal num_rows
        num_rows += len(tokens)
        assert len(tree.parents) == num_rows <= MOST_ROWS
        return random.standard_normal((len(tokens), 50)).astype(np.float32) * 3

    first = random.standard_normal(50).astype(np.float32)
    proposal = grow_candidates(first, 0, evaluate, GreedyAcceptance(), top_k, 36)
    widths = proposal.widths
    assert len(widths) == num_heads  # whole paths
    assert 3 * MOST_ROWS // 4 <= len(proposal.tokens) < MOST_ROWS
    assert widths[-1] >= MOST_ROWS // num_heads // 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"emb_dim": 32}, "reads states of 32 numbers, and the target's have 64; the same hidden size is required"),
        ({"vocab_size": 999}, "a vocabulary of 999 for a target with 1024 tokens in 1024 rows; the target's own"),
        ({"vocab_size": 1025}, "a vocabulary of 1025 for a target with 1024 tokens in 1024 rows; the target's own"),
    ],
)
def test_a_speculator_of_another_target_is_refused(
    package: Path, changes: dict[str, int], message: str, tmp_path: Path
) -> None:
    other = write_speculator(tmp_path / "other", CONFIG | changes)
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, "speculator:HERE/other"))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=message):
        quantize(write_noisy(tmp_path / "source", 0.0), tmp_path / "p", drafts=(f"speculator:{other}",))
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("tree", ["chain", 12])
@pytest.mark.parametrize("ids", [[5], [5, 1030], [1030, 5, 6]])
def test_texts_that_it_cannot_read(ids: list[int], tree: int | str, tmp_path: Path) -> None:
    """One token, which no state has chosen; padding among the target's tokens that it has no row for."""
    write_speculator(tmp_path / "speculator", CONFIG)
    quantize(write_padded(tmp_path / "source"), tmp_path / "package")
    drafts = specs(tmp_path, "speculator:HERE/speculator")
    with LoadedPackage(tmp_path / "package", ["target"], drafts=drafts) as loaded:  # type: ignore[arg-type]
        found, _ = speculate(Hierarchy(loaded.levels, [3], [0.0], tree), ids, 4)
        assert found == by_hand(decoder_of(loaded.levels[0]), ids, 4)


def test_a_token_without_a_row_silences_it(tmp_path: Path) -> None:
    """A target may have rows for tokens that do not exist, and may say one."""
    quantize(write_padded(tmp_path / "padded"), tmp_path / "package")
    write_speculator(tmp_path / "speculator", CONFIG)
    drafts = specs(tmp_path, "speculator:HERE/speculator")
    with LoadedPackage(tmp_path / "package", ["target"], drafts=drafts) as loaded:  # type: ignore[arg-type]
        hierarchy, said = Hierarchy(loaded.levels, [3], [0.0]), 0
        for prompt in PROMPTS:
            ids = loaded.tokenizer.encode(prompt)  # type: ignore[union-attr]
            found, generation = speculate(hierarchy, ids, 40)
            assert found == by_hand(decoder_of(loaded.levels[0]), ids, 40)
            said += max(generation.token_ids) >= VOCAB_SIZE
        assert said


def test_orders_that_make_no_sense_are_refused(package: Path, tmp_path: Path) -> None:
    folder = package.parent
    with pytest.raises(MxconvError, match="speculator: reads the target's states, with checkpoint below it"):
        drafts = (f"speculator:{folder}/speculator", f"checkpoint:{folder}/noisy")
        quantize(folder / "source", tmp_path / "p", drafts=drafts)
    message = r"level speculator is no model .* and noisy stands below it"
    with LoadedPackage(package, ["target", "speculator", "noisy"]) as loaded, pytest.raises(ModelError, match=message):
        Hierarchy(loaded.levels)
