"""From a package to decoders, one a level; weights stay in the memory-mapped files."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.table import describe_file
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.checkpoint.vocabulary import Vocabulary
from mxconv.drafts.chosen_levels import choose_levels, draft_level, recorded_level
from mxconv.drafts.draft_spec import LOOK_UPS, READERS, DraftSpec, draft_package
from mxconv.drafts.loaded_level import LoadedLevel
from mxconv.drafts.readers.load import load_reader
from mxconv.drafts.readers.mtp_module import MtpModule, check_mtp
from mxconv.drafts.readers.reader import check_target
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.own_weights import OwnWeights
from mxconv.engine.pages.dtype import KvDtype
from mxconv.engine.shared_tokens import check_shared_tokens
from mxconv.engine.sink_window import SinkWindow
from mxconv.engine.skipped import Skipped
from mxconv.engine.stored_weights import dense_weights
from mxconv.errors import PackageError
from mxconv.kernels.engine import choose_engine
from mxconv.kernels.four_bit import Activations
from mxconv.package.manifest import LevelRecord, read_manifest
from mxconv.package.ngram_file import read_ngram_table
from mxconv.package.ngram_table import NgramTable
from mxconv.package.package import Package
from mxconv.text.tokenizer import Tokenizer

VARIANTS = ("layer-skip", "swift", "early-exit", "streaming", "fewer-experts")


def variant_of(whole: Decoder, above: LevelRecord, record: LevelRecord) -> Decoder:
    """What a record of such a kind describes.

    Args:
        whole: the run's target.
        above: the target's record; of one that is a variant itself, the parts that it lacks are left out too, and it
            attends to its positions unless `record` names others.
        record: of the variant.

    Raises:
        ModelError: a layer that the model does not have.
    """
    at_first = (Skipped.at_first(each, whole.config.num_hidden_layers) for each in (above, record))
    skipped = [each for each in at_first if each is not None]
    left_out = Skipped(
        frozenset().union(*(each.attention for each in skipped)), frozenset().union(*(each.mlp for each in skipped))
    )
    seen = record if record.window is not None else above
    sinks = None if seen.window is None else SinkWindow(seen.sink or 0, seen.window)
    num_experts = above.experts if record.experts is None else record.experts
    return whole.variant(left_out, sinks, record.name, num_experts)


class LoadedPackage:
    """The levels of a run, its target first, and that target's tokenizer. A context manager: closing unmaps the files.

    `folder` is where the tokenizer, the chat template and the settings of the run's target lie.
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
    ) -> None:
        """Load some levels.

        Args:
            path: the package.
            levels: names from the manifest; the first, any model, is the run's target. None for all.
            kernel: "numpy" or a native implementation; None takes the environment's MXCONV_KERNEL, or else the best.
            num_threads: for native kernels; None takes every processor that this process may use.
            drafts: further levels that are not in the package, below the others.
            activations: what the package's 4-bit weights are multiplied by.
            kv_dtype: of keys and values in caches, of all levels.

        Raises:
            MxconvError: the package is damaged, a level or kernel is unknown, or the architecture is not supported.
        """
        self.matrices = Matrices(choose_engine(kernel, num_threads), activations, kv_dtype)
        self._kernel = kernel, num_threads
        self._stack = ExitStack()
        try:
            self.package = self._stack.enter_context(Package(path))
            self._own = OwnWeights(self.package, self.matrices, self._stack)
            first, *others = choose_levels(path, self.package.manifest, levels)
            self.folder = self._speaker(first)
            self.tokenizer = Tokenizer.from_folder(self.folder)
            self._target_vocabulary = Vocabulary.of_folder(self.folder)
            self._vocabulary = self._target_vocabulary  # of the last level that was loaded
            self.lengths_are_given = any(spec.num_draft_tokens for spec in drafts)
            self.levels: list[LoadedLevel] = []
            for record in (first, *others):
                self.levels.append(self._load(record, self._place(record)))
            for spec in drafts:
                self.levels.append(self._load_spec(spec))
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "LoadedPackage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def kv_dtype(self) -> KvDtype:
        """What caches keep keys and values in."""
        return self.matrices.kv_dtype

    @property
    def config(self) -> ModelConfig:
        """Of the run's target."""
        return self._target.config

    @property
    def _target(self) -> Decoder:
        """What the run decodes."""
        decoder = self.levels[0].decoder
        assert decoder is not None  # `choose_levels` lets no look-up be first
        return decoder

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
            elif above.kind not in LOOK_UPS:
                break
        return self.package.root

    def _load(self, record: LevelRecord, place: Path | None) -> LoadedLevel:
        """One level, below those that are loaded already; `place` is its folder or file."""
        above = self.levels[-1].tokenizer if self.levels else self.tokenizer
        if record.kind not in ("model", *LOOK_UPS):  # the target's own tokens again, whatever stands above
            self._vocabulary = self._target_vocabulary
        if record.kind == "target":
            weights = self._own.sixteen_bits
            return LoadedLevel(record, self.matrices.decoder(self._own.config, weights, record.name), self.tokenizer)
        if record.kind == "self-draft":
            weights = self._own.four_bits(record.name, with_target=bool(self.levels))
            decoder = self.matrices.decoder(self._own.config, weights, record.name)
            return LoadedLevel(self._with_a_cache(record), decoder, self.tokenizer)
        if record.kind in VARIANTS:  # of the run's target, or of the package's own where it is first
            target, whole = (self.levels[0].record, self._target) if self.levels else (record, self._package_target())
            return LoadedLevel(record, variant_of(whole, target, record), self.tokenizer)
        if record.kind in LOOK_UPS:
            return LoadedLevel(record, None, above, self._table(record, place, above))
        if record.kind == "mtp":
            return LoadedLevel(record, None, self.tokenizer, reader=self._mtp(record))
        if place is None:
            raise PackageError(
                f"{self.package.root}: level {record.name} without a path; a model needs one. Convert again."
            )
        if record.kind in READERS:
            reader = load_reader(place, record, self.matrices, self._stack, self._target)
            check_target(reader, self.config, self._target_vocabulary.num_tokens, str(place))
            return LoadedLevel(record, None, self.tokenizer, folder=place, reader=reader)
        decoder = self._model(record, place)
        if not self.levels:
            return LoadedLevel(record, decoder, self.tokenizer, folder=place)
        speaker, theirs = self._vocabulary, Vocabulary.of_folder(place)
        self._vocabulary = theirs
        if "tokenizer" not in record.shares:
            return LoadedLevel(record, decoder, Tokenizer.from_folder(place), folder=place)
        sizes = decoder.config.vocab_size, self.config.vocab_size
        check_shared_tokens(self.package.root, place, record, theirs, speaker, sizes)
        return LoadedLevel(record, decoder, above, folder=place)

    def _load_spec(self, spec: DraftSpec) -> LoadedLevel:
        """A level that is no part of the package."""
        place = draft_package(spec)
        codec: Literal["bf16", "f16", "bsfp", "mxfp4", "package"] | None = None if place is None else "package"
        if spec.kind == "package" and place is not None:
            spec = replace(spec, level=draft_level(place, read_manifest(place), spec.level).name)
        if spec.kind == "mtp":
            codec = self.package.manifest.options.codec
        elif spec.kind == "ngram":
            place = Path(spec.subject)
        elif spec.kind in ("checkpoint", *READERS) and place is None:
            checkpoint = self._stack.enter_context(open_checkpoint(spec.subject))
            place = checkpoint.root
            dtypes = {tensor.dtype for tensor in checkpoint.tensors.values()}
            codec = "f16" if dtypes & {"BF16", "F16"} == {"F16"} else "bf16"
        is_model = spec.kind in ("checkpoint", "package")
        same = place is None or not is_model or Vocabulary.of_folder(place).equals(self._vocabulary)
        taken = {level.name for level in self.levels}
        wanted = spec.kind if place is None else place.resolve().stem if spec.kind == "ngram" else place.resolve().name
        name = next(n for n in (wanted, *(f"{wanted}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)
        return self._load(spec.record(name, codec, same_tokenizer=same), place)

    def _package_target(self) -> Decoder:
        return self.matrices.decoder(self._own.config, self._own.sixteen_bits, "target")

    def _mtp(self, record: LevelRecord) -> MtpModule:
        """The MTP module of the package's own model, in 16 bits or in its 4."""
        own = self._own
        check_mtp(own.config, [tensor.name for tensor in self.package.manifest.tensors], str(self.package.root))
        weights = own.sixteen_bits if record.codec is None else own.four_bits(record.name, with_target=True)
        reader = MtpModule(own.config, weights, record.name)
        check_target(reader, self.config, self._target_vocabulary.num_tokens, str(self.package.root))
        return reader

    def _with_a_cache(self, record: LevelRecord) -> LevelRecord:
        """A level with a cache of its own where it needs keys and values that the run's target does not write."""
        if not self.levels or not any(layer.skips_attention for layer in self._target.layers):
            return record
        return record.model_copy(update={"shares": [part for part in record.shares if part != "kv_cache"]})

    def _table(self, record: LevelRecord, place: Path | None, speaker: Tokenizer | None) -> NgramTable | None:
        if record.kind != "ngram":
            return None
        if place is None:
            raise PackageError(
                f"{self.package.root}: level {record.name} without a path; a table needs one. Convert again."
            )
        table = read_ngram_table(place)
        if speaker is not None:
            table.check_tokenizer(sha256_file(Path(speaker.name)), str(place))
        return table

    def _model(self, record: LevelRecord, folder: Path) -> Decoder:
        """A draft model in a folder of its own: a level of a nested package, or a 16-bit checkpoint."""
        if record.codec == "package":
            chosen = recorded_level(folder, read_manifest(folder), record)
            nested = LoadedPackage(folder, [chosen.name], *self._kernel, kv_dtype=self.kv_dtype)
            decoder = self._stack.enter_context(nested).levels[0].decoder
            assert decoder is not None
            return decoder
        checkpoint = self._stack.enter_context(open_checkpoint(folder))
        config = describe_file(folder / "config.json")
        weights = dense_weights(checkpoint.tensors, config, self.matrices)
        return self.matrices.decoder(config, weights, record.name)
