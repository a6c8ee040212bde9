"""`mxconv generate`: the JSON contract, and the switches."""

import json
import shutil
from pathlib import Path
from typing import Any

from packages import quantize
from plug_ins import RECYCLING

RATES = {"tokens_per_second", "decoding_tokens_per_second"}
RESULT_KEYS = {"prompt", "text", "token_ids", "ending", "seconds", *RATES, "rounds", "levels"}
LEVEL_KEYS = {
    "name", "num_forwards", "num_proposed", "num_nodes", "nodes_by_depth", "num_accepted", "acceptance_rate",
    "acceptance_by_position", "seconds",
}  # fmt: skip


def test_the_last_line_of_stdout_is_the_contracts_object_and_tables_go_to_stderr(run: Any, package: Path) -> None:
    outcome = run("generate", package, "--prompt", "Once upon", "--max-new-tokens", 12, "--stats", "--json")
    assert outcome.exit_code == 0
    assert len(outcome.stdout.splitlines()) == 1
    assert set(outcome.json) == {"results", "target", "kv_dtype", "sampling"}
    (result,) = outcome.json["results"]
    assert set(result) == RESULT_KEYS
    assert result["prompt"] == "Once upon"
    assert len(result["token_ids"]) == 12 or result["token_ids"][-1] == 2
    assert [level["name"] for level in result["levels"]] == ["target", "mxfp4", "small"]
    for level in result["levels"]:
        assert set(level) == LEVEL_KEYS
    assert result["levels"][0]["acceptance_rate"] is None
    assert result["levels"][0]["num_forwards"] == result["rounds"]
    assert "forward passes" in outcome.stderr
    assert result["text"] in outcome.stderr


def test_what_the_model_recommends_is_taken_and_told_and_options_win(run: Any, source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    advice = {"do_sample": True, "temperature": 0.6, "top_k": 7, "repetition_penalty": 1.3}
    (tmp_path / "source" / "generation_config.json").write_text(json.dumps(advice))
    quantize(tmp_path / "source", tmp_path / "advised")
    common = ("generate", tmp_path / "advised", "--prompt", "Once upon", "--max-new-tokens", 12, "--seed", 4, "--check")
    outcome = run(*common, "--json")
    assert outcome.exit_code == 0
    sampling = outcome.json["sampling"]
    assert {name: sampling[name] for name in ("temperature", "top_k", "repetition_penalty")} == {
        name: value for name, value in advice.items() if name != "do_sample"
    }
    assert sampling["from"]["temperature"] == "generation_config.json" and sampling["from"]["min_p"] == "default"
    assert "sampling: temperature 0.6, top_k 7, repetition_penalty 1.3 (generation_config.json)" in outcome.stderr
    given = ("--temperature", 0.6, "--top-k", 7, "--repetition-penalty", 1.3)
    same = run(*common, *given, "--json")
    assert same.json["results"][0]["token_ids"] == outcome.json["results"][0]["token_ids"]
    assert set(same.json["sampling"]["from"].values()) == {"request", "default"} and "sampling:" not in same.stderr
    other = ("--temperature", 0, "--repetition-penalty", 1, "--presence-penalty", 1, "--frequency-penalty", -0.5)
    wins = run(*common, *other, "--logit-bias", "5=2.5", "--logit-bias", "9=-100", "--min-p", 0.1, "--json")
    assert wins.exit_code == 0 and wins.json["results"][0]["identical_to_target"]
    assert wins.json["sampling"]["temperature"] == 0 and wins.json["sampling"]["logit_bias"] == {"5": 2.5, "9": -100}


def test_lengths_that_are_given_hold(run: Any, package: Path, tmp_path: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 24, "--json"]

    def asked(name: str, *more: str) -> set[int]:
        trace = tmp_path / f"{name}.jsonl"
        assert run(*arguments, "--trace", trace, *more).exit_code == 0
        entries = [json.loads(line) for line in trace.read_text().splitlines()]
        return {entry["num_asked"] for entry in entries if entry["level"] != "target" and entry["num_asked"]}

    assert asked("given", "--num-draft-tokens", "3") <= {1, 2, 3}
    assert asked("spec", "--levels", "target", "--draft", f"{RECYCLING},num_draft_tokens=2,confidence=0") <= {1, 2}


def test_the_rule_that_draws_is_told_and_greedy_text_is_the_same_with_each(run: Any, package: Path) -> None:
    common = ("generate", package, "--prompt", "Once upon", "--max-new-tokens", 12, "--json")
    drawing = ("--temperature", 0.8, "--seed", 4, "--num-draft-tokens", 3, "--accept", "block")
    drawn = [run(*common, *drawing).json for _ in range(2)]
    assert [each["accept"] for each in drawn] == ["block", "block"]
    assert drawn[0]["results"][0]["token_ids"] == drawn[1]["results"][0]["token_ids"]
    greedy = run(*common, "--accept", "block", "--check").json
    assert greedy["results"][0]["identical_to_target"] and "accept" not in greedy
