"""Compact files that are damaged or lie: an error that names the file, and no target."""

import hashlib
import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from checkpoints import write_raw_safetensors, write_safetensors

from mxconv.checkpoint.compact.compact_file import compress_file, decompress_file
from mxconv.errors import CheckpointError

HEADER = {"w": {"dtype": "BF16", "shape": [40], "data_offsets": [0, 80]}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal(40).astype(np.float32).view(np.uint32) >> 16
    return write_raw_safetensors(tmp_path / "source", HEADER, weights.astype("<u2").tobytes())


@pytest.fixture
def compact(source: Path, tmp_path: Path) -> Path:
    compress_file(source, tmp_path / "compact")
    return tmp_path / "compact"


def refused(compact: Path, match: str, base: Path | None = None) -> None:
    """Expect an error, and that nothing is left of the target."""
    before = sorted(compact.parent.iterdir())
    with pytest.raises(CheckpointError, match=match):
        decompress_file(compact, compact.with_name("restored"), base)
    assert sorted(compact.parent.iterdir()) == before


def split(compact: Path) -> tuple[dict[str, object], bytes]:
    """The preamble's members, and the frames after it."""
    raw = compact.read_bytes()
    end = 8 + int.from_bytes(raw[4:8], "little")
    return json.loads(raw[8:end]), raw[end:]


def join(compact: Path, members: object, frames: bytes) -> None:
    text = json.dumps(members).encode()
    compact.write_bytes(b"\x50\x2a\x4d\x18" + struct.pack("<I", len(text)) + text + frames)


def test_a_file_cut_anywhere_is_refused(compact: Path) -> None:
    whole = compact.read_bytes()
    for length in range(len(whole)):
        compact.write_bytes(whole[:length])
        refused(compact, "compact: ")


def test_a_flipped_bit_anywhere_changes_nothing_or_is_refused(source: Path, compact: Path) -> None:
    whole, num_harmless = compact.read_bytes(), 0
    for i in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[i // 8] ^= 1 << i % 8
        compact.write_bytes(damaged)
        restored = compact.with_name("restored")
        try:
            decompress_file(compact, restored)
        except CheckpointError as error:
            assert str(error).startswith(str(compact)) and not restored.exists()
        else:
            num_harmless += 1
            assert restored.read_bytes() == source.read_bytes()
            restored.unlink()
    # in each of three frames: one bit is unused by RFC 8878, and one says whether its length or a window is given
    assert num_harmless <= 6


def test_a_damaged_frame_names_its_tensor(compact: Path) -> None:
    raw = compact.read_bytes()
    compact.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    refused(compact, r"compact: tensor 'w', byte \d+ of the restored file: .*; 2 frames of 40 bytes each are required")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": 2}, "format 'mxconv-compact', version 2; 'mxconv-compact', version 1 is required"),
        ({"version": True}, "preamble: version"),
        ({"format": "other"}, "format 'other'"),
        ({"num_bytes": 8}, "preamble: num_bytes"),
        ({"num_bytes": 1 << 40}, "content: 1,099,511,627,624 bytes follow tensor 'w'"),
        ({"num_bytes": 2.5}, "preamble: num_bytes"),
        ({"header_bytes": 1 << 30}, "preamble: header_bytes"),
        ({"header_bytes": 9}, "header, byte 0 of the restored file: a frame holds more bytes; 1 frames of 9"),
        (
            {"header_bytes": 99_999_999},
            "header, byte 0 of the restored file: a frame holds 72 bytes; 1 frames of 524,288",
        ),
        ({"sha256": "0" * 64}, "content: 72 bytes before tensors, SHA-256 [0-9a-f]{64}; 72 and 0{64} are required"),
        ({"sha256": "0"}, "preamble: sha256"),
        ({"sha256": None}, "preamble: sha256"),
        ({"base_sha256": 5}, "preamble: base_sha256"),
        ({"base_sha256": "0" * 64}, "base: none; the file with SHA-256 0{64} is required"),
        ({"more": 1}, "preamble: more"),
    ],
)
def test_a_preamble_that_lies_is_refused(compact: Path, changes: dict[str, object], match: str) -> None:
    members, frames = split(compact)
    join(compact, {**members, **changes}, frames)
    refused(compact, match)


@pytest.mark.parametrize("name", ["format", "version", "num_bytes", "header_bytes", "sha256", "base_sha256"])
def test_every_member_of_the_preamble_is_required(compact: Path, name: str) -> None:
    members, frames = split(compact)
    del members[name]
    join(compact, members, frames)
    refused(compact, name if name not in ("format", "version") else "None")


def test_what_is_no_preamble_is_refused(compact: Path) -> None:
    raw = compact.read_bytes()
    compact.write_bytes(b"\x28\xb5\x2f\xfd" + raw[4:])
    refused(compact, "begins with 28b52ffd; a compact file begins with 502a4d18")
    compact.write_bytes(raw[:4] + b"\xff\xff\xff\xff" + raw[8:])
    refused(compact, "its preamble claims 4,294,967,295 bytes")
    join(compact, [], b"")
    refused(compact, "preamble: a JSON list is at the top")
    compact.write_bytes(b"")
    refused(compact, "begins with nothing")


