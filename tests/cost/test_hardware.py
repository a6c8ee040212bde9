"""Hardware descriptions: those that come along, a user's own, what is wrong with others; and SPEQ's accelerator.

Its cycles, bytes and energy are counted by hand; test_published.py has the ratios that the paper's numbers imply.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from published.model_cards import LLAMA_3_1_8B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.accelerator import Accelerator, run_pass, tokens_at_once
from mxconv.cost.hardware import hardware_names, open_hardware, parse_hardware
from mxconv.errors import CheckpointError, MxconvError

GOOD = """
name = "mine"
description = "A machine"
read_bandwidth_gigabytes_per_second = 50.0
last_level_cache_bytes = 33554432
[peak_giga_multiply_adds_per_second]
fp32 = 100.0
int8 = 400
[kernel_fraction_of_roofline]
bf16 = { 1 = 0.9, 5 = 0.7 }
[sources]
read_bandwidth_gigabytes_per_second = "measured"
peak_giga_multiply_adds_per_second = "measured"
last_level_cache_bytes = "listed"
"""
NAMES = (
    "speq-28nm", "core-ultra-9-285k", "h100-sxm", "h200-sxm", "tpu-v5e", "a100-80g", "rtx-4090", "apple-m3-max",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = tmp_path / "mxconv" / "hardware"
    path.mkdir(parents=True)
    return path


def test_the_descriptions_that_come_along_are_whole() -> None:
    assert set(hardware_names()) == set(NAMES)
    for name in NAMES:
        found = open_hardware(name)
        assert found.name == name
        assert found.peak("int8") >= found.peak("bf16")
    assert open_hardware("core-ultra-9-285k").read_bandwidth == 104.0


def test_a_user_adds_one_by_writing_a_file(folder: Path, tmp_path: Path) -> None:
    (folder / "mine.toml").write_text(GOOD)
    assert "mine" in hardware_names()
    assert open_hardware("mine").read_bandwidth == 50.0
    (tmp_path / "other.toml").write_text(GOOD)
    assert open_hardware(str(tmp_path / "other.toml")).name == "mine"


def test_a_form_that_is_not_listed_takes_the_next_wider_one() -> None:
    found = parse_hardware(GOOD, "mine.toml")
    assert found.peak("bf16") == 100.0
    assert found.intensity("int8") == 16.0
    with pytest.raises(MxconvError, match=r"hardware mine: peaks of int8; one that computes bf16 is required"):
        parse_hardware(GOOD.replace("fp32 = 100.0", ""), "mine.toml").peak("bf16")


def test_shares_of_the_roofline_are_interpolated() -> None:
    found = parse_hardware(GOOD, "mine.toml")
    assert [found.fraction("bf16", width) for width in (0.5, 1, 5, 9)] == [0.9, 0.9, 0.7, 0.7]
    assert found.fraction("bf16", 2) == pytest.approx(0.85)
    assert found.fraction("int8", 1) == 1.0


def test_a_cache_may_be_described_or_not() -> None:
    assert parse_hardware(GOOD, "mine.toml").last_level_cache_bytes == 32 << 20
    without = "\n".join(line for line in GOOD.splitlines() if "cache" not in line)
    assert parse_hardware(without, "mine.toml").last_level_cache_bytes is None


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("bandwidth_gigabytes", "bandwidth_megabytes", r"read_bandwidth_megabytes_per_second' is unknown; "
         r"read_bandwidth_gigabytes_per_second is required\. Keys carry their unit"),
        ("= 50.0", "= 50e9", r"bandwidth_gigabytes_per_second is 50000000000\.0; less than or equal to 1000000 is"),
        ("= 50.0", "= inf", r"is inf; (a finite number|less than or equal to 1000000) is required"),
        ("read_bandwidth_gigabytes_per_second = 50.0", "", r"per_second is missing; a valid number is required"),
        ("cache_bytes = 3", "cache_megabytes = 3", r"cache_megabytes' is unknown; last_level_cache_bytes is required"),
        ('last_level_cache_bytes = "listed"', "", r"no source of last_level_cache_bytes; every number needs one"),
        ("int8 = 400", "int4 = 400", r"peak_giga_multiply_adds_per_second\.int4 is 'int4'; 'fp32', .* is required"),
        ("fp32 = 100.0\nint8 = 400", "", r"peak_giga_multiply_adds_per_second is \{\}; .* at least 1 item"),
        ('read_bandwidth_gigabytes_per_second = "measured"', "", r"no source of read_bandwidth_gigabytes_per_second; "),
        ("[sources]", "[accelerator]\nnum_tiles = 8\n[sources]", r"no source of num_tiles; every number needs one"),
        ("{ 1 = 0.9, 5 = 0.7 }", "0.9", r"kernel_fraction_of_roofline\.bf16 is 0\.9; a valid dictionary is required"),
        ('name = "mine"', "name = ", r"no valid TOML"),
        ("[sources]", "[origins]", r"key 'origins' is unknown; one of name, .* is required"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(before: str, after: str, message: str) -> None:
    assert before in GOOD
    with pytest.raises(MxconvError, match=r"^mine\.toml: .*" + message):
        parse_hardware(GOOD.replace(before, after, 1), "mine.toml")


def test_unknown_names_and_files_that_cannot_be_read_are_errors(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(MxconvError, match=r"hardware 'abacus': unknown; a100-80g, .*, or a \.toml file is required"):
        open_hardware("abacus")
    with pytest.raises(CheckpointError, match=r"no such file"):
        open_hardware(str(tmp_path / "absent.toml"))
    (folder / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(MxconvError, match=r"latin\.toml: no UTF-8 .*; TOML in UTF-8 is required"):
        open_hardware("latin")
    (folder / "long.toml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(MxconvError, match=r"long\.toml: 1,000,001 bytes; at most 1,000,000 are read"):
        open_hardware("long")


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


def test_a_description_must_have_the_whole_machine() -> None:
    lacking = {key: value for key, value in HARDWARE.accelerator.items() if key != "num_tiles"}
    with pytest.raises(MxconvError, match=r"^hardware speq-28nm: accelerator\.num_tiles is missing; the keys num_"):
        Accelerator.of(replace(HARDWARE, accelerator=lacking))
    with pytest.raises(MxconvError, match=r"accelerator\.clock_gigahertz is unknown; one of num_tiles, .* is required"):
        Accelerator.of(replace(HARDWARE, accelerator=HARDWARE.accelerator | {"clock_gigahertz": 0.5}))
