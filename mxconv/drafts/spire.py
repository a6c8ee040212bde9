"""A SPIRe draft: it sees what the level that asks it computed of the text, and its own memory of what it proposes."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from mxconv.arch.model_sizes import ModelSizes
from mxconv.arrays import F32
from mxconv.drafts.kind import LoadedLevel
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.reader import ReaderSizes
from mxconv.drafts.readers.reading_draft import Listener, ReadingDraft
from mxconv.drafts.readers.spire_cache import SpireCache
from mxconv.drafts.readers.spire_layers import Spire, SpireConfig
from mxconv.drafts.trees import Evaluate
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import tied
from mxconv.engine.tree import Tree
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package


class SpireDraft(ReadingDraft):
    """Proposes a token, or a depth of a tree, a pass.

    Args:
        spire: the model.
        listener: for whom it drafts.
    """

    def __init__(self, spire: Spire, listener: Listener) -> None:
        super().__init__(spire.reads, listener)
        self._spire = spire
        self._cache = SpireCache(spire, listener.session.passes.forward)

    def most_tokens(self, context: Sequence[int]) -> int:
        """That it can say; none where the states are not there, or a token that it has no row for."""
        if max(context) >= self._spire.vocab_size or not self.listener.session.holds(context):
            return 0
        return max(self._spire.config.decoder.max_position_embeddings - len(context) + 1, 0)

    def begin(self, context: Sequence[int]) -> tuple[F32, Evaluate]:
        """From the context's last token on, which the level above has not evaluated."""

        def memory_of(run: range) -> F32:
            if not self._spire.reads.num_states:
                return self._spire.embedded_memory(context[run.start : run.stop])
            return self._spire.past_memory(self.listener.session.states.read(self._spire.reads, run.start, run.stop))

        self._cache.begin(len(context) - 1, memory_of)
        return self._pass(context[-1:])[0], self._pass

    def _pass(self, tokens: Sequence[int], tree: Tree | None = None) -> F32:
        """(num_rows, vocab_size): the logits of rows of one depth, or of the context's last token."""
        with self.statistics.forward():
            return self._cache.evaluate(tokens, tree)[:, : self.listener.vocab_size]


class SpireKind(ReaderKind):
    """`spire:PATH_OR_ID`, in the layout of formats/spire.md."""

    name = "spire"

    def sizes(self, path: Path) -> ReaderSizes:
        return SpireConfig.from_file(path)

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> Spire:
        weights, _ = reader_weights(folder, record, make, stack)
        sizes = SpireConfig.from_file(folder / "config.json")
        return Spire(sizes, tied(weights, sizes.decoder), make, record.name)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """A few layers over sinks and a window, whatever the context."""
        assert place is not None, "it has a folder"
        config = SpireConfig.from_file(place / "config.json")
        sizes = ModelSizes.of(config.decoder)
        sizes = sizes.with_windows((config.sink + config.window,) * sizes.num_layers)
        return PassCost.of_folder(place, record, sizes, "spire")

    def draft(self, loaded: LoadedLevel, listener: Listener) -> SpireDraft:
        assert isinstance(loaded.reader, Spire)
        return SpireDraft(loaded.reader, listener)


SPIRE = SpireKind()
