"""Runs in less memory than their weights take: the same bits, from files that passes read; what errors of files do."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY_LLAMA, write_tiny_llama, write_tiny_tokenizer
from loaded_packages import IDS, logits, pack
from random_heads import write_heads

from mxconv.decode import TextModel
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine import placement
from mxconv.errors import ModelError, PackageError
from mxconv.kernels.engine import native_names
from mxconv.package.package import Package
from mxconv.system.processor import anonymous_bytes

pytestmark = pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
AMPLE = 10**12
VOCAB_SIZE = 9000  # whose output head is read in parts
LONG = IDS * 3


@pytest.fixture(params=["bsfp", "mxfp4"])
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    source = write_tiny_llama(tmp_path / "source", num_hidden_layers=5, vocab_size=VOCAB_SIZE)
    return pack(source, tmp_path / "package", codec=request.param)


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets so many stages stay in memory, whatever there is of it."""

    def keeping(num_kept: int) -> None:
        monkeypatch.setattr(placement, "num_that_fit", lambda sizes, *_: min(num_kept, len(sizes)))

    return keeping


def target_file(package: Path) -> Path:
    return next(package / name for name in ("bsfp.safetensors", "model.safetensors") if (package / name).exists())


def placed(package: Path, **options: Any) -> LoadedPackage:
    return LoadedPackage(package, memory=AMPLE, **options)


def resident(loaded: LoadedPackage) -> int:
    assert loaded.placement is not None
    return loaded.placement.plan.resident


def decoded(loaded: LoadedPackage, **options: Any) -> list[int]:
    return TextModel(loaded).generate("Once upon", max_new_tokens=24, **options).token_ids


WAYS: dict[str, dict[str, Any]] = {
    "plain": {"drafts": []},
    "chain": {"num_draft_tokens": [6], "confidence": [0.0], "tree": "chain"},
    "tree": {"num_draft_tokens": [5], "tree": 12},
    "auto": {"num_draft_tokens": "auto"},
    "drawn": {"num_draft_tokens": [6], "temperature": 0.9, "seed": 3},
}


@pytest.mark.parametrize("num_kept", [0, 2, 5, 99])
def test_logits_are_those_of_weights_in_memory(package: Path, keep: Callable[[int], None], num_kept: int) -> None:
    with LoadedPackage(package) as ordinary:
        expected = [logits(ordinary.target, ids) for ids in (LONG, IDS[:1], LONG)]
    keep(num_kept)
    with placed(package) as loaded:
        for ids, wanted in zip((LONG, IDS[:1], LONG), expected, strict=True):
            assert np.array_equal(logits(loaded.target, ids).view(np.uint32), wanted.view(np.uint32))


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_the_same_with_chains_and_trees(package: Path, keep: Callable[[int], None], way: str) -> None:
    with LoadedPackage(package) as ordinary:
        expected = decoded(ordinary, drafts=[], **{k: v for k, v in WAYS[way].items() if k in ("temperature", "seed")})
    keep(1)
    with placed(package) as loaded:
        assert decoded(loaded, **WAYS[way]) == expected


@pytest.mark.parametrize("spec", ["prompt-lookup", "streaming:bits=16,window=8", "streaming:bits=4,window=8"])
def test_further_drafts_read_the_same_planes(package: Path, keep: Callable[[int], None], spec: str) -> None:
    with LoadedPackage(package) as ordinary:
        expected = decoded(ordinary, drafts=[])
    keep(0)
    with placed(package, drafts=[parse_draft(spec)]) as loaded:
        assert decoded(loaded) == expected
        assert decoded(loaded, drafts=[loaded.levels[-1].name], num_draft_tokens=[4]) == expected


def test_heads_that_multiply_by_the_targets_output_matrix_find_it_in_memory(
    package: Path, tmp_path: Path, keep: Callable[[int], None]
) -> None:
    config = TINY_LLAMA | {"vocab_size": VOCAB_SIZE}
    write_heads(tmp_path / "heads", "medusa-shared", config, "BF16")
    keep(0)
    with placed(package) as without:
        expected, least = decoded(without, drafts=[]), resident(without)
    with placed(package, drafts=[parse_draft(f"medusa:{tmp_path / 'heads'}")]) as loaded:
        assert decoded(loaded, drafts=[loaded.levels[-1].name], num_draft_tokens=[2]) == expected
        assert resident(loaded) >= least + VOCAB_SIZE * TINY_LLAMA["hidden_size"]


def test_tied_embeddings_are_looked_up_and_read(tmp_path: Path, keep: Callable[[int], None]) -> None:
    source = write_tiny_llama(tmp_path / "source", tie_word_embeddings=True, vocab_size=VOCAB_SIZE)
    for codec in ("bsfp", "mxfp4"):
        package = pack(source, tmp_path / codec, codec=codec)
        with LoadedPackage(package) as ordinary:
            expected, tokens = logits(ordinary.target, LONG), decoded(ordinary, drafts=[])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(placement, "num_that_fit", lambda *_: 0)
            with placed(package) as loaded:
                assert np.array_equal(logits(loaded.target, LONG), expected)
                assert decoded(loaded) == tokens


