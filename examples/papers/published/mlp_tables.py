"""The MLP speculators (arXiv 2404.19124): milliseconds a token by batch and candidates, on one A100.

A step verifies k candidates of n + 1 tokens for each of b sequences: a pass over b k (n + 1) rows (section 4.1).

    step = plain + (rows - b) * weights / (share * peak) + (k - 1) b * KV bytes / (share * bandwidth) + speculator

A step yields tau tokens a sequence, so a token takes step / tau. `plain` is the measured step of b sequences without
candidates, and `share` the part of the bandwidth that it attains at one sequence; arithmetic is assumed to attain the
same part of its peak. Each further candidate reads the keys and values of its sequence again, and the speculator reads
its weights once. No constant is fitted to what the model predicts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from published.claim import Claim
from published.model_cards import CODELLAMA_13B, LLAMA_2_7B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.counts import kv_bytes, multiplied_weights
from mxconv.cost.hardware import open_hardware

BATCHES = (1, 2, 4)
HARDWARE = "a100-80g"
BYTES_PER_WEIGHT = 2


@dataclass(frozen=True)
class CandidateTable:
    """As printed: `milliseconds[context][b][k]` a token, and tau, the tokens a step, `tokens[context][k]`.

    `num_heads` is n, the tokens that the speculator adds to each candidate. `speculator_weights` is the report's 800
    million for a 7B model, 1.1 billion for a 13B one, both with three heads; a speculator of seven is taken to have 7/3
    of it.
    """

    name: str
    config: dict[str, object]
    num_heads: int
    speculator_weights: float
    candidates: Sequence[int]
    milliseconds: dict[int, Sequence[Sequence[float]]]
    tokens: dict[int, Sequence[float]]

    @property
    def target(self) -> ModelSizes:
        return ModelSizes.from_fields(Fields(self.config, self.name))

    @property
    def share(self) -> float:
        """The part of the bandwidth that plain decoding of one sequence attains, at the shortest context measured."""
        plain_seconds = self.milliseconds[min(self.milliseconds)][0][0] / 1e3
        num_bytes = multiplied_weights(self.target) * BYTES_PER_WEIGHT
        return num_bytes / (open_hardware(HARDWARE).read_bandwidth * 1e9) / plain_seconds

    def num_rows(self, batch: int, num_candidates: int) -> int:
        """Rows of a step; 0 candidates are plain decoding."""
        return batch * num_candidates * (self.num_heads + 1) if num_candidates else batch

    def seconds(self, batch: int, num_candidates: int, context: int, plain_seconds: float) -> float:
        """Seconds of a step.

        Args:
            batch: b, sequences.
            num_candidates: k of each; 0 is plain decoding.
            context: positions in each cache.
            plain_seconds: of a step of this batch and context without candidates.
        """
        if not num_candidates:
            return plain_seconds
        hardware, target = open_hardware(HARDWARE), self.target
        more_rows = self.num_rows(batch, num_candidates) - batch
        arithmetic = more_rows * multiplied_weights(target) / (hardware.peak("fp16") * 1e9)
        read = (num_candidates - 1) * batch * kv_bytes(target, context, "fp16")
        read += self.speculator_weights * BYTES_PER_WEIGHT
        return plain_seconds + (arithmetic + read / (hardware.read_bandwidth * 1e9)) / self.share


TABLES = (
    CandidateTable(
        "Table 1, Llama2-7B",
        LLAMA_2_7B,
        3,
        0.8e9,
        (0, 1, 2, 4, 8, 16, 32),
        {
            64: (
                (10.54, 6.23, 5.76, 5.50, 5.55, 6.00, 7.21),
                (10.66, 6.32, 6.01, 5.91, 6.32, 7.62, 11.15),
                (10.78, 6.78, 6.67, 6.95, 8.73, 11.90, 18.31),
            ),
            2048: (
                (12.87, 9.11, 8.89, 8.91, 9.68, 11.51, 14.78),
                (14.98, 10.78, 10.94, 11.56, 13.24, 16.83, 24.96),
                (19.62, 14.24, 15.63, 16.78, 20.97, 29.05, 44.88),
            ),
        },
        {64: (1.00, 2.21, 2.44, 2.67, 2.84, 2.96, 3.03), 2048: (1.00, 2.01, 2.21, 2.42, 2.61, 2.74, 2.83)},
    ),
    CandidateTable(
        "Table 2, Codellama-13B-instruct",
        CODELLAMA_13B,
        7,
        1.1e9 * 7 / 3,
        (0, 1, 2, 4, 8, 16),
        {
            64: (
                (18.88, 6.3, 5.99, 5.67, 5.76, 6.96),
                (19.34, 9.01, 5.51, 5.64, 7.22, 8.71),
                (19.60, 5.55, 5.94, 7.86, 10.08, 13.99),
            ),
            512: (
                (20.12, 6.46, 6.44, 10.55, 6.60, 7.98),
                (21.14, 6.25, 6.19, 6.90, 9.03, 10.93),
                (22.82, 6.71, 7.55, 10.16, 13.43, 17.91),
            ),
        },
        {64: (1.00, 5.02, 5.31, 5.56, 5.76, 5.86), 512: (1.00, 5.49, 5.73, 5.92, 6.10, 6.21)},
    ),
)


def claims() -> Iterator[Claim]:
    """Both tables; docs/research/published.md says what they leave out."""
    for table in TABLES:
        for context, rows in table.milliseconds.items():
            for batch, row in zip(BATCHES, rows, strict=True):
                for k, tau, published in zip(table.candidates, table.tokens[context], row, strict=True):
                    what = f"prompt {context:,}, b = {batch}, k = {k}, {table.num_rows(batch, k)} rows, tau = {tau:.2f}"
                    if k:
                        ours = 1e3 * table.seconds(batch, k, context, row[0] / 1e3) / tau
                        yield Claim(what, published, ours, group=f"{table.name}, ms a token, cells")
