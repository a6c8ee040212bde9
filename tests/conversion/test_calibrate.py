"""Calibrated packages: the draft errs less on the texts, the target stays what it is, and says what was done."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_tiny_llama, write_tiny_tokenizer
from dequantized import dequantized, state_errors
from native_models import escaping_bsfp
from packages import check_exact, files_of, quantize
from safetensors.numpy import load_file

from mxconv.calibrate import calibrate
from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.bsfp.speq import rescale, rescale_factor
from mxconv.codecs.float16 import BF16
from mxconv.codecs.gptq import E2M1, MxGrid
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion import compensation
from mxconv.conversion.calibration_texts import read_texts
from mxconv.conversion.compensation import MatrixInputs, bsfp_anew
from mxconv.conversion.draft_file import DraftFile
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.recorded_inputs import InputRows
from mxconv.engine.text_states import HeldOutTexts
from mxconv.errors import MxconvError
from mxconv.interop.hub.card import SourceCard, model_card
from mxconv.package.manifest import read_manifest
from mxconv.progress import silent
from mxconv.verify import verify as verify_package

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "examples/models/pylib-0.2m"
TOKENS = 512
FAMILIES = [
    ("gpt2", "bsfp"),  # turned
    ("gemma4", "mxfp4"),  # layers that share keys
    ("granitemoe", "bsfp"),  # stacked experts
    ("lfm2", "mxfp4"),  # states
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(Path(json.decoder.__file__).read_text()[:4000].rpartition("\n")[0] + "\n")
    return path


@pytest.fixture(scope="module")
def packages(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: `cast` and `calibrated`, and `cast-bsfp` and `calibrated-bsfp`."""
    folder = tmp_path_factory.mktemp("packages")
    for codec, suffix in (("mxfp4", ""), ("bsfp", "-bsfp")):
        quantize(SOURCE, folder / f"cast{suffix}", codec=codec)
        calibrated = {"codec": codec, "calibrate": (str(text),), "calibration_tokens": TOKENS}
        quantize(SOURCE, folder / f"calibrated{suffix}", **calibrated)
    return folder


@pytest.mark.parametrize("suffix", ["", "-bsfp"])
def test_every_layer_of_the_draft_errs_less_on_the_texts(packages: Path, text: Path, suffix: str) -> None:
    with LoadedPackage(packages / "cast") as loaded:
        ids = loaded.tokenizer.encode(text.read_text())[:TOKENS]
    drafts = [dequantized(packages / f"{folder}{suffix}") for folder in ("calibrated", "cast")]
    in_layers = [{name: values for name, values in draft.items() if ".layers." in name} for draft in drafts]
    calibrated, cast = state_errors(SOURCE, ids, *in_layers)
    assert len(cast) == 3
    assert all(ours < 0.5 * theirs for ours, theirs in zip(calibrated, cast, strict=True)), (calibrated, cast)


def test_scales_move_by_a_factor_of_two_and_the_manifest_says_what_was_done(packages: Path, text: Path) -> None:
    made, cast = (load_file(packages / name / "mxfp4.safetensors") for name in ("calibrated", "cast"))
    moved = [made[name].astype(int) - array for name, array in cast.items() if name.endswith(".scales")]
    assert {0, 1} <= set(np.concatenate([each.ravel() for each in moved]).tolist()) <= {-1, 0, 1}
    assert all((made[name] != array).any() for name, array in cast.items() if name.endswith(".codes"))
    members = json.loads((packages / "calibrated/mxconv.json").read_bytes())
    description = members["draft_weights"]["description"]
    assert (description["rule"], description["num_tokens"], description["num_matrices"]) == ("gptq", TOKENS, 21)
    assert [each["num_bytes"] for each in description["texts"]] == [text.stat().st_size]
    assert "draft_weights" not in json.loads((packages / "cast/mxconv.json").read_bytes())
    card = model_card(read_manifest(packages / "calibrated"), "me/tiny", SourceCard())
    assert "codes of 21 tensors by `gptq`" in card
    check_exact(packages / "calibrated", SOURCE)
    check_exact(packages / "calibrated-bsfp", SOURCE)
    names = ["calibrated", "calibrated-bsfp", "cast", "cast-bsfp"]  # and nothing that a calibration needed
    assert sorted(path.name for path in packages.iterdir()) == names