def test_a_head_that_the_draft_multiplies_by_stays_in_memory(tmp_path: Path, keep: Callable[[int], None]) -> None:
    source = write_tiny_llama(tmp_path / "source", vocab_size=VOCAB_SIZE)
    package = pack(source, tmp_path / "package", codec="bsfp", lm_head="exact")
    with LoadedPackage(package) as ordinary:
        expected = decoded(ordinary, drafts=[])
    keep(0)
    with placed(package) as loaded:
        assert decoded(loaded) == expected


@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])  # a tensor an expert, and stacks with biases
@pytest.mark.parametrize("codec", ["bsfp", "mxfp4"])
def test_of_experts_those_are_read_that_rows_choose(
    tmp_path: Path, keep: Callable[[int], None], model_type: str, codec: str
) -> None:
    pytest.importorskip("transformers")
    from stacked_models import write_random_model

    source = write_random_model(tmp_path / "source", model_type, num_experts=16, num_local_experts=16)
    write_tiny_tokenizer(source / "tokenizer.json", 98)
    package = pack(source, tmp_path / "package", codec=codec)
    with LoadedPackage(package) as ordinary:
        expected, tokens = [logits(ordinary.target, ids) for ids in (IDS, IDS[:1])], decoded(ordinary, drafts=[])
    for num_kept in (0, 4):  # in the latter case attention and the head are in memory, and the first layer's experts
        keep(num_kept)
        with placed(package) as loaded:
            for ids, wanted in zip((IDS, IDS[:1]), expected, strict=True):
                assert np.array_equal(logits(loaded.target, ids).view(np.uint32), wanted.view(np.uint32))
            assert decoded(loaded) == tokens
    are_turned = (model_type, codec) == ("gpt_oss", "mxfp4")  # stored in another order, and so copied into memory
    if sys.platform == "linux" and not are_turned:
        keep(0)
        with placed(package) as loaded:
            num_read = [bytes_read(loaded, IDS[:1]) for _ in range(3)][-1], bytes_read(loaded, IDS * 4)
        assert num_read[0] < num_read[1] / 3, "two experts of sixteen, and nearly all"


def bytes_read(loaded: LoadedPackage, ids: list[int]) -> int:
    """By Linux's count, in a pass and until what is read ahead after it is there."""

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = count()
    logits(loaded.target, ids)
    while True:
        now = count()
        time.sleep(0.05)
        if count() - now < 4096:  # what reading the count itself takes
            return now - before


