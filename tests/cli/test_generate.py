"""`mxconv generate`: the JSON contract, the switches, traces, where a text ends; and what a newcomer types."""

import io
import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from checkpoints import write_tiny_llama
from packages import quantize
from plug_ins import RECYCLING

from mxconv.cli.common_options import parse_bytes
from mxconv.text.tokenizer import Tokenizer

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
    assert [level["name"] for level in result["levels"]] == ["target", "mxfp4", "small", "prompt-lookup"]
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


TRACE_KEYS = {
    "prompt", "round", "level", "num_asked", "num_proposed", "num_accepted", "num_forwards", "seconds", "num_nodes",
}  # fmt: skip


def test_a_trace_has_a_line_for_every_round_and_level_and_its_trees_tell_the_texts(
    run: Any, package: Path, prompts: Path, tmp_path: Path
) -> None:
    arguments = ["generate", package, "--prompts", prompts, "--max-new-tokens", 30, "--levels", "target", "--json"]
    arguments += ["--draft", f"{RECYCLING},num_draft_tokens=8,confidence=0", "--tree", 12]
    stop = run(*arguments).json["results"][0]["text"][8:11]
    for more in ([], ["--batch", 4], ["--stop", stop]):
        trace = tmp_path / f"trace{''.join(map(str, more[:1]))}.jsonl"
        results = run(*arguments, *more, "--trace", trace).json["results"]
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        for line in lines:
            tree = {"tree", "num_tokens", "text"} if line["level"] == "target" else set()
            assert set(line) == TRACE_KEYS | tree | ({"prompt_text", "cpu"} if tree and line["round"] == 0 else set())
        for number, result in enumerate(results):
            mine = [line for line in lines if (line["prompt"], line["level"]) == (number, "target")]
            assert mine[0]["prompt_text"] == result["prompt"]
            assert [token for line in mine for token in line["tree"]["emitted"]] == result["token_ids"]
            for line in mine:
                tree = line["tree"]
                assert line["num_tokens"] == len(tree["emitted"]) == len(tree["emitted_texts"])
                assert [tree["tokens"][node] for node in tree["path"]][: len(tree["emitted"])] == tree["emitted"][:-1]
                assert len(tree["tokens"]) == len(tree["parents"]) == len(tree["probabilities"]) == len(tree["texts"])
            if "--stop" in more:  # which cuts the last round
                continue
            assert "".join(line["text"] for line in mine) == result["text"]
            for level in result["levels"]:
                mine = [line for line in lines if (line["prompt"], line["level"]) == (number, level["name"])]
                assert [line["round"] for line in mine] == list(range(result["rounds"]))
                for key in ("num_proposed", "num_accepted", "num_forwards", "num_nodes"):
                    assert sum(line[key] for line in mine) == level[key]
        assert any(max(line["tree"]["parents"], default=-1) > 0 for line in lines if line["level"] == "target")


def test_ctrl_c_stops_with_what_was_generated(run: Any, process: Callable[..., Any], tmp_path: Path) -> None:
    """A real process: it is interrupted while it writes, and what it wrote is the beginning of the whole text."""
    source = write_tiny_llama(tmp_path / "source", num_hidden_layers=2, max_position_embeddings=100_000)
    arguments = ["--prompt", "Once", "--max-new-tokens", 90_000, "--kernel", "numpy"]
    assert run("quantize", source, "-o", tmp_path / "package").exit_code == 0
    running = process("generate", tmp_path / "package", *arguments)
    begin = running.stdout.read(20)  # it is decoding by now
    running.send_signal(signal.SIGINT)
    rest, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert begin.startswith("Once")
    assert "rounds of the target" in rest
    assert errors == ""


TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def instruct(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of a model with a chat template."""
    folder = tmp_path_factory.mktemp("instruct")
    shutil.copytree(source, folder / "source")
    (folder / "source" / "chat_template.jinja").write_text(TEMPLATE)
    quantize(folder / "source", folder / "package")
    return folder / "package"


def tokens(outcome: Any) -> list[int]:
    assert outcome.exit_code == 0, outcome.stderr
    return list(outcome.json["results"][0]["token_ids"])


def test_a_chat_template_is_used_where_there_is_one(run: Any, instruct: Path, package: Path) -> None:
    common = ("--max-new-tokens", 8, "--json")
    in_chat = tokens(run("generate", instruct, "--prompt", "Once", *common))
    assert in_chat == tokens(run("generate", instruct, "--prompt", "Once", "--chat", *common))
    raw = tokens(run("generate", instruct, "--prompt", "Once", "--raw", *common))
    assert raw == tokens(run("generate", package, "--prompt", "Once", "--levels", "target,mxfp4", *common))
    rendered = tokens(run("generate", instruct, "--prompt", "user: Once\n", "--raw", *common))
    assert in_chat == rendered != raw
    refused = run("generate", package, "--prompt", "Once", "--chat")
    assert refused.exit_code == 1 and "there is no chat template" in refused.stderr


@pytest.mark.parametrize("how", [("--prompt", "-"), ()])
def test_a_prompt_is_piped_in(how: tuple[str, ...], run: Any, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tokens(run("generate", package, "-p", "Once upon", "--max-new-tokens", 8, "--json"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("Once upon\n"))
    assert tokens(run("generate", package, *how, "--max-new-tokens", 8, "--json")) == expected


def test_an_empty_answer_says_why(run: Any, source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    quantize(source, tmp_path / "p")
    first = tokens(run("generate", tmp_path / "p", "-p", "Once upon", "--max-new-tokens", 1, "--json"))[0]
    (tmp_path / "source" / "generation_config.json").write_text(json.dumps({"eos_token_id": first}))
    path = tmp_path / "source" / "tokenizer.json"
    members = json.loads(path.read_text())
    names = {number: name for name, number in members["model"]["vocab"].items()}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    members["added_tokens"].append({"id": first, "content": names[first], "special": True, **flags})
    path.write_text(json.dumps(members))
    quantize(tmp_path / "source", tmp_path / "ends")
    outcome = run("generate", tmp_path / "ends", "-p", "Once upon")
    assert outcome.exit_code == 0 and first in Tokenizer.from_folder(tmp_path / "ends").eos_token_ids
    assert "the answer is empty: the first token ended the text. An instruct model needs its chat template" in (
        outcome.stderr
    )


def test_a_model_in_the_place_of_a_package_is_converted_once(
    run: Any, source: Path, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    common = ("-p", "Once upon", "--max-new-tokens", 8, "--json")
    first, second = run("generate", source, *common), run("generate", source, *common)
    assert tokens(first) == tokens(second) == tokens(run("generate", package, *common))
    (folder,) = (path for path in (tmp_path / "cache/mxconv/packages/converted").iterdir() if path.is_dir())
    assert f"{source}: a model, converted once to {folder}" in first.stderr and "converted" not in second.stderr
    assert folder.name.startswith(f"{source.name}-mxfp4-")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        *(("5000000000", 5 * 10**9), ("5GB", 5 * 10**9), ("5g", 5 * 10**9), ("2.5 G", 25 * 10**8), ("512MiB", 2**29)),
        *((text, None) for text in ("", "GB", "5XB", "-1", "0", "1e9", "5 GBs", "nan")),
    ],
)
def test_sizes_have_units(text: str, num_bytes: int | None) -> None:
    if num_bytes is not None:
        assert parse_bytes(text) == num_bytes
        return
    with pytest.raises(typer.BadParameter, match=r"a number of bytes such as 5GB or 512MiB is required"):
        parse_bytes(text)
