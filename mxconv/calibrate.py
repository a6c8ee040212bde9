"""Calibration: better codes for the draft of a package, by what its matrices multiply in given texts.

    calibrate(Path("package"), [Path("texts.jsonl")], Path("draft.safetensors"), 16_384)

The package holds the direct cast to 4 bits. The texts go through the
target's layers and the draft's, one layer after another (`engine/text_states.py`). The matrices of a layer are rounded
anew in four stages, each by the rows that the draft as it is by then gives them (`engine/recorded_inputs.py`): a
regression moves their weights toward what makes up for errors of all that came before, as far as that holds on texts
that it was not fitted to, and error compensation rounds the result (`conversion/compensation.py`). Memory holds one
layer's sums and rows. What comes out is a draft file.
"""

from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import F32, F64, U8, U16
from mxconv.codecs.gptq import BLOCK_ROWS, DAMPING
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.calibration_texts import CalibrationTexts, read_texts
from mxconv.conversion.compensation import Draft, MatrixInputs, bsfp_anew, mxfp4_anew
from mxconv.conversion.draft_file import DraftFileWriter
from mxconv.conversion.fit_screen import fit_screen, keep_cast
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.engine.layer import Layer
from mxconv.engine.recorded_inputs import (
    MLP,
    NUM_STAGES,
    EnoughError,
    InputRecorder,
    InputRows,
    Key,
    PassRows,
    RecordedLayer,
)
from mxconv.engine.stored_weights import head_tensor
from mxconv.engine.text_states import HeldOutTexts, TextStates
from mxconv.engine.weights import CheckedWeights, ExpertStack, ModelWeights, WeightedNorm
from mxconv.kernels.matrix import Matrix
from mxconv.package.stored import StoredMxfp4, stored_shape
from mxconv.package.tensor_record import TensorRecord
from mxconv.progress import CALIBRATED_LAYERS, Progress, silent

MIN_ROWS = 64  # of inputs; a matrix that multiplied fewer is cast


@dataclass
class Calibration:
    """A calibration on its way: the package, its texts in the exact model and in the draft, and counts."""

    loaded: LoadedPackage
    exact: TextStates
    draft: TextStates
    norm: WeightedNorm  # of what the head takes
    held_out: HeldOutTexts | None = None
    num_threads: int = 1
    num_compensated: int = 0
    num_cast: int = 0

    @classmethod
    def begin(cls, loaded: LoadedPackage, texts: CalibrationTexts) -> "Calibration":
        """Embed the texts."""
        decoder = Decoder(loaded.own.config, loaded.own.sixteen_bits, "calibration")
        exact = TextStates(decoder, texts.fitted)
        held_out = None
        if texts.held_out:
            ids, first_counted = zip(*texts.held_out, strict=True)
            held_out = HeldOutTexts(TextStates(decoder, ids), first_counted)
        return cls(loaded, exact, exact.copy(), decoder.norm, held_out)

    @cached_property
    def cast_weights(self) -> ModelWeights:
        """The weights of the package's own draft."""
        level = next(level for level in self.loaded.package.manifest.levels if level.kind == "self-draft")
        return self.loaded.own.four_bits(level.name, with_target=True)


def calibrate(
    package: Path,
    files: Sequence[Path],
    draft_file: Path,
    num_tokens: int,
    num_threads: int = 1,
    progress: Progress = silent,
    *,
    with_screen: bool = False,
) -> None:
    """Write a draft file for a package that was cast, whose codes it keeps where they agree more often.

    Args:
        package: made from the source that the draft is for.
        files: of texts, or .jsonl with `text`, or with `prompt`, `messages` or `turns`, which the target answers.
        draft_file: to write.
        num_tokens: of all texts and answers, at most.
        num_threads: of native kernels.
        progress: told about tokens that the target writes, and layers.
        with_screen: whether the file is to have a screen of the draft's output head, where one pays.

    Raises:
        MxconvError: a file cannot be read or holds no text, or the model cannot be decoded.
    """
    with LoadedPackage(package, ["target"], num_threads=num_threads, weights="map") as loaded:
        texts = read_texts(loaded, files, num_tokens, progress)
        records = {
            own: record
            for record in loaded.package.manifest.tensors
            if record.codec in ("mxfp4", "bsfp")
            and record.carried is None
            and (own := loaded.own.config.own_name(record.name)) is not None
        }
        options = loaded.package.manifest.options
        description = {
            "rule": "gptq",
            "scale_rule": "inputs",
            "weights": "moved",
            "damping": DAMPING,
        } | texts.described(files)
        calibration = Calibration.begin(loaded, texts)
        calibration.num_threads = num_threads
        shapes = {record.name: stored_shape(record) for record in records.values()}
        with DraftFileWriter(draft_file, shapes, options.codec) as writer:
            left = dict(records)
            config = loaded.own.config
            loaded.own.release()  # what answers have read
            for index in range(config.num_hidden_layers):
                progress(CALIBRATED_LAYERS, index, config.num_hidden_layers)
                prefix = f"{config.layer_prefix}.{index}."  # of the layer's tensors
                of_layer = {own: left.pop(own) for own in list(left) if own.startswith(prefix)}
                _calibrate_layer(calibration, index, prefix, of_layer, writer)
                loaded.own.release()
            progress(CALIBRATED_LAYERS, config.num_hidden_layers, config.num_hidden_layers)
            head = _calibrate_head(calibration, left, writer)
            for record in left.values():
                writer.write(record.name, *_cast(calibration, record))
                calibration.num_cast += 1
            shares = dict[str, float]()
            if calibration.held_out is not None:
                models = loaded.own.sixteen_bits, calibration.cast_weights
                heads = [*(each.matrices[head_tensor(config)] for each in models), head]
                found = calibration.held_out.agreements(calibration.norm, heads)
                shares = dict(zip(("cast", "calibrated"), found, strict=True))
                description["agreement"] = {**shares, "num_tokens": calibration.held_out.num_tokens}
            keeps_cast = bool(shares) and shares["calibrated"] < shares["cast"]
            states = (calibration.exact if keeps_cast else calibration.draft).states
            normed = [calibration.norm(each) for each in states]
            screen = fit_screen(loaded.target.head, normed, options.codec) if with_screen else None
            counts = {"num_matrices": calibration.num_compensated, "num_matrices_cast": calibration.num_cast}
            if keeps_cast:
                keep_cast(draft_file, options.codec, description, screen)
            else:
                writer.commit(description | counts, screen)