# ---- files that do not stay as they were ----


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def change(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")


def fail(path: Path) -> None:
    """Have the system answer each read with an input/output error, as it does where no memory is mapped."""
    for descriptor in Path("/proc/self/fd").iterdir():
        if os.path.realpath(descriptor) == str(path):
            with Path("/proc/self/mem").open("rb") as nothing:
                os.dup2(nothing.fileno(), int(descriptor.name))


DAMAGE = {"cut": cut, "emptied": empty, "changed": change}
if sys.platform == "linux":
    DAMAGE["failing"] = fail


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_damaged_between_passes_is_an_error_and_the_process_lives_on(
    package: Path, keep: Callable[[int], None], damage: str
) -> None:
    keep(0)
    found = r"cannot be read \(Input/output error\)" if damage == "failing" else "was changed|ends at byte"
    with placed(package) as loaded:
        before = logits(loaded.target, IDS)
        DAMAGE[damage](target_file(package))
        for decoder in (loaded.target, loaded.levels[1].decoder, loaded.target):
            assert decoder is not None
            message = rf"^{target_file(package)}: ({found}).*; a file that passes read must"
            with pytest.raises(PackageError, match=message):
                logits(decoder, IDS)
        with pytest.raises(PackageError, match=message):  # as drafts look up rows that read hidden states
            loaded.target.embedding.rows(np.array(IDS))
    assert len(before) == len(IDS)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_damaged_while_a_text_is_decoded_ends_that_text_alone(
    package: Path, tmp_path: Path, keep: Callable[[int], None], damage: str
) -> None:
    """Another package goes on; the file is damaged in the middle of whatever runs then."""
    other = shutil.copytree(package, tmp_path / "other")
    keep(0)
    with placed(package) as loaded, placed(other) as sound:
        expected = decoded(sound, drafts=[])
        ends = threading.Timer(0.2, DAMAGE[damage], [target_file(package)])
        ends.start()
        with pytest.raises(PackageError, match=rf"^{target_file(package)}: "):
            while True:
                decoded(loaded)
        ends.join()
        assert decoded(sound, drafts=[]) == decoded(sound) == expected


@pytest.mark.parametrize("damage", ["cut", "emptied"])
def test_a_file_that_is_damaged_while_it_is_loaded_is_an_error_that_names_the_place(package: Path, damage: str) -> None:
    with LoadedPackage(package, memory=AMPLE, plans_only=True) as loaded:
        assert loaded.placement is not None
        DAMAGE[damage](target_file(package))
        found = r"(ends at byte \d+|was changed, and has \d+ bytes) of \d+"  # by which of its threads finds it first
        with pytest.raises(PackageError, match=rf"^{target_file(package)}: {found}; a file that "):
            loaded.placement.start()


@pytest.mark.parametrize("step", ["measure", "start"])
def test_a_disk_that_refuses_to_read_is_an_error_that_names_the_file(tmp_path: Path, step: str) -> None:
    """A folder opens as a file does, and every read of it is refused."""
    from mxconv.kernels import _native

    mapped = np.zeros(1 << 16, np.uint8)
    matrix = _native.dense(mapped.view(np.uint16).reshape(128, 256), "BF16")
    reader = _native.PlaneReader([(str(tmp_path), mapped)], [[matrix]], None, [], [], [matrix])
    message = rf"^{tmp_path}: cannot be read \(Is a directory\); a file that passes read must stay"
    with pytest.raises(_native.ReadError, match=message):
        reader.measure() if step == "measure" else reader.start(1, 2)
    assert reader.stage_bytes == [1 << 16, 0]  # of tables none


def test_drafts_of_other_packages_stay_in_memory_too(package: Path, tmp_path: Path) -> None:
    """Their files may go once they have been read."""
    small = pack(write_tiny_llama(tmp_path / "small-source", vocab_size=VOCAB_SIZE), tmp_path / "small", codec="mxfp4")
    with LoadedPackage(package, memory=AMPLE, plans_only=True) as loaded:
        alone = loaded.placement
    specs = [parse_draft(f"package:{small}")]
    with LoadedPackage(package, memory=AMPLE, plans_only=True, drafts=specs) as loaded, Package(small) as opened:
        arrays, kinds = opened.arrays.items(), (".codes", ".scales", ".elements")
        sizes = [array.num_bytes for name, array in arrays if name.endswith(kinds) and "embed" not in name]
        assert alone is not None and loaded.placement is not None
        added = loaded.placement.plan.resident - alone.plan.resident
        assert 0 <= added - sum(sizes) < 2 * 4096 * len(sizes)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_memory_that_a_pass_frees_goes_back_to_the_system(package: Path) -> None:
    with placed(package):
        before = anonymous_bytes()
        for size in range(2, 30):  # glibc's own threshold would grow with what is freed, and the heap with it
            np.ones(size << 20, np.uint8)
        assert anonymous_bytes() < before + (4 << 20)


def test_a_limit_that_is_too_small_is_refused_before_anything_is_read(package: Path) -> None:
    message = rf"^{package}: its 4-bit codes, scales and cache, with two layers that are read, take \d\.\d\d GB; "
    message += r"--memory allows 0\.01 GB\. Give more, "
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, memory=10_000_000)


def test_numpy_and_a_draft_as_the_target_stream_nothing(package: Path) -> None:
    with pytest.raises(ModelError, match=rf"^{package}: NumPy's kernels, and --memory; native kernels and "):
        placed(package, kernel="numpy")
    codec = (package.joinpath("bsfp.safetensors").exists() and "bsfp") or "mxfp4"
    with pytest.raises(ModelError, match=rf"^{package}: level {codec} first, and --memory; native kernels and "):
        placed(package, levels=[codec])


def test_auto_takes_what_is_available(package: Path) -> None:
    with LoadedPackage(package) as ordinary, LoadedPackage(package, memory="auto") as loaded:
        assert decoded(loaded) == decoded(ordinary)


@pytest.mark.parametrize(
    ("stages", "experts", "room", "expected"),
    [
        ([10, 10, 10], [], 19, None),
        ([10, 10, 10], [], 20, 0),
        ([10, 10, 10], [], 29, 0),
        ([10, 10, 10], [], 30, 3),
        ([10, 10, 10, 10], [], 20, 0),
        ([10, 10, 10, 10], [], 30, 1),
        ([60, 100, 60, 60], [], 260, 1),
        ([10, 10, 10], [40, 50], 69, None),
        ([10, 10, 10], [40, 50], 80, 3),
        ([10, 10, 10], [40, 50], 119, 3),
        ([10, 10, 10], [40, 50], 120, 5),
    ],
)
def test_the_first_stages_and_then_experts_stay_as_far_as_buffers_leave_room(
    stages: list[int], experts: list[int], room: int, expected: int | None
) -> None:
    assert placement.num_that_fit([*stages, *experts], len(stages), room) == expected
