"""Calibration: better codes for the draft of a package, by what its matrices multiply in given texts.

    calibrate(Path("package"), [Path("texts.jsonl")], Path("draft.safetensors"), 16_384)

The package holds the direct cast to 4 bits, or is given a draft of 2 bits (formats/mx2.md). The texts go through the
target's layers, one after another; X^T X of what each matrix of a layer multiplies is summed
(`engine/recorded_inputs.py`); its codes are rounded anew (`codecs/gptq.py`), and kept for each row that errs less than
the nearest codes. Scales are chosen anew before, by the mean squares of what
their weights multiply; BSFP chooses among the codes that reach a weight (`codecs/bsfp/reach.py`). Memory holds the sums
of one layer. What comes out is a draft file. Inputs that the 4-bit layers before give, as in GPTQ's paper, took half as
long again, and the draft agreed with its target no more often.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mxconv.arch.description import Attending
from mxconv.arrays import F32, F64, U8, U16
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.regular_file import check_regular_file
from mxconv.codecs.bsfp.reach import ReachGrid, fit_scales, reaching_table
from mxconv.codecs.gptq import (
    BLOCK_ROWS,
    DAMPING,
    E2M1,
    TWO_BITS,
    Grid,
    InputFactor,
    MxGrid,
    compensated_codes,
    fit_block_scales,
    output_errors,
)
from mxconv.codecs.mx2 import pack_mx2, quantize_mx2
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pack_scales, pad, unpack_nibbles, unpack_scales
from mxconv.conversion.draft_file import DraftFileWriter
from mxconv.conversion.fit_screen import fit_screen
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows, spans
from mxconv.engine.layer import Layer
from mxconv.engine.recorded_inputs import InputRecorder, InputSum
from mxconv.engine.rope import Positions
from mxconv.engine.weights import CheckedWeights, WeightedNorm
from mxconv.package.stored import stored_shape
from mxconv.package.stored_matrix import StoredBsfp, StoredMxfp4
from mxconv.package.tensor_record import TensorRecord
from mxconv.progress import Progress, silent
from mxconv.speculation.calibration_texts import read_texts

PASS_TOKENS = 2048  # that go through a layer at a time
MIN_ROWS = 64  # of inputs; a matrix that multiplied fewer is cast

Draft = tuple[U8, U8 | U16]
"""Codes and scales of a matrix as a package stores them."""


@dataclass
class Calibration:
    """A calibration on its way: the package, the hidden states of all texts, and counts for the manifest."""

    loaded: LoadedPackage
    texts: list[list[int]]
    states: list[F32]  # of each text, (num_tokens, hidden_size): the input of the next layer
    own_inputs: list[F32 | None]  # of each text, where layers have own ones: (num_layers, num_tokens, size)
    caches: list[KVCache] | None  # of each text, where layers read what other layers wrote
    norm: WeightedNorm  # of what the head takes
    is_in_two_bits: bool = False
    num_compensated: int = 0
    num_cast: int = 0

    @classmethod
    def begin(cls, loaded: LoadedPackage, texts: list[list[int]]) -> "Calibration":
        """Embed the texts."""
        decoder = Decoder(loaded.own.config, loaded.own.sixteen_bits, "calibration")
        first = [decoder.first_inputs(np.array(text, np.intp), Positions(range(len(text)))) for text in texts]
        states, own_inputs = [x for x, _ in first], [own for _, own in first]
        mixers = [layer.mixer for layer in decoder.config.layers]
        shares = any(isinstance(mixer, Attending) and mixer.source is not None for mixer in mixers)
        caches = [KVCache(decoder.config) for _ in texts] if shares else None
        return cls(loaded, texts, states, own_inputs, caches, decoder.norm)

    def passes(self, layer: Layer) -> Iterator[tuple[int, F32]]:
        """What a layer makes of the texts: the number of a text and its rows, one text after another."""
        config, number = self.loaded.own.config, 0
        if isinstance(layer.mixer, WeightedAttention):
            layer.mixer.attends_together = True
        for group in _groups([len(text) for text in self.texts], PASS_TOKENS):
            sequences = [
                SequenceRows(self.texts[n], KVCache(config) if self.caches is None else self.caches[n]) for n in group
            ]
            for rows in sequences:
                rows.cache.begin(rows.branches, 0)
            x = np.concatenate([self.states[n] for n in group])
            own = [inputs[layer.index] for n in group if (inputs := self.own_inputs[n]) is not None]
            with np.errstate(over="ignore", invalid="ignore"):
                y = layer(
                    x,
                    sequences,
                    Positions([position for rows in sequences for position in rows.positions]),
                    np.concatenate(own) if own else None,
                )
            for span in spans(rows.num_rows for rows in sequences):
                yield number, y[span]
                number += 1


def calibrate(
    package: Path,
    files: Sequence[Path],
    draft_file: Path,
    num_tokens: int,
    num_threads: int = 1,
    progress: Progress = silent,
    *,
    with_screen: bool = False,
    codec: Literal["mx2"] | None = None,
) -> None:
    """Write a draft file for a package that was cast.

    Args:
        package: made from the source that the draft is for.
        files: of texts, or .jsonl with `text`, or with `prompt`, `messages` or `turns`, which the target answers.
        draft_file: to write.
        num_tokens: of all texts and answers, at most.
        num_threads: of native kernels.
        progress: told about tokens that the target writes, and layers.
        with_screen: whether the file is to have a screen of the draft's output head, where one pays.
        codec: of the draft, whose output head, embedding and experts then stay the 4-bit level's; None: the package's.

    Raises:
        MxconvError: a file cannot be read or holds no text, or the model cannot be decoded.
    """
    with LoadedPackage(package, ["target"], num_threads=num_threads) as loaded:
        texts, num_written = read_texts(loaded, files, num_tokens, progress)
        records = {
            own: record
            for record in loaded.package.manifest.tensors
            if record.codec in ("mxfp4", "bsfp")
            and record.carried is None
            and (own := loaded.own.config.own_name(record.name)) is not None
            and (codec is None or (record.stack is None and own.startswith(loaded.own.config.layer_prefix)))
        }
        options = loaded.package.manifest.options
        description = {
            "rule": "gptq",
            "scale_rule": "inputs",
            "damping": DAMPING,
            "texts": [{"sha256": sha256_file(path), "num_bytes": check_regular_file(path)} for path in files],
            "num_texts": len(texts),
            "num_tokens": sum(map(len, texts)),
            "num_tokens_written": num_written,
        }
        if codec is not None:
            description["codec"] = codec
        calibration = Calibration.begin(loaded, texts)
        calibration.is_in_two_bits = codec == "mx2"
        shapes = {record.name: stored_shape(record) for record in records.values()}
        with DraftFileWriter(draft_file, shapes, codec or options.codec) as writer:
            left = dict(records)
            config = loaded.own.config
            for index in range(config.num_hidden_layers):
                progress("calibrate layers", index, config.num_hidden_layers)
                prefix = f"{config.layer_prefix}.{index}."  # of the layer's tensors
                of_layer = {own: left.pop(own) for own in list(left) if own.startswith(prefix)}
                _calibrate_layer(calibration, index, prefix, of_layer, writer)
            normed = [calibration.norm(states) for states in calibration.states]
            screen = fit_screen(loaded.target.head, normed, options.codec) if with_screen else None
            _calibrate_head(calibration, normed, left, writer)
            for record in left.values():
                writer.write(record.name, *_cast(calibration, record))
                calibration.num_cast += 1
            counts = {"num_matrices": calibration.num_compensated, "num_matrices_cast": calibration.num_cast}
            writer.commit(description | counts, screen)
    progress("calibrate layers", 1, 1)


def _groups(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Numbers of texts that go through a layer together: as many as have `most` tokens, or one."""
    group: list[int] = []
    for number, length in enumerate(lengths):
        if group and sum(lengths[n] for n in group) + length > most:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _calibrate_layer(
    calibration: Calibration, index: int, prefix: str, records: dict[str, TensorRecord], writer: DraftFileWriter
) -> None:
    """Go on to the next layer's inputs, recording; round anew, and write."""
    loaded = calibration.loaded
    config, recorder = loaded.own.config, InputRecorder()
    exact = recorder.weights(loaded.own.sixteen_bits, prefix)
    made = dict(calibration.passes(Layer(CheckedWeights(exact, "calibration"), config, index)))
    calibration.states = [made[number] for number in range(len(calibration.texts))]
    _write_anew(calibration, recorder, records, writer)


