"""Drafts with a head screen: what a calibration stores, what a pass reads and costs, and the same texts as without."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from checkpoints import TINY_LLAMA, llama_tensors, write_tiny_llama
from loaded_packages import pack, rewrite
from packages import check_exact, files_of
from tiny_levels import decoder_of

from mxconv.arch.families.registry import describe_values
from mxconv.codecs.float16 import BF16, FORMATS
from mxconv.codecs.screen_axes import ScreenAxes, candidates
from mxconv.conversion import calibration_texts
from mxconv.conversion.options import QuantizeOptions
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.pass_cost import package_bytes
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.sequence_rows import States
from mxconv.engine.weights import ModelWeights, ScreenedHead
from mxconv.errors import CheckpointError, MxconvError, PackageError
from mxconv.kernels.encoders import encode_mxfp4
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.package.level_record import SCREEN_FILE
from mxconv.package.manifest import read_manifest
from mxconv.package.package import Package
from mxconv.package.stored import StoredMxfp4
from mxconv.report.sources import open_weights
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import verify_decoding

VOCABULARY, RANK = 4096, 32
TEXT = "zebras quickly jumped over 1234567890 {lazy} dogs~ " * 12
DRAWN = Selection(Sampling(0.8, top_p=0.9), "coupled", 3)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`mxfp4` and `bsfp` with a screen, and three without: a head whose rows lie near a plane of few dimensions."""
    folder = tmp_path_factory.mktemp("screened")
    source = write_tiny_llama(folder / "m", vocab_size=VOCABULARY)
    path, random = source / "model.safetensors", np.random.default_rng(2)
    tensors = safetensors.numpy.load_file(path)
    head = random.standard_normal((VOCABULARY, 12)) @ random.standard_normal((12, 64)) / 24
    head += random.standard_normal(head.shape) / 200
    tensors["lm_head.weight"] = head.astype(tensors["lm_head.weight"].dtype)
    safetensors.numpy.save_file(tensors, path, {"format": "pt"})
    text = folder / "text.txt"
    text.write_text(TEXT)
    given: dict[str, Any] = {"calibrate": (str(text),), "calibration_tokens": 256}
    pack(source, folder / "mxfp4", **given)
    pack(source, folder / "bsfp", codec="bsfp", **given)
    pack(source, folder / "without", head_screen=False, **given)
    pack(source, folder / "bsfp-without", codec="bsfp")
    pack(source, folder / "four-bits", lm_head="quantize")
    return folder


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_calibration_stores_a_screen_and_nothing_else_changes(packages: Path, codec: str) -> None:
    made = files_of(packages / codec)
    arrays = safetensors.numpy.load_file(packages / codec / SCREEN_FILE)
    assert {name: array.shape for name, array in arrays.items()} == {
        "head_screen.projection": (RANK, 64),
        "head_screen.codes": (VOCABULARY // 16, RANK // 8, 64),
        "head_screen.scales": (VOCABULARY // 16, 1, 16),
    }
    level = json.loads(made["mxconv.json"])["levels"][1]
    assert level["screen"] == {"rank": RANK, "num_candidates": VOCABULARY // 16 // 6}
    assert level["files"][-1] == SCREEN_FILE
    manifest = read_manifest(packages / codec)
    assert manifest.to_bytes() == made["mxconv.json"]
    check_exact(packages / codec, packages / "m")
    if codec == "mxfp4":
        without = files_of(packages / "without")
        assert {name for name in made if made[name] != without.get(name)} == {SCREEN_FILE, "mxconv.json"}
        assert "screen" not in json.loads(without["mxconv.json"])["levels"][1]


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_screen_alone_leaves_the_cast_as_it_is(
    packages: Path, tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, text = packages / "m", tmp_path / "text.txt"
    text.write_text(TEXT * 4)  # the model is too small for prompts and answers
    monkeypatch.setattr(calibration_texts, "OWN_PROMPTS", text)
    pack(source, tmp_path / "screened", codec=codec, fits_screen=True)
    pack(source, tmp_path / "cast", codec=codec)
    made, cast = (files_of(tmp_path / name) for name in ("screened", "cast"))
    assert {name for name in made if made[name] != cast.get(name)} == {SCREEN_FILE, "mxconv.json"}
    members = json.loads(made["mxconv.json"])
    described = members["draft_weights"]["description"]
    assert members["draft_weights"]["tensors"] == [] and (described["rule"], described["kept"]) == ("cast", "cast")
    assert 1024 <= described["num_tokens"] <= 4096
    assert members["levels"][1]["screen"]["rank"] == RANK
    check_exact(tmp_path / "screened", source)
    with pytest.raises(MxconvError, match=r"^--head-screen: given with --draft-weights f, whose own screen"):
        QuantizeOptions(fits_screen=True, draft_weights="f")


@pytest.mark.parametrize("kernel", ["numpy", *native_names()])
@pytest.mark.parametrize("package", ["mxfp4", "bsfp", "without", "bsfp-without"])
def test_texts_are_the_targets_own(packages: Path, package: str, kernel: str) -> None:
    """In chains, trees and batches, greedily and drawn; most tokens come from the draft."""
    prompts = ["zebras", "over {lazy} dogs", "123"]
    with LoadedPackage(packages / package, kernel=kernel, num_threads=2) as loaded:
        decoder = loaded.levels[1].decoder
        assert decoder is not None and isinstance(decoder.head, ScreenedHead)
        for tree in ("chain", 8):
            hierarchy = Hierarchy(loaded.levels, [4], [0.0], tree)
            for selection in (GREEDY, DRAWN):
                record = verify_decoding(loaded, hierarchy, prompts, 16, selection, batch=2 if tree == 8 else None)
                assert (record.num_tokens, record.num_token_mismatches, record.num_logit_mismatches) == (48, 0, 0)
        generation = hierarchy.generate(loaded.tokenizer.encode(prompts[0]), 24)
        assert generation.trace.statistics[1].num_accepted > 8


@pytest.mark.parametrize("kernel", ["numpy", None])
def test_a_head_in_four_bits_screens_itself_and_the_likeliest_tokens_have_the_targets_logits(
    packages: Path, tmp_path: Path, kernel: str | None
) -> None:
    """One of 8 bits is MXFP4 of the target's there, and a draft package's is its own target's."""
    pack(packages / "m", tmp_path / "whole", codec="bsfp", lm_head="exact")
    pack(packages / "m", tmp_path / "kept", lm_head="keep")
    drafts = [parse_draft(f"package:{packages / 'bsfp-without'}"), parse_draft(f"package:{packages / 'without'}")]
    found = {}
    with LoadedPackage(packages / "four-bits", drafts=drafts, kernel=kernel) as loaded:
        ids = loaded.tokenizer.encode("zebras quickly")
        for level in loaded.levels[1:]:
            decoder = decoder_of(level)
            states, head = States(normed_last=True), decoder.head
            logits = decoder.forward(ids, KVCache(decoder.config), states=states)
            assert states.values is not None and isinstance(head, ScreenedHead)
            assert (head.projection, head.num_candidates, head.scores.shape) == (None, 42, (VOCABULARY, 64))
            scores, exact = head.scores.multiply(states.values[0]), loaded.target.head.multiply(states.values[0])
            for row, score, wanted in zip(logits, scores, exact, strict=True):
                chosen = candidates(score, 42)
                assert 42 <= chosen.sum() < 200 and chosen[wanted.argmax()]
                assert np.allclose(row[chosen], wanted[chosen], rtol=1e-5, atol=1e-6)
                others = row[~chosen] == score[~chosen]  # kernels read whole tiles of BSFP
                assert others.mean() > 0.8 and (others.all() or level.name == "bsfp-without")
            found[level.name] = head.scores.rows(np.arange(VOCABULARY))
        assert list(found) == ["mxfp4", "bsfp-without", "without"]
        assert (found["mxfp4"] == found["without"]).all() and (found["mxfp4"] != found["bsfp-without"]).any()
    for name in ("whole", "kept"):
        with LoadedPackage(tmp_path / name, kernel=kernel) as loaded:
            assert decoder_of(loaded.levels[1]).head is loaded.target.head


def test_a_pass_is_priced_by_what_it_reads_and_the_level_alone_has_its_whole_head(packages: Path) -> None:
    with LoadedPackage(packages / "mxfp4") as screened, LoadedPackage(packages / "without") as own:
        read, in_four_bits = (run.bytes_per_pass(run.levels[1]) for run in (screened, own))
        with Package(packages / "without") as package:  # both read rows of the target's for as many candidates
            rest = package_bytes(package, is_draft=True) - VOCABULARY * (64 + 2) + 2 * 64 * (VOCABULARY // 16 // 6)
        assert (read, in_four_bits) == (rest + VOCABULARY * (16 + 1) + 2 * RANK * 64, rest + VOCABULARY * (32 + 2))
        for name, in_words in (("without", "4 bits"), ("mxfp4", "a screen")):
            with open_weights(str(packages / name)) as weights:
                assert sum(f": {in_words}, and the target's rows that these" in note for note in weights.notes) == 1
        ids = screened.tokenizer.encode("zebras")
        firsts = []
        for name in ("mxfp4", "without"):
            with LoadedPackage(packages / name, ["mxfp4"]) as alone:
                assert not isinstance(alone.target.head, ScreenedHead)
                firsts.append(alone.target.forward(ids, alone.target.new_cache()).tobytes())
        assert firsts[0] == firsts[1]


def test_small_vocabularies_and_heads_that_no_screen_fits_have_none(tmp_path: Path, packages: Path) -> None:
    text = tmp_path / "text.txt"  # of random letters, so that all directions of states matter, as those of weights do
    text.write_text("".join(chr(97 + letter) for letter in np.random.default_rng(1).integers(0, 26, 2000)))
    for name, size in (("small", 3056), ("even", VOCABULARY)):
        source = write_tiny_llama(tmp_path / name, vocab_size=size)
        pack(source, tmp_path / f"{name}-package", calibrate=(str(text),), calibration_tokens=1024)
        assert SCREEN_FILE not in files_of(tmp_path / f"{name}-package")


def test_arrays_that_do_not_fit_the_head_are_refused(packages: Path, tmp_path: Path) -> None:
    package = pack(packages / "m", tmp_path / "p", calibrate=(str(packages / "text.txt"),), calibration_tokens=256)
    path = package / SCREEN_FILE
    good = safetensors.numpy.load_file(path)
    codes = f"{path}, of level mxfp4: array head_screen.codes"
    for changes, message in [
        ({"head_screen.codes": good["head_screen.codes"][:-1]}, f"{codes} is U8 [255, 4, 64]; U8 [256, 4, 64] is req"),
        ({"head_screen.codes": good["head_screen.codes"].view(np.int8)}, f"{codes} is I8 [256, 4, 64]; U8 [256, 4, 64"),
        ({"head_screen.codes": None}, f"{codes} is missing; U8 [256, 4, 64] is required. Convert again"),
    ]:
        arrays = {name: array for name, array in (good | changes).items() if array is not None}
        safetensors.numpy.save_file(arrays, path)
        rewrite(package)
        with pytest.raises(PackageError) as caught:
            LoadedPackage(package)
        assert message in str(caught.value)
    with LoadedPackage(package, ["target"]):  # which does not need it
        pass


def test_a_head_that_has_no_4_bits_is_named(packages: Path, tmp_path: Path) -> None:
    package = pack(packages / "m", tmp_path / "p")
    path = package / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    head = tensors["lm_head.weight"].copy()
    head[3, 5] = np.nan
    path.unlink()  # perhaps the source's own file
    safetensors.numpy.save_file(tensors | {"lm_head.weight": head}, path)
    rewrite(package)
    message = rf"^{package}: tensor lm_head\.weight: value at index \(3, 5\) is nan; .* mxconv verify"
    with pytest.raises(PackageError, match=message):
        LoadedPackage(package)


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"rank": 0, "num_candidates": 4}, "`head_screen` is {'rank': 0, 'num_candidates': 4}; `rank` and `num_cand"),
        ("yes", "`head_screen` is 'yes'; `rank` and `num_candidates`, whole numbers from 1 on, are required."),
        ({"rank": 64, "num_candidates": 4}, "array head_screen.projection is BF16 [32, 64]; BF16 [64, 64] is required"),
    ],
)
def test_draft_files_that_describe_no_screen_are_refused(
    packages: Path, tmp_path: Path, described: object, message: str
) -> None:
    path = tmp_path / "draft.safetensors"
    tensors = safetensors.numpy.load_file(packages / "mxfp4" / SCREEN_FILE)
    for name, array in safetensors.numpy.load_file(packages / "mxfp4/mxfp4.safetensors").items():
        if name.startswith("model.layers.0."):
            tensors[name] = array
    metadata = {"mxconv_draft": json.dumps({"rule": "by hand", "head_screen": described})}
    safetensors.numpy.save_file(tensors, path, metadata)
    with pytest.raises((CheckpointError, PackageError)) as caught:
        pack(packages / "m", tmp_path / "p", draft_weights=str(path))
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert not (tmp_path / "p").exists()


# ---- kernels beside their reference ----

TOKENS, OF_RANK, CANDIDATES = 1000, 32, 9  # of 63 tiles, the last of 8 tokens
IDS = [int(token) for token in np.random.default_rng(5).integers(0, TOKENS, 40)]
CASES = [(name, dtype) for name in native_names() for dtype in ("BF16", "F16")]


def screened(kernel: str, dtype: str, num_threads: int = 1, is_projected: bool = True, **config: Any) -> Decoder:
    """A model whose head has a screen, or screens itself; its other weights are those of the target."""
    make = Matrices(choose_engine(kernel, num_threads))
    values = TINY_LLAMA | {"vocab_size": TOKENS, "tie_word_embeddings": True} | config
    described = describe_values(values)
    tensors = llama_tensors(values, dtype)
    head = tensors["model.embed_tokens.weight"].astype(np.float32)
    projection, given = ScreenAxes.of((head.T @ head).astype(np.float64), np.eye(head.shape[1])).of_rank(OF_RANK)
    scoring = (head @ given).astype(np.float32) if is_projected else head
    codes, scales = encode_mxfp4(BF16.encode(scoring), BF16, "mse")
    matrices, vectors = {}, {}
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            vectors[name] = tensor.astype(np.float32)
        else:
            matrices[name] = make.dense(tensor.view(np.uint16), FORMATS[dtype])
    matrices["lm_head.weight"] = ScreenedHead(
        make.dense(BF16.encode(projection.astype(np.float32)), BF16) if is_projected else None,
        make.mxfp4_draft(StoredMxfp4(scoring.shape, codes, scales)),
        matrices["model.embed_tokens.weight"],
        CANDIDATES,
    )
    return make.decoder(described, ModelWeights(matrices, vectors), "screened")


def evaluated(decoder: Decoder, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and the normed states that they come from."""
    states = States(normed_last=True)
    logits = decoder.forward(ids, KVCache(decoder.config), states=states)
    assert states.values is not None
    return logits, states.values[0]


@pytest.mark.parametrize(("kernel", "dtype"), CASES)
@pytest.mark.parametrize(("count", "is_projected"), [(1, True), (3, False), (9, True), (9, False), (40, True)])
def test_kernels_give_candidates_the_heads_logits_and_others_their_scores(
    kernel: str, dtype: str, count: int, is_projected: bool
) -> None:
    decoder = screened(kernel, dtype, 2, is_projected)
    logits, states = evaluated(decoder, IDS[:count])
    head = decoder.head
    assert isinstance(head, ScreenedHead)
    scores = head.scores.multiply(head.projection.multiply(states) if head.projection else states)
    exact = head.head.multiply(states)
    for row, score, wanted in zip(logits, scores, exact, strict=True):
        chosen = candidates(score, CANDIDATES)
        assert CANDIDATES <= chosen.sum() < 60
        assert row[chosen].tobytes() == wanted[chosen].tobytes()
        assert row[~chosen].tobytes() == score[~chosen].tobytes()
    assert np.abs(head.multiply(states) - logits).max() < 0.05 * np.abs(logits).max()  # the reference, in float32


@pytest.mark.parametrize("kernel", native_names())
@pytest.mark.parametrize("is_projected", [True, False])
def test_a_row_has_the_same_bits_alone_among_others_and_on_any_number_of_threads(
    kernel: str, is_projected: bool
) -> None:
    one = screened(kernel, "BF16", is_projected=is_projected)
    cache = KVCache(one.config)
    alone = np.concatenate([one.forward([token], cache) for token in IDS])
    for num_threads in (1, 2, 3):
        together, _ = evaluated(screened(kernel, "BF16", num_threads, is_projected), IDS)
        assert together.tobytes() == alone.tobytes(), num_threads


@pytest.mark.parametrize("kernel", ["numpy", *native_names()])
def test_multipliers_and_caps_come_after_the_screen(kernel: str) -> None:
    plain, _ = evaluated(screened(kernel, "BF16"), IDS[:5])
    granite = {"architectures": ["GraniteForCausalLM"], "model_type": "granite", "logits_scaling": 4.0}
    granite |= {"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 0.25}
    divided, _ = evaluated(screened(kernel, "BF16", **granite), IDS[:5])
    assert np.allclose(divided, plain / 4, rtol=1e-5, atol=1e-6)