def _calibrate_layer(
    calibration: Calibration, index: int, prefix: str, records: dict[str, TensorRecord], writer: DraftFileWriter
) -> None:
    """Round a layer's matrices stage by stage, each by what the stages before make; write them, and go on."""
    config, exact, draft = calibration.loaded.own.config, calibration.exact, calibration.draft
    groups, weights = range(len(exact.states)), calibration.loaded.own.sixteen_bits
    recorder, wanted = InputRecorder(prefix), list[PassRows]()
    layer = RecordedLayer(weights, config, index, recorder)
    for group in groups:
        exact.states[group] = exact.finished(layer, group, exact.mixed(layer, group))
        wanted.append(recorder.pass_rows())
    left, mixed = dict(records), list[F32]()
    for stage in range(NUM_STAGES):
        recorder, sums = InputRecorder(prefix, stage), dict[Key, InputRows]()
        layer = RecordedLayer(weights, config, index, recorder)
        for group in groups:
            with suppress(EnoughError):
                if stage <= MLP:
                    mixed[group:] = [draft.mixed(layer, group)]
                if stage >= MLP:
                    draft.finished(layer, group, mixed[group])
            _add_pass(sums, wanted[group], recorder.pass_rows(), draft.is_second[group])
        taken = {name: left.pop(name) for name in {name for name, _ in sums} & left.keys()}
        weights = _write_anew(calibration, sums, recorder.turned, taken, weights, writer)
    weights = _write_anew(calibration, {}, set(), left, weights, writer)
    rounded = Layer(CheckedWeights(weights, "calibration"), config, index)
    draft.states = [draft.finished(rounded, group, mixed[group]) for group in groups]
    if calibration.held_out is not None:
        sixteen_bits = calibration.loaded.own.sixteen_bits
        calibration.held_out.advance(index, [sixteen_bits, calibration.cast_weights, weights])


def _add_pass(sums: dict[Key, InputRows], exact: PassRows, draft: PassRows, is_second: NDArray[np.bool_]) -> None:
    """Add the rows of one pass; matrices that multiply the same array share a sum."""
    added: dict[int, InputRows] = {}
    for key, x in draft.taken.items():
        if id(x) in added:
            sums[key] = added[id(x)]
            continue
        found = added[id(x)] = sums.setdefault(key, InputRows(x.shape[1]))
        if key not in exact.taken:  # rows that an expert took are others in the exact model
            found.add(x, np.zeros(len(x), np.bool_))
            continue
        lacking = exact.residuals[key] - draft.residuals[key] if key in draft.residuals else None
        found.add(x, is_second, exact.taken[key], lacking)


def _calibrate_head(calibration: Calibration, records: dict[str, TensorRecord], writer: DraftFileWriter) -> Matrix:
    """Return the draft's output head, rounded anew by the last layer's normed rows if it is among the matrices left."""
    config = calibration.loaded.own.config
    head = head_tensor(config)
    name = config.embedding if config.tie_word_embeddings and head not in records else head
    if name not in records:
        return calibration.cast_weights.matrices[head]
    found = InputRows(config.hidden_size)
    for exact, draft, is_second in zip(
        calibration.exact.states, calibration.draft.states, calibration.draft.is_second, strict=True
    ):
        found.add(calibration.norm(draft), is_second, calibration.norm(exact))
    weights = calibration.loaded.own.sixteen_bits
    made = _write_anew(calibration, {(name, None): found}, set(), {name: records.pop(name)}, weights, writer)
    return made.matrices[name]


