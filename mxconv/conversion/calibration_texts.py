"""The texts of a calibration as token ids: pieces of text, or prompts with the target's own answers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import check_regular_file, open_file, parse_json_object, sha256_file
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.progress import Progress
from mxconv.speculation.continuations import continuations
from mxconv.text.chat import encode_prompts
from mxconv.text.chat_templates import read_templates
from mxconv.text.messages import read_prompts
from mxconv.text.texts import MAX_LINE_BYTES, read_pieces

OWN_PROMPTS = Path(__file__).with_name("calibration_prompts.jsonl")  # what `--calibrate` without a file takes
FEWEST_TOKENS = 1024  # of texts: with 256 a draft was worse than the cast, with 512 hardly better (docs/quantize.md)
HELD_SHARE, MOST_HELD = 8, 2048  # one token in so many more is held out, and at most so many
WINDOW = 512  # tokens of a piece of plain text
MAX_PROMPTS = 128  # of a file
NEW_TOKENS = 256  # that the target answers to each
BATCH = 8  # prompts that are answered at a time


@dataclass
class CalibrationTexts:
    """Token ids of texts, those to calibrate with and those to judge the result by."""

    fitted: list[list[int]] = field(default_factory=list)
    held_out: list[tuple[list[int], int]] = field(default_factory=list)  # and the place of the first token that counts
    num_written: int = 0  # of the tokens to calibrate with, by the target

    def add(self, found: Sequence[tuple[list[int], int]], num_fitted: int, are_answers: bool) -> None:
        """Calibrate with the first tokens of some texts, and hold out the others.

        Args:
            found: token ids, and how many of them were given to the target.
            num_fitted: how many tokens these are.
            are_answers: whether what follows the given tokens is the target's.
        """
        for ids, num_given in found:
            fitted = ids[:num_fitted] if num_fitted > 1 and len(ids) > 1 else []
            num_fitted -= len(fitted)
            if fitted:
                self.fitted.append(fitted)
                self.num_written += max(len(fitted) - num_given, 0) if are_answers else 0
            rest, first_counted = ids[len(fitted) :], max(num_given - len(fitted), 1)
            if len(rest) > first_counted:
                self.held_out.append((rest, first_counted))

    def described(self, files: Sequence[Path]) -> dict[str, Any]:
        """What the manifest says of them, and of the files that they are from."""
        return {
            "texts": [{"sha256": sha256_file(path), "num_bytes": check_regular_file(path)} for path in files],
            "num_texts": len(self.fitted),
            "num_tokens": sum(map(len, self.fitted)),
            "num_tokens_written": self.num_written,
        }


def read_texts(loaded: LoadedPackage, files: Sequence[Path], num_tokens: int, progress: Progress) -> CalibrationTexts:
    """Texts of files, each of which gives its share of the tokens to calibrate with at most.

    What is held out follows these; of a file without so many tokens it is the last ninth.

    Raises:
        MxconvError: a file cannot be read, or all of them hold too few tokens.
    """
    texts = CalibrationTexts()
    share, num_found = num_tokens // max(len(files), 1), 0
    most_held = min(share // HELD_SHARE, MOST_HELD // max(len(files), 1))
    for path in files:
        are_answers, taken = _holds_prompts(path), list[tuple[list[int], int]]()
        wanted, num_taken = share + most_held, 0
        found: Iterable[tuple[list[int], int]] = (
            _answers(loaded, path, wanted, progress) if are_answers else _windows(loaded, path)
        )
        for ids, num_given in found:
            taken.append((ids[: wanted - num_taken], num_given))
            num_taken += len(taken[-1][0])
            if num_taken >= wanted:
                break
        num_found += num_taken
        texts.add(taken, min(share, num_taken - min(most_held, num_taken // (HELD_SHARE + 1))), are_answers)
    if num_found < (fewest := min(FEWEST_TOKENS, share * len(files))):
        names = ", ".join(map(str, files))
        raise ModelError(
            f"{names}: {num_found} tokens; at least {fewest} are required to calibrate with and to judge the result, "
            "since fewer hardly improve a draft. Give longer or more texts, or --calibrate without a file."
        )
    return texts


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
    """Pieces of a text of the length of a window, of which every token counts."""
    length = min(WINDOW, loaded.config.max_position_embeddings)
    for piece in read_pieces(path, lambda _: None):
        ids = loaded.tokenizer.encode(piece.text, piece.begins_document)
        yield from ((ids[start : start + length], 0) for start in range(0, len(ids), length))


def _answers(loaded: LoadedPackage, path: Path, num_tokens: int, progress: Progress) -> Iterator[tuple[list[int], int]]:
    """Prompts with the target's own greedy answers, and the prompts' lengths; `num_tokens` are wanted in all."""
    target = loaded.target
    most = target.config.max_position_embeddings - NEW_TOKENS
    as_chat = path == OWN_PROMPTS and bool(read_templates(loaded.folder)[0])
    prompts = encode_prompts(loaded.tokenizer, loaded.folder, read_prompts(path, as_chat)[:MAX_PROMPTS])
    prompts = [ids for ids in prompts if 0 < len(ids) <= most]
    texts = continuations(target, prompts, NEW_TOKENS, ends=loaded.tokenizer.eos_token_ids, batch=BATCH)
    done = 0
    for prompt, text in zip(prompts, texts, strict=True):
        done += len(text)
        progress("answer prompts", min(done, num_tokens), num_tokens)
        yield text, len(prompt)
