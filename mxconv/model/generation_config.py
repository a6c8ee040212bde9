"""How a model wants to be sampled, from the generation_config.json beside its weights."""

from dataclasses import dataclass
from pathlib import Path

from mxconv.model.distribution import Sampling
from mxconv.model.fields import Fields


@dataclass(frozen=True)
class GenerationConfig:
    """What the makers of a model recommend. The ids of tokens that end a text are the tokenizer's business.

    Args:
        do_sample: whether to draw tokens at random; False decodes greedily, whatever the next three say.
        temperature: see `Sampling`; None where the file says nothing.
        top_k: likewise. transformers takes 50 where the file says nothing, mxconv every token.
        top_p: likewise.
        stop_strings: texts that end a generation.
    """

    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
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
        do_sample = fields.values.get("do_sample") is not None and fields.flag("do_sample", default=False)
        return cls(
            do_sample=do_sample,
            # a temperature of 0 is written by some to say that nothing is drawn
            temperature=_number(fields, "temperature", float("inf"), at_least_positive=do_sample),
            top_k=_top_k(fields),
            top_p=_number(fields, "top_p", 1.0),
            stop_strings=_stop_strings(fields),
        )

    @property
    def sampling(self) -> Sampling | None:
        """The recommended distribution; None where the most likely token is to be taken."""
        if not self.do_sample:
            return None
        return Sampling(
            1.0 if self.temperature is None else self.temperature,
            0 if self.top_k is None else self.top_k,
            1.0 if self.top_p is None else self.top_p,
        )


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


def _stop_strings(fields: Fields) -> tuple[str, ...]:
    value = fields.values.get("stop_strings")
    texts = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) and text for text in texts):
        fields.reject("stop_strings", "a text, a list of texts or null is required, none of them empty")
    return tuple(texts)
