"""Whether a draft in a folder of its own speaks the tokens of the level above it."""

from pathlib import Path

from mxconv.checkpoint.vocabulary import Vocabulary
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord


def check_shared_tokens(
    package: Path,
    folder: Path,
    record: LevelRecord,
    theirs: Vocabulary,
    speaker: Vocabulary,
    vocab_sizes: tuple[int, int],
) -> None:
    """Refuse a level that is said to share a tokenizer which it does not.

    Args:
        package: that has the level.
        folder: the draft's.
        record: its level, which shares the tokenizer of the level above.
        theirs: the draft's vocabulary.
        speaker: that of the level above.
        vocab_sizes: rows of tokens of the draft and of the run's target.

    Raises:
        ModelError: other tokens, or fewer rows than tokens.
    """
    if theirs.tokenizer is not None and not theirs.equals(speaker):
        raise ModelError(
            f"{folder}/tokenizer.json: differs from that of the level above {record.name}, which the manifest says "
            "it shares; the same tokens are required. Convert again."
        )
    if (least := min(vocab_sizes)) < theirs.num_tokens:
        raise ModelError(
            f"{package}: level {record.name} and its target have {vocab_sizes[0]} and {vocab_sizes[1]} rows of tokens; "
            f"{theirs.num_tokens} tokens need {theirs.num_tokens} rows in both, {least} are there. "
            "Choose a draft of the same family."
        )
