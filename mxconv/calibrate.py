"""Calibration: better codes for the 4-bit draft of an MXFP4 package, by what its matrices multiply in given texts.

    calibrate(Path("package"), [Path("texts.jsonl")], Path("draft.safetensors"))

The package holds the direct cast. The texts go through the target's layers, one after another; X^T X of what each
matrix of a layer multiplies is summed (`engine/recorded_inputs.py`); its codes are rounded anew at the scales of the
cast (`codecs/gptq.py`), and kept for each row that errs less than in the cast. Memory holds the sums of one layer. What
comes out is a draft file. Inputs that the 4-bit layers before give, as in GPTQ's paper, took half as long again, and
the draft agreed with its target no more often.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxconv.arch.description import Attending
from mxconv.arrays import F32, F64, U8
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.regular_file import check_regular_file, open_file, parse_json_object
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.gptq import DAMPING, InputFactor, compensated_codes, output_errors
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.vnni8 import TILE_ROWS, pack_nibbles, pad, unpack_nibbles, unpack_scales
from mxconv.conversion.draft_file import DraftFileWriter
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows, spans
from mxconv.engine.layer import Layer
from mxconv.engine.recorded_inputs import InputRecorder, InputSum, Key
from mxconv.engine.rope import Positions
from mxconv.engine.weights import CheckedWeights
from mxconv.errors import ModelError
from mxconv.package.stored import stored_shape
from mxconv.package.stored_matrix import StoredMxfp4
from mxconv.package.tensor_record import TensorRecord
from mxconv.progress import Progress, silent
from mxconv.speculation.continuations import continuations
from mxconv.speculation.prompts import read_prompts
from mxconv.text.chat import encode_prompts
from mxconv.text.texts import MAX_LINE_BYTES, read_pieces

WINDOW = 512  # tokens of a piece of plain text
MAX_PROMPTS = 128  # of a file
NEW_TOKENS = 256  # that the target answers to each
BATCH = 8  # prompts that are answered at a time
PASS_TOKENS = 2048  # that go through a layer at a time
MIN_ROWS = 64  # of inputs; a matrix that multiplied fewer is cast


@dataclass
class Calibration:
    """A calibration on its way: the package, the hidden states of all texts, and counts for the manifest."""

    loaded: LoadedPackage
    texts: list[list[int]]
    states: list[F32]  # of each text, (num_tokens, hidden_size): the input of the next layer
    own_inputs: list[F32 | None]  # of each text, where layers have own ones: (num_layers, num_tokens, size)
    caches: list[KVCache] | None  # of each text, where layers read what other layers wrote
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
        return cls(loaded, texts, states, own_inputs, [KVCache(decoder.config) for _ in texts] if shares else None)

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
) -> None:
    """Write a draft file for a package that was cast.

    Args:
        package: with codec mxfp4, made from the source that the draft is for.
        files: of texts, or .jsonl with `text`, or with `prompt`, `messages` or `turns`, which the target answers.
        draft_file: to write.
        num_tokens: of all texts and answers, at most.
        num_threads: of native kernels.
        progress: told about tokens that the target writes, and layers.

    Raises:
        MxconvError: a file cannot be read or holds no text, or the model cannot be decoded.
    """
    with LoadedPackage(package, ["target"], num_threads=num_threads) as loaded:
        texts, num_written = read_texts(loaded, files, num_tokens, progress)
        records = {
            own: record
            for record in loaded.package.manifest.tensors
            if record.codec == "mxfp4"
            and record.carried is None
            and (own := loaded.own.config.own_name(record.name)) is not None
        }
        description = {
            "rule": "gptq",
            "scale_rule": loaded.package.manifest.options.scale_rule,
            "damping": DAMPING,
            "texts": [{"sha256": sha256_file(path), "num_bytes": check_regular_file(path)} for path in files],
            "num_texts": len(texts),
            "num_tokens": sum(map(len, texts)),
            "num_tokens_written": num_written,
        }
        calibration = Calibration.begin(loaded, texts)
        shapes = {record.name: stored_shape(record) for record in records.values()}
        with DraftFileWriter(draft_file, shapes) as writer:
            left = dict(records)
            for index, layer_prefix in enumerate(_prefixes(loaded)):
                progress("calibrate layers", index, loaded.own.config.num_hidden_layers)
                of_layer = {own: left.pop(own) for own in list(left) if own.startswith(layer_prefix)}
                _calibrate_layer(calibration, index, layer_prefix, of_layer, writer)
            for record in left.values():
                stored = loaded.package.mxfp4(record)
                writer.write(record.name, stored.codes, stored.scales)
                calibration.num_cast += 1
            counts = {"num_matrices": calibration.num_compensated, "num_matrices_cast": calibration.num_cast}
            writer.commit(description | counts)
    progress("calibrate layers", 1, 1)


def read_texts(
    loaded: LoadedPackage, files: Sequence[Path], num_tokens: int, progress: Progress
) -> tuple[list[list[int]], int]:
    """Token ids of texts, and how many of them the target wrote; each file gives its share of the tokens at most.

    Raises:
        MxconvError: a file cannot be read or holds no text.
    """
    texts: list[list[int]] = []
    num_written, share = 0, num_tokens // max(len(files), 1)
    for path in files:
        found: Iterable[tuple[list[int], int]] = (
            _answers(loaded, path, share, progress) if _holds_prompts(path) else _windows(loaded, path)
        )
        taken = 0
        for ids, num_given in found:
            ids = ids[: share - taken]
            if len(ids) > 1:
                texts.append(ids)
                taken, num_written = taken + len(ids), num_written + max(len(ids) - num_given, 0)
            if taken >= share:
                break
        if not taken:
            raise ModelError(f"{path}: holds no text; some tokens to calibrate with are required. Give a longer file.")
    return texts, num_written


def _holds_prompts(path: Path) -> bool:
    """Whether the first line of a .jsonl file has no `text`."""
    check_regular_file(path)
    if path.suffix != ".jsonl":
        return False
    with open_file(path) as file:
        for line in iter(lambda: file.readline(MAX_LINE_BYTES), b""):
            if line.strip():
                return "text" not in parse_json_object(line, f"{path}: line 1", unique_keys=False)
    return True  # whoever reads it says that nothing is there


def _windows(loaded: LoadedPackage, path: Path) -> Iterator[tuple[list[int], int]]:
    """Pieces of a text of the length of a window, and that nothing of them is written."""
    length = min(WINDOW, loaded.config.max_position_embeddings)
    for piece in read_pieces(path, lambda _: None):
        ids = loaded.tokenizer.encode(piece.text, piece.begins_document)
        yield from ((ids[start : start + length], length) for start in range(0, len(ids), length))


def _answers(loaded: LoadedPackage, path: Path, num_tokens: int, progress: Progress) -> Iterator[tuple[list[int], int]]:
    """Prompts with the target's own greedy answers, and the prompts' lengths; `num_tokens` are wanted in all."""
    target = loaded.target
    most = target.config.max_position_embeddings - NEW_TOKENS
    prompts = encode_prompts(loaded.tokenizer, loaded.folder, read_prompts(path)[:MAX_PROMPTS])
    prompts = [ids for ids in prompts if 0 < len(ids) <= most]
    texts = continuations(target, prompts, NEW_TOKENS, ends=loaded.tokenizer.eos_token_ids, batch=BATCH)
    done = 0
    for prompt, text in zip(prompts, texts, strict=True):
        done += len(text)
        progress("answer prompts", min(done, num_tokens), num_tokens)
        yield text, len(prompt)


def _prefixes(loaded: LoadedPackage) -> list[str]:
    """How the names of each layer's tensors begin."""
    config = loaded.own.config
    return [f"{config.layer_prefix}.{index}." for index in range(config.num_hidden_layers)]


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
    factors: dict[int, InputFactor] = {}
    for own, record in records.items():
        experts = range(record.stack.num_experts) if record.stack else (None,)
        stored = [_rounded_anew(calibration, recorder, (own, expert), record, factors) for expert in experts]
        codes, scales = (np.concatenate(each) for each in zip(*((s.codes, s.scales) for s in stored), strict=True))
        writer.write(record.name, codes, scales)


