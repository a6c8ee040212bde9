"""The 4-bit copy in training: rounded as the codecs round, nearer to its target after steps, resumed, refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import kill_after, run_mxconv
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file, save_file
from trained_levels import TRAINED

from mxconv.codecs.e2m1 import MAGNITUDES, decode_e2m1, encode_e2m1
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.mxfp4 import dequantize_mxfp4, quantize_mxfp4
from mxconv.codecs.vnni8 import unpack_nibbles, unpack_scales
from mxconv.conversion.draft_file import DraftFile, DraftFileWriter
from mxconv.errors import ModelError
from mxconv.package.head_screen import HeadScreen
from mxconv.package.level_record import SCREEN_FILE
from mxconv.package.stored import StoredMxfp4
from mxconv.train.self_draft import Rounded, SelfDraftTask, round_e2m1
from mxconv.train.training_task import FrozenTarget
from mxconv.train.windows import written_windows

LARGER = TRAINED.with_name("pylib-1.5m")
TIES = [*((MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2), 7, 0]
NEAR = [np.nextafter(np.float32(tie), np.float32(side)) for tie in TIES for side in (-9, 9)]
NUMBERS = st.one_of(
    st.floats(-9, 9, width=32), st.sampled_from([float(x) * s for x in (*TIES, *NEAR) for s in (1, -1)])
)


@given(arrays(np.float32, (2, 64), elements=NUMBERS), arrays(np.uint8, (2, 2), elements=st.integers(1, 252)))
def test_rounding_is_the_codecs_bit_for_bit(elements: np.ndarray, scales: np.ndarray) -> None:
    codes = encode_e2m1(elements)
    found = round_e2m1(torch.from_numpy(elements)).numpy()
    np.testing.assert_array_equal(found.view(np.uint32), decode_e2m1(codes).view(np.uint32))
    trained = torch.from_numpy(elements).requires_grad_()
    values = Rounded.apply(trained, torch.from_numpy(decode_e8m0(scales)))
    expected = dequantize_mxfp4(codes, scales)
    np.testing.assert_array_equal(values.detach().numpy().view(np.uint32), expected.view(np.uint32))
    (gradient,) = torch.autograd.grad((values * torch.arange(64)).sum(), trained)
    np.testing.assert_array_equal(gradient.numpy(), np.tile(np.arange(64), (2, 1)))  # straight through


@pytest.fixture(scope="module")
def folder(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's own text in two files, and a draft file of some steps on the first."""
    folder = tmp_path_factory.mktemp("self_draft")
    lines = (texts / "own.jsonl").read_text().splitlines(keepends=True)
    for number in range(2):
        (folder / f"own{number}.jsonl").write_text("".join(lines[number::2]))
    made = run_mxconv(*command(folder, "whole", "--json"))
    assert made.returncode == 0, made.stderr
    result = json.loads(made.stdout.splitlines()[-1])
    assert result["num_steps"] == 12 and set(result["losses"]) == {"kl"}
    assert result["memory_bytes"] > 24 * result["num_parameters"]
    return folder


def command(folder: Path, name: str, *more: str) -> list[str]:
    words = ("--target", TRAINED, "--generated", folder / "own0.jsonl", "-o", folder / f"{name}.safetensors")
    sizes = ("--batch-tokens", "256", "--steps", "12", "--save-every", "3")
    return [str(word) for word in ("train", "self-draft", *words, *sizes, *more)]


def task(start: Path | None, target: Path = TRAINED) -> SelfDraftTask:
    return SelfDraftTask(target, FrozenTarget(target, torch.device("cpu")), start, {"rule": "test"})


def test_it_begins_as_the_direct_cast_and_learns(folder: Path) -> None:
    """KL on texts that it was not trained on; the loss of the file is that of a model with its weights."""
    held = written_windows(folder / "own1.jsonl", 1024)
    rows = torch.from_numpy(held.token_ids).long()
    cast, trained = task(None), task(folder / "whole.safetensors")
    with torch.no_grad():
        first, last = (float(each.losses(each.model(), rows, held)) for each in (cast, trained))
    assert last < 0.8 * first
    source = load_file(TRAINED / "model.safetensors")
    weights = cast.model().weights()
    for name in cast.matrices:
        expected = dequantize_mxfp4(*quantize_mxfp4(source[name].astype(np.float32), "mse"))[:, : source[name].shape[1]]
        np.testing.assert_array_equal(weights[name].detach().numpy(), expected)


def test_the_file_holds_the_trained_weights(folder: Path, tmp_path: Path) -> None:
    made = task(None)
    model = made.model()
    with torch.no_grad():
        for each in model.elements:
            each.add_(torch.randn(each.shape, generator=torch.Generator().manual_seed(0)))
    made.write({f"elements.{place}": each.detach() for place, each in enumerate(model.elements)}, tmp_path)
    draft = DraftFile.open(tmp_path / "draft.safetensors")
    assert draft.names == sorted(made.matrices)
    again = task(tmp_path / "draft.safetensors").model().weights()
    for name, values in model.weights().items():
        torch.testing.assert_close(again[name], values, rtol=0, atol=0)
        if name in made.matrices:
            codes, scales = (draft.file.view(f"{name}.{part}") for part in ("codes", "scales"))
            found = dequantize_mxfp4(unpack_nibbles(codes), unpack_scales(scales))
            np.testing.assert_array_equal(found[: values.shape[0], : values.shape[1]], values.detach().numpy())
    draft.close()
    record = DraftFile.open(folder / "whole.safetensors").description
    assert record["rule"].startswith("distilled") and record["steps"] == 12 and len(record["texts"]) == 1


