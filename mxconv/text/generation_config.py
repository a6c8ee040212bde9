"""How a model wants to be sampled, from the generation_config.json beside its weights."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from mxconv.arch.fields import Fields
from mxconv.text.penalties import LEAST_REPETITION, MOST_REPETITION


@dataclass(frozen=True)
class GenerationConfig:
    """Recommendations of the makers of a model. The ids of tokens that end a text are the tokenizer's business.

    Args:
        do_sample: whether to draw tokens at random; False decodes greedily, whatever the next four say. None where the
            file says nothing.
        temperature: see `Sampling`, likewise.
        top_k: likewise.
        top_p: likewise.
        min_p: likewise.
        repetition_penalty: see `Penalties`, likewise.
        stop_strings: texts that end a generation.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_strings: tuple[str, ...] = ()

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
        top_k = _number(fields, "top_k", "a whole number from 0 on", lambda k: type(k) is int and k >= 0)
        return cls(
            do_sample=do_sample,
            temperature=_number(
                fields, "temperature", f"a finite number {heat}", lambda t: 0 <= t < inf and (t > 0 or not do_sample)
            ),
            top_k=None if top_k is None else int(top_k),
            top_p=_number(fields, "top_p", "a finite number from 0 to 1", lambda p: 0 <= p <= 1),
            min_p=_number(fields, "min_p", "a finite number from 0 to 1", lambda p: 0 <= p <= 1),
            repetition_penalty=_number(
                fields, "repetition_penalty", repetition, lambda r: LEAST_REPETITION <= r <= MOST_REPETITION
            ),
            stop_strings=_stop_strings(fields),
        )

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
        of_draws = {
            "temperature": self.temperature if self.samples else 0.0 if self._wants_greedy else None,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return {name: value for name, value in of_draws.items() if value is not None}

    @property
    def _wants_greedy(self) -> bool:
        return self.do_sample is False or self.temperature == 0


def _number(fields: Fields, key: str, required: str, fits: Callable[[float], bool]) -> float | None:
    value = fields.values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
        fields.reject(key, f"{required}, or null, is required")
    return float(value)


def _stop_strings(fields: Fields) -> tuple[str, ...]:
    value = fields.values.get("stop_strings")
    texts = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in texts):
        fields.reject("stop_strings", "a text, a list of texts or null is required, none of them empty")
    return tuple(texts)
