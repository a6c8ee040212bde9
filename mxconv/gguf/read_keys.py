"""The keys of a GGUF file that is read, checked before they are believed."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mxconv.arch.families.keys import MOST_LAYERS
from mxconv.errors import CheckpointError
from mxconv.gguf.gguf_header import GgufEntry

MAX_SIZE = 2**31 - 1
REMEDY = "Convert the model from its original checkpoint."


class ReadKeys:
    """The keys of an architecture, by their names without the architecture's, and beside them the file's tensors."""

    def __init__(self, values: Mapping[str, Any], tensors: Mapping[str, GgufEntry], path: Path) -> None:
        self.values, self.tensors, self.path = values, tensors, path
        self.architecture = str(values.get("general.architecture"))

    def has(self, key: str) -> bool:
        return self._name(key) in self.values

    def has_tensor(self, *endings: str) -> bool:
        """Whether the name of any tensor ends so."""
        return any(name.endswith(endings) for name in self.tensors)

    def get(self, key: str) -> Any:
        """The value as it is; None where the file has none."""
        return self.values.get(self._name(key))

    def size(self, key: str, default: int | None = None) -> int:
        """An integer from 1 on; of a list, which has a number a layer, the largest."""
        sizes = self.sizes(key, default)
        if not max(sizes):
            self.reject(key, f"an integer from 1 to {MAX_SIZE} is required")
        return max(sizes)

    def sizes(self, key: str, default: int | None = None) -> list[int]:
        """An integer from 1 on as a list of one, or a list of a number a layer, which may be 0. Raises CheckpointError
        where the key is missing, or something else."""
        value = self.values.get(self._name(key), default)
        if isinstance(value, list):
            if not 0 < len(value) <= MOST_LAYERS or not all(
                type(each) is int and 0 <= each <= MAX_SIZE for each in value
            ):
                self.reject(key, f"a list of integers from 0 to {MAX_SIZE} is required")
            return value
        if type(value) is not int or not 0 < value <= MAX_SIZE:
            self.reject(key, f"an integer from 1 to {MAX_SIZE} is required")
        return [value]

    def count(self, key: str, default: int = 0) -> int:
        """An integer from 0 on."""
        return 0 if self.get(key) == 0 else self.size(key, default) if self.has(key) or default else default

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0: of those that float32 does not tell apart, the shortest, as people wrote it."""
        value = self.values.get(self._name(key), default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value) or value <= 0:
            self.reject(key, "a finite number above 0 is required")
        return float(str(np.float32(value)))

    def number_or_none(self, key: str) -> float | None:
        """The same, or None where the file has none."""
        return self.number(key) if self.has(key) else None

    def flags(self, key: str, num_layers: int) -> list[bool] | None:
        """A list of one true or false a layer; a number n is every n-th layer false. None where the file has none."""
        value = self.get(key)
        if type(value) is int and value > 0:
            return [(layer + 1) % value != 0 for layer in range(num_layers)]
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != num_layers or not all(each in (0, 1) for each in value):
            self.reject(key, f"a list of {num_layers} flags, one a layer, is required")
        return [bool(each) for each in value]

    def reject(self, key: str, required: str) -> NoReturn:
        """Raise a CheckpointError about a key."""
        name = self._name(key)
        found = f"{name} is {str(self.values[name])[:80]}" if name in self.values else f"{name} is missing"
        raise CheckpointError(f"{self.path}: {found}; {required}. {REMEDY}")

    def _name(self, key: str) -> str:
        return f"{self.architecture}.{key}"
