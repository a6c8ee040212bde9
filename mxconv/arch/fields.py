"""Typed values out of a JSON file that somebody else wrote, with errors that name the key and the value."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mxconv.checkpoint.regular_file import read_json_object
from mxconv.errors import ModelError

LARGEST_SIZE = 2**31 - 1  # no real model comes near; keeps a lying file from asking for absurd allocations
LONGEST_QUOTE = 80


@dataclass(frozen=True)
class Fields:
    """The keys of one JSON object."""

    values: Mapping[str, Any]  # the object
    name: str  # what errors call it, e.g. "config.json" or "config.json: rope_scaling"

    @classmethod
    def read(cls, path: Path) -> "Fields":
        """The JSON object in a file. Raises CheckpointError where it is missing, or holds something else."""
        return cls(read_json_object(path, unique_keys=False), str(path))

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer. Null counts as absent; without a default the key must be there."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 0 < value <= LARGEST_SIZE:
            self.reject(key, f"an integer from 1 to {LARGEST_SIZE} is required")
        return value

    def number(self, key: str, default: float | None = None, at_least: float = 0.0) -> float:
        """A positive finite number. Null counts as absent; without a default the key must be there."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.reject(key, "a number is required")
        if not at_least <= value <= sys.float_info.max or value == 0:  # a NaN fails the comparison
            self.reject(key, f"a finite number is required, {f'from {at_least:g} on' if at_least else 'above 0'}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false. Null counts as absent."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.reject(key, "true or false is required")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of some words. Without a default the key must be there."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or value not in choices:
            self.reject(key, f"mxconv supports {', '.join(choices)}", "Use a model of such a kind.")
        return value

    def section(self, key: str) -> "Fields":
        """An object inside this one; null or absent gives an empty one."""
        value = self.values.get(key)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.reject(key, "an object or null is required")
        return Fields(value, f"{self.name}: {key}")

    def reject(self, key: str, required: str, remedy: str = "Take the file that belongs to the weights.") -> NoReturn:
        """Raise a ModelError about the value of `key`."""
        found = f"{key} is {quote(self.values[key])}" if key in self.values else f"{key} is missing"
        raise ModelError(f"{self.name}: {found}; {required}. {remedy}")


def quote(value: object) -> str:
    """A value as JSON, shortened to fit into a message."""
    text = json.dumps(value)
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."
