"""What a cache keeps of a key or a value: all of a float32, or a 16-bit float."""

from typing import Literal, get_args

from mxconv.codecs.float16 import BF16, FP16, FloatFormat

KvDtype = Literal["fp32", "bf16", "fp16"]
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)
FORMATS: dict[KvDtype, FloatFormat | None] = {"fp32": None, "bf16": BF16, "fp16": FP16}  # how the 16-bit ones round
