"""ML-SpecQD (arXiv 2503.13565): Tables I-III from its acceptances, the example of its Figs. 2 and 3, its kernels."""

from collections.abc import Iterator
from dataclasses import dataclass

from published.claim import Claim

from mxconv.cost.counts import BITS
from mxconv.cost.speedup import LevelCost, accepted_tokens, hierarchy_speedup, round_speedup

NUM_DRAFT_TOKENS = 8  # section IV-A
EXAMPLE_TOKENS = 4  # section III-B, "e.g."
MXFP4_SPEED = BITS["bf16"] / BITS["mxfp4"]
FP32_SLOWDOWN = 2.3  # of MXFP4 products of 8 tokens: Fig. 7


@dataclass(frozen=True)
class Setup:
    """Tables I and II: shares of drafted tokens that were accepted, and how many times smaller the small draft is."""

    table: str
    small: str
    small_speed: float  # over the 16-bit target
    small_under_mxfp4: float  # over the target too, as the second draft: cast to MXFP4 in Table II
    mxfp4_share: float
    small_share: float
    published: tuple[float, float, float]  # small draft, MXFP4 draft, both


SETUPS = (
    Setup("Table I, QA, Llama2 7B", "68M draft", 6738 / 68, 6738 / 68, 0.712, 0.417, (1.81, 1.86, 2.22)),
    Setup("Table II, code, Qwen2.5-Coder 7B", "0.5B draft", 14.0, 14.0 * MXFP4_SPEED, 0.91, 0.62, (2.64, 2.03, 2.72)),
)


def claims() -> Iterator[Claim]:
    """The figures of Tables I to III, of Figs. 2, 3 and 7."""
    for setup in SETUPS:
        small, mxfp4, both = setup.published
        for name, share, speed, published in (
            (setup.small, setup.small_share, setup.small_speed, small),
            ("MXFP4 draft", setup.mxfp4_share, MXFP4_SPEED, mxfp4),
        ):
            yield Claim(f"{setup.table}, {name}", published, round_speedup(share, NUM_DRAFT_TOKENS, speed))
        found = _two_drafts(
            (setup.mxfp4_share, setup.small_share), (MXFP4_SPEED, setup.small_under_mxfp4), NUM_DRAFT_TOKENS
        )
        yield Claim(f"{setup.table}, both", both, found)
    setup = SETUPS[1]
    shares, speeds = (setup.mxfp4_share, setup.small_share), (MXFP4_SPEED, setup.small_under_mxfp4)
    slow, fast = (_two_drafts(shares, speeds, NUM_DRAFT_TOKENS, slowdown) for slowdown in (FP32_SLOWDOWN, 1.0))
    yield Claim("Table III, MXFP4 draft, FP32 over int8", 1.90 / 2.03, 1.0)
    yield Claim("Table III, MXFP4 and 0.5B drafts, FP32 over int8", 2.16 / 2.72, slow / fast)
    star = [_two_drafts(shares, (4, 100), EXAMPLE_TOKENS) for shares in ((0.80, 0.40), (0.85, 0.45))]
    alone = [round_speedup(share, EXAMPLE_TOKENS, speed) for share, speed in ((0.825, 4), (0.425, 100), (0.60, 10))]
    for what, low, high, published, ours in (
        ("Fig. 3, lower end of the star's range, 80% and 40%", 3.0, 3.5, 3.0, star[0]),
        ("Fig. 3, upper end, 85% and 45%", 3.0, 3.5, 3.5, star[1]),
        ("Fig. 2, the 4-bit draft alone at 82.5%, middle of the range", 2.0, 2.5, 2.25, alone[0]),
        ("Fig. 2, the small draft alone at 42.5%, middle of the range", 2.0, 2.5, 2.25, alone[1]),
        ("Fig. 2, ten times as fast at 60%, middle of the range", 2.5, 3.0, 2.75, alone[2]),
    ):
        place = "inside" if low <= ours <= high else "outside"
        yield Claim(f"{what}: {place} {low:g} to {high:g}", published, ours)
    yield Claim("Fig. 7, bytes of BF16 over MXFP4", 3.76, MXFP4_SPEED)


def implied_length(share: float, speed: float, published: float) -> float:
    """N of Eq. (1) for a speed-up: (a + x) = speed-up (x + 1/S), x = 1/N."""
    return (published - 1) / (share - published / speed)


def _two_drafts(
    shares: tuple[float, float], speeds: tuple[float, float], length: float, slowdown: float = 1.0
) -> float:
    """Speed-up of a draft with a draft of its own, whose verification takes `slowdown` times as long as a pass."""
    outer = LevelCost(1 / speeds[0], shares[0], length, slowdown / speeds[0])
    return hierarchy_speedup([LevelCost(1.0), outer, LevelCost(1 / speeds[1], shares[1], length)], accepted_tokens)
