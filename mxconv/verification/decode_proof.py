"""Prompts as pieces of work for any process: each decodes some with drafts and without, and all stand in one record."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Literal

from mxconv.arrays import F32
from mxconv.drafts.kind import DraftSpec
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.kv_pool import KvDtype
from mxconv.engine.placement import MemoryLimit
from mxconv.errors import MxconvError
from mxconv.kernels.engine import NUMPY
from mxconv.kernels.weight_pages import WeightPlace
from mxconv.package.manifest import DecodeRecord, read_manifest
from mxconv.progress import Progress, silent
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Sequence as Running
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Request, Selection
from mxconv.system.processor import cpu_name
from mxconv.text.chat import encode_prompts
from mxconv.text.messages import Prompt, num_chat_prompts
from mxconv.workers import Advance, ByteCounter, Executor


def verify_decoding(
    loaded: LoadedPackage,
    hierarchy: Hierarchy,
    prompts: Iterable[Prompt],
    max_new_tokens: int,
    selection: Selection = GREEDY,
    progress: Progress = silent,
    batch: int | None = None,
) -> DecodeRecord:
    """Decode every prompt plainly and with drafts; compare tokens, and logits of every emitted position.

    What is decoded is the first of the hierarchy's levels, and the record names it. Tokens are chosen greedily or
    coupled, where the promise is the same tokens. `batch` prompts are decoded with drafts beside each other, or one
    after another.

    Raises:
        MxconvError: a prompt cannot be decoded.
    """
    assert selection.sampling is None or selection.accept == "coupled"
    num_tokens = num_token_mismatches = num_logit_mismatches = 0
    prompts = list(prompts)
    plain, stop = Hierarchy(hierarchy.levels[:1]), loaded.tokenizer.eos_token_ids
    ids_of = encode_prompts(loaded.tokenizer, loaded.folder, prompts)
    together = _decode_together(hierarchy, ids_of, max_new_tokens, stop, selection, batch) if batch else None
    for number, ids in enumerate(ids_of, 1):
        expected = _decode(plain, ids, max_new_tokens, stop, selection)
        found = together[number - 1] if together else _decode(hierarchy, ids, max_new_tokens, stop, selection)
        num_tokens += len(expected)
        length_difference = abs(len(expected) - len(found))
        pairs = list(zip(expected, found, strict=False))
        num_token_mismatches += length_difference + sum(a[0] != b[0] for a, b in pairs)
        num_logit_mismatches += length_difference + sum(a[1] != b[1] for a, b in pairs)
        progress("decode", number, len(prompts))
    return DecodeRecord(
        num_prompts=len(prompts),
        num_chat_prompts=num_chat_prompts(prompts),
        num_tokens=num_tokens,
        num_token_mismatches=num_token_mismatches,
        num_logit_mismatches=num_logit_mismatches,
        target=hierarchy.levels[0].name,
        batch=batch,
        kv_dtype=loaded.kv_dtype,
        kernel=NUMPY if loaded.matrices.engine is None else loaded.matrices.engine.name,
        processors=[cpu_name()],
    )


def _decode(
    hierarchy: Hierarchy, prompt: list[int], max_new_tokens: int, stop_tokens: Collection[int], selection: Selection
) -> list[tuple[int, bytes]]:
    """Each new token with the SHA-256 of the logits that chose it."""
    digests: list[bytes] = []

    def keep(_: int, logits: F32) -> None:
        digests.append(_digest(logits))

    generation = hierarchy.generate(prompt, max_new_tokens, stop_tokens, keep, selection)
    return list(zip(generation.token_ids, digests, strict=True))


def _decode_together(
    hierarchy: Hierarchy,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    stop_tokens: Collection[int],
    selection: Selection,
    batch: int,
) -> list[list[tuple[int, bytes]]]:
    """The result of `_decode` for each prompt, all of them decoded beside each other."""
    engine = Engine(hierarchy, batch)
    requests = [Request(prompt, max_new_tokens, stop_tokens, selection) for prompt in prompts]
    decoded: dict[Running, list[tuple[int, bytes]]] = {engine.submit(request): [] for request in requests}
    while not engine.is_idle:
        for each in engine.step():
            decoded[each.sequence].append((each.token, _digest(each.logits)))
    for sequence in decoded:
        if sequence.error is not None:
            raise sequence.error
    return list(decoded.values())


def _digest(logits: F32) -> bytes:
    return hashlib.sha256(logits.tobytes()).digest()


PROMPTS_AT_A_TIME = 4  # of a piece, where they are decoded one after another


@dataclass(frozen=True)
class DecodeSettings:
    """The package, levels and options of a decoding; paths lead to the same files wherever a piece is done."""

    folder: Path
    levels: list[str] | None  # what is decoded first; None for all
    drafts: Sequence[DraftSpec] = ()  # further levels
    lengths: Sequence[int] | Literal["auto"] | None = None  # this and the next two as `Hierarchy` takes them
    thresholds: Sequence[float] | None = None
    tree: int | Literal["auto", "chain"] = "auto"
    max_new_tokens: int = 64
    selection: Selection = GREEDY  # greedy or coupled
    batch: int | None = None  # prompts at a time, beside each other; None is one after another
    kernel: str | None = None  # that every node has; None is the best that each has
    num_threads: int | None = None  # of native kernels, in each process
    kv_dtype: KvDtype = "fp32"
    weights: WeightPlace = "auto"
    memory: MemoryLimit | None = None  # of each process

    def open(self) -> tuple[LoadedPackage, Hierarchy]:
        """The package and its levels, to be closed.

        Raises:
            MxconvError: the package is damaged, or a level, a draft or the kernel cannot be had here.
        """
        loaded = LoadedPackage(
            self.folder,
            self.levels,
            self.kernel,
            self.num_threads,
            self.drafts,
            kv_dtype=self.kv_dtype,
            weights=self.weights,
            memory=self.memory,
        )
        try:
            levels = loaded.auto_levels if self.lengths == "auto" else loaded.levels
            return loaded, Hierarchy(levels, self.lengths, self.thresholds, self.tree)
        except BaseException:
            loaded.close()
            raise

    def from_anywhere(self) -> "DecodeSettings":
        """The same with absolute paths."""
        drafts = [
            replace(spec, subject=str(Path(spec.subject).resolve()))
            if spec.subject and Path(spec.subject).exists()
            else spec
            for spec in self.drafts
        ]
        return replace(self, folder=self.folder.resolve(), drafts=drafts)


@dataclass(frozen=True)
class Prompts:
    """Some of all prompts."""

    texts: tuple[Prompt, ...]  # messages where they are put into a chat template
    num_bytes: int  # that are read for them at least: weights, for each token


class DecodePrompts:
    """A task: decode prompts and compare. A process opens the package once, and decodes one piece at a time."""

    def __init__(self, settings: DecodeSettings) -> None:
        self._settings = settings
        self._opened: tuple[LoadedPackage, Hierarchy] | None = None
        self._lock = Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return DecodePrompts, (self._settings,)

    def __call__(self, piece: Prompts, advance: Advance) -> DecodeRecord:
        settings = self._settings
        with self._lock:
            self._opened = self._opened or settings.open()
            record = verify_decoding(
                *self._opened, piece.texts, settings.max_new_tokens, settings.selection, silent, settings.batch
            )
        advance(len(piece.texts))
        return record


def decode_by(
    executor: Executor, settings: DecodeSettings, prompts: Sequence[Prompt], progress: Progress = silent
) -> DecodeRecord:
    """As `verify_decoding`, by whoever an executor asks.

    Raises:
        MxconvError: a prompt cannot be decoded, or nodes have different kernels.
    """
    task = DecodePrompts(settings.from_anywhere())
    return joined(executor.map(task, pieces_of(settings, prompts), ByteCounter("decode", len(prompts), progress)))


def pieces_of(settings: DecodeSettings, prompts: Sequence[Prompt]) -> list[Prompts]:
    """All prompts, a few in each piece."""
    count = settings.batch or PROMPTS_AT_A_TIME
    weights = sum(record.num_bytes for record in read_manifest(settings.folder).files)
    return [
        Prompts(texts, len(texts) * settings.max_new_tokens * weights)
        for first in range(0, len(prompts), count)
        if (texts := tuple(prompts[first : first + count]))
    ]


def joined(records: Sequence[DecodeRecord]) -> DecodeRecord:
    """One claim of all, whose pieces differ in nothing but their counts and processors.

    Raises:
        MxconvError: kernels differ.
    """
    found = sorted({(record.kernel or "unknown", ", ".join(record.processors)) for record in records})
    if len({kernel for kernel, _ in found}) > 1:
        raise MxconvError(
            f"prompts were decoded by {'; '.join(f'{kernel} on {processor}' for kernel, processor in found)}; bits are "
            "promised for a kernel, and one for all is required. Name one that all nodes have, with --kernel."
        )
    names = [name for name in DecodeRecord.model_fields if name.startswith("num_")]
    sums = {name: sum(getattr(record, name) for record in records) for name in names}
    processors = sorted({processor for record in records for processor in record.processors})
    return records[0].model_copy(update={**sums, "processors": processors})
