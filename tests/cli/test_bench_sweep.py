"""`mxconv bench decode --sweep`: the keys of its JSON object and the words below its table."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.cost.early_exit import expected_round
from mxconv.progress import silent


@pytest.fixture
def arguments(package: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    monkeypatch.setattr("mxconv.bench.sweep.sweep_draft.__defaults__", (silent, (1, 4), (0.0, 0.9)))
    return "bench", "decode", package, "--prompts", prompts, "--levels", "target,mxfp4", "--num-tokens", 1, "--sweep"


def test_each_cell_has_a_measured_and_a_predicted_speed_up(run: Any, arguments: Any) -> None:
    outcome = run(*arguments, "--max-new-tokens", 12, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    sweep = outcome.json["sweep"]
    costs, acceptance = sweep["costs"], sweep["acceptance"]
    errors = []
    for length, measured_row, predicted_row in zip(
        sweep["num_draft_tokens"], sweep["decode_speedup"], sweep["predicted_speedup"], strict=True
    ):
        for threshold, measured, predicted in zip(sweep["confidence"], measured_row, predicted_row, strict=True):
            mean = expected_round(acceptance, length, threshold)
            a_drafted_token = costs["draft_token"] + costs["verified_token"]
            assert predicted == pytest.approx(
                mean.num_tokens / (mean.num_drafted * a_drafted_token + costs["verification"])
            )
            errors.append(predicted / measured - 1)
    assert sweep["mean_error"] == pytest.approx(sum(map(abs, errors)) / 4)
    assert sweep["worst_error"] == pytest.approx(max(errors, key=abs))
    table = " ".join(outcome.stderr.split())
    assert f"predicted from acceptance {acceptance:.3f} and, in plain passes, {costs['draft_token']:.3f} for" in table
    assert f"error over all cells: mean {sweep['mean_error']:.1%}, worst {sweep['worst_error']:+.1%}" in table
    best = max(max(row) for row in sweep["decode_speedup"])
    assert f"fastest: {best:.2f} at " in table


def test_where_nothing_can_be_predicted_the_footer_is_missing(run: Any, arguments: Any) -> None:
    outcome = run(*arguments, "--max-new-tokens", 1, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    sweep = outcome.json["sweep"]
    assert sweep["predicted_speedup"] == [[None, None], [None, None]]
    assert (sweep["mean_error"], sweep["worst_error"], sweep["costs"], sweep["acceptance"]) == (None,) * 4
    assert "confidence 0.9" in outcome.stderr
    assert "predicted from" not in outcome.stderr
