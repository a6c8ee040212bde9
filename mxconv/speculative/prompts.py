"""Prompt files: JSON lines with a `prompt` each."""

from pathlib import Path

from mxconv.checkpoint.json_file import parse_json_object
from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.errors import ModelError

MAX_FILE_BYTES = 1_000_000_000


def read_prompts(path: Path) -> list[str]:
    """The prompts of a .jsonl file, in order; other keys are ignored, blank lines skipped.

    Raises:
        MxconvError: the file cannot be read, a line is no JSON object or has no `prompt` text, or there is none.
    """
    if (num_bytes := check_regular_file(path)) > MAX_FILE_BYTES:
        raise ModelError(f"{path}: {num_bytes:,} bytes; at most {MAX_FILE_BYTES:,} are read. Split the file.")
    prompts = []
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            prompt = parse_json_object(line, f"{path}: line {number}", unique_keys=False).get("prompt")
            if not isinstance(prompt, str) or not prompt:
                raise ModelError(f"{path}: line {number}: prompt is {prompt!r}; some text is required.")
            prompts.append(prompt)
    if not prompts:
        raise ModelError(f"{path}: holds no prompts; at least one line with a `prompt` is required.")
    return prompts
