"""From a package to decoders, one a level; weights stay in the memory-mapped files or are copied into large pages."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType

from mxconv.arch.config import ModelConfig
from mxconv.checkpoint.tensor import mapped_files
from mxconv.checkpoint.tokenizer_files import Vocabulary
from mxconv.drafts.kind import DraftSpec
from mxconv.drafts.kinds import KINDS, is_look_up, kind_of
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.prompt_lookup import PROMPT_LOOKUP
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import KvDtype
from mxconv.engine.matrices import Matrices
from mxconv.engine.placement import MemoryLimit, Placement, memory_limit
from mxconv.engine.stored_weights import OwnWeights
from mxconv.errors import ModelError
from mxconv.kernels.draft_matrix import Activations
from mxconv.kernels.engine import choose_engine
from mxconv.kernels.weight_pages import WeightPages, WeightPlace
from mxconv.package.level_record import LevelRecord
from mxconv.package.manifest import Manifest
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.text.tokenizer import Tokenizer

SELF_DRAFTED = ("target", "streaming", "fewer-experts")  # kinds that the target's 4-bit copy drafts for


class LoadedPackage:
    """The levels of a run, its target first, and that target's tokenizer. A context manager: closing unmaps the files.

    `folder` holds the tokenizer, the chat template and the settings of the run's target.
    """

    def __init__(
        self,
        path: Path,
        levels: list[str] | None = None,
        kernel: str | None = None,
        num_threads: int | None = None,
        drafts: Sequence[DraftSpec] = (),
        activations: Activations = "int8",
        kv_dtype: KvDtype = "fp32",
        weights: WeightPlace = "auto",
        memory: MemoryLimit | None = None,
        plans_only: bool = False,
        make: Matrices | None = None,
    ) -> None:
        """Load some levels.

        Args:
            path: the package.
            levels: names from the manifest; the first, any model, is the run's target. None for all.
            kernel: "numpy" or a native implementation; None takes the environment's MXCONV_KERNEL, or else the best.
            num_threads: for native kernels; None takes every processor that this process may use.
            drafts: further levels that are not in the package, below the others.
            activations: what 4-bit weights are multiplied by, those of draft packages too.
            kv_dtype: of keys and values in caches, of all levels.
            weights: see `WeightPages`.
            memory: bytes that the process may take, or "auto" for what is available. Drafts then stay in memory, and
                what the target alone reads is read from its files in each pass, as far as it does not fit; `weights`
                says nothing. None: there is no limit.
            plans_only: whether to leave all weights in their files; `placement` says where `memory` would put them.
            make: makes its matrices, in place of `kernel`, `num_threads`, `activations`, `kv_dtype` and `weights`, for
                levels that draft for another package's target.

        Raises:
            MxconvError: the package is damaged, a level or kernel is unknown, or the architecture is not supported.
        """
        is_draft = make is not None
        if make is None:
            pages = WeightPages(weights if memory is None else "map")
            engine = choose_engine(kernel, num_threads, is_shared=memory is None)
            make = Matrices(engine, activations, kv_dtype, pages, None if memory is None else [])
        self.matrices, self.is_draft = make, is_draft
        self.stack = ExitStack()
        self.stack.callback(make.pages.forget)
        try:
            self.package = self.stack.enter_context(Package(path))
            self.own = OwnWeights(self.package, replace(make, streams=memory is not None), self.stack)
            first, *others = choose_levels(path, self.package.manifest, levels)
            if memory is not None and (make.engine is None or first.kind != "target"):
                found = "NumPy's kernels" if make.engine is None else f"level {first.name} first"
                raise ModelError(
                    f"{path}: {found}, and --memory; native kernels and the package's own target are required. "
                    "Leave --memory out."
                )
            for file in mapped_files() if memory is not None else ():  # whose lists of escapes are checked here
                if path in file.path.parents:
                    file.fetch((".escape_counts", ".escape_positions"))
            self.folder = self._speaker(first)
            self.tokenizer = Tokenizer.from_folder(self.folder)
            self.target_vocabulary = Vocabulary.of_folder(self.folder)
            self.vocabulary = self.target_vocabulary  # of the last level that was loaded
            self.lengths_are_given = any(spec.num_draft_tokens for spec in drafts)
            self._are_chosen = levels is not None
            self.levels: list[LoadedLevel] = []
            for record in (first, *others):
                self._load(record, self._place(record))
            for spec in drafts:
                self._load_spec(spec)
            self.placement: Placement | None = None
            if memory is not None and make.made is not None:
                below = [level.decoder for level in self.levels[1:] if level.decoder is not None]
                shares_head = any(level.reader is not None for level in self.levels)
                limit = memory_limit(memory)
                self.placement = Placement(path, self.target, below, make.made, limit, shares_head)
                if not plans_only:
                    self.placement.start()
        except BaseException:
            self.stack.close()
            raise

    def close(self) -> None:
        self.stack.close()

    def __enter__(self) -> "LoadedPackage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def auto_levels(self) -> list[LoadedLevel]:
        """The levels that "auto" chooses from: those of the run and, where nobody chose them and none of them is a
        look-up, prompt-lookup below them, which costs nothing. The target leaves it to its drafts: with both to choose
        from it took the look-up for longer than it paid (docs/research/log.md).
        """
        if self._are_chosen or any(level.kind.is_look_up for level in self.levels):
            return self.levels
        record = PROMPT_LOOKUP.record(DraftSpec(PROMPT_LOOKUP.name), PROMPT_LOOKUP.name)
        return [*self.levels, replace(PROMPT_LOOKUP.load(record, None, self), is_below_models=True)]

    @property
    def kv_dtype(self) -> KvDtype:
        """What caches keep keys and values in."""
        return self.matrices.kv_dtype

    @property
    def config(self) -> ModelConfig:
        """The sizes of the run's target."""
        return self.target.config

    @property
    def target(self) -> Decoder:
        """What the run decodes."""
        decoder = self.levels[0].decoder
        assert decoder is not None  # `choose_levels` lets no look-up be first
        return decoder

    def bytes_per_pass(self, level: LoadedLevel) -> int:
        """Bytes of weights that a pass of a level over one token reads; none for a look-up."""
        first = self._cost(self.levels[0], None)
        cost = first if level is self.levels[0] else self._cost(level, first)
        return cost.bytes_read(level.decoder)

    def _cost(self, level: LoadedLevel, target: PassCost | None) -> PassCost:
        return kind_of(level.record).cost(level.record, level.folder, self.package, target)

    def _place(self, record: LevelRecord) -> Path | None:
        return self.package.root / record.path if record.path else None

    def _speaker(self, record: LevelRecord) -> Path:
        """The folder whose tokenizer, chat template and settings are those of a level of the package."""
        levels = self.package.manifest.levels
        for above in reversed(levels[: levels.index(record) + 1]):
            place = self._place(above)
            if above.kind == "model" and place is not None:
                if (place / "tokenizer.json").is_file() or "tokenizer" not in above.shares:
                    return place
            elif not is_look_up(above):
                break
        return self.package.root

    def nested(self, folder: Path, level: str) -> Decoder:
        """The decoder of one level of another package."""
        return self.stack.enter_context(LoadedPackage(folder, [level], make=self.matrices)).target

    def _load(self, record: LevelRecord, place: Path | None) -> None:
        """Load one level below the others; `place` is its folder or file."""
        kind = kind_of(record)
        if kind.has_target_tokens:
            self.vocabulary = self.target_vocabulary
        self.levels.append(kind.load(record, place, self))

    def _load_spec(self, spec: DraftSpec) -> None:
        """Load a level that is no part of the package."""
        kind = KINDS[spec.kind]
        draft = kind.locate(spec, self)
        taken = {level.name for level in self.levels}
        names = (draft.name, *(f"{draft.name}-{number}" for number in range(2, len(taken) + 3)))
        name = next(name for name in names if name not in taken)
        self._load(kind.record(draft.spec, name, draft.codec, same_tokenizer=draft.same_tokenizer), draft.root)