def test_products_in_bf16_learn_the_same(folder: Path) -> None:
    """Losses a little other, of logits that stay float32."""
    made = run_mxconv(*command(folder, "mixed", "--mixed-precision", "bf16"))
    assert made.returncode == 0, made.stderr
    mixed, whole = (
        [json.loads(line)["loss"] for line in (folder / f"{name}.losses.jsonl").read_text().splitlines()]
        for name in ("mixed", "whole")
    )
    assert mixed != whole
    np.testing.assert_allclose(mixed, whole, rtol=0.05)
    target = FrozenTarget(TRAINED, torch.device("cpu"))
    with torch.autocast("cpu", torch.bfloat16):
        assert target.model(torch.arange(8)[None]).logits.dtype == torch.float32


def test_a_head_screen_goes_along(folder: Path, tmp_path: Path) -> None:
    """From a draft file to what is trained, to the package, and from that to what is trained next."""
    whole, path = DraftFile.open(folder / "whole.safetensors"), tmp_path / "screened.safetensors"
    head = tuple(json.loads((TRAINED / "config.json").read_text())[name] for name in ("vocab_size", "hidden_size"))
    stored, codes = head[0] // 16, np.random.default_rng(1).integers(0, 256, (head[0] // 16, 4, 64), np.uint8)
    scores = StoredMxfp4((head[0], 32), codes, np.full((stored, 1, 16), 120, np.uint8))
    screen = HeadScreen(np.full((32, head[1]), 0x3C00, np.uint16), scores, 5)
    shapes = {name: task(None).matrices[name][0].shape for name in whole.names}
    with DraftFileWriter(path, shapes) as writer:
        for name in whole.names:
            writer.write(name, *(whole.file.view(f"{name}.{part}") for part in ("codes", "scales")))
        writer.commit(whole.description, screen)
    for number in range(2):
        run_mxconv("quantize", str(TRAINED), "-o", str(tmp_path / str(number)), "--draft-weights", str(path))
        assert (tmp_path / str(number) / SCREEN_FILE).read_bytes() == screen.file
        made = task(tmp_path / str(number))
        made.write({f"elements.{n}": each.detach() for n, each in enumerate(made.model().elements)}, tmp_path)
        path = tmp_path / "draft.safetensors"
    words = ("-o", tmp_path / "no", "--draft-weights", path, "--no-head-screen")
    without = run_mxconv("quantize", str(TRAINED), *map(str, words))
    assert without.returncode == 0, without.stderr
    assert (tmp_path / "no" / "mxconv.json").is_file() and not (tmp_path / "no" / SCREEN_FILE).exists()


def test_killed_and_gone_on_with_it_is_the_same_file(folder: Path) -> None:
    kill_after(5, folder / "killed.safetensors.training" / "losses.jsonl", command(folder, "killed"))
    assert not (folder / "killed.safetensors").exists()
    again = run_mxconv(*command(folder, "killed"))
    assert again.returncode == 0, again.stderr
    for name in ("safetensors", "losses.jsonl"):
        assert (folder / f"killed.{name}").read_bytes() == (folder / f"whole.{name}").read_bytes()
    assert not list(folder.glob("*.training"))


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    for change, message in (
        (("-o", str(folder / "draft")), "a name that ends in .safetensors is required"),
        (("-o", str(folder / "whole.safetensors")), "exists; nothing is overwritten"),
        (("--from", str(folder / "own0.jsonl")), "own0.jsonl"),
    ):
        made = run_mxconv(*command(folder, "refused"), *change)
        assert made.returncode == 1 and message in made.stderr.replace("\n", " "), made.stderr
    made = run_mxconv("train", "self-draft", "--target", str(TRAINED), "-o", str(folder / "refused.safetensors"))
    assert made.returncode == 1 and "no texts were given" in made.stderr
    name, shape = "model.layers.0.mlp.up_proj.weight", (16, 32)
    with DraftFileWriter(folder / "bsfp.safetensors", {name: shape}, "bsfp") as writer:
        writer.write(name, np.zeros((1, 4, 64), np.uint8), np.zeros((1, 1, 16), np.uint16))
        writer.commit({"rule": "by hand"})
    with pytest.raises(ModelError, match=r"bsfp\.safetensors: holds no matrix of mxfp4; one at least is required"):
        task(folder / "bsfp.safetensors")
    with pytest.raises(ModelError, match=r"is required\. Give a draft of the same model"):
        task(folder / "whole.safetensors", LARGER)
    shutil.copytree(TRAINED, tmp_path / "other")
    weights = load_file(TRAINED / "model.safetensors")
    frozen = FrozenTarget(TRAINED, torch.device("cpu"))
    name = next(name for name in weights if "q_proj" in name)
    save_file(weights | {name: weights[name] * 2}, tmp_path / "other" / "model.safetensors")
    with pytest.raises(ModelError, match=f"tensor {name}: transformers has another parameter of this name"):
        SelfDraftTask(tmp_path / "other", frozen, None, {})
