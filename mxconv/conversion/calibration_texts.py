"""The texts of a calibration as token ids: pieces of text, or prompts with the target's own answers."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mxconv.checkpoint.regular_file import check_regular_file, open_file, parse_json_object
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.progress import Progress
from mxconv.speculation.continuations import continuations
from mxconv.speculation.prompts import read_prompts
from mxconv.text.chat import encode_prompts
from mxconv.text.texts import MAX_LINE_BYTES, read_pieces

WINDOW = 512  # tokens of a piece of plain text
MAX_PROMPTS = 128  # of a file
NEW_TOKENS = 256  # that the target answers to each
BATCH = 8  # prompts that are answered at a time


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
