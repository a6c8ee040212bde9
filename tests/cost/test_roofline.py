"""Passes under the roof: bound by memory or by arithmetic, attention apart from the matrices."""

from dataclasses import replace

import pytest
from published.model_cards import LLAMA_3_1_8B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.counts import count_pass
from mxconv.cost.hardware import open_hardware
from mxconv.cost.levels import Workload, pass_seconds, strategies_of
from mxconv.cost.roofline import pass_points, point

LLAMA = ModelSizes.from_fields(Fields(LLAMA_3_1_8B, "config.json"))
CPU = open_hardware("core-ultra-9-285k")


def test_a_pass_that_comes_from_memory_takes_its_bytes_over_the_bandwidth() -> None:
    target = strategies_of(LLAMA)["bf16"][0]
    expected = (7_504_658_432 * 2 + 32 * 2 * 8 * 128 * 2 * 1024) / 104e9
    assert pass_seconds(CPU, target, Workload()) == pytest.approx(expected)


def test_a_kernel_is_bound_by_memory_or_by_arithmetic() -> None:
    low, high = (point(CPU, "bf16", "bf16", n, 2e9, n * 1e9) for n in (1, 64))
    assert (low.bound, high.bound) == ("memory", "compute")
    assert low.attainable == pytest.approx(52.0)
    assert high.attainable == CPU.peak("bf16")
    half = replace(CPU, fractions={"bf16": {1: 0.5}})
    assert point(half, "bf16", "bf16", 1, 2e9, 1e9).seconds == pytest.approx(2 * low.seconds)


def test_attention_is_a_kernel_of_its_own() -> None:
    matrices, attention = pass_points(CPU, "mxfp4", count_pass(LLAMA, "mxfp4", 4, context=1024))
    assert (matrices.kernel, matrices.form) == ("mxfp4-int8", "int8")
    assert (attention.kernel, attention.form) == ("attention", "fp32")
    assert matrices.num_bytes == 7_504_658_432 * 4.25 / 8
