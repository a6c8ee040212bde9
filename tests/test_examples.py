"""The examples and the README run as they are printed."""

import json
import re
import shlex
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from commands import IMPORTED, TRAINING, environment, run_forked
from hub_server import TOKEN, HubServer

from mxconv.kernels.engine import native_names
from mxconv.speculation.statistics import Generation, LevelStatistics, Trace, TraceEntry

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAPERS = EXAMPLES / "papers"
TARGET, DRAFT = EXAMPLES / "models" / "pylib-1.5m", EXAMPLES / "models" / "pylib-0.2m"


def run(*words: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Standard output of a command, or of a program in Python, that must succeed."""
    imported = (*IMPORTED, *TRAINING) if find_spec("torch") else IMPORTED
    done = run_forked(tuple(map(str, words)), env or environment(), cwd, imported)
    assert done.returncode == 0, done.stderr
    return done.stdout


README = (ROOT / "README.md").read_text()
MODEL_ID = "Qwen/Qwen3-0.6B"  # as the README calls its example


def readme_commands(begin: str) -> list[str]:
    """The lines of the README's shell block that begins so."""
    block = re.search(rf"```sh\n({begin} .*?)```", README, re.DOTALL)
    assert block is not None
    return [line for line in block.group(1).splitlines() if line]


def test_the_readmes_lines_work_on_a_hub_id(tmp_path: Path) -> None:
    """All of them, in order, in one folder: conversion, proof, generation, Python, other programs."""
    first, others = readme_commands("mxconv quantize"), readme_commands("mxconv export")
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert (len(first), len(others), len(code)) == (6, 5, 2)
    with HubServer({MODEL_ID: {"main": TARGET}}, tmp_path / "hub") as hub:
        variables = hub.environment(tmp_path / "cache", HF_TOKEN=TOKEN)
        for command in [*first, *others]:
            words = shlex.split(command, comments=True)
            if words[0] == "python":
                pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
                assert words[1] == "-c"
                (tmp_path / "line.py").write_text(words[2])
                assert run("line.py", env=variables, cwd=tmp_path).strip()
            else:
                assert words[0] == "mxconv"
                run(*words[1:], env=variables, cwd=tmp_path)
        texts = []
        for number, block in enumerate(code):
            (tmp_path / f"{number}.py").write_text(block)
            texts.append(run(f"{number}.py", env=variables, cwd=tmp_path).strip())
    assert texts[1].endswith(texts[0]) or texts[0] in texts[1]  # torch and mxconv write the same text


def test_the_picture_of_results_is_the_readmes_table(tmp_path: Path) -> None:
    run(EXAMPLES / "results_chart.py", tmp_path / "results.svg")
    drawn, kept = ((folder / "results.svg").read_text() for folder in (tmp_path, ROOT / "docs"))
    (ours,), (theirs,) = (re.findall(r"Matplotlib v[\d.]+", text) for text in (drawn, kept))
    assert drawn == kept or ours != theirs  # another version draws otherwise


def test_random_gaussian_matrices_reach_the_documented_draft_quality(tmp_path: Path) -> None:
    path = tmp_path / "matrices.safetensors"
    run(EXAMPLES / "make_matrices.py", path, "bf16", "256")
    lines = run("inspect", path, "--json").splitlines()
    gaussian = [t for t in json.loads(lines[-1])["tensors"] if t["name"].startswith("gaussian-0")]
    assert len(gaussian) == 5
    for tensor in gaussian:
        assert tensor["bsfp_bits_per_weight"] <= 12.9
        assert tensor["bsfp_draft_sqnr_db"] >= max(19.4, tensor["mxfp4_sqnr_db"] + 0.4)


def test_the_random_model_has_tinyllamas_shape_and_decodes(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers knows the shapes")
    model, package = tmp_path / "model", tmp_path / "package"
    run(EXAMPLES / "make_random_model.py", model, "llama", "16")
    config = json.loads((model / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"], config["vocab_size"]) == (128, 352, 2000)
    assert (model / "model.safetensors").stat().st_size > 2 * (2 * 2000 * 128 + 2 * 128 * 128 + 3 * 128 * 352)
    run("quantize", model, "-o", package)
    out = run("generate", package, "--prompt", "Hello", "--max-new-tokens", "5", "--check", "--json")
    result = json.loads(out.splitlines()[-1])["results"][0]
    assert len(result["token_ids"]) == 5
    assert result["identical_to_target"]


def test_every_draft_kind_is_certified_on_the_embedded_pair() -> None:
    pytest.importorskip("accelerate", reason="the extra train is not installed")
    words = [EXAMPLES / "certify.py", TARGET, DRAFT, DRAFT, EXAMPLES / "prompts.jsonl", "1", "12"]
    *lines, total = run(*words).splitlines()
    assert total == f"{2 * (2 * 51 + 15)} runs, {24 * len(lines)} tokens, 0 tokens or logits differ"
    drawn = [line for line in lines if "num_prompts" not in line]
    assert len(lines) == 2 * (2 * 51 + 15) and len(drawn) == 2 * 15
    assert all(line.endswith(": 24 tokens, 0 logits differ") for line in drawn)
    assert sum("target='target' batch=None" in line for line in lines) == 2 * 2 * 40


def test_a_family_drafts_for_itself_bit_by_bit() -> None:
    pytest.importorskip("transformers", reason="transformers makes these checkpoints")
    *runs, total = run(EXAMPLES / "certify_families.py", "lfm2").splitlines()
    assert [line.partition(" num_")[0] for line in runs] == [
        f"lfm2: {codec} {mode} own" for codec in ("bsfp", "mxfp4") for mode in ("greedy", "drawn")
    ]
    assert re.fullmatch(r"4 runs, \d{3,} tokens: 0 and 0", total)


def test_the_peers_that_are_installed_compute_the_same_and_are_timed(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    later = "steps after 70 tokens"
    for options, parts in (
        ([], [("whole model", 1), ("whole model", 4), ("whole model", 8)]),
        (["--prompts", "20,70"], [("prompts", 20), ("prompts", 70), (later, 1), (later, 8)]),
    ):
        words = [EXAMPLES / "compare_peers.py", tmp_path, "--rounds", "1", "--model", DRAFT, *options, "--json"]
        rows = json.loads(run(*words).splitlines()[-1])["rows"]  # it ends with an error where a result differs
        peers = {"llama.cpp": "llama_cpp", "OpenVINO": "optimum.intel"}
        expected = {"mxconv", *(name for name, module in peers.items() if find_spec(module.split(".")[0]))}
        assert {row["name"].split()[0] for row in rows if row["read_bandwidth"] is not None} == expected
        assert [(row["part"], row["width"]) for row in rows if row["name"] == "mxconv BF16"] == parts
        assert all(row["median"] > 0 for row in rows)


def test_every_strategy_on_a_real_model_is_compared_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    run("quantize", DRAFT, "-o", tmp_path / "small")
    run("quantize", TARGET, "-o", tmp_path / "package", "--draft", f"package:{tmp_path / 'small'}")
    run("quantize", TARGET, "-o", tmp_path / "bsfp", "--codec", "bsfp")
    out, journal = tmp_path / "out", tmp_path / "out" / "journal.jsonl"
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "def f(a"}\n')
    words = [EXAMPLES / "real_model.py", tmp_path / "package", out, "--prompts", EXAMPLES / "prompts.jsonl"]
    words += ["--prompts", questions, "--num-prompts", "2", "--max-new-tokens", "12", "--raw"]
    words += [
        "--beside",
        tmp_path / "bsfp",
        "--temperature",
        "0",
        "--temperature",
        "0.7",
        "--kernel",
        native_names()[-2:][0],
    ]
    run(*words)
    results = json.loads((out / "results.json").read_text())
    tables = [(Path(table["file"]).name, table["temperature"], table["num_texts"]) for table in results["tables"]]
    assert tables == [
        (name, heat, count) for name, count in (("prompts.jsonl", 2), ("questions.jsonl", 1)) for heat in (0.0, 0.7)
    ]
    own = ["mxfp4", "mxfp4 (trees)", "small", "small (trees)", "hierarchy", "auto", "auto, each text the first"]
    names = ["plain", *own, *(f"{name}, prompt-lookup" for name in ("mxfp4", "small", "all"))]
    names += ["auto without prompt-lookup", "plain, bsfp"]
    entries = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    assert len(entries) == 6 * len(names)
    for table in results["tables"]:
        assert list(table["strategies"]) == names
        of_table = [
            entry for entry in entries if (entry["file"], entry["temperature"]) == (table["file"], table["temperature"])
        ]
        for name, row in table["strategies"].items():
            mine, plain = ([entry for entry in of_table if entry["strategy"] == each] for each in (name, "plain"))
            assert [entry["tokens"] for entry in mine] == [entry["tokens"] for entry in plain]
            seconds, of_plain = (sum(entry["seconds"] for entry in found) for found in (mine, plain))
            assert row["speedup"] == pytest.approx(of_plain / seconds)
            assert row["tokens_per_second"] == pytest.approx(sum(len(entry["tokens"]) for entry in mine) / seconds)
            assert name != "plain" or (row["tokens_per_round"], row["plain_passes_per_round"]) == (1, 1)
        assert table["strategies"]["mxfp4"]["tokens_per_round"] > 1.5
    assert all(f"| {name} | " in (out / "results.md").read_text() for name in names)
    whole = journal.read_text()
    journal.write_text(whole[: len(whole) * 2 // 3])  # in the middle of a line
    kept = journal.read_text().splitlines(keepends=True)[:-1]
    run(*words)
    lines = journal.read_text().splitlines(keepends=True)
    assert lines[: len(kept)] == kept and len(lines) == len(whole.splitlines())
    assert [json.loads(line)["tokens"] for line in lines[1:]] == [entry["tokens"] for entry in entries]
    entries[-1]["tokens"][-1] += 1
    journal.write_text("".join([*lines[:-1], json.dumps(entries[-1]) + "\n"]))
    with pytest.raises(
        AssertionError, match=f"{entries[-1]['strategy']} gives other tokens than .*; the same are required"
    ):
        run(*words)
    with pytest.raises(AssertionError, match=r"of a run with .*'max_new_tokens': 12.*is required"):
        run(*words, "--max-new-tokens", "13")


def test_a_speculator_goes_on_learning_and_no_token_depends_on_it(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra train is not installed")
    run("quantize", TARGET, "-o", tmp_path / "package")
    speculator = EXAMPLES / "models" / "pylib-1.5m-speculator"
    words = [tmp_path / "package", speculator, ROOT / "mxconv" / "errors.py", ROOT / "mxconv" / "decode.py"]
    sizes = ["--num-requests", "6", "--rows", "2", "--max-new-tokens", "32", "--json"]
    out = run(PAPERS / "online_speculation.py", *words, *sizes)  # it ends with an error where a token differs
    assert all(0 < share < 1 for shares in json.loads(out.splitlines()[-1]).values() for share in shares)


def test_answers_depend_neither_on_the_load_nor_on_drafts(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    from http_servers import chat_package, running

    with running(chat_package(tmp_path)) as server:
        sizes = ["--at-a-time", "1,3", "--num-requests", "5", "--max-tokens", "12", "--temperature", "0.8"]
        out = run(EXAMPLES / "compare_answers.py", server.url, EXAMPLES / "prompts.jsonl", *sizes)
    loads = re.findall(r"(\d) at a time, (\w+): [\d.]+ tokens a second", out)  # it ends with an error where one differs
    assert loads == [(count, how) for count in "13" for how in ("plain", "drafts")]


def test_the_mlp_speculators_report_trains_every_variant_and_goes_on_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the extra train is not installed")
    texts = tmp_path / "texts.jsonl"
    code = json.dumps({"text": (EXAMPLES / "train_tiny_pair.py").read_text()})
    texts.write_text(f"{code}\n" * 3)
    words = [PAPERS / "mlp_speculators.py", DRAFT, texts, EXAMPLES / "prompts.jsonl", tmp_path / "work", "--json"]
    words += ["--steps", "2", "--num-prompts", "1", "--num-tokens", "8"]
    found = json.loads(run(*words).splitlines()[-1])
    assert list(found) == ["3 heads", "3 heads, stage 1 alone", "5 heads", "7 heads"]
    assert all(list(rates) == ["1", "2", "4", "8", "16", "32"] for rates in found.values())
    assert all(rate >= 1 for rates in found.values() for rate in rates.values())
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.safetensors")}
    assert json.loads(run(*words).splitlines()[-1]) == found
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())


def test_spires_report_measures_every_draft_and_models_the_papers_throughput(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the extra train is not installed")
    sizes = ["--hidden-size", "32", "--steps", "2", "--batch-tokens", "64", "--length", "32", "--files", "3"]
    after = ["--contexts", "16", "24", "32", "--num-prompts", "2", "--new-tokens", "8"]
    words = [PAPERS / "spire.py", tmp_path / "work", *sizes, *after, "--json"]
    out = run(*words)
    found = json.loads(out.splitlines()[-1])
    drafts = ["vanilla, 1 layer", "vanilla, half as wide", "MagicDec", "SPIRe"]
    assert {name: list(rates) for name, rates in found["rates"].items()} == dict.fromkeys(("16", "24", "32"), drafts)
    for rates in found["rates"].values():  # every position is in the window: the draft is the target itself
        assert rates["MagicDec"] == {"mean": 5.0, "low": 5.0, "high": 5.0, "num_steps": 2 * 2}
        assert all(1 <= rate["low"] <= rate["mean"] <= rate["high"] <= 5 for rate in rates.values())
    parts = found["ablations"]
    assert parts["no sparse cache"] == parts["SPIRe"] == found["rates"]["24"]["SPIRe"]
    trained = {path.parent.name: path.read_bytes() for path in (tmp_path / "work").glob("*/model.safetensors")}
    spires = [trained[name.replace(" ", "-")] for name in parts if name != "no sparse cache"]
    assert len(set(spires)) == len(spires) == 6  # each switch trains another draft
    modelled = [float(cell) for cell in re.search(r"throughput, batch 64, context 512 \|(.*)\|", out)[1].split("|")]
    published = {"vanilla, half as wide": 1.36 / 2.647, "MagicDec": 2.05 / 3.891, "SPIRe": 2.78 / 3.401}
    for name, per_token in published.items():  # a step takes as long as the paper's, whatever it yields
        per_step = modelled[drafts.index(name)] / found["rates"]["24"][name]["mean"]
        assert per_step == pytest.approx(per_token, rel=1e-2)
    assert run(*words) == out  # nothing is trained or measured anew


def test_speqs_table_1_has_its_order_and_figure_9_its_default(tmp_path: Path) -> None:
    words = [PAPERS / "speq.py", "table-1", DRAFT, EXAMPLES / "prompts.jsonl"]
    found = json.loads(run(*words).splitlines()[-1])
    assert list(found) == ["16-bit", "MXFP4", "fitted", "remap", "E3M0", "E2M1", "E1M2"]
    assert found["16-bit"] < found["fitted"] < found["remap"] < found["E3M0"] < min(found["E2M1"], found["E1M2"])
    run("quantize", DRAFT, "-o", tmp_path / "package", "--codec", "bsfp")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join((EXAMPLES / "prompts.jsonl").read_text().splitlines(keepends=True)[:2]))
    words = [PAPERS / "speq.py", "figure-9", tmp_path / "package", prompts, "--lengths", "1,8,16"]
    rows = json.loads(
        run(*words, "--thresholds", "0,0.6").splitlines()[-1]
    )  # it ends with an error where a text differs
    assert [row[:2] for row in rows] == [[length, threshold] for length in (1, 8, 16) for threshold in (0, 0.6)]
    for length, threshold, drafted, tokens, speedup in rows:
        assert 0 < drafted <= length and 1 <= tokens <= drafted + 1
        assert speedup == pytest.approx(tokens / (1 + 0.357 * drafted))
        assert threshold or drafted > 0.8 * length  # cut short at the end of a text alone
    assert rows[3][2:] == rows[5][2:] and rows[3][2] < 3  # at SPEQ's threshold no draft is longer than 8


def test_a_cut_has_the_bits_and_the_value_of_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PAPERS)
    from speq import CUTS, levels_of, nibbles_of

    kept = {"E3M0": "x .xxx. ..........", "E2M1": "x .xx.. x.........", "E1M2": "x .x... xx........"}  # of s eeeee m...
    assert list(CUTS) == list(kept)
    for name, marks in kept.items():
        nibbles, levels = nibbles_of(np.arange(1 << 16, dtype=np.uint16), CUTS[name]), levels_of(CUTS[name])
        for pattern, nibble in enumerate(nibbles.tolist()):
            digits = [
                digit for digit, mark in zip(f"{pattern:016b}", marks.replace(" ", ""), strict=True) if mark == "x"
            ]
            assert f"{nibble:04b}" == "".join(digits)
        for code, level in enumerate(levels):
            digits = iter(f"{code:03b}")
            bits = "".join(next(digits) if mark == "x" else "0" for mark in marks[1:].replace(" ", ""))
            assert level == 2.0 ** (int(bits[:5], 2) - 15) * (1 + int(bits[5:], 2) / 1024)


def test_tokens_a_step_are_those_of_steps_that_begin_within_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt's step first; then 3, 5, 1, 5 tokens a step."""
    monkeypatch.syspath_prepend(PAPERS)
    from tokens_per_step import rate, whole_steps

    entries = [TraceEntry(0, "target", 0, 0, 0, 1, 0.0), TraceEntry(0, "draft", 0, 0, 0, 0, 0.0)]
    for number, accepted in enumerate((2, 4, 0, 4), 1):
        entries.append(TraceEntry(number, "target", 0, 0, 0, 1, 0.0))
        entries.append(TraceEntry(number, "draft", 4, 4, accepted, 4, 0.0))
    made = Generation(Trace([LevelStatistics("target"), LevelStatistics("draft")], entries))
    found = [whole_steps(made, count) for count in (1, 2, 4, 5, 9, 10, 11)]
    assert found == [(0, 0), (3, 1), (3, 1), (8, 2), (8, 2), (9, 3), (14, 4)]
    assert rate([(6, 2)] * 9).low == 3.0
    many = rate([(6, 2), (10, 2)] * 500)  # of ratios 3 and 5, whose deviation is 1
    assert many.mean == 4.0
    assert [many.high - 4, 4 - many.low] == pytest.approx([1.96 / 1000**0.5] * 2, rel=0.06)
