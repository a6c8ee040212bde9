"""How a model wants to be sampled, from the generation_config.json beside its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv.arch.fields import Fields
from mxconv.text.penalties import LEAST_REPETITION, MOST_REPETITION


@dataclass(frozen=True)
class GenerationConfig:
    """What the makers of a model recommend. The ids of tokens that end a text are the tokenizer's business.

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
        return cls(
            do_sample=do_sample,
            # a temperature of 0 is written by some to say that nothing is drawn
            temperature=_number(fields, "temperature", float("inf"), at_least_positive=bool(do_sample)),
            top_k=_top_k(fields),
            top_p=_number(fields, "top_p", 1.0),
            min_p=_number(fields, "min_p", 1.0),
            repetition_penalty=_repetition_penalty(fields),
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
        """What it recommends, by the names of the file. A file that wants no draws recommends a temperature of 0."""
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


def _number(fields: Fields, key: str, largest: float, at_least_positive: bool = False) -> float | None:
    value = fields.values.get(key)
    if value is None:
        return None
    fitting = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= largest
    if not fitting or value == float("inf") or (at_least_positive and value == 0):
        limit = "above 0" if at_least_positive else "from 0 on" if largest > 1 else "from 0 to 1"
        fields.reject(key, f"a finite number {limit}, or null, is required")
    return float(value)


def _top_k(fields: Fields) -> int | None:
    value = fields.values.get("top_k")
    if value is not None and (type(value) is not int or value < 0):
        fields.reject("top_k", "a whole number from 0 on, or null, is required")
    return value


def _repetition_penalty(fields: Fields) -> float | None:
    value = fields.values.get("repetition_penalty")
    if value is None:
        return None
    if type(value) not in (int, float) or not LEAST_REPETITION <= value <= MOST_REPETITION:
        fields.reject(
            "repetition_penalty", f"a number from {LEAST_REPETITION} to {MOST_REPETITION:g}, or null, is required"
        )
    return float(value)


def _stop_strings(fields: Fields) -> tuple[str, ...]:
    value = fields.values.get("stop_strings")
    texts = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in texts):
        fields.reject("stop_strings", "a text, a list of texts or null is required, none of them empty")
    return tuple(texts)
