"""Files made compact and restored: golden vectors, other bindings of zstd and the safetensors library as oracles."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import zstandard
from checkpoints import write_raw_safetensors, write_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from mxconv.checkpoint.compact import compact_layout
from mxconv.checkpoint.compact.compact_file import compress_file, decompress_file
from mxconv.checkpoint.safetensors_header import DTYPES
from mxconv.errors import CheckpointError

ROOT = Path(__file__).parents[3]
CASES = json.loads((ROOT / "formats" / "vectors" / "compact.json").read_text())["cases"]
MODEL = ROOT / "examples" / "models" / "pylib-1.5m" / "model.safetensors"


def content(text: str) -> bytes:
    """The bytes of a vector: lines of hexadecimal digits, each with how often it is repeated."""
    pairs = [line.split("*") for line in text.split()]
    return b"".join(bytes.fromhex(line) * int(count) for line, count in pairs)


def placed(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path


def planes_by_another_binding(compact: Path) -> list[bytes]:
    """The content of every frame after the preamble."""
    raw = compact.read_bytes()
    rest, planes = raw[8 + int.from_bytes(raw[4:8], "little") :], []
    while rest:
        frame = zstandard.ZstdDecompressor().decompressobj()
        planes.append(frame.decompress(rest))
        rest = frame.unused_data
    return planes


def round_trip(source: Path, base: Path | None = None) -> int:
    """The length of the compact file, once the restored one was compared."""
    compact, restored = source.with_suffix(".compact"), source.with_suffix(".restored")
    compress_file(source, compact, base)
    decompress_file(compact, restored, base)
    assert restored.read_bytes() == source.read_bytes()
    return compact.stat().st_size


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_golden_files_are_restored_and_the_same_planes_are_written(case: dict[str, Any], tmp_path: Path) -> None:
    source = placed(tmp_path / "source", content(case["source"]))
    base = placed(tmp_path / "base", content(case["base"])) if case["base"] else None
    compact = placed(tmp_path / "compact", content(case["file"]))
    decompress_file(compact, tmp_path / "restored", base)
    assert (tmp_path / "restored").read_bytes() == source.read_bytes()
    planes = planes_by_another_binding(compact)
    compress_file(source, compact, base)
    assert planes_by_another_binding(compact) == planes
    assert planes[1:] == [content(plane) for plane in case["planes"]]


def test_the_worked_example_is_a_vector() -> None:
    text = (ROOT / "formats" / "compact.md").read_text().split("## Example")[1]
    frames = [line.split("  ")[0] for line in text.splitlines() if "28b52ffd" in line]
    assert content(CASES[0]["file"]).endswith(bytes.fromhex("".join(frames)))


def test_other_programs_read_a_compact_file_as_one_stream(tmp_path: Path) -> None:
    compress_file(MODEL, tmp_path / "compact")
    with (tmp_path / "compact").open("rb") as file:
        stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        assert len(stream.read()) == MODEL.stat().st_size


TENSORS = st.dictionaries(
    st.text(max_size=3).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=3)),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(TENSORS, st.integers(1, 40), st.sampled_from([None, "noise", "near"]), st.integers(0, 2**32))
def test_any_file_survives_with_any_base_and_any_chunks(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, tuple[str, list[int]]],
    chunk: int,
    kind: str | None,
    seed: int,
) -> None:
    folder, header, end = tmp_path_factory.mktemp("any"), {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, num_bits = end, prod(shape) * DTYPES[dtype].num_bits
        end += num_bits // 8
        if num_bits % 8 == 0:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        else:
            end = begin
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 256, end, np.uint8)
    source = write_raw_safetensors(folder / "source", header, weights.tobytes())
    base = None
    if kind is not None:
        moved = weights + rng.integers(0, 2 if kind == "near" else 256, end, np.uint8)
        base = write_raw_safetensors(folder / "base", dict(list(header.items())), moved.tobytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact_layout, "CHUNK_ELEMENTS", chunk)
        round_trip(source, base)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_every_pattern_survives_beside_every_kind_of_base(dtype: Any, tmp_path: Path) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    source = write_safetensors(tmp_path / "source", {"w": patterns.view(dtype)})
    for i, bits in enumerate((patterns, patterns[::-1].copy(), patterns ^ 0x8000, np.roll(patterns, 129))):
        round_trip(source, write_safetensors(tmp_path / f"base{i}", {"w": bits.view(dtype)}))
    round_trip(source)


def test_exponents_cost_their_entropy(tmp_path: Path) -> None:
    source = placed(tmp_path / "model.safetensors", MODEL.read_bytes())
    num_bytes = round_trip(source)
    weights = np.concatenate([w.reshape(-1).view(np.uint16) for w in safetensors.numpy.load_file(source).values()])
    counts = np.bincount(weights >> 7 & 255)
    p = counts[counts > 0] / len(weights)
    entropy = -(p * np.log2(p)).sum()
    assert num_bytes * 8 < (8 + 1.03 * entropy) * len(weights)


def test_a_fine_tune_beside_its_base_is_small_and_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((256, 512)).astype(np.float32)
    base = write_safetensors(tmp_path / "base", {"w": weights.astype(ml_dtypes.bfloat16)})
    tuned = (weights + 1e-3 * rng.standard_normal(weights.shape).astype(np.float32)).astype(ml_dtypes.bfloat16)
    source = write_safetensors(tmp_path / "source", {"w": tuned, "new": tuned[:1]})
    assert round_trip(source, base) < round_trip(source) / 3
    with safetensors.safe_open(source.with_suffix(".restored"), "np") as file:
        assert np.array_equal(file.get_tensor("w").view(np.uint16), tuned.view(np.uint16))


def test_bytes_do_not_depend_on_threads_and_progress_adds_up(tmp_path: Path) -> None:
    whole, files, seen = MODEL.stat().st_size, [], []
    for num_threads in (1, 3):
        compact, restored = tmp_path / f"{num_threads}.compact", tmp_path / "restored"
        compress_file(MODEL, compact, None, lambda *step: seen.append(step), num_threads)
        decompress_file(compact, restored, None, lambda *step: seen.append(step), num_threads)
        files.append(hashlib.sha256(compact.read_bytes()).hexdigest())
    assert files[0] == files[1]
    ends = [step for step in seen if step[1] == whole]
    assert ends == 2 * [("compressing", whole, whole), ("restoring", whole, whole)]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    source = write_safetensors(tmp_path / "source", {"w": np.zeros(1 << 26, ml_dtypes.bfloat16)})
    tracemalloc.start()
    try:
        round_trip_bytes = source.stat().st_size
        compress_file(source, tmp_path / "compact", source)
        decompress_file(tmp_path / "compact", tmp_path / "restored", source)
        assert tracemalloc.get_traced_memory()[1] < round_trip_bytes / 4
    finally:
        tracemalloc.stop()


KILLED = """
import sys, time
from pathlib import Path
from mxconv.checkpoint.compact import compact_file
def stop(stage, done, total):
    if done > total // 2:
        print("halfway", flush=True)
        time.sleep(600)