def test_prompts_are_answered_by_the_target_and_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def read(path):"}\n{"prompt": "import os"}\n')
    for name in ("first", "second"):
        quantize(SOURCE, tmp_path / name, calibrate=(str(prompts),), calibration_tokens=256)
    assert files_of(tmp_path / "first") == files_of(tmp_path / "second")
    description = json.loads((tmp_path / "first/mxconv.json").read_bytes())["draft_weights"]["description"]
    assert description["num_tokens"] == 256 > description["num_tokens_written"] > 200


@pytest.mark.parametrize("name", ["calibrated", "calibrated-bsfp"])
def test_the_agreement_is_what_both_drafts_find_on_the_tokens_that_follow(
    packages: Path, text: Path, name: str
) -> None:
    found = read_manifest(packages / name).draft_weights
    assert found is not None
    agreement = found.description["agreement"]
    held_out = TOKENS // 8
    assert agreement["num_tokens"] == held_out - 1
    for key, folder in (("calibrated", name), ("cast", name.replace("calibrated", "cast"))):
        with LoadedPackage(packages / folder) as loaded:
            ids = loaded.tokenizer.encode(text.read_text())[TOKENS : TOKENS + held_out]
            levels = [loaded.target, loaded.levels[1].decoder]
            likeliest = [level.forward(ids[:-1], level.new_cache()).argmax(axis=1) for level in levels if level]
        equal = int((likeliest[0] == likeliest[1]).sum())
        assert abs(agreement[key] * (held_out - 1) - equal) <= 1, key  # sums in another order
    assert agreement["cast"] < agreement["calibrated"] < 1


@pytest.mark.parametrize("suffix", ["", "-bsfp"])
def test_a_cast_that_agrees_more_often_is_kept(
    packages: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(HeldOutTexts, "agreements", lambda *_: [0.75, 0.5])
    calibrate(packages / f"cast{suffix}", [text], tmp_path / "draft.safetensors", TOKENS)
    draft = DraftFile.open(tmp_path / "draft.safetensors")
    assert (draft.description["kept"], draft.names) == ("cast", [])
    draft.close()
    codec = "bsfp" if suffix else "mxfp4"
    quantize(SOURCE, tmp_path / "package", codec=codec, draft_weights=str(tmp_path / "draft.safetensors"))
    folders = tmp_path / "package", packages / f"cast{suffix}"
    made, cast = (load_file(folder / f"{codec}.safetensors") for folder in folders)
    assert made.keys() == cast.keys() and all(np.array_equal(made[name], cast[name]) for name in cast)
    with open_checkpoint(SOURCE) as source:
        proof = verify_package(tmp_path / "package", source)
    assert proof.ok and proof.given_note is None and proof.num_derived > 20


def test_the_last_ninth_of_a_short_text_is_held_out(packages: Path, text: Path) -> None:
    with LoadedPackage(packages / "cast", ["target"]) as loaded:
        ids = loaded.tokenizer.encode(text.read_text())
        found = read_texts(loaded, [text], len(ids), silent)
    held_out = [token for held, _ in found.held_out for token in held]
    assert [token for fitted in found.fitted for token in fitted] + held_out == ids
    assert len(held_out) == len(ids) // 9 > 64


def test_an_output_head_of_its_own_is_calibrated_too(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", vocab_size=96, tie_word_embeddings=False)
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time the sun was A big b. " * 30)
    quantize(source, tmp_path / "package", codec="bsfp", calibrate=(str(text),), calibration_tokens=300)
    description = json.loads((tmp_path / "package/mxconv.json").read_bytes())["draft_weights"]["description"]
    assert description["num_matrices_cast"] == 0 and description["num_matrices"] % 7 == 1, description


@pytest.mark.parametrize(("family", "codec"), FAMILIES)
def test_any_model_that_is_decoded_is_calibrated(family: str, codec: str, tmp_path: Path) -> None:
    checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
    checkpoints.write_checkpoint(checkpoints.make_model(family), tmp_path / "source")
    write_tiny_tokenizer(tmp_path / "source/tokenizer.json", 96)
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time the sun was A big b. " * 30)
    quantize(tmp_path / "source", tmp_path / "package", codec=codec, calibrate=(str(text),), calibration_tokens=300)
    description = json.loads((tmp_path / "package/mxconv.json").read_bytes())["draft_weights"]["description"]
    assert description["num_matrices"] > 3 * description["num_matrices_cast"], description
    check_exact(tmp_path / "package", tmp_path / "source")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "text.txt: no such file"),
        ("", r"text.txt: 0 tokens; at least \d+ are required to calibrate with and to judge the result"),
        ("some text", r"text.txt: 4 tokens; .* Give longer or more texts, or --calibrate without a file\."),
    ],
)
def test_what_cannot_be_calibrated_with_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_text(content)
    with pytest.raises(MxconvError, match=message):
        quantize(SOURCE, tmp_path / "package", calibrate=(str(text),))
    assert [path.name for path in tmp_path.iterdir()] == (["text.txt"] if content is not None else [])


