"""SPEQ's machine: cycles, bytes and energy by hand, and the ratios that the paper's numbers imply."""

from dataclasses import replace

import pytest
from published.model_cards import LLAMA_3_1_8B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.accelerator import Accelerator, compare, run_pass, tokens_at_once
from mxconv.cost.hardware import open_hardware
from mxconv.errors import MxconvError

HARDWARE = open_hardware("speq-28nm")
MACHINE = Accelerator.of(HARDWARE)
LLAMA = ModelSizes.from_fields(Fields(LLAMA_3_1_8B, "config.json"))
WEIGHTS = 7_504_658_432
ATTENTION = 32 * 2 * 4096 * 1024  # multiply-adds of a token at a context of 1024


def test_cycles_are_weights_over_the_rate_and_attention() -> None:
    plain, draft = run_pass(MACHINE, LLAMA, "full"), run_pass(MACHINE, LLAMA, "draft")
    assert plain.compute_cycles == (WEIGHTS + ATTENTION) / 128
    assert draft.compute_cycles == pytest.approx((WEIGHTS / 3 + ATTENTION) / 128)
    assert plain.seconds == plain.compute_cycles / 500e6


def test_bytes_are_weights_scales_and_the_cache() -> None:
    cache = 32 * 2 * 8 * 128 * 1024 * 2
    assert run_pass(MACHINE, LLAMA, "full").dram_bytes == WEIGHTS * 2 + cache
    assert run_pass(MACHINE, LLAMA, "draft").dram_bytes == WEIGHTS * (4 + 16 / 128) / 8 + cache
    assert run_pass(MACHINE, LLAMA, "olive").dram_bytes == WEIGHTS + cache


def test_energy_is_dram_buffers_and_the_array() -> None:
    found = run_pass(MACHINE, LLAMA, "full", 4)
    assert found.dram_joules == pytest.approx(found.dram_bytes * 8 * 3.9e-12)
    assert found.buffer_joules == pytest.approx(found.dram_bytes * 2 * 7.7e-12)
    assert found.array_joules == pytest.approx(4 * (WEIGHTS + ATTENTION) * 1.3e-12)
    assert sum(found.watts().values()) == pytest.approx(found.joules / found.seconds)


def test_eight_tokens_take_one_pass_and_nine_take_two() -> None:
    assert tokens_at_once(MACHINE, LLAMA) == 8
    one, eight, nine = (run_pass(MACHINE, LLAMA, "full", count) for count in (1, 8, 9))
    assert (one.num_passes, eight.num_passes, nine.num_passes) == (1, 1, 2)
    assert eight.seconds == one.seconds
    assert nine.seconds == pytest.approx(2 * one.seconds)


def test_the_activation_buffer_bounds_the_tokens_of_a_pass() -> None:
    small = replace(MACHINE, buffer_kilobytes=64)  # two inputs of 14336 FP16 values
    assert tokens_at_once(small, LLAMA) == 2
    with pytest.raises(MxconvError, match=r"a layer's input of 14,336 values; at most 16 KB fit the activation buffer"):
        tokens_at_once(replace(MACHINE, buffer_kilobytes=16), LLAMA)


def test_slow_memory_is_the_limit() -> None:
    slow = run_pass(replace(MACHINE, read_bandwidth=10.0), LLAMA, "full")
    assert slow.seconds == pytest.approx(slow.dram_bytes / 10e9)


def test_the_ratio_that_fits_the_papers_entries_follows_from_its_array() -> None:
    found = compare(MACHINE, LLAMA, 0.974, 5.31)
    assert found.draft_ratio == pytest.approx(0.357, rel=0.005)
    assert found.verify_ratio == 1
    assert found.speedup == pytest.approx(2.07, rel=0.02)  # the mean of fifteen, from one of them
    assert found.speedup_over_olive == pytest.approx(1.53, rel=0.02)
    assert found.speedup_over_tender == pytest.approx(1.45, rel=0.02)


def test_a_description_must_have_the_whole_machine() -> None:
    lacking = {key: value for key, value in HARDWARE.accelerator.items() if key != "num_tiles"}
    with pytest.raises(MxconvError, match=r"^hardware speq-28nm: accelerator\.num_tiles is missing; the keys num_"):
        Accelerator.of(replace(HARDWARE, accelerator=lacking))
    with pytest.raises(MxconvError, match=r"accelerator\.clock_gigahertz is unknown; one of num_tiles, .* is required"):
        Accelerator.of(replace(HARDWARE, accelerator=HARDWARE.accelerator | {"clock_gigahertz": 0.5}))
