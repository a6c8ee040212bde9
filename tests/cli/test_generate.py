"""`mxconv generate`: the JSON contract, and the switches."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

from mxconv.kernels.engine import kernel_names
from mxconv.speculation.generation import Generation
from mxconv.speculation.hierarchy import Hierarchy

RATES = {"tokens_per_second", "decoding_tokens_per_second"}
RESULT_KEYS = {"prompt", "text", "token_ids", "ending", "seconds", *RATES, "rounds", "levels"}
LEVEL_KEYS = {
    "name", "num_forwards", "num_proposed", "num_nodes", "nodes_by_depth", "num_accepted", "acceptance_rate",
    "acceptance_by_position", "seconds",
}  # fmt: skip


def test_the_last_line_of_stdout_is_the_contracts_object_and_tables_go_to_stderr(run: Any, package: Path) -> None:
    outcome = run("generate", package, "--prompt", "Once upon", "--max-new-tokens", 12, "--json")
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


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--logit-bias", "5"), 2, "--logit-bias: '5'; ID=BIAS, two numbers, is required"),
        (("--logit-bias", "5=200"), 1, "logit_bias: 200.0 for token id 5; a number from -100 to 100"),
        (("--logit-bias", "99999=2"), 1, "logit_bias: token id 99999; ids from 0 to"),
        (("--min-p", "2"), 2, "--min-p"),
        (("--repetition-penalty", "0"), 2, "--repetition-penalty"),
        (("--presence-penalty", "3"), 2, "--presence-penalty"),
    ],
)
def test_parameters_of_sampling_out_of_range_are_refused(
    run: Any, package: Path, options: tuple[str, ...], code: int, message: str
) -> None:
    outcome = run("generate", package, "--prompt", "Once upon", *options)
    assert outcome.exit_code == code and message in outcome.stderr


def test_without_json_the_text_and_the_table_go_to_stdout(run: Any, package: Path) -> None:
    outcome = run("generate", package, "--prompt", "Once upon", "--max-new-tokens", 5)
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("Once upon")
    assert "rounds of the target" in outcome.stdout
    assert outcome.stderr == ""


def test_prompts_come_from_a_file_and_are_printed_as_they_are(run: Any, package: Path, prompts: Path) -> None:
    outcome = run("generate", package, "--prompts", prompts, "--max-new-tokens", 3, "--json")
    assert [result["prompt"] for result in outcome.json["results"]] == ["Once upon", "A dog", "[bold] 1 [/]"]
    assert "[bold] 1 [/]" in outcome.stderr


def test_levels_target_decodes_plainly_to_the_same_text(run: Any, package: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 20, "--json"]
    full = run(*arguments).json["results"][0]
    for levels in ("target", "target,mxfp4", "target, small", "target,small,mxfp4"):
        result = run(*arguments, "--levels", levels).json["results"][0]
        assert result["token_ids"] == full["token_ids"]
        assert [level["name"] for level in result["levels"]] == levels.replace(" ", "").split(",")
    plain = run(*arguments, "--levels", "target").json["results"][0]
    assert plain["rounds"] == len(plain["token_ids"])


def test_check_compares_with_plain_decoding(run: Any, package: Path, prompts: Path) -> None:
    outcome = run("generate", package, "--prompts", prompts, "--max-new-tokens", 10, "--check", "--json")
    assert outcome.exit_code == 0
    assert set(outcome.json) == {"results", "target", "kv_dtype", "sampling", "geomean_speedup"}
    assert outcome.json["geomean_speedup"] > 0
    for result in outcome.json["results"]:
        assert set(result) >= RESULT_KEYS | {"identical_to_target", "plain_tokens_per_second"}
        assert result["identical_to_target"] is True
        assert min(result["decoding_tokens_per_second"], result["plain_tokens_per_second"]) > 0
    assert outcome.stderr.count("tokens a second after the prompt") == 2  # with drafts, and plainly
    assert "3 of 3 texts identical to plain decoding" in outcome.stderr


def test_check_fails_where_a_text_differs(run: Any, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Hierarchy.stream

    def lies(self: Hierarchy, *arguments: Any) -> Iterator[tuple[int, Any]]:
        yield from honest(self, *arguments)
        generation = arguments[-1]
        assert isinstance(generation, Generation)
        if len(self.levels) > 1:
            generation.token_ids[-1] ^= 1

    monkeypatch.setattr(Hierarchy, "stream", lies)
    outcome = run("generate", package, "--prompt", "Once", "--max-new-tokens", 4, "--check", "--json")
    assert outcome.exit_code == 1
    assert outcome.json["results"][0]["identical_to_target"] is False
    assert "package: 1 of 1 texts differ from plain decoding of target; none may." in outcome.stderr


def test_draft_lengths_and_thresholds_reach_the_levels(run: Any, package: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 12, "--confidence", "0", "--json"]
    expected = run(*arguments).json["results"][0]["token_ids"]
    for numbers in ("1", "1,1", "4,2", "16"):
        result = run(*arguments, "--num-draft-tokens", numbers).json["results"][0]
        assert result["token_ids"] == expected
        if numbers.startswith("1,") or numbers == "1":
            assert result["levels"][1]["num_proposed"] < result["rounds"]


def test_trees_change_nothing_but_the_nodes(run: Any, package: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 40, "--levels", "target", "--json"]
    expected = run(*arguments).json["results"][0]["token_ids"]
    for tree in ("chain", "12", "auto"):
        draft = "--draft", "token-recycling,num_draft_tokens=8,confidence=0"
        outcome = run(*arguments, *draft, "--tree", tree, "--check")
        assert outcome.exit_code == 0
        (result,) = outcome.json["results"]
        assert result["token_ids"] == expected and result["identical_to_target"]
        nodes, proposed = result["levels"][1]["num_nodes"], result["levels"][1]["num_proposed"]
        assert nodes > proposed if tree == "12" else nodes == proposed  # lengths are given: auto is chains


@pytest.mark.parametrize("name", kernel_names())
def test_every_kernel_decodes_losslessly_on_any_number_of_threads(run: Any, package: Path, name: str) -> None:
    arguments = ("generate", package, "--prompt", "Once upon", "--max-new-tokens", 10, "--kernel", name, "--check")
    outcomes = [run(*arguments, "--threads", num_threads, "--json") for num_threads in (1, 3)]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0]
    assert len({tuple(outcome.json["results"][0]["token_ids"]) for outcome in outcomes}) == 1


def test_a_bsfp_package_decodes_without_its_source(run: Any, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", num_hidden_layers=1)
    assert run("quantize", source, "-o", tmp_path / "package", "--codec", "bsfp").exit_code == 0
    source.rename(tmp_path / "moved")
    outcome = run("generate", tmp_path / "package", "--prompt", "Once", "--max-new-tokens", 10, "--check", "--json")
    assert outcome.exit_code == 0
    assert [level["name"] for level in outcome.json["results"][0]["levels"]] == ["target", "bsfp"]


def test_draws_are_the_same_tokens_with_any_drafts_and_other_tokens_with_another_seed(run: Any, package: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 20, "--temperature", 1, "--json"]
    for more in ([], ["--top-k", 20], ["--top-p", 0.8]):
        plain = run(*arguments, *more, "--levels", "target").json["results"][0]["token_ids"]
        drafts = (
            ["--levels", "target,mxfp4"],
            ["--draft", "token-recycling,confidence=0"],
            ["--num-draft-tokens", "auto"],
        )
        for levels in drafts:
            outcome = run(*arguments, *more, *levels, "--check")
            assert outcome.exit_code == 0
            assert outcome.json["results"][0]["token_ids"] == plain
    assert run(*arguments, "--seed", 1).json["results"][0]["token_ids"] != plain
    assert run(*arguments, "--accept", "rejection").exit_code == 0
    assert run(*arguments, "--accept", "rejection", "--check").exit_code == 2


def test_drafts_are_named_as_for_quantize(run: Any, package: Path, small: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 12, "--levels", "target", "--check"]
    outcome = run(*arguments, "--draft", f"checkpoint:{small}", "--draft", "prompt-lookup:max_ngram=2", "--json")
    assert outcome.exit_code == 0
    assert [level["name"] for level in outcome.json["results"][0]["levels"]] == ["target", small.name, "prompt-lookup"]
    outcome = run(*arguments, "--draft", "prompt-lookup", "--draft", "streaming")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "hierarchy: level prompt-lookup is a look-up, and streaming stands below it; only a model" in outcome.stderr


def test_chat_puts_prompts_into_the_models_template(run: Any, source: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "chatty"))
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    assert run("quantize", folder, "-o", tmp_path / "package").exit_code == 0
    arguments = ["generate", tmp_path / "package", "--max-new-tokens", 8, "--json"]
    plain = run(*arguments, "--prompt", "<system>Be kind<user>Hi:").json["results"][0]
    chat = run(*arguments, "--prompt", "Hi", "--chat", "--system", "Be kind").json["results"][0]
    assert chat["token_ids"] == plain["token_ids"]
    assert chat["prompt"] == "Hi"
    assert run(*arguments, "--prompt", "Hi", "--system", "Be kind").exit_code == 2


def test_lengths_that_are_given_hold(run: Any, package: Path, tmp_path: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 24, "--json"]

    def asked(name: str, *more: str) -> set[int]:
        trace = tmp_path / f"{name}.jsonl"
        assert run(*arguments, "--trace", trace, *more).exit_code == 0
        entries = [json.loads(line) for line in trace.read_text().splitlines()]
        return {entry["num_asked"] for entry in entries if entry["level"] != "target" and entry["num_asked"]}

    assert asked("given", "--num-draft-tokens", "3") <= {1, 2, 3}
    assert asked("spec", "--levels", "target", "--draft", "token-recycling,num_draft_tokens=2,confidence=0") <= {1, 2}
