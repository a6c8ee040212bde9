"""EAGLE-3 heads against the package that defines their format, and as drafts."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_safetensors
from head_files import eagle3_config, eagle3_tensors, open_eagle3, write_eagle3, write_tensors
from packages import quantize
from reader_levels import HIDDEN_SIZE, NUM_LAYERS, VOCAB_SIZE, check_all, specs
from tiny_levels import by_hand, decoder_of
from trained_levels import EMBEDDING, PROMPTS, copy_trained, write_noisy

from mxconv.arrays import F32
from mxconv.drafts.eagle3 import Eagle3, Eagle3Config
from mxconv.drafts.feature_draft import FeatureDraft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.matrices import Matrices
from mxconv.engine.sequence_rows import States
from mxconv.engine.tree import GrownTree, Tree, TreeLimits
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.kernels.rowwise import rms_norm
from mxconv.speculation.acceptance import GreedyAcceptance
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.pace import FixedPace
from mxconv.speculation.proposal import Proposal, Sharpness
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import LevelStatistics
from mxconv.text.distribution import Penalties, Sampling

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "eagle3"
KERNELS = ["numpy", *native_names()[:1]]
SMALL_SIZE, SMALL_VOCAB = 32, 60
KNOWN = [3, 4, 8, 9, 15, 17, 22, 30, 31, 44, 45, 58]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", sorted(path.name for path in VECTORS.iterdir()))
def test_heads_compute_what_the_speculators_package_does(case: str, kernel: str) -> None:
    """Behind every prefix of a text, and some tokens further."""
    head = open_eagle3(VECTORS / case, kernel)
    vectors = safetensors.numpy.load_file(VECTORS / case / "expected.safetensors")
    ids = head.config.layers_of(8)
    states, tokens = vectors["states"][[ids.index(layer) for layer in head.reads.layers]], vectors["tokens"].tolist()
    num_compared = 0
    for row in range(len(tokens) - 1):
        cache = head.new_cache()
        feature = head.advance(head.fuse(states[:, : row + 1]), tokens[1 : row + 2], cache)[-1:]
        for step in range(min(len(vectors["hidden"]), len(tokens) - 1 - row)):
            if step:
                feature = head.advance(feature, [tokens[row + 1 + step]], cache)
            hidden = vectors["hidden"][step, row]
            if head.config.norm_output:
                hidden = rms_norm(hidden, head.paired.norm, head.config.layer.rms_norm_eps)
            np.testing.assert_allclose(feature[0], hidden, rtol=1e-5, atol=1e-5)
            logits = head.logits(feature)[0]
            np.testing.assert_allclose(logits[head.tokens], vectors["logits"][step, row], rtol=1e-5, atol=1e-5)
            assert np.isneginf(np.delete(logits, head.tokens)).all()
            num_compared += 1
    assert num_compared == 9 + 8 + 7


def test_the_vectors_have_every_switch_and_both_vocabularies() -> None:
    configs = [Eagle3Config.from_file(path / "config.json") for path in VECTORS.iterdir()]
    for switch in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        assert {getattr(config, switch) for config in configs} == {False, True}
    assert {config.draft_vocab_size == config.vocab_size for config in configs} == {False, True}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", [*sorted(path.name for path in VECTORS.iterdir()), "a wide target"])
def test_bits_of_a_row_are_those_of_its_path(case: str, kernel: str, tmp_path: Path) -> None:
    """The text in two parts, and a tree in three frontiers, each row with the feature of its parent."""
    folder = VECTORS / case
    if not folder.exists():
        config = eagle3_config(SMALL_VOCAB, SMALL_SIZE, {"target_hidden_size": 24})
        folder = write_eagle3(tmp_path / "head", config)
    head, rng = open_eagle3(folder, kernel), np.random.default_rng(1)
    text = rng.integers(0, SMALL_VOCAB, 7).tolist()
    read = rng.standard_normal((len(head.reads.layers), 6, head.sizes.hidden_size)).astype(np.float32)
    cache = head.new_cache()
    head.advance(head.fuse(read[:, :4]), text[1:5], cache)
    features = head.advance(head.fuse(read[:, 4:]), text[5:], cache)[-1:]
    parents, tokens = [-1, -1, 0, 0, 1, 2], [5, 6, 7, 8, 9, 10]
    for start, stop in ((0, 2), (2, 5), (5, 6)):
        above = features[[parent + 1 for parent in parents[start:stop]]]
        grown = head.advance(above, tokens[start:stop], cache, Tree(parents[:stop], start))
        features = np.concatenate([features, grown])
    for row in range(-1, 6):
        alone = head.new_cache()
        feature = head.advance(head.fuse(read), text[1:], alone)[-1:]
        for node in Tree(parents).path(row):
            feature = head.advance(feature, [tokens[node]], alone)
        np.testing.assert_array_equal(features[row + 1 : row + 2], feature)


def test_layers_that_a_target_has() -> None:
    config = Eagle3Config.from_file(VECTORS / "norm-before-fc" / "config.json")
    assert config.layers_of(36) == (2, 18, 33)
    assert Eagle3Config.from_file(VECTORS / "qwen3" / "config.json").layers_of(3) == (3, 1)


SOME_TOKENS = eagle3_config(SMALL_VOCAB, SMALL_SIZE, {"draft_vocab_size": len(KNOWN)})


def some_tokens() -> dict[str, np.ndarray]:
    """The tensors of a head that knows some tokens."""
    tensors = eagle3_tensors(SOME_TOKENS, KNOWN)
    return {name: array.astype(np.float16) if array.dtype.kind == "f" else array for name, array in tensors.items()}


def test_a_head_may_be_without_t2d_and_have_short_integers(tmp_path: Path) -> None:
    tensors = some_tokens()
    del tensors["t2d"]
    tensors["d2t"] = tensors["d2t"].astype(np.int32)
    assert open_eagle3(write_tensors(tmp_path / "head", SOME_TOKENS, tensors)).tokens.tolist() == KNOWN


CONFIG = eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, {"eagle_aux_hidden_state_layer_ids": [0, 2, 3]})
NUM_TOKENS = 20


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that is right now and then, a 4-bit copy of it, and a package with it."""
    folder = tmp_path_factory.mktemp("heads")
    quantize(write_noisy(folder / "source", 0.0), folder / "plain")
    quantize(write_fitted(folder / "head", folder / "plain"), folder / "head-mxfp4", lm_head="quantize")
    drafts = (f"checkpoint:{write_noisy(folder / 'noisy')}", f"eagle3:{folder / 'head'}", "prompt-lookup")
    quantize(folder / "source", folder / "package", drafts=drafts, lm_head="quantize")
    return folder / "package"


