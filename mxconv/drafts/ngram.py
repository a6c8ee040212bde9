"""A draft that is a table: the most frequent next token of what `mxconv train ngram` counted."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.drafts.kind import DraftSpec, LookUp, LookUpKind, OpenedDraft, OpenTarget, Run, placed, speaker
from mxconv.package.level_record import LevelRecord
from mxconv.package.ngram_table import NgramTable, read_ngram_table
from mxconv.speculation.loaded_level import LoadedLevel, Proposer
from mxconv.speculation.statistics import LevelStatistics


class NgramDraft(LookUp[tuple[int, ...]]):
    """Best next tokens, each looked up after the one before: a chain, or a tree with those of shorter contexts."""

    def __init__(self, statistics: LevelStatistics, table: NgramTable, confidence: float) -> None:
        super().__init__(statistics, confidence)
        self.table = table

    def state(self, context: Sequence[int]) -> tuple[int, ...]:
        return tuple(context[-2:])

    def continuations(self, state: tuple[int, ...]) -> Iterator[tuple[int, float, tuple[int, ...]]]:
        """The best token after two tokens, after one and after none, each with the share that the longer leave."""
        left, known = 1.0, set()
        for length in range(len(state), -1, -1):
            token, probability = self.table.best(state[len(state) - length :])
            if token not in known:
                yield token, left * probability, (*state[-1:], token)
                left *= 1 - probability
                known.add(token)


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
        return LoadedLevel(record, None, above, table, kind=self)

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        table: NgramTable = loaded.table
        return lambda statistics, _: NgramDraft(statistics, table, confidence)


NGRAM = Ngram()