def choose_levels(root: Path, manifest: Manifest, names: Sequence[str] | None) -> list[LevelRecord]:
    """The levels of a run, the one that it decodes first.

    Args:
        root: of the package, for messages.
        manifest: of the package.
        names: of levels; None for all, which begin with the package's target.

    Raises:
        ModelError: no level, an unknown one, a first one that is no model, or one below a level that is not dearer.
    """
    known: dict[str, LevelRecord] = {}
    for record in manifest.levels:
        known.setdefault(record.name, record)
    if names is None:
        chosen = list(manifest.levels)
    elif not names or any(name not in known for name in names):
        raise ModelError(
            f"{root}: levels {', '.join(names) or 'none'}; at least one, out of {', '.join(known)}, is required."
        )
    else:
        chosen = [known[name] for name in names]
    first, *drafts = chosen
    what = None
    if is_look_up(first):
        what = "a look-up, which drafts and decodes nothing by itself"
    elif kind_of(first).is_reader:
        what = "which reads another level's hidden states and decodes nothing by itself"
    if what is not None:
        raise ModelError(
            f"{root}: level {first.name} first, {what}; a model is required. Name the level that is to be decoded "
            "before it."
        )
    for above, draft in zip(chosen, drafts, strict=False):
        if draft.kind == "target":
            raise ModelError(
                f"{root}: level {draft.name} below {above.name}; a draft must be cheaper than what it "
                "drafts for, and no level is dearer. Name it first, or leave it out."
            )
        if draft.kind == "self-draft" and first.kind not in SELF_DRAFTED:
            raise ModelError(
                f"{root}: level {draft.name} drafts for {first.name}; the 4-bit copy drafts for the 16-bit weights "
                "that it is made of. Name it first, or leave it out."
            )
    return chosen