def _write_anew(
    calibration: Calibration,
    sums: Mapping[Key, InputRows],
    turned: Container[Key],
    records: Mapping[str, TensorRecord],
    weights: ModelWeights,
    writer: DraftFileWriter,
) -> ModelWeights:
    """Round matrices anew by the inputs that were recorded, and write them; the cast where there were too few.

    Returns:
        `weights` with these matrices as the draft has them.
    """
    inputs: dict[int, MatrixInputs] = {}
    matrices, stacks = dict(weights.matrices), dict(weights.stacks)
    for own, record in records.items():
        drafts, made = [], []
        for expert in range(record.stack.num_experts) if record.stack else (None,):
            key, found = (own, expert), sums.get((own, expert))
            if found is None or found.num_rows < MIN_ROWS or not _is_usable(found):
                calibration.num_cast += 1
                parts = [_cast(calibration, record, expert)]
            else:
                calibration.num_compensated += 1
                if id(found) not in inputs:
                    inputs[id(found)] = MatrixInputs.of(found, key in turned)
                parts = _rounded_anew(calibration, own, record, expert, inputs[id(found)])
            codes, scales = (np.concatenate(each) for each in zip(*parts, strict=True))
            drafts.append((codes, scales))
            made.append(_drafted(calibration, record, expert, codes, scales))
        writer.write(record.name, *(np.concatenate(each) for each in zip(*drafts, strict=True)))
        if record.stack:
            stacks[own] = ExpertStack(weights.stacks[own].shape, made.__getitem__)
        else:
            matrices[own] = made[0]
    return replace(weights, matrices=matrices, stacks=stacks)


def _drafted(calibration: Calibration, record: TensorRecord, expert: int | None, codes: U8, scales: U8 | U16) -> Matrix:
    """The draft's matrix of these codes and scales."""
    package, make = calibration.loaded.package, calibration.loaded.matrices
    if record.codec == "mxfp4":
        return make.mxfp4_draft(StoredMxfp4(package.mxfp4(record, expert).shape, codes, cast(U8, scales)))
    bsfp = package.bsfp(record, expert)
    return make.bsfp_draft(replace(bsfp, packed=replace(bsfp.packed, codes=codes, scales=cast(U16, scales))))


def _rounded_anew(
    calibration: Calibration, own: str, record: TensorRecord, expert: int | None, inputs: MatrixInputs
) -> list[Draft]:
    """Codes and scales of a matrix, of some rows after others; threads share the rows of each step."""
    drafts, exact = list[Draft](), calibration.loaded.own.sixteen_bits
    matrix = exact.matrices[own] if expert is None else exact.stacks[own].matrix(expert)
    num_rows, num_threads = matrix.shape[0], 1 if inputs.is_turned else calibration.num_threads
    step = num_rows if inputs.is_turned else BLOCK_ROWS
    with ThreadPoolExecutor(num_threads) as threads:
        for start in range(0, num_rows, step):
            rows = slice(start, min(start + step, num_rows))
            weights = inputs.moved(matrix.rows(np.arange(rows.start, rows.stop)).astype(np.float64), rows)
            assert inputs.factor is not None, "made before threads share it"
            part = -(-len(weights) // TILE_ROWS // num_threads) * TILE_ROWS
            parts = [slice(first, min(first + part, rows.stop)) for first in range(rows.start, rows.stop, part)]
            given = [weights[each.start - start : each.stop - start] for each in parts]
            anew = partial(_part_anew, calibration, record, expert, inputs)
            drafts += threads.map(anew, parts, given)
    return drafts


def _part_anew(
    calibration: Calibration, record: TensorRecord, expert: int | None, inputs: MatrixInputs, rows: slice, weights: F64
) -> Draft:
    package = calibration.loaded.package
    if record.codec == "mxfp4":
        return mxfp4_anew(package.mxfp4(record, expert), rows, weights, inputs)
    return bsfp_anew(package.bsfp(record, expert), rows, weights, inputs)


def _cast(calibration: Calibration, record: TensorRecord, expert: int | None = None) -> Draft:
    """Codes and scales of the direct cast; of a stack of experts all, or one's."""
    loaded = calibration.loaded
    if record.codec == "mxfp4":
        mxfp4 = loaded.package.mxfp4(record, expert)
        return mxfp4.codes, mxfp4.scales
    if expert is None and record.stack:
        each = [_cast(calibration, record, number) for number in range(record.stack.num_experts)]
        return np.concatenate([codes for codes, _ in each]), np.concatenate([scales for _, scales in each])
    bsfp = loaded.package.bsfp(record, expert).packed
    return bsfp.codes, bsfp.scales


def _is_usable(found: InputRows) -> bool:
    return bool(np.isfinite(found.squares).all() and found.squares.any())
