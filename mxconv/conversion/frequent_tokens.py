"""Which tokens a draft chooses from: the most frequent ones of some texts.

Source:
    FR-Spec, arXiv 2502.14856, section 4: a vocabulary ranked by frequency, for the draft's head alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mxconv.arch.families.registry import describe_values
from mxconv.arrays import I32, I64
from mxconv.checkpoint.hashing import sha256_file
from mxconv.checkpoint.source import Checkpoint
from mxconv.errors import MxconvError
from mxconv.package.level_record import VocabularyRecord
from mxconv.progress import Progress
from mxconv.text.chat import ChatTemplate
from mxconv.text.texts import read_documents
from mxconv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class FrequentTokens:
    """What a conversion stores of them: ascending ids, (num_tokens,), and the level's record."""

    tokens: I32
    record: VocabularyRecord


def frequent_tokens(checkpoint: Checkpoint, texts: Sequence[Path], number: int, progress: Progress) -> FrequentTokens:
    """The most frequent tokens of some texts, the lower id where equal; so those that never occur fill up by id.

    Always among them are those that end a text and the special ones that the chat template writes. Texts are files of
    plain text, or .jsonl with `text` or `prompt`; `number` is less than the model has.

    Raises:
        MxconvError: a text or the tokenizer cannot be read, the texts are empty, or the number does not fit the model.
    """
    flag = f"--draft-vocabulary {number}"
    if checkpoint.config is None:
        raise MxconvError(f"{flag}: {checkpoint.id} has no config.json; one is required. Give the model's folder.")
    vocab_size = describe_values(checkpoint.config).vocab_size
    with TemporaryDirectory() as made:
        folder = checkpoint.root
        if checkpoint.container == "GGUF":
            folder = Path(made)
            for name, content in checkpoint.derive_files().items():
                (folder / name).write_bytes(content)
        tokenizer = Tokenizer.from_folder(folder)
        always = _always(folder, tokenizer, vocab_size)
    if not len(always) <= number < vocab_size:
        raise MxconvError(
            f"{flag}: {checkpoint.id} has {vocab_size} tokens, of which {len(always)} end texts or turns; "
            f"{max(len(always), 1)} to {vocab_size - 1} are required. Choose another number."
        )
    counts: I64 = np.zeros(vocab_size, np.int64)
    for piece in read_documents(texts, "count", progress):
        found = np.array(tokenizer.encode(piece.text, add_special_tokens=False), np.int64)
        counts += np.bincount(found[found < vocab_size], minlength=vocab_size)
    if not counts.any():
        raise MxconvError(
            f"{', '.join(map(str, texts))}: 0 tokens; at least one is required. Give texts that hold some."
        )
    counts[always] = np.iinfo(np.int64).max
    tokens = np.sort(np.argsort(-counts, kind="stable")[:number]).astype(np.int32)
    record = VocabularyRecord(num_tokens=number, texts=[sha256_file(path) for path in texts])
    return FrequentTokens(tokens, record)


def _always(folder: Path, tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The tokens that end a text, and the special ones that are written around the turns of a chat."""
    try:
        template = ChatTemplate.from_folder(folder)
        written = template.source + "".join(template.special_tokens.values())
    except MxconvError:  # none, as of base models
        written = ""
    marks = {token for token in tokenizer.special_token_ids if tokenizer.name_of(token) in written}
    return sorted(token for token in tokenizer.eos_token_ids | marks if token < vocab_size)
