"""`mxconv generate`: the JSON contract, the switches, the trace, and every refusal."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama

from mxconv.cli import generate as generate_module
from mxconv.kernels.engine import kernel_names
from mxconv.speculative.generation import Generation
from mxconv.speculative.hierarchy import Hierarchy

RESULT_KEYS = {"prompt", "text", "token_ids", "ending", "seconds", "tokens_per_second", "rounds", "levels"}
LEVEL_KEYS = {
    "name",
    "num_forwards",
    "num_proposed",
    "num_nodes",
    "nodes_by_depth",
    "num_accepted",
    "acceptance_rate",
    "acceptance_by_position",
    "seconds",
}
TRACE_KEYS = {
    "prompt",
    "round",
    "level",
    "num_asked",
    "num_proposed",
    "num_accepted",
    "num_forwards",
    "seconds",
    "num_nodes",
}


def test_the_last_line_of_stdout_is_the_contracts_object_and_tables_go_to_stderr(run: Any, package: Path) -> None:
    outcome = run("generate", package, "--prompt", "Once upon", "--max-new-tokens", 12, "--json")
    assert outcome.exit_code == 0
    assert len(outcome.stdout.splitlines()) == 1
    assert set(outcome.json) == {"results", "target", "kv_dtype"}
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
    assert set(outcome.json) == {"results", "target", "kv_dtype", "geomean_speedup"}
    assert outcome.json["geomean_speedup"] > 0
    for result in outcome.json["results"]:
        assert set(result) >= RESULT_KEYS | {"identical_to_target"}
        assert result["identical_to_target"] is True
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


def test_the_trace_has_a_line_for_every_round_and_level(run: Any, package: Path, prompts: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    outcome = run("generate", package, "--prompts", prompts, "--max-new-tokens", 8, "--trace", trace, "--json")
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    results = outcome.json["results"]
    assert len(lines) == sum(3 * result["rounds"] for result in results)
    for line in lines:
        more = {"tree", "num_tokens", "text"} if line["level"] == "target" else set()
        assert set(line) == TRACE_KEYS | more | ({"prompt_text"} if more and line["round"] == 0 else set())
    for number, result in enumerate(results):
        for level in result["levels"]:
            mine = [line for line in lines if (line["prompt"], line["level"]) == (number, level["name"])]
            assert [line["round"] for line in mine] == list(range(result["rounds"]))
            for key in ("num_proposed", "num_accepted", "num_forwards", "num_nodes"):
                assert sum(line[key] for line in mine) == level[key]
            assert sum(level["nodes_by_depth"]) == level["num_nodes"]


def test_the_trees_of_a_trace_tell_the_texts(run: Any, package: Path, prompts: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    outcome = run(
        "generate", package, "--prompts", prompts, "--max-new-tokens", 30, "--levels", "target",
        "--draft", "token-recycling,num_draft_tokens=8,confidence=0", "--tree", 12, "--trace", trace, "--json",
    )  # fmt: skip
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    for number, result in enumerate(outcome.json["results"]):
        mine = [line for line in lines if (line["prompt"], line["level"]) == (number, "target")]
        assert mine[0]["prompt_text"] == result["prompt"]
        assert "".join(line["text"] for line in mine) == result["text"]
        assert [token for line in mine for token in line["tree"]["emitted"]] == result["token_ids"]
        for line in mine:
            tree = line["tree"]
            assert line["num_tokens"] == len(tree["emitted"]) == len(tree["emitted_texts"])
            assert [tree["tokens"][node] for node in tree["path"]][: len(tree["emitted"])] == tree["emitted"][:-1]
            assert len(tree["tokens"]) == len(tree["parents"]) == len(tree["probabilities"]) == len(tree["texts"])
    assert any(max(line["tree"]["parents"], default=-1) > 0 for line in lines if line["level"] == "target")


def test_a_trace_ends_with_the_text_where_a_stop_string_cuts_a_round(run: Any, package: Path, tmp_path: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 40, "--levels", "target", "--json"]
    arguments += ["--draft", "token-recycling,confidence=0", "--tree", 12]
    whole = run(*arguments).json["results"][0]
    for place in range(8, 24):
        trace = tmp_path / f"{place}.jsonl"
        stop = whole["text"][place : place + 3]
        result = run(*arguments, "--stop", stop, "--trace", trace).json["results"][0]
        lines = [json.loads(line) for line in trace.read_text().splitlines()]
        found = [token for line in lines if "tree" in line for token in line["tree"]["emitted"]]
        assert found == result["token_ids"]
        assert sum(line.get("num_tokens", 0) for line in lines) == len(found)


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


REFUSED_USAGE = {
    "neither prompt nor prompts": ([], "give either --prompt or --prompts"),
    "both": (["--prompt", "a", "--prompts", "b"], "give either --prompt or --prompts"),
    "words for numbers": (
        ["--prompt", "a", "--num-draft-tokens", "x"],
        "--num-draft-tokens: 'x'; numbers joined by commas are required.",
    ),
    "too many tokens": (
        ["--prompt", "a", "--num-draft-tokens", "4,65"],
        "--num-draft-tokens: '4,65'; numbers from 1 to 64 are required.",
    ),
    "a tree of words": (["--prompt", "a", "--tree", "oak"], "--tree: 'oak'; auto, chain or a number from 1 to 63 is"),
    "a tree that is too large": (
        ["--prompt", "a", "--tree", "64"],
        "--tree: '64'; auto, chain or a number from 1 to 63",
    ),
    "a threshold above 1": (["--prompt", "a", "--confidence", "1.5"], "--confidence: '1.5'; numbers from 0 to 1 are"),
    "no number": (["--prompt", "a", "--confidence", "nan"], "--confidence: 'nan'; numbers from 0 to 1 are required."),
}


@pytest.mark.parametrize("case", REFUSED_USAGE)
def test_bad_usage_exits_with_2(run: Any, package: Path, case: str) -> None:
    arguments, message = REFUSED_USAGE[case]
    outcome = run("generate", package, *arguments)
    assert outcome.exit_code == 2
    assert message in outcome.stderr


REFUSED = {
    "an unknown level": (
        ["--prompt", "a", "--levels", "target,bsfp"],
        "package: levels target, bsfp; at least one, out of target, mxfp4, small, is required.",
    ),
    "numbers for drafts that are not there": (
        ["--prompt", "a", "--num-draft-tokens", "1,2,3"],
        "--num-draft-tokens: 3 numbers for 2 draft levels; one for all, or one each, is required.",
    ),
    "an empty prompt": (["--prompt", ""], "prompt: 0 tokens; at least one is required. Give a text."),
    "a prompt that is too long": (
        ["--prompt", "a" * 129],
        "prompt: 129 tokens; the target has 128 positions (max_position_embeddings). Shorten it.",
    ),
    "an unknown kernel": (["--prompt", "a", "--kernel", "mmx"], "--kernel: 'mmx'; on this processor one of "),
    "no prompt file": (["--prompts", "/nowhere/p.jsonl"], "/nowhere/p.jsonl: no such file; a readable file is"),
    "a trace without a folder": (
        ["--prompt", "a", "--trace", "/nowhere/trace.jsonl"],
        "/nowhere/trace.jsonl: its folder does not exist; an existing folder is required. Create it first.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_exits_with_1_and_a_message(run: Any, package: Path, case: str) -> None:
    arguments, message = REFUSED[case]
    outcome = run("generate", package, *arguments)
    assert outcome.exit_code == 1
    assert message in outcome.stderr
    assert outcome.stdout == ""


def test_an_existing_trace_is_not_overwritten(run: Any, package: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("mine")
    outcome = run("generate", package, "--prompt", "a", "--trace", trace)
    assert outcome.exit_code == 1
    assert f"{trace}: exists; nothing is overwritten. Choose another file." in outcome.stderr
    assert trace.read_text() == "mine"


def test_a_trace_that_cannot_be_written_is_an_error(run: Any, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_module, "check_new_trace", lambda path: None)  # as if the folder went away meanwhile
    outcome = run("generate", package, "--prompt", "a", "--max-new-tokens", 1, "--trace", "/nowhere/trace.jsonl")
    assert outcome.exit_code == 1
    assert "/nowhere/trace.jsonl: cannot be written (No such file or directory). Check the path." in outcome.stderr


@pytest.mark.parametrize("name", kernel_names())
def test_every_kernel_decodes_losslessly_on_any_number_of_threads(run: Any, package: Path, name: str) -> None:
    texts = set()
    for num_threads in (1, 2, 3):
        outcome = run(
            "generate", package, "--prompt", "Once upon", "--max-new-tokens", 10,
            "--kernel", name, "--threads", num_threads, "--check", "--json",
        )  # fmt: skip
        assert outcome.exit_code == 0
        texts.add(tuple(outcome.json["results"][0]["token_ids"]))
    assert len(texts) == 1


def test_the_kernel_may_be_named_by_the_environment(run: Any, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["generate", package, "--prompt", "a", "--max-new-tokens", 1]
    monkeypatch.setenv("MXCONV_KERNEL", "avx512")
    outcome = run(*arguments)
    assert outcome.exit_code == 1
    assert "MXCONV_KERNEL: 'avx512'; on this processor one of " in outcome.stderr
    assert run(*arguments, "--kernel", "numpy").exit_code == 0


def test_zero_threads_are_bad_usage(run: Any, package: Path) -> None:
    assert run("generate", package, "--prompt", "a", "--threads", 0).exit_code == 2


def test_a_prompt_that_fills_all_positions_gets_one_token(run: Any, package: Path) -> None:
    outcome = run("generate", package, "--prompt", "a" * 128, "--check", "--json")
    assert outcome.exit_code == 0
    assert len(outcome.json["results"][0]["token_ids"]) == 1


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
        for levels in (
            ["--levels", "target,mxfp4"],
            ["--draft", "token-recycling,confidence=0"],
            ["--num-draft-tokens", "auto"],
        ):
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


def test_a_stop_string_ends_the_text_and_is_left_out(run: Any, package: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 12, "--json"]
    whole = run(*arguments).json["results"][0]
    stop = whole["text"][4:6]
    result = run(*arguments, "--stop", stop, "--check").json["results"][0]
    assert result["text"] == whole["text"][: whole["text"].index(stop)]
    assert result["ending"] == "stop"
    assert result["token_ids"] == whole["token_ids"][: len(result["token_ids"])]


def test_chat_puts_prompts_into_the_models_template(run: Any, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "chatty"
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
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


def test_chat_without_a_template_says_what_is_missing(run: Any, package: Path) -> None:
    outcome = run("generate", package, "--prompt", "Hi", "--chat")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert f"{package}: there is no chat template; chat_template.jinja, or chat_template in" in outcome.stderr


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


def test_an_interrupt_before_the_first_token_leaves_an_empty_result(
    run: Any, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Hierarchy, *arguments: Any) -> Iterator[tuple[int, Any]]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Hierarchy, "stream", interrupted)
    outcome = run("generate", package, "--prompt", "Once", "--check", "--json")
    assert outcome.exit_code == 130
    (result,) = outcome.json["results"]
    assert (result["text"], result["token_ids"], result["ending"]) == ("", [], "interrupted")
    assert "0 tokens in 0 rounds of the target" in outcome.stderr


def test_lengths_that_are_given_hold(run: Any, package: Path, tmp_path: Path) -> None:
    arguments = ["generate", package, "--prompt", "Once", "--max-new-tokens", 24, "--json"]

    def asked(name: str, *more: str) -> set[int]:
        trace = tmp_path / f"{name}.jsonl"
        assert run(*arguments, "--trace", trace, *more).exit_code == 0
        entries = [json.loads(line) for line in trace.read_text().splitlines()]
        return {entry["num_asked"] for entry in entries if entry["level"] != "target" and entry["num_asked"]}

    assert asked("given", "--num-draft-tokens", "3") <= {1, 2, 3}
    assert asked("spec", "--levels", "target", "--draft", "token-recycling,num_draft_tokens=2,confidence=0") <= {1, 2}


def test_a_model_of_another_family_is_converted_and_verified_and_generate_names_what_is_missing(
    run: Any, tmp_path: Path
) -> None:
    other = {"model_type": "some_bert", "type_vocab_size": 2}
    source = write_tiny_llama(tmp_path / "source", **other)
    assert run("quantize", source, "-o", tmp_path / "package").exit_code == 0
    assert run("verify", tmp_path / "package", "--source", source).exit_code == 0
    assert run("inspect", tmp_path / "package").exit_code == 0
    outcome = run("generate", tmp_path / "package", "--prompt", "Once")
    assert outcome.exit_code == 1
    assert 'config.json: model_type is "some_bert"; mxconv runs arcee, ' in outcome.stderr
    assert "It needs attention in both directions, which mxconv does not have." in outcome.stderr
    assert 'how to add a family says CONTRIBUTING.md, "Add a family".' in outcome.stderr
