"""EAGLE-3 heads against the package that defines their format and against torch, and as drafts."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_safetensors
from head_files import TorchEagle3, eagle3_config, eagle3_tensors, open_eagle3, write_eagle3, write_tensors
from packages import quantize
from reader_levels import HIDDEN_SIZE, NUM_LAYERS, PLACES, SELECTIONS, VOCAB_SIZE, check_all, check_place, specs
from tiny_levels import by_hand, decoder_of
from trained_levels import EMBEDDING, PROMPTS, copy_trained, write_noisy

from mxconv.arrays import F32
from mxconv.drafts.eagle3 import Eagle3, Eagle3Config
from mxconv.drafts.feature_draft import FeatureDraft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.sequence_rows import Reads, States
from mxconv.engine.tree import GrownTree, Tree
from mxconv.errors import ModelError
from mxconv.kernels.engine import native_names
from mxconv.kernels.rowwise import rms_norm
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.pace import FixedPace
from mxconv.speculation.selection import GREEDY
from mxconv.speculation.session import Session

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


@pytest.mark.parametrize(
    ("changes", "layer", "known"),
    [
        ({}, {}, None),
        ({"norm_before_residual": True}, {}, KNOWN),
        ({"target_hidden_size": 24, "norm_output": True}, {"num_key_value_heads": 4, "attention_bias": True}, KNOWN),
        ({"eagle_aux_hidden_state_layer_ids": [4, 0], "fc_norm": True}, {"num_hidden_layers": 2, "head_dim": 12}, None),
        (
            {"norm_before_fc": True, "norm_before_residual": True},
            {"model_type": "qwen3", "num_key_value_heads": 1, "rope_theta": 1e6},
            None,
        ),
    ],
    ids=["plain", "normed residual", "wide target", "two layers", "qwen3"],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_tree_of_continuations_is_that_of_torch_path_by_path(
    changes: dict[str, Any], layer: dict[str, Any], known: list[int] | None, kernel: str, tmp_path: Path
) -> None:
    """The text in two parts, and a tree in two frontiers, each row with the feature of its parent."""
    sizes = {"draft_vocab_size": len(known)} if known else {}
    config = eagle3_config(SMALL_VOCAB, SMALL_SIZE, changes | sizes, layer)
    folder = write_eagle3(tmp_path / "head", config, known=known)
    head, torch_head = open_eagle3(folder, kernel), TorchEagle3(folder)
    rng, ids = np.random.default_rng(1), head.config.layers_of(8)
    text = rng.integers(0, SMALL_VOCAB, 7).tolist()
    states = rng.standard_normal((len(ids), 6, head.sizes.hidden_size)).astype(np.float32)  # in the order of the ids
    read = states[[ids.index(layer) for layer in head.reads.layers]]

    cache = head.new_cache()
    head.advance(head.fuse(read[:, :4]), text[1:5], cache)
    features = head.advance(head.fuse(read[:, 4:]), text[5:], cache)[-1:]
    parents, tokens = [-1, -1, 0, 0, 1, 2], [5, 6, 7, 8, 9, 10]
    for start, stop in ((0, 2), (2, 5), (5, 6)):
        tree = Tree(parents[:stop], start)
        above = features[[parent + 1 for parent in parents[start:stop]]]
        features = np.concatenate([features, head.advance(above, tokens[start:stop], cache, tree)])
    logits = head.logits(features)
    whole = Tree(parents)
    for row in range(-1, 6):
        drafted = [tokens[above] for above in whole.path(row)]
        expected = torch_head.logits(states, text, drafted)[-1]
        np.testing.assert_allclose(logits[row + 1][known or slice(None)], expected, rtol=1e-5, atol=1e-5)
        assert known is None or np.isneginf(np.delete(logits[row + 1], known)).all()


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


@pytest.mark.parametrize(
    ("head", "place"), [("head", "below the target"), ("head", "below a copy, in trees"), ("head-mxfp4", "in trees")]
)
def test_the_text_is_the_targets(package: Path, head: str, place: str) -> None:
    levels, tree = PLACES[place]
    with LoadedPackage(package, levels, drafts=specs(package.parent, f"eagle3:HERE/{head}")) as loaded:
        for selection in SELECTIONS.values():
            _, accepted = check_place(loaded.levels, tree, selection)
            assert tree == "auto" or head != "head" or accepted > 0


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


def test_numbers_of_states_tell_who_wrote_them(package: Path) -> None:
    with LoadedPackage(package, ["target", "mxfp4"]) as loaded:
        target, draft = (decoder_of(level) for level in loaded.levels)
        session = Session(KVCache(target.config))
        session.states.want(reads := Reads((2,)))
        session.feed(target, [1, 2, 3], 1)
        first = session.states.numbers(3)
        assert len(set(first.tolist())) == 3
        with session.borrow([1, 2, 4, 5]):
            session.feed(draft, [4], 1)
            inside = session.states.numbers(3)
            assert inside[:2].tolist() == first[:2].tolist() and inside[2] not in first
        np.testing.assert_array_equal(session.states.numbers(3), first)
        session.feed(target, [6, 7, 8], 3, Tree([-1, -1, 1]))
        session.keep(3, [1, 2])
        kept = session.states.numbers(5)
        assert kept[:3].tolist() == first.tolist() and kept[4] == kept[3] + 1 == inside[2] + 3
        assert session.states.read(reads, 0, 5).shape == (1, 5, HIDDEN_SIZE)


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
