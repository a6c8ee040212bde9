"""A draft that is a table: the most frequent next token of what `mxconv train ngram` counted."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mxconv.arrays import F32
from mxconv.checkpoint.hashing import sha256_file
from mxconv.drafts.kind import (
    DraftSpec,
    LoadedLevel,
    LookUpKind,
    OpenedDraft,
    OpenTarget,
    Proposer,
    Run,
    placed,
    speaker,
)
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.statistics import LevelStatistics
from mxconv.drafts.trees import grow_best_first
from mxconv.package.level_record import LevelRecord
from mxconv.package.ngram_table import NgramTable, read_ngram_table


class NgramDraft:
    """Best next tokens, each looked up after the one before: a chain, or a tree with those of shorter contexts.

    Args:
        statistics: what it did.
        table: of the tokenizer that the level above uses.
        confidence: it stops before the first token whose probability is below.
    """

    def __init__(self, statistics: LevelStatistics, table: NgramTable, confidence: float) -> None:
        self.statistics = statistics
        self.table = table
        self.confidence = confidence

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """Up to `num_tokens` tokens."""
        tokens: list[int] = []
        with self.statistics.forward():
            last = list(context[-2:])
            while len(tokens) < num_tokens:
                token, probability = self.table.best(last)
                if probability < self.confidence:
                    break
                tokens.append(token)
                last = [*last[-1:], token]
        return Proposal(tokens)

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        """A tree of what the table says after two tokens, after one, and after none."""
        with self.statistics.forward():
            return grow_best_first(tuple(context[-2:]), self._continuations, most_depth, floors)

    def _continuations(self, last: tuple[int, ...]) -> Iterator[tuple[int, float, tuple[int, ...]]]:
        """Different tokens; a shorter context's has the share that the longer ones' leave."""
        left, said = 1.0, set()
        for length in range(len(last), -1, -1):
            token, probability = self.table.best(last[len(last) - length :])
            if token not in said:
                yield token, left * probability, (*last[-1:], token)
                left *= 1 - probability
                said.add(token)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """The table is fixed."""


class Ngram(LookUpKind):
    """`ngram:TABLE`, a file that `mxconv train ngram` wrote."""

    name = "ngram"
    subject = "TABLE"

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        file = Path(spec.subject)
        read_ngram_table(file).check_tokenizer(target.tokenizer_sha256, str(file))
        return OpenedDraft(spec, file.stem, file.absolute().parent, (Path(file.name),))

    def path_in(self, folder: str, draft: OpenedDraft) -> str:
        return f"{folder}/{draft.files[0].as_posix()}"

    def locate(self, spec: DraftSpec, run: Run) -> OpenedDraft:
        return OpenedDraft(spec, Path(spec.subject).resolve().stem, Path(spec.subject))

    def load(self, record: LevelRecord, place: Path | None, run: Run) -> LoadedLevel:
        file, above = placed(record, place, run, "table"), speaker(run)
        table = read_ngram_table(file)
        if above is not None:
            table.check_tokenizer(sha256_file(Path(above.name)), str(file))
        return LoadedLevel(record, None, above, table)

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        table = loaded.table
        assert table is not None, "of a level that was loaded"
        return lambda statistics, _: NgramDraft(statistics, table, confidence)


NGRAM = Ngram()
