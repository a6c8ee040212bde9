"""ML-SpecQD (arXiv 2503.13565): Tables I-III from its acceptances, the example of its Figs. 2 and 3, its kernels."""

from collections.abc import Iterator
from dataclasses import dataclass

from mxconv.cost.counts import BITS
from mxconv.cost.published.row import Row, Section
from mxconv.cost.speedup import LevelCost, accepted_tokens, hierarchy_speedup, round_speedup

NUM_DRAFT_TOKENS = 8  # section IV-A
EXAMPLE_TOKENS = 4  # section III-B, "e.g."
BANDWIDTH = 104.0  # GB/s, read, measured: section IV-A
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


def sections() -> Iterator[Section]:
    yield Section("ML-SpecQD: Tables I and II", list(_speedups()), NOTE)
    yield Section("ML-SpecQD: Table III, int8 against FP32 arithmetic", list(_arithmetic()), ARITHMETIC_NOTE)
    yield Section("ML-SpecQD: Figs. 2 and 3, and what the text reads from them", list(_figures()), FIGURE_NOTE)
    yield Section("ML-SpecQD: formats and kernels, Figs. 7 and 8", list(_kernels()))


NOTE = (
    "Eq. (1) at 8 draft tokens, drafts as fast as their bytes allow. It leaves out: that drafting stops at a threshold "
    "(0.4; 0.65 where tokenizers differ), so that rounds are shorter than 8; what drafts cost beyond their weights "
    "(a model of 68 million is bound by calls, not by memory), prompts, and a verification of nine tokens that takes "
    "longer than a pass over one. *Rounds of* is the length at which Eq. (1) gives the published speed-up: a fit. "
    "With drafts of drafts the share of the small one is its share below the 16-bit target, the only one printed."
)
ARITHMETIC_NOTE = (
    "The share of int8's speed-up that FP32 arithmetic keeps. Eq. (1) with MXFP4 passes over one token as fast in both "
    f"(memory is the limit) and passes over 9 tokens {FP32_SLOWDOWN} times as long in FP32, as Fig. 7 has them at 8. "
    "It leaves out that FP32 costs something at one token too (0.94 in print), and rounds that end early."
)
FIGURE_NOTE = "Eq. (1) at the text's example of 4 draft tokens; drafts 4, 20 and 100 times as fast as the target."


def _speedups() -> Iterator[Row]:
    for setup in SETUPS:
        small, mxfp4, both = setup.published
        for name, share, speed, published in (
            (setup.small, setup.small_share, setup.small_speed, small),
            ("MXFP4 draft", setup.mxfp4_share, MXFP4_SPEED, mxfp4),
        ):
            yield Row(f"{setup.table}, {name}", published, round_speedup(share, NUM_DRAFT_TOKENS, speed))
            length = implied_length(share, speed, published)
            at = f"{setup.table}, {name}, rounds of {length:.1f}"
            yield Row(at, published, round_speedup(share, length, speed), kind="fitted")
        speeds = MXFP4_SPEED, setup.small_under_mxfp4
        found = _hierarchy((setup.mxfp4_share, setup.small_share), speeds, NUM_DRAFT_TOKENS)
        yield Row(f"{setup.table}, both", both, found)
    question, code = SETUPS
    ratio = question.mxfp4_share / question.small_share
    yield Row("Table I, QA, accepted share of the MXFP4 draft over the 68M draft's", 1.7, ratio, 1)
    yield Row("Table II, code, MXFP4 target's bytes over the 0.5B draft's", 3.7, code.small_speed / MXFP4_SPEED, 1)


def implied_length(share: float, speed: float, published: float) -> float:
    """N of Eq. (1) for a speed-up: (a + x) = speed-up (x + 1/S), x = 1/N."""
    return (published - 1) / (share - published / speed)


def _hierarchy(shares: tuple[float, float], speeds: tuple[float, float], num_draft_tokens: float) -> float:
    drafts = [LevelCost(1 / speed, share, num_draft_tokens) for share, speed in zip(shares, speeds, strict=True)]
    return hierarchy_speedup([LevelCost(1.0), *drafts], accepted_tokens)


def _arithmetic() -> Iterator[Row]:
    setup = SETUPS[1]
    yield Row("MXFP4 draft, FP32 over int8", 1.90 / 2.03, 1.0)
    found = []
    for slowdown in (FP32_SLOWDOWN, 1.0):
        mxfp4 = LevelCost(1 / MXFP4_SPEED, setup.mxfp4_share, NUM_DRAFT_TOKENS, slowdown / MXFP4_SPEED)
        small = LevelCost(1 / setup.small_under_mxfp4, setup.small_share, NUM_DRAFT_TOKENS)
        found.append(hierarchy_speedup([LevelCost(1.0), mxfp4, small], accepted_tokens))
    yield Row("MXFP4 and 0.5B drafts, FP32 over int8", 2.16 / 2.72, found[0] / found[1])


def _figures() -> Iterator[Row]:
    def one(share: float, speed: float) -> float:
        return round_speedup(share, EXAMPLE_TOKENS, speed)

    def two(outer: float, inner: float) -> float:
        return _hierarchy((outer, inner), (4, 100), EXAMPLE_TOKENS)

    yield Row("Fig. 3, lower end of the star's range, 80% and 40%", 3.0, two(0.80, 0.40))
    yield Row("Fig. 3, upper end, 85% and 45%", 3.5, two(0.85, 0.45))
    yield Row("Fig. 2, the 4-bit draft alone at 82.5%, middle of 2 to 2.5", 2.25, one(0.825, 4))
    yield Row("Fig. 2, the small draft alone at 42.5%, middle of 2 to 2.5", 2.25, one(0.425, 100))
    yield Row("Fig. 2, ten times as fast at 60%, middle of 2.5 to 3", 2.75, one(0.60, 10))


def _kernels() -> Iterator[Row]:
    yield Row("bytes of BF16 over MXFP4", 3.76, MXFP4_SPEED)
    yield Row("MXFP4 draft beside its BF16 target, of its bytes", 0.25, 1 / MXFP4_SPEED)
    yield Row("int8 over FP32 multiply-adds a second (Fig. 8)", 4.0, None, kind="copied")
    yield Row("BF16 product of 1 to 8 tokens, of bandwidth (Fig. 7)", 0.92, None, kind="copied")
    yield Row("MXFP4 int8 product of 8 tokens, GB/s", 84.0, None, 0, kind="copied")
    yield Row("the same, of 104 GB/s", 0.81, 84.0 / BANDWIDTH)
    yield Row("the same with FP32 arithmetic, times as long", FP32_SLOWDOWN, None, 1, kind="copied")