def write_fitted(folder: Path, package: Path) -> Path:
    """A head that knows the tokens of the target's texts after the prompts, and goes by what the last layer gives.

    Its output head is the least squares fit of the token after the next; the rest of it is random and weak.
    """
    rows, tokens = [], []
    with LoadedPackage(package, ["target"]) as loaded:
        decoder = decoder_of(loaded.levels[0])
        for prompt in PROMPTS:
            ids = loaded.tokenizer.encode(prompt)
            text = [*ids, *by_hand(decoder, ids, NUM_TOKENS).token_ids]
            states = States((NUM_LAYERS,))
            decoder.forward(text, KVCache(decoder.config), states=states)
            assert states.values is not None
            rows.append(states.values[0, len(ids) - 2 : -2])
            tokens += text[len(ids) :]
    known, places = np.unique(tokens, return_inverse=True)
    features = rms_norm(np.concatenate(rows), np.ones(HIDDEN_SIZE, np.float32), 1e-5)
    fitted, *_ = np.linalg.lstsq(features, np.eye(len(known))[places] * 20, rcond=1e-3)
    config = CONFIG | {"draft_vocab_size": len(known)}
    tensors = eagle3_tensors(config, known.tolist())
    for name in ("layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight", "fc.weight"):
        tensors[name] *= np.float32(0.02)
    tensors["fc.weight"][:, -HIDDEN_SIZE:] += np.eye(HIDDEN_SIZE, dtype=np.float32)
    tensors |= {"norm.weight": np.ones(HIDDEN_SIZE), "lm_head.weight": fitted.T}
    halves = {name: array if name in ("d2t", "t2d") else array.astype(np.float16) for name, array in tensors.items()}
    return write_tensors(folder, config, halves)


