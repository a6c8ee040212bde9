"""`mxconv bench serve` on real servers: keys that other programs rely on, and tokens that are compared."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from http_servers import chat_package, running
from packages import quantize
from trained_levels import write_noisy

KEYS = {
    "load", "concurrency", "rate", "drafts", "num_ok", "num_failed", "errors", "num_tokens", "seconds",
    "tokens_per_second", "tokens_per_second_by_round", "speedup", "first_token", "between_tokens", "between_chunks",
    "request", "read_bandwidth", "identical",
}  # fmt: skip
SHORT = ("--num-requests", 4, "--max-new-tokens", 8, "--json")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_package(tmp_path_factory.mktemp("bench-serve"))


def test_a_package_is_served_and_asked_with_and_without_drafts(run: Any, trained: Path, tmp_path: Path) -> None:
    picture = tmp_path / "load.svg"
    arguments = ("--concurrency", "4,1", "--rounds", 2, "--temperature", 0.8, "--threads", 1, "--kv-dtype", "bf16")
    outcome = run("bench", "serve", trained, *arguments, "--output", picture, *SHORT)
    assert outcome.exit_code == 0, outcome.stderr
    found = outcome.json
    assert found["kv_dtype"] == "bf16"
    assert (found["target"], found["levels"], found["url"]) == ("target", ["target", "mxfp4", "stand"], None)
    assert [(row["concurrency"], row["drafts"]) for row in found["results"]] == [
        (1, False), (1, True), (4, False), (4, True),
    ]  # fmt: skip
    for row in found["results"]:
        assert set(row) == KEYS
        assert (row["num_ok"], row["num_failed"], row["identical"]) == (8, 0, True)
        assert row["num_tokens"] == 8 * 8 and len(row["tokens_per_second_by_round"]) == 2
        assert row["tokens_per_second"] == pytest.approx(row["num_tokens"] / row["seconds"])
        assert 0 < row["first_token"]["median"] <= row["first_token"]["p99"] <= row["request"]["p99"]
        assert (row["speedup"] is None) == (not row["drafts"])
        assert row["read_bandwidth"] > 0
    assert "same tokens" in outcome.stderr and len(outcome.stdout.splitlines()) == 1
    assert "<svg" in picture.read_text() and "with drafts" in picture.read_text()
    again = run("bench", "serve", trained, "--output", picture)
    assert again.exit_code == 1 and "nothing is overwritten" in again.stderr


def test_running_servers_are_asked_and_other_tokens_are_a_defect(run: Any, trained: Path, tmp_path: Path) -> None:
    quantize(write_noisy(tmp_path / "source"), tmp_path / "noisy")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "import os\n\ndef "}) + "\n")
    with running(trained) as server, running(tmp_path / "noisy", levels=["target"]) as other:
        arguments = ("bench", "serve", "--url", server.url, "--prompts", prompts, *SHORT)
        alone = run(*arguments, "--rate", "30,300")
        assert alone.exit_code == 0, alone.stderr
        assert [(row["rate"], row["drafts"], row["speedup"]) for row in alone.json["results"]] == [
            (30.0, True, None), (300.0, True, None),
        ]  # fmt: skip
        different = run(*arguments, "--plain-url", other.url, "--concurrency", 2)
        assert different.exit_code == 1
        assert [row["identical"] for row in different.json["results"]] == [True, False]
        assert "tokens differ at 2 at a time with drafts from those of the first answers" in different.stderr
        swapped = run("bench", "serve", "--url", other.url, "--plain-url", server.url)
        assert swapped.exit_code == 1 and "levels target, mxfp4, stand; target alone is required" in swapped.stderr


def test_a_load_at_which_nothing_succeeds_is_no_figure(run: Any, trained: Path) -> None:
    with running(trained, max_prompt_tokens=1) as server:
        outcome = run("bench", "serve", "--url", server.url)
    assert outcome.exit_code == 1
    assert "none of 32 requests succeeded at 1 at a time (status 400: prompt: prompt is too long: " in outcome.stderr


def test_a_server_that_does_not_start_says_why(run: Any, tmp_path: Path) -> None:
    outcome = run("bench", "serve", tmp_path)
    assert outcome.exit_code == 1 and str(tmp_path) in outcome.stderr and "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either PACKAGE or --url"),
        (["package", "--url", "http://x"], "give either PACKAGE or --url"),
        (["package", "--plain-url", "http://x"], "--plain-url needs --url"),
        (["package", "--concurrency", "1,x"], "--concurrency: '1,x'"),
        (["package", "--concurrency", "0"], "numbers from 1 to 1024"),
        (["package", "--concurrency", "1.5"], "whole numbers from 1 to 1024"),
        (["package", "--rate", "nan"], "--rate: 'nan'"),
    ],
)
def test_loads_that_are_none_are_refused(run: Any, arguments: list[str], message: str) -> None:
    outcome = run("bench", "serve", *arguments)
    assert outcome.exit_code == 2 and message in " ".join(outcome.stderr.split())