getattr(compact_file, sys.argv[1])(Path(sys.argv[2]), Path(sys.argv[3]), None, stop)
"""


@pytest.mark.parametrize("there", [None, b"what was there"])
def test_a_killed_process_leaves_the_target_as_it_was(there: bytes | None, tmp_path: Path) -> None:
    compact, restored = tmp_path / "compact", tmp_path / "restored"
    for name, source, target in (("compress_file", MODEL, compact), ("decompress_file", compact, restored)):
        if there is not None:
            target.write_bytes(there)
        command = [sys.executable, "-c", KILLED, name, str(source), str(target)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None and process.stdout.readline() == b"halfway\n"
            process.send_signal(signal.SIGKILL)
        assert (target.read_bytes() if target.exists() else None) == there
        assert (tmp_path / f".{target.name}.{process.pid}.partial").exists()  # it was really under way
        (compress_file if name == "compress_file" else decompress_file)(source, target)
    assert restored.read_bytes() == MODEL.read_bytes()


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    source = placed(tmp_path / "source", MODEL.read_bytes())
    with pytest.raises(CheckpointError, match="source: changed in time while it was read"):
        compress_file(source, tmp_path / "compact", None, lambda *_: os.utime(source, (1, 1)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_without_zstd_the_error_says_what_to_install() -> None:
    code = """
import sys
sys.modules["backports"] = sys.modules["compression"] = None
import mxconv.checkpoint.compact.compact_file
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert "compact source: backports.zstd is not installed; compact sources are coded by it. Run: pip" in run.stderr
