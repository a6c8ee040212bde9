"""Recommendations of how to sample a model, from the generation_config.json beside its weights."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from mxconv.arch.fields import Fields
from mxconv.text.distribution import is_number
from mxconv.text.penalties import LEAST_REPETITION, MOST_REPETITION


@dataclass(frozen=True)
class GenerationConfig:
    """Recommendations of the makers of a model, None where the file says nothing; see `Sampling` and `Penalties`.

    The ids of tokens that end a text are the tokenizer's business.
    """

    do_sample: bool | None = None  # False decodes greedily, whatever the next four say
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_strings: tuple[str, ...] = ()  # texts that end a generation

    @classmethod
    def from_folder(cls, folder: Path) -> "GenerationConfig":
        """Read generation_config.json; a folder without one recommends nothing.

        Raises:
            CheckpointError: the file is no JSON object.
            ModelError: a value is none that can be.
        """
        path = folder / "generation_config.json"
        if not path.is_file():
            return cls()
        fields = Fields.read(path)
        do_sample = None if fields.values.get("do_sample") is None else fields.flag("do_sample", default=False)
        # a temperature of 0 is written by some to say that nothing is drawn
        heat = "above 0" if do_sample else "from 0 on"
        repetition = f"a number from {LEAST_REPETITION} to {MOST_REPETITION:g}"
        rules: dict[str, tuple[str, Callable[[float], bool]]] = {
            "temperature": (f"a finite number {heat}", lambda t: 0 <= t < inf and (t > 0 or not do_sample)),
            "top_k": ("a whole number from 0 on", lambda k: type(k) is int and k >= 0),
            "top_p": ("a finite number from 0 to 1", lambda p: 0 <= p <= 1),
            "min_p": ("a finite number from 0 to 1", lambda p: 0 <= p <= 1),
            "repetition_penalty": (repetition, lambda r: LEAST_REPETITION <= r <= MOST_REPETITION),
        }
        numbers: dict[str, Any] = {}
        for key, (required, fits) in rules.items():
            if (value := fields.values.get(key)) is None:
                continue
            if not (is_number(value) and fits(value)):
                fields.reject(key, f"{required}, or null, is required")
            numbers[key] = value if key == "top_k" else float(value)
        stops = fields.values.get("stop_strings")
        texts = [] if stops is None else stops if isinstance(stops, list) else [stops]
        if not all(isinstance(text, str) and text for text in texts):
            fields.reject("stop_strings", "a text, a list of texts or null is required, none of them empty")
        return cls(do_sample, **numbers, stop_strings=tuple(texts))

    @property
    def samples(self) -> bool:
        """Whether the file wants tokens drawn: it says so, or it names a temperature, top_k, top_p or min_p alone.

        vLLM takes such values as they are, transformers leaves them aside; nobody writes them to be left aside.
        """
        if self.do_sample is not None:
            return self.do_sample
        named = [value for value in (self.temperature, self.top_k, self.top_p, self.min_p) if value is not None]
        return bool(named) and self.temperature != 0

    @property
    def parameters(self) -> dict[str, Any]:
        """The recommendations by the names of the file. A file that wants no draws recommends a temperature of 0."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        values = {name: getattr(self, name) for name in names}
        if not self.samples:
            values["temperature"] = 0.0 if self.do_sample is False or self.temperature == 0 else None
        return {name: value for name, value in values.items() if value is not None}
