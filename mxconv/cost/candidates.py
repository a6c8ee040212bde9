"""Verifying many candidates of many sequences at once: a pass over b k (n + 1) rows.

    step = plain + (rows - b) * weights / (share * peak) + (k - 1) b * KV bytes / (share * bandwidth) + speculator

A step yields tau tokens a sequence, so a token takes step / tau. `plain` is the measured step of b sequences without
candidates, and `share` what that step attains of the memory's bandwidth at one sequence; arithmetic is taken to attain
the same share of its peak. Each further candidate reads the sequence's keys and values again, and the speculator reads
its weights once. No constant is fitted to what the model predicts.

Source:
    Rows: the MLP speculators' report (arXiv 2404.19124), section 4.1: b k (n + 1) tokens a step.
"""

from dataclasses import dataclass

from mxconv.cost.architecture import Architecture
from mxconv.cost.counts import kv_bytes, multiplied_weights
from mxconv.cost.hardware import Hardware

BYTES_PER_WEIGHT = 2


@dataclass(frozen=True)
class CandidateStep:
    """What is decoded, on what, with which speculator.

    Args:
        target: the model that verifies, in 16 bits.
        hardware: with a `fp16` peak.
        num_heads: n, tokens that the speculator adds to each candidate.
        speculator_weights: that a step reads.
        plain_seconds: of a step of one sequence without candidates, at the shortest context measured.
    """

    target: Architecture
    hardware: Hardware
    num_heads: int
    speculator_weights: float
    plain_seconds: float

    @property
    def share(self) -> float:
        """Of bandwidth, which plain decoding of one sequence attains."""
        num_bytes = multiplied_weights(self.target) * BYTES_PER_WEIGHT
        return num_bytes / (self.hardware.read_bandwidth * 1e9) / self.plain_seconds

    def num_rows(self, batch: int, num_candidates: int) -> int:
        return batch * num_candidates * (self.num_heads + 1) if num_candidates else batch

    def seconds(self, batch: int, num_candidates: int, context: int, plain_seconds: float) -> float:
        """Of a step.

        Args:
            batch: b, sequences.
            num_candidates: k of each; 0 is plain decoding.
            context: positions in each cache.
            plain_seconds: of a step of this batch and context without candidates.
        """
        if not num_candidates:
            return plain_seconds
        more_rows = self.num_rows(batch, num_candidates) - batch
        arithmetic = more_rows * multiplied_weights(self.target) / (self.hardware.peak("fp16") * 1e9)
        read = (num_candidates - 1) * batch * kv_bytes(self.target, context, "fp16")
        read += self.speculator_weights * BYTES_PER_WEIGHT
        return plain_seconds + (arithmetic + read / (self.hardware.read_bandwidth * 1e9)) / self.share
