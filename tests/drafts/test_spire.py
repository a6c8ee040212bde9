"""The SPIRe draft against torch that recomputes everything: chains, trees, any length of text; and as a draft."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from checkpoints import TINY_LLAMA, llama_tensors
from packages import quantize
from reader_levels import check_all, open_reader, specs
from spires import spire_config, spire_tensors, tensors_by_type, torch_logits, write_spire
from trained_levels import TRAINED, write_noisy

from mxconv.cost.package_levels import package_levels
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.pass_cost import checkpoint_bytes
from mxconv.drafts.spire import SpireCache, SpireConfig
from mxconv.engine.sequence_rows import Reads
from mxconv.engine.tree import Tree
from mxconv.kernels.engine import native_names
from mxconv.package.manifest import read_manifest
from mxconv.package.package import Package
from mxconv.speculation.selection import GREEDY

TARGET: dict[str, Any] = TINY_LLAMA | {"num_hidden_layers": 4, "max_position_embeddings": 512}
TENSORS = llama_tensors(TARGET, "F32")
CONFIG = spire_config(TARGET, (1, 3))
KERNELS = ["numpy", *native_names()[:1]]
WINDOW = CONFIG["window"]


def write(folder: Path, **changes: Any) -> Path:
    config = CONFIG | changes
    return write_spire(folder / "spire", config, spire_tensors(TENSORS, config))


def some_states(num_tokens: int, seed: int = 1) -> np.ndarray:
    """Of the two layers, larger by the layer, as those of a residual stream are."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((2, num_tokens, TARGET["hidden_size"])) * [[[1]], [[3]]]).astype(np.float32)


def begin(cache: SpireCache, states: np.ndarray) -> None:
    cache.begin(states.shape[1], lambda run: states[:, run.start : run.stop])


def chain_logits(cache: SpireCache, states: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    begin(cache, states)
    found = [cache.evaluate(tokens[:1])]
    found += [cache.evaluate([token], Tree(range(-1, row), row)) for row, token in enumerate(tokens[1:])]
    return np.concatenate(found)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))


VECTORS = json.loads((Path(__file__).parents[2] / "formats" / "vectors" / "spire.json").read_text())["cases"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_golden_vectors(case: dict[str, Any], kernel: str, tmp_path: Path) -> None:
    def values(rows: list[str], dtype: type, digits: int) -> np.ndarray:
        numbers = [[int(row[i : i + digits], 16) for i in range(0, len(row), digits)] for row in rows]
        return np.array(numbers, f"<u{digits // 2}").view(dtype)

    tensors = {}
    for name, tensor in case["tensors"].items():
        array = values(tensor["f16"], np.float16, 4)
        tensors[name] = array[0] if name.endswith("norm.weight") else array
    spire = open_reader("spire", write_spire(tmp_path / "spire", case["config"], tensors), kernel)
    past = case["past"]
    states = np.zeros((2, 0, 4), np.float32)
    if past:
        states = values(case["states"], np.float32, 8).reshape(2, len(past), 4)
    if case["config"]["past_memory"] == "embeddings":
        states = spire.embedded_memory(past)
    expected = np.array(case["logits"])
    assert_close(chain_logits(SpireCache(spire), states, case["tokens"]), expected)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("sink", "window", "num_past"),
    [
        *((1, WINDOW, num_past) for num_past in (0, 1, WINDOW - 1, WINDOW, 200)),
        *((0, 1, 1), (1, 1, 9), (0, 3, 0), (3, 2, 9), (2, 7, 1), (4, 5, 0), (4, 5, 9)),
    ],
)
def test_chains_are_those_of_torch(sink: int, window: int, num_past: int, kernel: str, tmp_path: Path) -> None:
    """What leaves a window is seen no more, the draft's own tokens among it, and sinks that it drafted itself are."""
    folder, states, tokens = write(tmp_path, sink=sink, window=window), some_states(num_past), [5, 17, 17, 80, 3, 9]
    found = chain_logits(SpireCache(open_reader("spire", folder, kernel)), states, tokens)
    assert_close(found, torch_logits(folder, states, tokens))


