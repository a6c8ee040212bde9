"""A head screen for a draft, fitted to rows that its output head multiplies.

What is fitted and how: codecs/screen_axes.py. What is stored: formats/package.md, "Head screen".
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mxconv.arrays import F32, F64, U8, U16
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.screen_axes import ScreenAxes, candidates, num_chosen
from mxconv.codecs.vnni8 import padded
from mxconv.conversion.calibration_texts import read_texts
from mxconv.conversion.draft_file import DraftFileWriter
from mxconv.conversion.options import Codec
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.sequence_rows import States
from mxconv.kernels.encoders import decode_mxfp4, encode_mxfp4
from mxconv.kernels.matrix import Matrix
from mxconv.package.head_screen import HeadScreen
from mxconv.package.stored import StoredMxfp4
from mxconv.progress import Progress

RANK = 4 / 9  # of the hidden size: on other texts than those it is fitted to, a lower one loses a token in fifty
ENOUGH = 0.99  # of rows have their likeliest token among the candidates
SAMPLE_ROWS, SAMPLES_AT_ONCE = 1024, 64  # by which this is judged
HEAD_ROWS = 8192  # that become float64 at a time
# tiles of 16 tokens by whose scores candidates are chosen; a candidate's row is read, or of BSFP the whole tile
NUM_CANDIDATES = {"mxfp4": 512, "bsfp": 128}


def screen_cast(
    package: Path, files: Sequence[Path], draft_file: Path, num_tokens: int, num_threads: int, progress: Progress
) -> None:
    """Write a draft file that keeps the codes of a package that was cast, with a screen of its output head.

    Arguments and errors are those of `calibrate`.
    """
    with LoadedPackage(package, ["target"], num_threads=num_threads) as loaded:
        target, normed = loaded.target, list[F32]()
        texts = read_texts(loaded, files, num_tokens, progress)
        for number, ids in enumerate(texts.fitted, 1):
            states = States(normed_last=True)
            target.forward(ids, target.new_cache(), last_only=True, states=states)
            assert states.values is not None, "of the pass"
            normed.append(states.values[0])
            progress("read texts", number, len(texts.fitted))
        codec = loaded.package.manifest.options.codec
        keep_cast(draft_file, codec, {"rule": "cast"} | texts.described(files), fit_screen(target.head, normed, codec))


def keep_cast(draft_file: Path, codec: Codec, description: Mapping[str, Any], screen: HeadScreen | None) -> None:
    """Write a draft file without codes, so that all matrices are cast."""
    with DraftFileWriter(draft_file, {}, codec) as writer:
        writer.commit({**description, "kept": "cast"}, screen)


def fit_screen(head: Matrix, states: Sequence[F32], codec: Codec) -> HeadScreen | None:
    """The screen of a head, (vocab_size, hidden_size), for rows that it multiplies, (n, hidden_size) each.

    `codec` is the package's. None where the vocabulary is small, or the screen lets too few through.
    """
    vocab_size, hidden_size = head.shape
    num_candidates = num_chosen(NUM_CANDIDATES[codec], vocab_size)
    if not num_candidates:
        return None
    weights, inputs = np.zeros((hidden_size, hidden_size)), np.zeros((hidden_size, hidden_size))
    for rows in _head_rows(head):
        weights += rows.T @ rows
    for each in states:
        wide = each.astype(np.float64)
        inputs += wide.T @ wide
    axes = ScreenAxes.of(weights, inputs)
    taken = np.concatenate(states)
    sample = taken[:: max(len(taken) // SAMPLE_ROWS, 1)][:SAMPLE_ROWS]
    rank = padded(round(RANK * hidden_size), BLOCK)
    projection, given = axes.of_rank(rank)
    patterns = BF16.encode(projection.astype(np.float32))
    scores = np.concatenate([BF16.encode((rows @ given).astype(np.float32)) for rows in _head_rows(head)])
    codes, scales = encode_mxfp4(scores, BF16, "mse")
    if _share_let_through(head, sample, patterns, codes, scales, num_candidates) < ENOUGH:
        return None
    return HeadScreen(patterns, StoredMxfp4((vocab_size, rank), codes, scales), num_candidates)


def _head_rows(head: Matrix) -> Iterator[F64]:
    for start in range(0, head.shape[0], HEAD_ROWS):
        yield head.rows(np.arange(start, min(start + HEAD_ROWS, head.shape[0]))).astype(np.float64)


def _share_let_through(head: Matrix, sample: F32, projection: U16, codes: U8, scales: U8, num_candidates: int) -> float:
    """The share of rows whose likeliest token is among their candidates."""
    scoring = decode_mxfp4(codes, scales, (head.shape[0], len(projection)))
    let_through = 0
    for start in range(0, len(sample), SAMPLES_AT_ONCE):
        rows = sample[start : start + SAMPLES_AT_ONCE]
        likeliest = head.multiply(rows).argmax(1)
        scores = rows @ BF16.decode(projection).T @ scoring.T
        let_through += sum(candidates(row, num_candidates)[token] for row, token in zip(scores, likeliest, strict=True))
    return let_through / len(sample)