@pytest.mark.parametrize("outlier", [0.02, 2.5, 40.0])
def test_outputs_err_less_with_the_codes_chosen_anew_whatever_the_factor(outlier: float) -> None:
    rng = np.random.default_rng(3)
    weights, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((2 * TILE_ROWS, 128), (256, 128)))
    weights *= np.float32(0.02)
    weights[4, 5] = outlier
    x *= np.exp(rng.standard_normal(128)).astype(np.float32)  # some columns matter more than others
    patterns, factor = BF16.encode(weights), rescale_factor(outlier)
    cast = replace(escaping_bsfp(rescale(patterns, factor, BF16), BF16), rescale_factor=factor)
    inputs = InputRows(128)
    inputs.add(x, np.arange(256) % 2 == 1)
    exact = BF16.decode(patterns).astype(np.float64)
    codes, scales = bsfp_anew(cast, slice(0, len(weights)), exact, MatrixInputs.of(inputs, False))
    anew = replace(cast, packed=replace(cast.packed, codes=codes, scales=scales))
    # of outputs without the outlier, in whose row all other weights are nothing beside it
    errors = (np.square(x @ (each.draft_rows(0, len(weights)) - exact).T).sum(axis=0) for each in (cast, anew))
    of_cast, of_anew = (np.delete(each, 4).sum() for each in errors)
    assert of_anew < 0.9 * of_cast


@pytest.mark.parametrize("num_rows", [40, 200])  # fewer and more than inputs
@pytest.mark.parametrize("is_turned", [False, True])
def test_many_inputs_are_rounded_alike_by_other_sums(
    num_rows: int, is_turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    noise, weights = rng.standard_normal((num_rows, 96)), rng.standard_normal((32, 96))
    x = (rng.standard_normal((num_rows, 8)) @ rng.standard_normal((8, 96)) + noise).astype(np.float32)
    lacking = (x @ rng.standard_normal((96, 32))).astype(np.float32)
    stored = weights.T if is_turned else weights
    grid = MxGrid(E2M1, np.full(stored.shape, 0.25))
    found = []
    for many in (96, 95):
        monkeypatch.setattr(compensation, "MANY_INPUTS", many)
        rows = InputRows(96)
        for some in np.array_split(np.arange(num_rows), 3):
            rows.add(x[some], some % 2 == 1, (x + 0.1 * noise).astype(np.float32)[some], lacking[some])
        inputs = MatrixInputs.of(rows, is_turned)
        moved = inputs.moved(stored, slice(0, 32))
        found.append((moved, inputs.better_codes(moved, grid, grid.cast(moved))))
    (moved, codes), (moved_otherwise, codes_otherwise) = found
    assert np.abs(moved - stored).max() > 0.01
    assert np.allclose(moved, moved_otherwise, atol=1e-4)
    assert (codes == codes_otherwise).mean() > 0.99
    assert (codes != grid.cast(moved)).mean() > 0.1