FRONTIERS = [[-1, -1, -1], [0, 0, 1, 2], [3, 4, 4], [7, 9]]  # parents of the rows of each pass


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("sink", "window", "num_past"), [(1, 64, 4), (1, 3, 0), (1, 3, 100)])
def test_a_row_of_a_tree_sees_its_own_path(num_past: int, sink: int, window: int, kernel: str, tmp_path: Path) -> None:
    folder, states = write(tmp_path, sink=sink, window=window), some_states(num_past)
    cache = SpireCache(open_reader("spire", folder, kernel))
    begin(cache, states)
    cache.evaluate([5])
    rng, parents, tokens = np.random.default_rng(3), list[int](), list[int]()
    for frontier in FRONTIERS:
        num_cached = len(parents)
        parents += frontier
        tokens += rng.integers(0, TARGET["vocab_size"], len(frontier)).tolist()
        tree = Tree(parents[:], num_cached)
        for row, logits in enumerate(cache.evaluate(tokens[num_cached:], tree), num_cached):
            path = [5, *(tokens[node] for node in tree.path(row))]
            assert_close(logits, torch_logits(folder, states, path)[-1])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "changes",
    [
        {"past_memory": "embeddings"},
        {"layer_type": "qwen2"},
        {"layer_type": "qwen3", "head_dim": 16},
        {"layer_type": "mistral", "sliding_window": 2},
        {"tie_word_embeddings": True},
        {"target_layers": [3, 3]},
        {"target_layers": [3, 0]},
    ],
    ids=str,
)
def test_layers_of_every_kind(changes: dict[str, Any], kernel: str, tmp_path: Path) -> None:
    config = CONFIG | changes
    folder = write_spire(tmp_path / "spire", config, tensors_by_type(TENSORS, config))
    spire, tokens = open_reader("spire", folder, kernel), [5, 17, 80]
    text = np.random.default_rng(4).integers(0, 96, 90).tolist()
    of_target = some_states(90)  # of layers in ascending order, each once
    layers = spire.reads.layers
    states = of_target[[layers.index(layer) for layer in config["target_layers"]]] if layers else of_target
    cache = SpireCache(spire)

    def memory_of(run: range) -> np.ndarray:
        if spire.config.past_memory == "embeddings":
            return spire.embedded_memory(text[run.start : run.stop])
        return spire.past_memory(of_target[: len(layers), run.start : run.stop])

    cache.begin(90, memory_of)
    found = [
        cache.evaluate(tokens[:1]),
        cache.evaluate(tokens[1:2], Tree([-1])),
        cache.evaluate([80], Tree([-1, 0], 1)),
    ]
    assert_close(np.concatenate(found), torch_logits(folder, states, tokens, text))


def test_what_is_kept_of_the_past_has_the_bits_of_a_fresh_cache(tmp_path: Path) -> None:
    """After another text, a longer and a shorter one, and other states of the same tokens."""
    spire, tokens = open_reader("spire", write(tmp_path)), [5, 17, 80]
    states = some_states(300)
    other = np.concatenate([states[:, :145], some_states(155, 2)], axis=1)
    changed = other[:, :151].copy()
    changed[1, 140, 7] += 1
    steps = [states[:, :150], states[:, :153], states[:, :153], other[:, :150], other[:, :151], changed, other]
    cache = SpireCache(spire)
    for at_hand in (*steps, some_states(20, 3), states[:, :0], states[:, :150]):
        begin(cache, at_hand)
        found = [cache.evaluate(tokens[:1]), cache.evaluate([17], Tree([-1])), cache.evaluate([80], Tree([-1, 0], 1))]
        np.testing.assert_array_equal(np.concatenate(found), chain_logits(SpireCache(spire), at_hand, tokens))


