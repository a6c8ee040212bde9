"""EAGLE-3 heads in hierarchies: what they have read, their trees, packages, and the target's own tokens as ever."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_safetensors
from eagle3_heads import eagle3_config, eagle3_tensors, write_eagle3, write_tensors
from packages import quantize
from reader_levels import HIDDEN_SIZE, NUM_LAYERS, PLACES, SELECTIONS, VOCAB_SIZE, check_all, check_place, specs
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import EMBEDDING, PROMPTS, copy_trained, write_noisy

from mxconv.arrays import F32
from mxconv.drafts.eagle3 import Eagle3
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.readers.feature_draft import FeatureDraft
from mxconv.engine.cache import KVCache
from mxconv.engine.states import Reads, States
from mxconv.engine.tree import GrownTree, Tree
from mxconv.errors import ModelError, MxconvError
from mxconv.kernels.rowwise import rms_norm
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.pace import FixedPace
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.speculation.session import Session
from mxconv.text.distribution import Sampling

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


@pytest.mark.parametrize(("head", "place"), [*(("head", place) for place in PLACES), ("head-mxfp4", "in trees")])
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


def test_the_text_is_drawn_from_the_targets_distribution(package: Path) -> None:
    """Rejection: of the same seed the same text, and a proposal of a token that the target cannot say never stands."""
    selection = Selection(Sampling(0.7, top_k=5), "rejection", 3)
    with LoadedPackage(package, ["target"], drafts=specs(package.parent, "eagle3:HERE/head")) as loaded:
        decoder = decoder_of(loaded.levels[0])
        for tree in ("chain", 12):
            hierarchy = Hierarchy(loaded.levels, [3], [0.0], tree)
            ids = loaded.tokenizer.encode(PROMPTS[0])
            texts = [speculate(hierarchy, ids, 24, (), selection)[0].token_ids for _ in range(2)]
            assert texts[0] == texts[1]
            text = [*ids, *texts[0]]
            logits = decoder.forward(text, KVCache(decoder.config))
            for place in range(len(ids), len(text)):
                assert (logits[place - 1] > logits[place - 1][text[place]]).sum() < 5


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


def refused(package: Path, head: Path, message: str, folder: Path) -> None:
    """Both when decoding and when converting, of which nothing is left."""
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, ["target"], drafts=specs(folder, f"eagle3:{head}"))
    with pytest.raises(ModelError, match=message):
        quantize(package.parent / "source", folder / "p", drafts=(f"eagle3:{head}",))
    assert not (folder / "p").exists()


def test_a_head_of_another_target_is_refused(package: Path, tmp_path: Path) -> None:
    changes = {"draft_vocab_size": 100, "eagle_aux_hidden_state_layer_ids": [1, 2, 4]}
    head = write_eagle3(tmp_path / "other", CONFIG | changes, known=range(100))
    message = "config.json: reads the states of layers 1, 2, 4 .*; different ones from 0 to 3, the target's layers, are"
    refused(package, head, message, tmp_path)


def test_what_is_no_head_is_refused(package: Path, tmp_path: Path) -> None:
    message = "speculators_model_type is missing; mxconv supports eagle3"
    refused(package, package.parent / "noisy", message, tmp_path)
    full = {name: array.astype(np.float32) for name, array in eagle3_tensors(CONFIG).items()}
    head = write_tensors(tmp_path / "full", CONFIG, full)
    with pytest.raises(MxconvError, match=r"--draft eagle3:.*: holds F32; BF16 or F16 safetensors are required"):
        quantize(package.parent / "source", tmp_path / "p", drafts=(f"eagle3:{head}",))


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