def _calibrate_head(
    calibration: Calibration, normed: list[F32], records: dict[str, TensorRecord], writer: DraftFileWriter
) -> None:
    """The output head, if it is among the matrices that are left: it takes the last layer's normed rows."""
    config, recorder = calibration.loaded.own.config, InputRecorder()
    name = config.head if config.head in records else config.embedding
    if name not in records or not (name == config.head or config.tie_word_embeddings):
        return
    found = recorder.sums[name, None] = InputSum(config.hidden_size)
    for rows in normed:
        found.add(rows)
    _write_anew(calibration, recorder, {name: records.pop(name)}, writer)


def _write_anew(
    calibration: Calibration, recorder: InputRecorder, records: dict[str, TensorRecord], writer: DraftFileWriter
) -> None:
    """Round matrices anew by the inputs that were recorded, and write them; the cast where there were too few."""
    loaded, factors = calibration.loaded, dict[int, InputFactor]()
    for own, record in records.items():
        drafts = []
        for expert in range(record.stack.num_experts) if record.stack else (None,):
            key, found = (own, expert), recorder.sums.get((own, expert))
            if found is None or found.num_rows < MIN_ROWS or not _is_usable(found):
                calibration.num_cast += 1
                drafts.append(_cast(calibration, record, expert))
                continue
            calibration.num_compensated += 1
            if id(found) not in factors:
                factors[id(found)] = InputFactor.of(found.products)
            inputs = _Inputs(found.products, factors[id(found)], found.num_rows, key in recorder.turned)
            exact = loaded.own.sixteen_bits
            matrix = exact.matrices[own] if expert is None else exact.stacks[own].matrix(expert)
            step = matrix.shape[0] if inputs.is_turned else BLOCK_ROWS
            for start in range(0, matrix.shape[0], step):
                rows = slice(start, min(start + step, matrix.shape[0]))
                weights = matrix.rows(np.arange(rows.start, rows.stop)).astype(np.float64)
                if calibration.is_in_two_bits:
                    drafts.append(_mx2_anew(weights, inputs))
                elif record.codec == "mxfp4":
                    drafts.append(_mxfp4_anew(loaded.package.mxfp4(record, expert), rows, weights, inputs))
                else:
                    drafts.append(_bsfp_anew(loaded.package.bsfp(record, expert), rows, weights, inputs))
        codes, scales = zip(*drafts, strict=True)
        writer.write(record.name, np.concatenate(codes), np.concatenate(scales))