def _rounded_anew(
    calibration: Calibration,
    recorder: InputRecorder,
    key: Key,
    record: TensorRecord,
    factors: dict[int, InputFactor],
) -> StoredMxfp4:
    """A matrix with compensated codes; the cast where there were too few inputs."""
    loaded, (own, expert) = calibration.loaded, key
    cast, found = loaded.package.mxfp4(record, expert), recorder.sums.get(key)
    if found is None or found.num_rows < MIN_ROWS or not _is_usable(found):
        calibration.num_cast += 1
        return cast
    calibration.num_compensated += 1
    exact = loaded.own.sixteen_bits
    matrix = exact.matrices[own] if expert is None else exact.stacks[own].matrix(expert)
    rows, columns = cast.shape
    weights: F64 = matrix.rows(np.arange(rows)).astype(np.float64)
    padded = unpack_nibbles(cast.codes)
    cast_codes = padded[:rows, :columns]
    exponents = np.repeat(unpack_scales(cast.scales)[:rows], BLOCK, axis=1)[:, :columns]
    scales: F64 = decode_e8m0(exponents).astype(np.float64)
    if id(found) not in factors:
        factors[id(found)] = InputFactor.of(found.products)
    arrays = weights, scales, cast_codes
    if key in recorder.turned:
        arrays = weights.T, scales.T, cast_codes.T
    codes = better_codes(*arrays, found.products, factors[id(found)])
    codes = codes.T if key in recorder.turned else codes
    codes = np.where(exponents == 0, cast_codes, codes)  # a block of zeros is zero bytes
    return StoredMxfp4(cast.shape, pack_nibbles(pad(codes, TILE_ROWS, BLOCK)), cast.scales)


def better_codes(weights: F64, scales: F64, cast_codes: U8, products: F64, factor: InputFactor) -> U8:
    """The compensated codes of each output, or those of the cast where these err no more over the inputs."""
    codes = compensated_codes(weights, scales, factor)
    errors, cast_errors = (output_errors(each, weights, scales, products) for each in (codes, cast_codes))
    return np.where((errors < cast_errors)[:, None], codes, cast_codes)


def _is_usable(found: InputSum) -> bool:
    squares = found.products.diagonal()
    return bool(np.isfinite(squares).all() and squares.any())
