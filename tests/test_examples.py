"""The examples and the README run as they are printed."""

import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from checkpoints import TINY_LLAMA, llama_tensors
from eagle3_heads import TorchEagle3, eagle3_config, write_eagle3
from hub_server import TOKEN, HubServer
from safetensors.torch import load_file, save_file
from speculators import speculator_config, torch_logits, write_speculator
from spires import spire_config, spire_tensors, write_spire
from spires import torch_logits as spire_logits

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
TARGET, DRAFT = EXAMPLES / "models" / "pylib-1.5m", EXAMPLES / "models" / "pylib-0.2m"


def run(*words: str | Path, **options: object) -> str:
    """Standard output of a Python process that must succeed."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], check=False, capture_output=True, text=True, timeout=600, **options
    )
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
        options: dict[str, object] = {"env": hub.environment(tmp_path / "cache", HF_TOKEN=TOKEN), "cwd": tmp_path}
        for command in [*first, *others]:
            words = shlex.split(command, comments=True)
            if words[0] == "python":
                pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
                assert run(*words[1:], **options).strip()
            else:
                assert words[0] == "mxconv"
                run("-m", "mxconv.cli.main", *words[1:], **options)
        texts = [run("-c", block, **options).strip() for block in code]
    assert texts[1].endswith(texts[0]) or texts[0] in texts[1]  # torch and mxconv write the same text


def test_random_gaussian_matrices_reach_the_documented_draft_quality(tmp_path: Path) -> None:
    path = tmp_path / "matrices.safetensors"
    run(EXAMPLES / "make_matrices.py", path, "bf16", "256")
    lines = run("-m", "mxconv.cli.main", "inspect", path, "--json").splitlines()
    gaussian = [t for t in json.loads(lines[-1])["tensors"] if t["name"].startswith("gaussian-0")]
    assert len(gaussian) == 5
    for tensor in gaussian:
        assert tensor["bsfp_bits_per_weight"] <= 12.9
        assert tensor["bsfp_draft_sqnr_db"] >= max(19.4, tensor["mxfp4_sqnr_db"] + 0.4)


@pytest.mark.parametrize("model", [TARGET, DRAFT], ids=lambda path: path.name)
def test_the_fitted_draft_agrees_at_least_as_often_as_mxfp4(model: Path) -> None:
    lines = run(EXAMPLES / "compare_codecs.py", model, EXAMPLES / "prompts.jsonl", "prompt").splitlines()
    agreement = {line[:12].strip(): float(line.split()[-1]) for line in lines}
    assert agreement["bsfp fitted"] >= agreement["mxfp4"] - 0.01


def test_the_random_model_has_tinyllamas_shape_and_decodes(tmp_path: Path) -> None:
    model, package = tmp_path / "model", tmp_path / "package"
    run(EXAMPLES / "make_random_model.py", model, "16")
    config = json.loads((model / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"], config["vocab_size"]) == (128, 352, 2000)
    assert (model / "model.safetensors").stat().st_size > 2 * (2 * 2000 * 128 + 2 * 128 * 128 + 3 * 128 * 352)
    run("-m", "mxconv.cli.main", "quantize", model, "-o", package)
    out = run(
        "-m", "mxconv.cli.main", "generate", package, "--prompt", "Hello", "--max-new-tokens", "5", "--check", "--json"
    )
    result = json.loads(out.splitlines()[-1])["results"][0]
    assert len(result["token_ids"]) == 5
    assert result["identical_to_target"]


def test_every_draft_kind_is_certified_on_the_embedded_pair() -> None:
    lines = run(EXAMPLES / "certify.py", TARGET, DRAFT, DRAFT, EXAMPLES / "prompts.jsonl", "1").splitlines()
    assert len(lines) == 2 * 2 * 29
    for line in lines:
        *_, levels, record = re.split(r" (?=num_prompts)|chain |auto |16 ", line)
        target = levels.split(" <- ")[0]
        assert "num_tokens=64 num_token_mismatches=0 num_logit_mismatches=0" in record
        assert f"target='{target}' batch=None" in record
    assert sum("target='target'" in line for line in lines) == 2 * 2 * 23


def test_a_family_drafts_for_itself_bit_by_bit() -> None:
    pytest.importorskip("transformers", reason="transformers makes these checkpoints")
    *runs, total = run(EXAMPLES / "certify_families.py", "lfm2").splitlines()
    assert [line.partition(" num_")[0] for line in runs] == [
        f"lfm2: {codec} {mode} own" for codec in ("bsfp", "mxfp4") for mode in ("greedy", "drawn")
    ]
    assert re.fullmatch(r"4 runs, \d{3,} tokens: 0 and 0", total)


def test_the_peers_that_are_installed_compute_the_same_and_are_timed(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    out = run(
        EXAMPLES / "compare_peers.py", tmp_path, "--rounds", "1", "--model", DRAFT, "--product", "256", "--json"
    )  # it ends with an error where a result differs
    rows = json.loads(out.splitlines()[-1])["rows"]
    peers = {"llama.cpp": "llama_cpp", "OpenVINO": "openvino"}
    expected = {"mxconv", *(name for name, module in peers.items() if find_spec(module))}
    timed = {(row["contender"].split()[0], row["num_tokens"]) for row in rows if row["read_bandwidth"] is not None}
    assert {name for name, _ in timed} == expected
    assert {width for name, width in timed if name == "mxconv"} == {1, 4, 8}
    assert all(row["milliseconds"] > 0 for row in rows)


def test_prompts_of_the_peers_are_compared_and_timed(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    out = run(
        EXAMPLES / "compare_peers.py", tmp_path, "--rounds", "1", "--model", DRAFT, "--prompts", "20,70", "--json"
    )
    rows = [row for row in json.loads(out.splitlines()[-1])["rows"] if row["contender"] == "mxconv BF16"]
    parts = [("prompts", 20), ("prompts", 70), ("steps behind 70 tokens", 1), ("steps behind 70 tokens", 8)]
    assert [(row["part"], row["num_tokens"]) for row in rows] == parts
    assert all(row["milliseconds"] > 0 for row in rows)


def test_sequences_side_by_side_are_compared_and_timed(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    words = [EXAMPLES / "compare_serving.py", tmp_path, "--rounds", "1", "--model", DRAFT, "--new", "4", "--json"]
    rows = json.loads(run(*words).splitlines()[-1])["rows"]  # it ends with an error where mxconv's tokens differ
    timed = [row for row in rows if row["read_bandwidth"] is not None]
    names = {"mxconv", "mxconv with drafts", *(["llama.cpp BF16", "llama.cpp MXFP4"] if find_spec("llama_cpp") else [])}
    assert {row["name"] for row in timed} == names
    assert {row["num_sequences"] for row in timed if row["name"] == "mxconv"} == {1, 2, 4, 8}
    assert all(row["tokens_per_second"] > 0 for row in rows)
    # the same weights and the same prompts: of 4 tokens few differ by rounding
    assert all(row["same_tokens"] >= 0.5 for row in timed)
    assert sum(row["name"] == "with / without drafts" for row in rows) == 4


def test_nobody_uses_avx512_where_nobody_may(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    from mxconv.kernels.engine import native_names

    if "avx2" not in native_names():
        pytest.skip("this processor has no AVX2")
    words = [EXAMPLES / "compare_peers.py", tmp_path, "--rounds", "1", "--model", DRAFT, "--product", "256", "--avx2"]
    done = subprocess.run([sys.executable, *map(str, words)], check=False, capture_output=True, text=True, timeout=600)
    assert re.search("kernels avx(2|vnni|vnniint8)$", done.stdout, re.MULTILINE)
    llama_refused = "compiled for AVX-512" in done.stderr  # whoever compiles it for this processor gets that
    assert done.returncode == (1 if llama_refused else 0), done.stderr
    assert llama_refused == ("AVX512 = 1" in done.stdout)


def test_the_4_bit_level_is_decoded_with_drafts_and_by_llama_cpp(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    run("-m", "mxconv.cli.main", "quantize", TARGET, "-o", tmp_path / "p", "--draft", f"checkpoint:{DRAFT}")
    arguments = [
        tmp_path / "p",
        EXAMPLES / "prompts.jsonl",
        "pylib-0.2m",
        "token-recycling",
        "--gguf",
        tmp_path / "g.gguf",
    ]
    out = run(EXAMPLES / "four_bit_target.py", *arguments, "--num-prompts", "2", "--num-tokens", "8", "--json")
    members = json.loads(out.splitlines()[-1])  # it ends with an error where drafts change a token
    rows = {row["contender"]: row for row in members["results"]}
    has_llama = find_spec("llama_cpp") is not None
    assert list(rows) == ["mxconv, plain", "mxconv, drafts", *(["llama.cpp"] if has_llama else [])]
    assert all(row["tokens_per_second"] > 0 for row in rows.values())
    assert rows["mxconv, plain"]["tokens_per_round"] == rows["mxconv, plain"]["ratio_to_plain"] == 1
    assert rows["mxconv, drafts"]["texts_as_plain"] == members["num_prompts"] == 2
    assert (tmp_path / "g.gguf").is_file() == has_llama
    if has_llama:
        assert rows["llama.cpp"]["texts_as_plain"] >= 1  # the same weights; it rounds activations otherwise


def test_trees_are_measured_beside_chains_with_every_hierarchy_named(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    run("-m", "mxconv.cli.main", "quantize", TARGET, "-o", tmp_path / "p")
    strategies = ["mxfp4", f"mxfp4+checkpoint:{DRAFT}", "stand"]
    counts = ["--num-prompts", "2", "--num-tokens", "12", "--json"]
    out = run(EXAMPLES / "trees_report.py", tmp_path / "p", EXAMPLES / "prompts.jsonl", *strategies, *counts)
    members = json.loads(out.splitlines()[-1])  # it ends with an error where a draft changes a token
    rows = members["results"]
    assert list(rows) == ["plain", *(f"{name}, {how}" for name in strategies for how in ("chains", "trees"))]
    assert rows["plain"]["behind_prompt"] == rows["plain"]["whole"] == rows["plain"]["tokens_per_round"] == 1
    for name in strategies:
        trees, chains = rows[f"{name}, trees"], rows[f"{name}, chains"]
        assert trees["over_chains"] == pytest.approx(trees["behind_prompt"] / chains["behind_prompt"])
        assert all(1 <= row["tokens_per_round"] <= 1 + row["nodes_per_round"] for row in (trees, chains))
    assert members["num_prompts"] == 2


def test_the_mlp_speculators_report_trains_every_variant_and_goes_on_where_it_was(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the extra train is not installed")
    texts = tmp_path / "texts.jsonl"
    code = json.dumps({"text": (EXAMPLES / "train_tiny_pair.py").read_text()})
    texts.write_text(f"{code}\n" * 3)
    arguments = [DRAFT, texts, EXAMPLES / "prompts.jsonl", tmp_path / "work", "--steps", "3", "--num-prompts", "1"]
    arguments += ["--num-tokens", "8"]
    found = json.loads(run(EXAMPLES / "mlp_report.py", *arguments, "--json").splitlines()[-1])
    assert list(found) == [
        "3 heads",
        "3 heads, stage 1 alone",
        "3 heads, none hears tokens",
        "5 heads",
        "7 heads",
    ]
    assert all(list(rates) == ["1", "2", "4", "8", "16", "32"] for rates in found.values())
    assert all(rate >= 1 for rates in found.values() for rate in rates.values())
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("model.safetensors")}
    assert len(written) == 5
    assert json.loads(run(EXAMPLES / "mlp_report.py", *arguments, "--json").splitlines()[-1]) == found
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())


def test_drafting_ahead_on_a_thread_of_its_own_writes_the_same_text(tmp_path: Path) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    for model in (TARGET, DRAFT):
        run("-m", "mxconv.cli.main", "quantize", model, "-o", tmp_path / model.name)
    packages = tmp_path / TARGET.name, tmp_path / DRAFT.name
    out = run(
        EXAMPLES / "pearl.py", *packages, EXAMPLES / "prompts.jsonl", "2"
    )  # it ends with an error where it differs
    found = json.loads(out.splitlines()[-1])
    for counts in found.values():
        assert counts["tokens"] == 128
        assert 0 < counts["accepted"] < counts["drafted"]
    assert found["ahead"]["rounds"] >= found["in turn"]["rounds"]  # a proposal thrown away costs a round


def test_a_widened_speculator_says_of_repeated_states_what_it_said(tmp_path: Path) -> None:
    folder = write_speculator(tmp_path / "small", speculator_config(16, 40), "BF16")
    run(EXAMPLES / "widen_reader.py", folder, tmp_path / "wide", "--factor", "8")
    state = np.random.default_rng(0).standard_normal(16).astype(np.float32)
    small, wide = torch_logits(folder, state, [1, 2, 3]), torch_logits(tmp_path / "wide", np.tile(state, 8), [1, 2, 3])
    for narrow, broad in zip(small, wide, strict=True):
        np.testing.assert_allclose(broad, narrow, rtol=1e-9, atol=1e-9)


def test_widened_eagle3_heads_and_spire_drafts_do_too(tmp_path: Path) -> None:
    """Of the kinds' variants those whose shapes differ: norms before the fusion, biases, a head of its own or none."""
    random, repeated = np.random.default_rng(1), lambda states: np.tile(states, 8)
    for place, changes in enumerate(({}, {"norm_before_fc": True}, {"fc_norm": True, "target_hidden_size": 8})):
        folder = write_eagle3(tmp_path / f"eagle3-{place}", eagle3_config(40, 16, changes), "BF16")
        run(EXAMPLES / "widen_reader.py", folder, tmp_path / f"wide-{place}", "--factor", "8")
        states = random.standard_normal((3, 5, changes.get("target_hidden_size", 16))).astype(np.float32)
        small = TorchEagle3(folder).logits(states, [9, 1, 2, 3, 4, 5], [6, 7])
        wide = TorchEagle3(tmp_path / f"wide-{place}").logits(repeated(states), [9, 1, 2, 3, 4, 5], [6, 7])
        np.testing.assert_allclose(wide, small, rtol=1e-9, atol=1e-9)
    embedding = tmp_path / "small" / "model.safetensors"
    embedding.parent.mkdir()
    tensors = load_file(folder / "model.safetensors")
    save_file({"model.embed_tokens.weight": tensors.pop("embed_tokens.weight")}, embedding)
    save_file(tensors, folder / "model.safetensors")
    given = [folder, tmp_path / "again", "--factor", "8", "--target", embedding.parent]
    run(EXAMPLES / "widen_reader.py", *given)  # a head that reads its target's
    wide = TorchEagle3(tmp_path / "again").logits(repeated(states), [9, 1, 2, 3, 4, 5], [6, 7])
    np.testing.assert_allclose(wide, small, rtol=1e-9, atol=1e-9)
    target = TINY_LLAMA | {"num_hidden_layers": 3}
    for place, layer_type in enumerate(("llama", "tied", "qwen2", "qwen3")):
        config = spire_config(target, (0, 2), layer_type=layer_type.replace("tied", "llama"))
        tensors = spire_tensors(llama_tensors(target, "F32"), config)
        rows = {"q": config["num_attention_heads"] * 16, "k": config["num_key_value_heads"] * 16}
        for layer, part in product(range(2), rows):
            if layer_type == "qwen2":
                tensors[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = random.standard_normal(rows[part])
            if layer_type == "qwen3":
                tensors[f"model.layers.{layer}.self_attn.{part}_norm.weight"] = 1 + random.standard_normal(16) / 4
        if layer_type == "tied":
            del tensors["lm_head.weight"]
        folder = write_spire(tmp_path / f"spire-{place}", config, tensors, "BF16")
        run(EXAMPLES / "widen_reader.py", folder, tmp_path / f"broad-{place}", "--factor", "8")
        states = random.standard_normal((2, 5, config["hidden_size"])).astype(np.float32)
        narrow = spire_logits(folder, states, [3, 1, 4])
        broad = spire_logits(tmp_path / f"broad-{place}", repeated(states), [3, 1, 4])
        np.testing.assert_allclose(broad, narrow, rtol=1e-9, atol=1e-9)


def test_spires_report_measures_every_draft_and_models_the_papers_throughput(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the extra train is not installed")
    sizes = ["--hidden-size", "32", "--steps", "2", "--batch-tokens", "64", "--length", "32", "--files", "3"]
    behind = ["--contexts", "16", "24", "32", "--num-prompts", "2", "--new-tokens", "8"]
    arguments = [EXAMPLES / "spire_report.py", tmp_path / "work", *sizes, *behind]
    out = run(*arguments, "--json")
    found = json.loads(out.splitlines()[-1])
    drafts = ["vanilla, 1 layer", "vanilla, half as wide", "MagicDec", "SPIRe"]
    assert {context: list(rates) for context, rates in found["rates"].items()} == dict.fromkeys(
        ("16", "24", "32"), drafts
    )
    for rates in found["rates"].values():  # every position is in the window: the draft is the target itself
        assert rates["MagicDec"] == {"mean": 5.0, "low": 5.0, "high": 5.0, "num_rounds": 2 * 2}
        assert all(1 <= rate["low"] <= rate["mean"] <= rate["high"] <= 5 for rate in rates.values())
    assert found["target_loss"] == pytest.approx(np.log(1024), abs=0.3)  # two steps teach it next to nothing
    names = ["SPIRe", "no sparse cache", "no states of the target", "no distillation", "no pruned start"]
    names += ["no feedback memory", "no acceptance in the loss"]
    assert list(found["ablations"]) == names
    assert found["ablations"]["no sparse cache"] == found["ablations"]["SPIRe"] == found["rates"]["24"]["SPIRe"]
    trained = {path.parent.name: path.read_bytes() for path in (tmp_path / "work").glob("*/model.safetensors")}
    spires = [trained[name.replace(" ", "-")] for name in names if name != "no sparse cache"]
    assert len(set(spires)) == len(spires) == 6  # each switch trains another draft

    published = {"vanilla, half as wide": 1.36 / 2.647, "MagicDec": 2.05 / 3.891, "SPIRe": 2.78 / 3.401}
    modelled = found["multipliers"]["67 M, batch 64, context 512"]
    for name, per_token in published.items():  # a round takes as long as the paper's, whatever it yields
        assert modelled[name] / found["rates"]["24"][name]["mean"] == pytest.approx(per_token, rel=5e-3)
    for name in names[2:]:
        assert modelled[name] / found["ablations"][name]["mean"] == pytest.approx(published["SPIRe"], rel=5e-3)
    body, narrow = found["bodies"]["target"], found["bodies"]["vanilla, half as wide"]
    assert (body["num_layers"], narrow["num_layers"], narrow["hidden_size"]) == (8, 4, body["hidden_size"] // 2)
    of_all = [found["multipliers"][where]["no sparse cache"] for where in found["multipliers"] if "67 M" in where]
    assert of_all == pytest.approx([of_all[0]] * len(of_all))  # the context cancels out, section 4.2

    assert (tmp_path / "work" / "ablations.svg").read_text().count("<svg ") == 1
    assert (tmp_path / "work" / "report.md").read_text().strip() in out
    again = subprocess.run(
        [sys.executable, *map(str, arguments), "--json"], check=False, capture_output=True, text=True, timeout=600
    )
    assert again.stdout == out  # nothing is trained or measured anew
    assert "trains" not in again.stderr
    other = subprocess.run(
        [sys.executable, *map(str, arguments), "--steps", "3"], check=False, capture_output=True, text=True, timeout=60
    )
    assert other.returncode != 0
    assert "a report with other settings (steps); the same are required" in other.stderr


def test_tokens_a_round_are_those_of_rounds_that_begin_within_the_count() -> None:
    """Prompt's round first; then 3, 5, 1, 5 tokens a round."""
    code = """
from mxconv.speculation.generation import Generation
from mxconv.drafts.statistics import LevelStatistics, Trace, TraceEntry
from tokens_a_round import rate, whole_rounds

entries = [TraceEntry(0, "target", 0, 0, 0, 1, 0.0), TraceEntry(0, "draft", 0, 0, 0, 0, 0.0)]
for number, accepted in enumerate((2, 4, 0, 4), 1):
    entries.append(TraceEntry(number, "target", 0, 0, 0, 1, 0.0))
    entries.append(TraceEntry(number, "draft", 4, 4, accepted, 4, 0.0))
made = Generation(Trace([LevelStatistics("target"), LevelStatistics("draft")], entries))
print([whole_rounds(made, count, 4) for count in (1, 2, 4, 5, 9, 10, 11)])
print(rate([(6, 2)] * 9).low)
many = rate([(6, 2), (10, 2)] * 500)
print(many.mean, many.high - many.mean, many.mean - many.low)
"""
    out = run("-c", code, cwd=EXAMPLES).splitlines()
    assert out[0] == "[(0, 0), (3, 1), (3, 1), (8, 2), (8, 2), (9, 3), (14, 4)]"
    assert out[1] == "3.0"
    mean, *widths = map(float, out[2].split())
    assert mean == 4.0  # of ratios 3 and 5, whose deviation is 1
    assert widths == pytest.approx([1.96 / 1000**0.5] * 2, rel=0.06)