def test_frames_that_lie_cost_no_memory(source: Path, compact: Path) -> None:
    members, frames = split(compact)
    zeros, compressor = bytes(1 << 24), zstandard.ZstdCompressor()
    bombs = [compressor.compress(zeros), zstandard.ZstdCompressor(write_content_size=False).compress(zeros)]
    window = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    wide = zstandard.ZstdCompressor(compression_params=window).compressobj()
    header, weights = source.read_bytes()[:-80], source.read_bytes()[-80:]
    first, plane = compressor.compress(header), compressor.compress(weights[:40])
    tracemalloc.start()
    for bomb in bombs:
        join(compact, members, bomb + frames)
        refused(compact, "header, byte 0 of the restored file: a frame holds more bytes")
        join(compact, members, first + plane + bomb)
        refused(compact, "tensor 'w', byte .*: a frame holds more bytes")
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()
    join(compact, members, wide.compress(header) + wide.flush() + frames)
    refused(compact, "header, byte 0 of the restored file: .* too much memory for decoding")
    join(compact, members, first + plane + compressor.compress(b""))
    refused(compact, "tensor 'w', byte .*: a frame holds 0 bytes")


def test_bytes_after_the_last_frame_are_refused(compact: Path) -> None:
    raw = compact.read_bytes()
    compact.write_bytes(raw + b"\0")
    refused(compact, f"goes on after byte {len(raw):,}, where the last frame ends; nothing may follow")


def test_a_restored_header_that_lies_is_refused(compact: Path) -> None:
    members, frames = split(compact)
    header_frame = zstandard.ZstdDecompressor().decompressobj()
    text = header_frame.decompress(frames)
    for changed, match in (
        (text.replace(b"[40]", b"[41]"), "compact: content: tensor 'w': data_offsets"),
        (text.replace(b"BF16", b"BF17"), "compact: content: tensor 'w': dtype 'BF17' is unknown"),
        (b"\xff" * 8 + text[8:], "compact: content: the header claims"),
        ((len(text) - 9).to_bytes(8, "little") + text[8:], "compact: content: header: no valid JSON"),
        ((6).to_bytes(8, "little") + b'{"":2}'.ljust(len(text) - 8), "compact: content: tensor ''"),
    ):
        join(compact, members, zstandard.ZstdCompressor().compress(changed) + header_frame.unused_data)
        refused(compact, match)


def test_the_base_must_be_the_one_that_it_was(source: Path, compact: Path, tmp_path: Path) -> None:
    refused(compact, "compact: base: .*source with SHA-256 [0-9a-f]{64}; none is required", base=source)
    compress_file(source, compact, source)
    refused(compact, "compact: base: none; the file with SHA-256 [0-9a-f]{64} is required. Name the file")
    other = write_safetensors(tmp_path / "other", {"w": np.zeros(40, np.float16)})
    refused(compact, "base: .*other with SHA-256 [0-9a-f]{64}; the file with SHA-256 [0-9a-f]{64} is", base=other)
    refused(compact, "gone: no such file", base=tmp_path / "gone")


def test_more_than_the_disk_has_is_refused_before_it_is_written(compact: Path) -> None:
    members, _ = split(compact)
    text = json.dumps({"w": {"dtype": "U8", "shape": [2**60], "data_offsets": [0, 2**60]}}).encode()
    head = len(text).to_bytes(8, "little") + text
    join(
        compact,
        {**members, "num_bytes": len(head) + 2**60, "header_bytes": len(head)},
        zstandard.ZstdCompressor().compress(head) + zstandard.ZstdCompressor().compress(bytes(1 << 19)),
    )
    refused(compact, "restored: cannot be written")


def test_places_that_cannot_be_read_or_written_are_named(source: Path, compact: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere/restored: cannot be written"):
        decompress_file(compact, tmp_path / "nowhere" / "restored")
    with pytest.raises(CheckpointError, match="nowhere/compact: cannot be written"):
        compress_file(source, tmp_path / "nowhere" / "compact")
    with pytest.raises(CheckpointError, match="gone: no such file"):
        decompress_file(tmp_path / "gone", tmp_path / "restored")
    with pytest.raises(CheckpointError, match="cannot be read"):
        decompress_file(tmp_path, tmp_path / "restored")
    with pytest.raises(CheckpointError, match="compact: the header"):
        compress_file(compact, tmp_path / "twice")


def test_a_restored_header_shorter_than_the_preamble_says_is_refused(compact: Path) -> None:
    """The bytes after it would be neither header nor tensor."""
    members, _ = split(compact)
    text = json.dumps({"w": {"dtype": "U8", "shape": [6], "data_offsets": [0, 6]}}).encode()
    head = len(text).to_bytes(8, "little") + text
    content = head + b"ab" + b"cdefgh"
    lies = {"num_bytes": len(head) + 6, "header_bytes": len(head) + 2, "sha256": hashlib.sha256(content).hexdigest()}
    compressor = zstandard.ZstdCompressor()
    join(compact, {**members, **lies}, compressor.compress(head + b"ab") + compressor.compress(b"cdefgh"))
    refused(compact, f"content: {len(head)} bytes before tensors, SHA-256 .*; {len(head) + 2} and")
