"""`mxconv inspect`: tables, JSON, pictures and pages, of weights and of traces."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from packages import quantize
from run_traces import run_lines, write_lines

from mxconv.engine import placement
from mxconv.package.package import Package


@pytest.fixture
def model(source: Path) -> Path:
    return source


@pytest.fixture
def inspect(run: Any) -> Callable[..., Any]:
    return partial(run, "inspect")


def test_tables_go_to_stdout_and_with_json_to_stderr(inspect: Any, model: Path) -> None:
    result = inspect(model)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "Exponents of all tensors" in result.stdout and "down_proj" in result.stdout
    result = inspect(model, "--json", "--per", "layer")
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert (len(found["tensors"]), found["per"]) == (12, "layer")
    assert found["total"]["num_weights"] == sum(tensor["num_weights"] for tensor in found["tensors"])
    assert "Exponents of all tensors" in result.stderr


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("trace") / "run.jsonl", run_lines())


def test_a_trace_is_inspected_by_rounds_levels_and_depth(inspect: Any, trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "rounds.html"
    result = inspect(trace, "--html", page)
    assert result.exit_code == 0, result.stderr
    assert "3 prompts, " in result.stdout and " 84 tokens, " in result.stdout
    assert "token-recycling, by depth" in result.stdout
    assert f"wrote {page}" in result.stdout
    assert "added to the text" in page.read_text()
    again = inspect(trace, "--html", page)
    assert again.exit_code == 1
    assert inspect(trace, "--html", page, "--force").exit_code == 0
    found = json.loads(inspect(trace, "--json").stdout.splitlines()[-1])
    assert found["num_tokens"] == 84
    assert found["has_trees"] is True
    assert found["levels"][0]["name"] == "target"
    assert sum(depth["num_nodes"] for depth in found["depths"]["token-recycling"]) > 0


def test_options_of_weights_are_bad_usage_with_a_trace(inspect: Any, trace: Path) -> None:
    result = inspect(trace, "--tensor", "*", "--dtype", "bf16")
    assert result.exit_code == 2
    assert "--tensor, --dtype: of weights; a trace takes --html" in result.stderr


def test_what_memory_keeps_of_a_package_and_what_a_round_reads(inspect: Any, model: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    quantize(model, package, codec="bsfp")
    result = inspect(package, "--memory", "1TB", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    with Package(package) as opened:
        sizes = {name: array.num_bytes for name, array in opened.arrays.items()}
    read = [name for name in sizes if name.endswith((".residual_low", ".residual_high", ".escape_high"))]
    read = [name for name in read if "embed_tokens" not in name]  # of which rows are looked up
    stay = [name for name in sizes if name.endswith((".codes", ".scales", ".escape_counts", ".escape_positions"))]
    stay = [name for name in stay if "embed_tokens" not in name]
    for names, num_bytes in ((read, found["kept"]), (stay, found["resident"])):  # in whole sectors
        assert 0 <= num_bytes - sum(sizes[name] for name in names) < 2 * 4096 * len(names)
    assert found["read"] == 0 and "this disk" not in result.stderr
    assert "in memory:" in result.stderr
    refused = inspect(package, "--memory", "10MB")
    assert refused.exit_code == 1 and "; --memory allows 0.01 GB. Give more" in refused.stderr


def test_what_a_round_reads_is_what_memory_does_not_keep(
    inspect: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize(model, tmp_path / "package", codec="bsfp")
    whole = json.loads(inspect(tmp_path / "package", "--memory", "auto", "--json").stdout)
    monkeypatch.setattr(placement, "num_that_fit", lambda *_: 1)
    streamed = inspect(tmp_path / "package", "--memory", "1TB", "--json")
    found = json.loads(streamed.stdout)
    assert 0 < found["kept"] < whole["kept"] and found["kept"] + found["read"] == whole["kept"]
    plain = found["read_gigabytes_per_second"] * 1e9 / found["read"]
    assert f": at most {plain:.3g} tokens a second without drafts, {4 * plain:.3g} in rounds of 4, " in streamed.stderr