def _cast(calibration: Calibration, record: TensorRecord, expert: int | None = None) -> Draft:
    """Codes and scales of the direct cast; of a stack of experts all, or one's."""
    loaded = calibration.loaded
    if calibration.is_in_two_bits:
        own = loaded.own.config.own_name(record.name)
        assert own is not None, "a matrix of the model's"
        matrix = loaded.own.sixteen_bits.matrices[own]
        codes, scales = quantize_mx2(matrix.rows(np.arange(matrix.shape[0])))
        return pack_mx2(pad(codes, TILE_ROWS, BLOCK)), pack_scales(pad(scales, TILE_ROWS, 1))
    if record.codec == "mxfp4":
        mxfp4 = loaded.package.mxfp4(record, expert)
        return mxfp4.codes, mxfp4.scales
    if expert is None and record.stack:
        each = [_cast(calibration, record, number) for number in range(record.stack.num_experts)]
        return np.concatenate([codes for codes, _ in each]), np.concatenate([scales for _, scales in each])
    bsfp = loaded.package.bsfp(record, expert).packed
    return bsfp.codes, bsfp.scales


@dataclass(frozen=True)
class _Inputs:
    """What a matrix multiplied: X^T X, its factor, how many rows; and whether stored rows are its inputs."""

    products: F64
    factor: InputFactor
    num_rows: int
    is_turned: bool

    @property
    def squares(self) -> F64:
        """Mean squares of the inputs, which broadcast to the matrix as it is stored."""
        squares: F64 = self.products.diagonal() / self.num_rows
        return squares[:, None] if self.is_turned else squares

    def better_codes(self, weights: F64, grid: Grid, nearest: U8) -> U8:
        """The compensated codes of each output, or the nearest ones where these err no more over the inputs."""
        if self.is_turned:
            weights, grid, nearest = weights.T, grid.turned(), nearest.T
        codes = compensated_codes(weights, grid, self.factor)
        errors, others = (output_errors(weights - grid.values(each), self.products) for each in (codes, nearest))
        made = np.where((errors < others)[:, None], codes, nearest)
        return made.T if self.is_turned else made