def test_what_a_config_may_leave_out(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    left_out = ("layer_type", "sink", "window")
    path.write_text(json.dumps({key: value for key, value in CONFIG.items() if key not in left_out}))
    config = SpireConfig.from_file(path)
    assert (config.sink, config.window, config.past_memory) == (1, 64, "target")
    assert (config.num_layers, config.target_layers, config.reads) == (2, (1, 3), Reads((1, 3)))
    assert config.decoder.model_type == "llama" and config.decoder.hidden_size == 64


TRAINED_TARGET = json.loads((TRAINED / "config.json").read_text())  # three layers, 64 numbers a state, tied embeddings
TRAINED_TENSORS = safetensors.numpy.load_file(TRAINED / "model.safetensors")
TRAINED_CONFIG = spire_config(TRAINED_TARGET, (1, 2), window=16)  # less than a prompt and what follows


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft copied with a little noise, 4-bit copies of it, and a package that has it as a level."""
    folder = tmp_path_factory.mktemp("spires")
    tensors = spire_tensors(TRAINED_TENSORS, TRAINED_CONFIG, noise=0.05)
    spire = write_spire(folder / "spire", TRAINED_CONFIG, tensors, "BF16")
    quantize(spire, folder / "spire-mxfp4", lm_head="quantize")
    quantize(spire, folder / "spire-bsfp", codec="bsfp", lm_head="quantize")
    quantize(spire, folder / "spire-kept", lm_head="keep")
    drafts = (f"checkpoint:{write_noisy(folder / 'noisy')}", f"spire:{spire}", "prompt-lookup")
    quantize(write_noisy(folder / "source", 0.0), folder / "package", drafts=drafts)
    return folder / "package"


def test_a_better_copy_is_believed_more_often(package: Path, tmp_path: Path) -> None:
    """All the target's layers, mixing nothing, say what the target says; noise and fewer layers cost agreement."""
    config = spire_config(TRAINED_TARGET, range(3), window=512)
    whole = spire_tensors(TRAINED_TENSORS, config, noise=0.0) | {"spire.memory_weights": 100.0 * np.eye(3, 4)}
    write_spire(tmp_path / "whole", config, whole, "BF16")
    shares = []
    for spec in (f"spire:{tmp_path}/whole", f"spire:{package.parent}/spire"):
        with LoadedPackage(package, ["target"], drafts=specs(tmp_path, spec)) as loaded:
            ((proposed, accepted),) = check_all(loaded.levels, [4], "chain", GREEDY, 24)
        shares.append(accepted / proposed)
    assert shares[0] > 0.97 and 0 < shares[1] < shares[0]


def test_four_bit_packages_keep_look_ups_and_mixture_exact(package: Path) -> None:
    records = {tensor.name: tensor.codec for tensor in read_manifest(package.parent / "spire-mxfp4").tensors}
    assert records["spire.memory_weights"] == "keep" and records["model.embed_tokens.weight"] == "mxfp4"
    rows = np.array([3, 500, 1023])
    made = {}
    for name in ("spire", "spire-mxfp4", "spire-bsfp", "spire-kept"):
        with LoadedPackage(package, ["target"], drafts=specs(package.parent, f"spire:HERE/{name}")) as loaded:
            spire = loaded.levels[1].reader
            made[name] = (spire.decoder.embedding.rows(rows), spire.decoder.head.rows(rows), spire.memory_shares)  # type: ignore[union-attr]
            check_all(loaded.levels, [3], 12, GREEDY)
    exact = made["spire"]
    for name, (embedding, head, shares) in made.items():
        np.testing.assert_array_equal(embedding, exact[0])
        np.testing.assert_array_equal(shares, exact[2])
        assert np.array_equal(head, exact[1]) == (name in ("spire", "spire-kept"))


def test_its_cost_is_that_of_its_layers_over_a_window(package: Path, tmp_path: Path) -> None:
    drafts = tuple(f"spire:{package.parent}/{name}" for name in ("spire", "spire-mxfp4", "spire-bsfp"))
    quantize(package.parent / "source", tmp_path / "p", drafts=drafts)
    with Package(tmp_path / "p") as opened:
        exact, mxfp4, bsfp = package_levels(opened)[-3:]
    for level in (exact, mxfp4, bsfp):
        a = level.architecture
        assert a is not None and (a.windows, a.dense_sizes, a.hidden_size) == ((17, 17), (192, 192), 64)
        assert 0.8 < level.acceptance < 0.81 and "SPIRe" in level.acceptance_source
    assert [level.codec for level in (exact, mxfp4, bsfp)] == ["bf16", "mxfp4", "bsfp-draft"]
    assert exact.num_bytes == checkpoint_bytes(package.parent / "spire")
    assert mxfp4.num_bytes and bsfp.num_bytes and exact.num_bytes > 3.5 * max(mxfp4.num_bytes, bsfp.num_bytes)


def test_it_says_nothing_beyond_its_positions(package: Path, tmp_path: Path) -> None:
    write_spire(
        tmp_path / "short",
        TRAINED_CONFIG | {"max_position_embeddings": 30},
        spire_tensors(TRAINED_TENSORS, TRAINED_CONFIG),
        "BF16",
    )
    with LoadedPackage(package, ["target"], drafts=specs(tmp_path, "spire:HERE/short")) as loaded:
        for tree in ("chain", 12):
            assert check_all(loaded.levels, [5], tree, GREEDY)[0, 0] > 0
