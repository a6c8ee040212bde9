"""Texts as windows of tokens of one length: what drafts are trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxconv.arrays import I32
from mxconv.checkpoint.regular_file import check_regular_file, open_file, parse_json_object
from mxconv.errors import ModelError
from mxconv.progress import Progress, silent
from mxconv.text.tokenizer import Tokenizer
from mxconv.train.texts import MAX_LINE_BYTES, read_pieces


@dataclass(frozen=True)
class Windows:
    """Rows of a corpus.

    Args:
        token_ids: (num_windows, length) int32.
        num_prompt_tokens: of each row, the first ones that the target did not write.
    """

    token_ids: I32
    num_prompt_tokens: int = 0

    @property
    def length(self) -> int:
        return int(self.token_ids.shape[1])


def text_windows(texts: Sequence[Path], tokenizer: Tokenizer, length: int, progress: Progress = silent) -> Windows:
    """Documents one behind another, cut into windows; what is left over at the end is dropped.

    Args:
        texts: files as `read_pieces` takes them.
        tokenizer: of the target.
        length: tokens of a window.
        progress: stage and bytes.

    Raises:
        MxconvError: a file cannot be read or is no text, or there is not one window.
    """
    total = sum(check_regular_file(path) for path in texts)
    ids: list[I32] = []
    done = 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress("read texts", done, total)

    for path in texts:
        for piece in read_pieces(path, count):
            encoded = tokenizer.encode(piece.text, piece.begins_document)
            ids.append(np.array(encoded, np.int32))
    return Windows(_cut(np.concatenate([np.empty(0, np.int32), *ids]), length, ", ".join(str(path) for path in texts)))


def _cut(ids: I32, length: int, names: str) -> I32:
    if len(ids) < length:
        raise ModelError(f"{names}: {len(ids)} tokens; a window of {length} at least is required. Give more text.")
    return ids[: len(ids) // length * length].reshape(-1, length)


def written_windows(path: Path, vocab_size: int) -> Windows:
    """What `mxconv train generate` wrote.

    Raises:
        MxconvError: it cannot be read, a line has no token ids of the target, or the lines are not alike.
    """
    rows: list[I32] = []
    prompts: set[int] = set()
    with open_file(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            name = f"{path}: line {number}"
            members = parse_json_object(line, name, unique_keys=False)
            row, num_prompt = members.get("token_ids"), members.get("num_prompt_tokens")
            if (
                not isinstance(row, list)
                or not all(type(token) is int and 0 <= token < vocab_size for token in row)
                or type(num_prompt) is not int
                or not 0 <= num_prompt < len(row)
            ):
                raise ModelError(
                    f"{name}: no `token_ids` below {vocab_size} with a shorter `num_prompt_tokens`; what `mxconv train "
                    "generate` writes for this target is required. Generate it."
                )
            rows.append(np.array(row, np.int32))
            prompts.add(num_prompt)
    if len({len(row) for row in rows}) != 1 or len(prompts) != 1:
        raise ModelError(f"{path}: {len(rows)} lines of different lengths, or none; alike ones are required.")
    return Windows(np.stack(rows), prompts.pop())
