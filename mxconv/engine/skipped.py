"""Which attention and MLP parts of a decoder a draft leaves out, and how that is written down.

    a3-5+m7+8    attention of layers 3 to 5, the MLP of layer 7, all of layer 8

Each part adds to its input, so that one which is left out leaves its input as it is.

Source:
    Draft & Verify, arXiv 2309.08168: a model without some of its attention and MLP parts drafts for itself.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, groupby

from mxconv.errors import ModelError

NOTHING = "none"
TERM = re.compile(r"([am]?)(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True)
class Skipped:
    """Layer numbers, from 0 on as in tensor names, whose attention or MLP is left out."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str, num_layers: int) -> "Skipped":
        """Read the notation: terms joined by `+`, each a layer or a range, `a` or `m` before it for one of its parts.

        Raises:
            ModelError: no such text, a range from its end to its beginning, or a layer that the model does not have.
        """
        if text == NOTHING:
            return cls()
        parts: dict[str, set[int]] = {"a": set(), "m": set()}
        for term in text.split("+"):
            match = TERM.fullmatch(term)
            first, last = (int(match[2]), int(match[3] or match[2])) if match else (1, 0)
            if match is None or first > last:
                raise ModelError(
                    f"skipped layers {text!r}: {term!r}; a layer N, a range N-M of layers, aN for an attention or "
                    "mN for an MLP is required. Join them by +, as in a3-5+m7+8."
                )
            _check(last, num_layers, repr(text))
            for kind in match[1] or "am":
                parts[kind].update(range(first, last + 1))
        return cls(frozenset(parts["a"]), frozenset(parts["m"]))

    @classmethod
    def of(cls, parts: Iterable[tuple[str, int]]) -> "Skipped":
        """From parts: "a" or "m", and the layer."""
        chosen = list(parts)
        attention, mlp = (frozenset(layer for kind, layer in chosen if kind == wanted) for wanted in "am")
        return cls(attention, mlp)

    @classmethod
    def spread(cls, num_layers: int, share: float) -> "Skipped":
        """At most `share` of all parts, at even distances; the first and the last layer stay whole.

        Raises:
            ModelError: that is no part at all.
        """
        inner = range(1, num_layers - 1)
        parts = [*(("a", layer) for layer in inner), *(("m", layer) for layer in inner)]
        number = min(int(share * 2 * num_layers + 1e-9), len(parts))
        if number < 1:
            raise ModelError(
                f"skipped layers: a share of {share:g} of the parts of {num_layers} layers is none, the first and the "
                "last layer kept; at least one is required. Choose a greater share, or a deeper model."
            )
        chosen = [parts[(2 * index + 1) * len(parts) // (2 * number)] for index in range(number)]
        return cls.of(chosen)

    @classmethod
    def exit_after(cls, num_kept: int, num_layers: int) -> "Skipped":
        """All layers but the first `num_kept`.

        Raises:
            ModelError: none would be left out, or all of them.
        """
        if not 1 <= num_kept < num_layers:
            raise ModelError(
                f"skipped layers: an exit after layer {num_kept} of {num_layers}; 1 to {num_layers - 1} are required. "
                "Choose a deeper model."
            )
        layers = frozenset(range(num_kept, num_layers))
        return cls(layers, layers)

    def check(self, num_layers: int) -> None:
        """Raises ModelError where a layer is named that a model of `num_layers` does not have."""
        named = self.attention | self.mlp
        for layer in (min(named, default=0), max(named, default=0)):
            _check(layer, num_layers, repr(str(self)))

    def __str__(self) -> str:
        """The one way that `parse` reads and everybody writes: whole layers, attention, MLP, in ranges."""
        both = self.attention & self.mlp
        terms = [*_ranges("", both), *_ranges("a", self.attention - both), *_ranges("m", self.mlp - both)]
        return "+".join(terms) or NOTHING

    def __len__(self) -> int:
        """The number of parts."""
        return len(self.attention) + len(self.mlp)


def _check(layer: int, num_layers: int, name: str) -> None:
    if not 0 <= layer < num_layers:
        raise ModelError(
            f"skipped layers {name}: layer {layer}; layers of the model, 0 to {num_layers - 1}, are required. "
            "Name layers as its tensors do."
        )


def _ranges(kind: str, layers: frozenset[int]) -> Iterator[str]:
    """Runs of consecutive numbers."""
    steps = count()
    for _, run in groupby(sorted(layers), key=lambda layer: layer - next(steps)):
        first, *rest = run
        yield f"{kind}{first}-{rest[-1]}" if rest else f"{kind}{first}"
