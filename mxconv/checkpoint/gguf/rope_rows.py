"""The order of query and key rows.

RoPE rotates rows in pairs. Hugging Face checkpoints hold a head's first members of all pairs and then its second ones;
llama.cpp's `llama` models (not its qwen2 and qwen3) hold the two members of a pair side by side:

    Hugging Face   row h * head_dim / 2 + j      member h of pair j
    GGUF           row 2 j + h

Source:
    `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py.
"""

import numpy as np

from mxconv.arrays import I64


def hf_rows(start: int, stop: int, head_dim: int) -> I64:
    """Which Hugging Face rows stand at GGUF's rows [start, stop); (stop - start,)."""
    rows = np.arange(start, stop, dtype=np.int64)
    head, row = rows - rows % head_dim, rows % head_dim
    return head + row % 2 * (head_dim // 2) + row // 2


def gguf_rows(start: int, stop: int, head_dim: int) -> I64:
    """Which GGUF rows stand at Hugging Face's rows [start, stop); (stop - start,)."""
    rows = np.arange(start, stop, dtype=np.int64)
    head, row = rows - rows % head_dim, rows % head_dim
    return head + row % (head_dim // 2) * 2 + row // (head_dim // 2)
