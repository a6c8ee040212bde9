"""Prompts as pieces of work for any process: each decodes some with drafts and without, and all stand in one record."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Literal

from mxconv.conversion.executor import Advance, ByteCounter, Executor
from mxconv.drafts.draft_spec import DraftSpec
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.pages.dtype import KvDtype
from mxconv.errors import MxconvError
from mxconv.package.manifest import DecodeRecord, read_manifest
from mxconv.progress import Progress, silent
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.messages import Prompt
from mxconv.verification.decoding import verify_decoding

PROMPTS_AT_A_TIME = 4  # of a piece, where they are decoded one after another


@dataclass(frozen=True)
class DecodeSettings:
    """What is decoded, and how; paths lead to the same files wherever a piece is done.

    Args:
        folder: the package.
        levels: of it, what is decoded first.
        drafts: further levels.
        lengths: of proposals, `thresholds` and `tree`: as `Hierarchy` takes them.
        max_new_tokens: for each prompt.
        selection: greedy or coupled.
        batch: prompts at a time, beside each other; None is one after another.
        kernel: an implementation that every node has; None is the best that each has.
        num_threads: of native kernels, in each process.
        kv_dtype: of keys and values in caches.
    """

    folder: Path
    levels: Sequence[str]
    drafts: Sequence[DraftSpec] = ()
    lengths: Sequence[int] | Literal["auto"] | None = None
    thresholds: Sequence[float] | None = None
    tree: int | Literal["auto", "chain"] = "auto"
    max_new_tokens: int = 64
    selection: Selection = GREEDY
    batch: int | None = None
    kernel: str | None = None
    num_threads: int | None = None
    kv_dtype: KvDtype = "fp32"

    def open(self) -> tuple[LoadedPackage, Hierarchy]:
        """The package and its levels, to be closed.

        Raises:
            MxconvError: the package is damaged, or a level, a draft or the kernel cannot be had here.
        """
        loaded = LoadedPackage(
            self.folder, list(self.levels), self.kernel, self.num_threads, self.drafts, kv_dtype=self.kv_dtype
        )
        try:
            return loaded, Hierarchy(loaded.levels, self.lengths, self.thresholds, self.tree)
        except BaseException:
            loaded.close()
            raise

    def from_anywhere(self) -> "DecodeSettings":
        """The same with absolute paths."""
        here = [_from_anywhere(spec) for spec in self.drafts]
        return replace(self, folder=self.folder.resolve(), drafts=here)


@dataclass(frozen=True)
class Prompts:
    """Some of all prompts.

    Args:
        first: the number of the first one.
        texts: of these; messages where they are put into a chat template.
        num_bytes: that are read for them at least, weights a token.
    """

    first: int
    texts: tuple[Prompt, ...]
    num_bytes: int

    @property
    def name(self) -> str:
        return f"prompts {self.first + 1} to {self.first + len(self.texts)}"


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
        Prompts(first, texts, len(texts) * settings.max_new_tokens * weights)
        for first in range(0, len(prompts), count)
        if (texts := tuple(prompts[first : first + count]))
    ]


def _from_anywhere(spec: DraftSpec) -> DraftSpec:
    """With an absolute path, where it names a file or folder."""
    if spec.subject and Path(spec.subject).exists():
        return replace(spec, subject=str(Path(spec.subject).resolve()))
    return spec


def joined(records: Sequence[DecodeRecord]) -> DecodeRecord:
    """One claim of all, whose pieces differ in nothing but their counts and processors.

    Raises:
        MxconvError: kernels differ.
    """
    check_one_kernel((record.kernel or "unknown", ", ".join(record.processors)) for record in records)
    return records[0].model_copy(
        update={
            "num_prompts": sum(record.num_prompts for record in records),
            "num_chat_prompts": sum(record.num_chat_prompts for record in records),
            "num_tokens": sum(record.num_tokens for record in records),
            "num_token_mismatches": sum(record.num_token_mismatches for record in records),
            "num_logit_mismatches": sum(record.num_logit_mismatches for record in records),
            "processors": sorted({processor for record in records for processor in record.processors}),
        }
    )


def check_one_kernel(kernels: Iterable[tuple[str, str]]) -> None:
    """Refuse to make one claim of what different kernels decoded.

    Args:
        kernels: that decoded some of the prompts, each with its processor.

    Raises:
        MxconvError: they differ.
    """
    found = sorted(set(kernels))
    if len({kernel for kernel, _ in found}) > 1:
        raise MxconvError(
            f"prompts were decoded by {'; '.join(f'{kernel} on {processor}' for kernel, processor in found)}; bits are "
            "promised for a kernel, and one for all is required. Name one that all nodes have, with --kernel."
        )