def test_a_draft_whose_head_rests_grows_at_once_and_the_text_is_the_targets(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows in the target's cache have no states for the head, and are gone when the head reads again."""
    grown: list[bool] = []
    grow = Session.grow

    def noted(self: Session, *arguments: Any) -> GrownTree | None:
        found = grow(self, *arguments)
        grown.append(found is not None and self.states.reads.num_states > 0)
        return found

    monkeypatch.setattr(Session, "grow", noted)
    rests = cycle([True, True, False])
    monkeypatch.setattr(FixedPace, "skip", lambda self, num_rounds, load=None: num_rounds > 1 and next(rests))
    with LoadedPackage(package, ["target", "mxfp4"], drafts=specs(package.parent, "eagle3:HERE/head")) as loaded:
        for tree in ("chain", 8):
            check_all(loaded.levels, [3, 3], tree, GREEDY)
    assert sum(grown) > 10


@pytest.mark.parametrize(
    ("levels", "tree"), [(["target"], "chain"), (["target", "mxfp4"], 12), (["target", "noisy"], 12)]
)
def test_it_has_read_what_stands_in_the_end(
    package: Path, levels: list[str], tree: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits of a head without a past, given the states of the moment and the text: bit for bit.

    Below the 4-bit level states of a token come from one model and later from the other; below a model with a cache of
    its own a state may stand while the token after it does not.
    """
    num_rows = num_seen = num_proposals = 0
    begin, advance = FeatureDraft.begin, Eagle3.advance

    def counted(self: Eagle3, features: F32, tokens: Sequence[int], cache: KVCache, tree: Tree | None = None) -> F32:
        nonlocal num_rows
        num_rows += len(tokens) if tree is None else 0
        return advance(self, features, tokens, cache, tree)

    def compared(self: FeatureDraft, context: Sequence[int]) -> F32:
        nonlocal num_seen, num_proposals
        first = begin(self, context)
        head, session = self._head, self.inputs.session
        features = head.fuse(session.states.read(head.reads, 0, len(context) - 1))
        expected = head.logits(advance(head, features, context[1:], head.new_cache())[-1:])
        np.testing.assert_array_equal(first, expected)
        num_seen += len(context) - 1
        num_proposals += 1
        return first

    monkeypatch.setattr(Eagle3, "advance", counted)
    monkeypatch.setattr(FeatureDraft, "begin", compared)
    with LoadedPackage(package, levels, "numpy", drafts=specs(package.parent, "eagle3:HERE/head")) as loaded:
        check_all(loaded.levels, [3] * len(levels), tree, GREEDY)
    assert num_proposals > 15
    assert num_rows < num_seen / 2  # what stood before is not read again


def test_a_head_may_leave_the_embedding_with_the_target(package: Path, tmp_path: Path) -> None:
    """It then looks up the target's own rows."""
    tensors = {name: array.astype(ml_dtypes.bfloat16) for name, array in eagle3_tensors(CONFIG).items()}
    whole = tensors | {"embed_tokens.weight": copy_trained(tmp_path / "copy")[EMBEDDING]}
    del tensors["embed_tokens.weight"]
    write_tensors(tmp_path / "without", CONFIG, tensors)
    write_tensors(tmp_path / "with", CONFIG, whole)
    drafts = specs(tmp_path, "eagle3:HERE/without", "eagle3:HERE/with")
    with LoadedPackage(package, ["target"], drafts=drafts) as loaded:
        without, complete = (level.reader for level in loaded.levels[1:])
        assert isinstance(without, Eagle3) and isinstance(complete, Eagle3)
        ids = np.arange(0, VOCAB_SIZE, 37)
        np.testing.assert_array_equal(without.embedding.rows(ids), complete.embedding.rows(ids))
        check_all(loaded.levels[:2], [3], "chain", GREEDY)


def test_a_pass_reads_the_matrices_but_not_the_embedding(package: Path) -> None:
    drafts = specs(package.parent, "eagle3:HERE/head", "eagle3:HERE/head-mxfp4")
    tensors = safetensors.numpy.load_file(package.parent / "head" / "model.safetensors")
    matrices = [array for name, array in tensors.items() if array.ndim == 2 and name != "embed_tokens.weight"]
    with LoadedPackage(package, ["target"], drafts=drafts) as loaded:
        exact, four_bits = (loaded.bytes_per_pass(level) for level in loaded.levels[1:])
    assert exact == sum(2 * array.size for array in matrices)
    assert sum(array.size for array in matrices) / 2 < four_bits < exact * 0.4


def test_a_model_with_too_few_layers_is_not_read(package: Path, tmp_path: Path) -> None:
    """A draft between them as wide as the target, but less deep, cannot be asked for states that it does not have."""
    tensors = {n: a for n, a in copy_trained(tmp_path / "short").items() if ".layers.2." not in n}
    write_safetensors(tmp_path / "short" / "model.safetensors", tensors)
    path = tmp_path / "short" / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 2'))
    drafts = specs(tmp_path, "checkpoint:HERE/short", f"eagle3:{package.parent}/head")
    with LoadedPackage(package, ["target"], drafts=drafts) as loaded:
        with pytest.raises(ModelError, match=r"level head reads hidden states of 64 numbers.*, and short above it has"):
            Hierarchy(loaded.levels, [3, 3])
        check_all(loaded.levels, "auto", "auto", GREEDY)


# ---- trees that a head grows in one native call ----

needs_native = pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
MANY = [*range(3, 40), 44, 47, 51]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "plain": ({}, {}, "BF16"),
    "adds to the normed feature": ({"norm_before_residual": True}, {}, "F16"),
    "feeds back the normed feature": ({"norm_output": True, "fc_norm": True}, {}, "BF16"),
    "two layers": ({"norm_before_fc": True}, {"num_hidden_layers": 2, "attention_bias": True}, "BF16"),
    "norms of heads": ({}, {"model_type": "qwen3", "head_dim": 16}, "F16"),
}


def draft_of(folder: Path, context: list[int], at_once: bool) -> tuple[FeatureDraft, Session]:
    head, make = open_eagle3(folder, native_names()[-1]), Matrices(choose_engine(native_names()[-1], num_threads=2))
    head.grower = make.pair_grower(head.paired) if at_once else None
    session = Session(head.new_cache())
    inputs = DraftInputs(session, GreedyAcceptance(), LevelStatistics("head"), 50, 0.0, Sharpness())
    draft = FeatureDraft(head, inputs)
    read(session, context, 0)
    return draft, session


def read(session: Session, context: list[int], start: int) -> None:
    """The states of all tokens but the last, as a target would leave them."""
    states = States(session.states.reads.layers)
    rows = np.random.default_rng(5).standard_normal((states.room(8, 0, 0).values.shape[0], 64, SMALL_SIZE))
    states.values = rows[:, start : len(context) - 1].astype(np.float32)
    session.states.write(start, states)
    session.tokens = context[:-1]


@needs_native
@pytest.mark.parametrize("case", CASES)
def test_chains_and_trees_are_the_same_either_way(tmp_path: Path, case: str) -> None:
    changes, layer, dtype = CASES[case]
    config = eagle3_config(SMALL_VOCAB, SMALL_SIZE, {"draft_vocab_size": len(MANY)} | changes, layer)
    write_eagle3(tmp_path, config, dtype, MANY, seed=3)
    context = np.random.default_rng(1).integers(0, SMALL_VOCAB, 40).tolist()
    made: list[list[Proposal]] = []
    for at_once in (True, False):
        draft, session = draft_of(tmp_path, context[:9], at_once)
        assert (draft._head.grower is not None) == at_once
        proposals = []
        for end in (9, 10, 14, 24):  # what was accepted since is read first
            if end > 9:
                read(session, context[:end], len(session.tokens))
            for floor in (None, 0.0, 0.05):
                proposals.append(draft.propose(context[:end], TreeLimits.chain(5, floor)))
                proposals.append(
                    draft.propose(context[:end], TreeLimits(4, [0.0, 0.0, *[0.002] * 14], least_sum=floor))
                )
        made.append(proposals)
        assert draft.statistics.num_forwards > 40
        assert draft._cache.length >= 23
    for found, expected in zip(*made, strict=True):
        assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
        np.testing.assert_allclose(found.probabilities, expected.probabilities, rtol=1e-4)
        assert set(found.tokens) <= {token for token in MANY if token < 50}
    assert max(len(proposal.tokens) for proposal in made[0]) == 16


@needs_native
@pytest.mark.parametrize(
    "selection",
    [
        Selection(Sampling(0.8, top_p=0.9), seed=2**63),
        Selection(penalties=Penalties(1.3, 0.3, 0.2, ((44, 2.0), (45, 9.0), (3, -1.0)))),
        Selection(Sampling(1.0), seed=4, penalties=Penalties(0.7)),
        Selection(Sampling(1.0), "rejection"),
    ],
)
def test_draws_and_penalties_are_the_same_either_way_and_rejection_goes_pass_by_pass(
    tmp_path: Path, selection: Selection
) -> None:
    config = eagle3_config(SMALL_VOCAB, SMALL_SIZE, {"draft_vocab_size": len(MANY)})
    write_eagle3(tmp_path, config, known=MANY, seed=3)
    limits, context, made = TreeLimits(4, [0.0] * 9, -1.0, 0.0, 1.0), [1, 2, 3, 41, 44, 44, 45, 47, 50], []
    for at_once in (True, False):
        draft, _ = draft_of(tmp_path, context, at_once)
        draft.inputs = replace(draft.inputs, acceptance=selection.acceptance(4))
        draft.num_wanted = 4
        grows_at_once = at_once and selection.accept == "coupled"
        by_rule = draft.inputs.acceptance.at_once(limits, context)
        assert (by_rule is not None and draft.grow_at_once(context, by_rule) is not None) == grows_at_once
        made.append(draft.propose(context, TreeLimits(4, [0.0] * 9, least_sum=0.0)))
    if selection.accept == "coupled":
        assert (made[0].tokens, made[0].parents) == (made[1].tokens, made[1].parents)
        np.testing.assert_allclose(made[0].probabilities, made[1].probabilities, rtol=1e-3)


@needs_native
@pytest.mark.parametrize("known", [[*range(3, 40), 51, 47], None])
def test_a_head_whose_tokens_are_not_in_order_grows_pass_by_pass(tmp_path: Path, known: list[int] | None) -> None:
    size = SMALL_VOCAB if known is None else len(known)
    write_eagle3(tmp_path, eagle3_config(SMALL_VOCAB, SMALL_SIZE, {"draft_vocab_size": size}), known=known)
    make = Matrices(choose_engine(native_names()[-1]))
    assert (make.pair_grower(open_eagle3(tmp_path, native_names()[-1]).paired) is None) == (known is not None)
    assert Matrices().pair_grower(open_eagle3(tmp_path).paired) is None