def _mxfp4_anew(cast: StoredMxfp4, rows: slice, weights: F64, inputs: _Inputs) -> Draft:
    """Codes, and scales that suit what the weights multiply."""
    tiles, (num_rows, columns) = _tiles(rows), weights.shape
    cast_codes = unpack_nibbles(cast.codes[tiles])[:num_rows, :columns]
    scales = fit_block_scales(E2M1, weights, unpack_scales(cast.scales[tiles])[:num_rows], inputs.squares)
    grid = MxGrid.of(E2M1, scales, columns)
    codes = inputs.better_codes(weights, grid, grid.cast(weights))
    codes = np.where(np.repeat(scales == 0, BLOCK, axis=1)[:, :columns], cast_codes, codes)  # zeros are zero bytes
    return pack_nibbles(pad(codes, TILE_ROWS, BLOCK)), pack_scales(pad(scales, TILE_ROWS, 1))


def _mx2_anew(weights: F64, inputs: _Inputs) -> Draft:
    """Codes, and scales that suit what the weights multiply, two bits each; zeros are zero bytes."""
    columns = weights.shape[1]
    scales = fit_block_scales(TWO_BITS, weights, quantize_mx2(weights.astype(np.float32))[1], inputs.squares)
    grid = MxGrid.of(TWO_BITS, scales, columns)
    codes = inputs.better_codes(weights, grid, grid.cast(weights))
    codes[np.repeat(scales == 0, BLOCK, axis=1)[:, :columns]] = 0
    return pack_mx2(pad(codes, TILE_ROWS, BLOCK)), pack_scales(pad(scales, TILE_ROWS, 1))


def _bsfp_anew(cast: StoredBsfp, rows: slice, weights: F64, inputs: _Inputs) -> Draft:
    """Codes that reach the weights, and scales that suit what these multiply."""
    packed, num_rows = cast.row_tiles(_tiles(rows).start, _tiles(rows).stop), len(weights)
    if cast.rescale_factor != 1.0:
        return packed.codes, packed.scales
    table, patterns = reaching_table(cast.table), cast.target_rows(rows.start, rows.stop)
    shifts = None if packed.row_shifts is None else packed.row_shifts[:num_rows]
    squares = inputs.squares.astype(np.float32)
    scales = fit_scales(patterns, table, shifts, unpack_scales(packed.scales)[:num_rows], squares)
    grid = ReachGrid.of(patterns, table, shifts, scales)
    codes = inputs.better_codes(weights, grid, grid.cast(patterns))
    return pack_nibbles(pad(codes, TILE_ROWS, BLOCK)), pack_scales(pad(scales, TILE_ROWS, 1))


def _tiles(rows: slice) -> slice:
    """The row tiles of rows that begin with one."""
    return slice(rows.start // TILE_ROWS, -(-rows.stop // TILE_ROWS))


def _is_usable(found: InputSum) -> bool:
    squares = found.products.diagonal()
    return bool(np.isfinite(squares).all() and squares.any())
