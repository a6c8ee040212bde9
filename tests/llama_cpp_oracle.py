"""llama.cpp as an oracle, through llama-cpp-python: tokens, logits and greedy text of a GGUF file.

Rounding: 16-bit matrices multiply activations rounded to those 16 bits, MXFP4 matrices activations rounded to int8 per
32 (ggml's `vec_dot_type`); `with_f32_matrices` makes a copy of a file that computes in float32 throughout.
Layout: logits (num_tokens, vocab_size), as ours.
Known defects: GELU is a table in half precision, about 1e-3 of the largest logit;
a character for which the vocabulary has neither a token nor bytes ends the process.
"""

import atexit
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxconv.arrays import F32

F32_CACHE = 0  # GGML_TYPE_F32


@cache
def _library() -> Any:
    library = pytest.importorskip("llama_cpp", reason="make test builds llama-cpp-python")
    for file in (library._utils.outnull_file, library._utils.errnull_file):
        atexit.register(file.close)  # it opens /dev/null twice when it is imported, and leaves it to the interpreter
    return library


class LlamaCppVocabulary:
    """The vocabulary of a file, which needs no tensors."""

    def __init__(self, path: Path) -> None:
        self._llama = _library().Llama(str(path), vocab_only=True, verbose=False)

    def close(self) -> None:
        self._llama.close()

    def tokenize(self, text: str) -> list[int]:
        """Special tokens found in the text, none put around it."""
        ids: list[int] = self._llama.tokenize(text.encode(), add_bos=False, special=True)
        return ids


class LlamaCpp:
    """A loaded file."""

    def __init__(self, path: Path, num_positions: int = 512) -> None:
        self._llama = _library().Llama(
            str(path),
            n_ctx=num_positions,
            n_batch=num_positions,
            n_ubatch=num_positions,
            n_threads=1,
            n_threads_batch=1,
            logits_all=True,
            type_k=F32_CACHE,
            type_v=F32_CACHE,
            yarn_beta_fast=-1.0,  # the file's: the library's own default is 32 and 1 whatever a file says
            yarn_beta_slow=-1.0,
            verbose=False,
        )
        self.metadata: dict[str, str] = self._llama.metadata

    def close(self) -> None:
        self._llama.close()

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """With what the file puts before and after every text."""
        ids: list[int] = self._llama.tokenize(text.encode(), add_bos=True, special=special)
        return ids

    def text(self, token_ids: list[int]) -> str:
        """Of byte-level tokens, special ones included."""
        raw: bytes = self._llama.detokenize(token_ids, special=True)
        return raw.decode("utf-8")

    def is_end(self, token: int) -> bool:
        """Whether llama.cpp ends a text there."""
        library = _library()
        return bool(library.llama_vocab_is_eog(library.llama_model_get_vocab(self._llama.model), token))

    def logits(self, token_ids: list[int]) -> F32:
        """Of every position, evaluated in one batch."""
        self._llama.reset()
        self._llama.eval(token_ids)
        return np.array(self._llama.scores[: len(token_ids)], np.float32)

    def greedy(self, token_ids: list[int], max_new_tokens: int, stop_tokens: Collection[int]) -> list[int]:
        """New tokens, a final stop token included: one evaluation each."""
        self._llama.reset()
        self._llama.eval(token_ids)
        found: list[int] = []
        while len(found) < max_new_tokens:
            found.append(int(self._llama.scores[self._llama.n_tokens - 1].argmax()))
            if found[-1] in stop_tokens:
                break
            self._llama.eval(found[-1:])
        return found


def with_f32_matrices(source: Path, path: Path) -> Path:
    """A copy of a GGUF file, made by the gguf library, whose matrices are F32: the same values."""
    import gguf

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        subtype = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=subtype)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
