"""`mxconv cost` and `mxconv bench machine`: their JSON, their words, and what they refuse."""

import json
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from mtp_packages import write_mimo
from published.model_cards import LLAMA_3_1_8B

from mxconv.engine import placement
from mxconv.kernels.engine import native_names
from mxconv.system.processor import cpu_name

QUESTION = ("--hardware", "speq-28nm", "--acceptance", 0.974, "--num-draft-tokens", 5.31)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_3_1_8B))
    return path


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return tmp_path / "share" / "mxconv" / "hardware"


def test_every_model_answers_with_inputs_outputs_and_source(run: Any, config: Path) -> None:
    outcome = run("cost", "--config", config, *QUESTION, "--model", "all", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    models = {entry["model"]: entry for entry in outcome.json["models"]}
    assert list(models) == ["speedup", "throughput", "accelerator", "roofline"]
    assert all({"inputs", "outputs", "source"} <= set(entry) for entry in models.values())
    speedup = models["speedup"]["outputs"]["bsfp <- bsfp draft"]
    assert speedup["acceptance"] == [0.974]
    assert speedup["speedup"] == pytest.approx(2.037, abs=0.001)
    assert models["accelerator"]["outputs"]["draft_ratio"] == pytest.approx(0.3564, abs=0.0001)
    assert outcome.json["counts"]["outputs"]["num_parameters"] == 8_030_261_248
    assert "Fastest: " in outcome.stderr
    words = " ".join(outcome.stderr.split())
    assert "Td/Tar 0.3564" in words  # the tables
    assert "Table IV prints 0.56 W (full mode) and 0.51 W (quantize mode)" in words
    assert "7 of 8 are idle while drafts are made" in words
    passes = models["accelerator"]["outputs"]
    assert [passes[name]["chip_watts"] for name in ("plain", "draft")] == pytest.approx([2.00, 1.54], abs=0.005)
    assert len(outcome.stdout.splitlines()) == 1


def test_a_package_and_its_trace_give_prediction_beside_measurement(
    run: Any, package: Path, config: Path, tmp_path: Path
) -> None:
    for name, levels in (("greedy", "target"), ("all", "target,mxfp4,small")):
        trace = tmp_path / f"{name}.jsonl"
        arguments = ("--prompt", "Once", "--max-new-tokens", 24, "--levels", levels, "--kernel", "numpy")
        arguments += () if name == "greedy" else ("--num-draft-tokens", 8)
        assert run("generate", package, *arguments, "--trace", trace).exit_code == 0
    traces = ("--trace", tmp_path / "greedy.jsonl", "--trace", tmp_path / "all.jsonl")
    outcome = run("cost", package, *traces, "--hardware", "core-ultra-9-285k", "--context", 20, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    greedy, hierarchy = outcome.json["predictions"]["strategies"]
    assert (greedy["strategy"], greedy["levels"]) == ("greedy", ["target"])
    assert hierarchy["levels"] == ["target", "mxfp4", "small"]
    assert outcome.json["predictions"]["mean_error"] is None
    assert f"all: this trace is from another processor, {cpu_name()}." in outcome.stderr
    choices = outcome.json["models"][0]["outputs"]
    assert set(choices) == {"greedy", "mxfp4", "small", "hierarchy"}
    assert choices["mxfp4"]["acceptance"] == hierarchy["acceptance"][:1]
    assert choices["mxfp4"]["acceptance_sources"] == ["trace all"]
    own = tmp_path / "own.toml"
    described = files("mxconv.cost").joinpath("hardware", "core-ultra-9-285k.toml").read_text("utf-8")
    own.write_text(re.sub("description = .*", f'description = "{cpu_name()}, 2 threads"', described))
    outcome = run("cost", package, *traces, "--hardware", own, "--context", 20, "--json")
    errors = [abs(row["error"]) for row in outcome.json["predictions"]["strategies"]]
    assert outcome.json["predictions"]["mean_error"] == pytest.approx(sum(errors) / 2)
    assert "another processor" not in outcome.stderr and "over 2 traces" in outcome.stderr
    outcome = run("cost", "--config", config, *traces, "--hardware", "core-ultra-9-285k")
    assert outcome.exit_code == 2
    assert "--trace: needs the package" in outcome.stderr


def test_without_a_flag_this_processor_is_measured_once_and_acceptance_is_marked_as_assumed(
    run: Any, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")
    monkeypatch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("mxconv.bench.capability.QUICK_SAMPLES", 1)

    def answer(*options: Any) -> tuple[Any, Any]:
        outcome = run("cost", package, *options, "--json")
        assert outcome.exit_code == 0, outcome.stderr
        return outcome, outcome.json["models"][0]["outputs"]["mxfp4"]

    first, found = answer()
    assert first.json["hardware"]["description"].startswith(f"{cpu_name()}, ")
    assert "measured in two seconds; `mxconv bench machine --write`" in first.json["hardware"]["description"]
    assert found["acceptance_is_assumed"] == [True] and "0.909 (assumed)" in first.stderr
    for options in (("--acceptance", "0.5"), ("--acceptance", "0.99", "--num-draft-tokens", 4)):
        again, found = answer(*options)
        assert again.json["hardware"] == first.json["hardware"]  # from the cache
        assert found["acceptance_is_assumed"] == [False] and "0.909 (assumed)" not in again.stderr
    monkeypatch.setattr("mxconv.bench.capability.__version__", "of another version")
    answer()
    assert len(list((tmp_path / "cache/mxconv/hardware/measured").glob("*.toml"))) == 2


def test_acceptance_is_that_of_the_packages_own_evaluation(run: Any, package: Path, tmp_path: Path) -> None:
    own, texts = tmp_path / "package", tmp_path / "texts.txt"
    shutil.copytree(package, own, symlinks=True)
    texts.write_text("Once upon a time there was a little dog. " * 20)
    outcome = run("evaluate", own, "--texts", texts, "--context", 32, "--kernel", "numpy", "--write", "--json")
    agreement = {level["name"]: level["agreement"] for level in outcome.json["levels"]}
    told = run("cost", own, "--hardware", "core-ultra-9-285k", "--model", "speedup", "--json")
    outputs = told.json["models"][0]["outputs"]
    assert outputs["hierarchy"]["acceptance"] == [agreement["mxfp4"], agreement["small"]]
    assert outputs["mxfp4"]["acceptance_is_assumed"] == [False] and "assumed" not in told.stderr
    (source,) = outputs["mxfp4"]["acceptance_sources"]
    assert source == f"evaluation of this package: agreement on {outcome.json['num_tokens']:,} tokens"


def test_bench_machine_writes_the_description_that_cost_reads(run: Any, config: Path, user_folder: Path) -> None:
    native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")
    arguments = ("bench", "machine", "--write", "--threads", 1, "--num-tokens", "1,2")
    outcome = run(*arguments, "--out-features", 48, "--in-features", 160, "--json")
    assert outcome.exit_code == 0, outcome.stderr
    names = native.available()
    assert {(p["implementation"], p["form"]) for p in outcome.json["peaks"]} == {
        (name, form) for name in names for form in ("fp32", "bf16", "int8")
    }
    assert outcome.json["read_bandwidth"] > 0
    cache = outcome.json["last_level_cache_bytes"]
    assert cache is None or cache >= 1 << 16
    assert len(outcome.json["results"]) == 14  # seven kernels at two widths
    assert (user_folder / "this-machine.toml").is_file()
    found = run("cost", "--config", config, "--json")
    assert found.exit_code == 0, found.stderr
    assert found.json["hardware"]["name"] == "this-machine"
    assert found.json["hardware"]["read_bandwidth"] == pytest.approx(outcome.json["read_bandwidth"], abs=0.01)
    assert set(found.json["hardware"]["fractions"]["bsfp-draft"]) == {"1", "2"}
    assert found.json["hardware"]["last_level_cache_bytes"] == cache
    assert "nothing is overwritten" in run(*arguments).stderr


def test_cost_has_a_level_of_mtp_which_generate_checks_and_verify_proves(run: Any, tmp_path: Path) -> None:
    source, package = write_mimo(tmp_path / "source"), tmp_path / "package"
    assert run("quantize", source, "-o", package, "--draft", "mtp").exit_code == 0
    done = run("cost", package, "--hardware", "a100-80g")
    assert done.exit_code == 0, done.stderr
    assert "mtp (mxfp4)" in done.stdout
    assert "DeepSeek-V3 (arXiv 2412.19437), section 5.4.3" in done.stdout
    words = ["--prompt", "import os", "--max-new-tokens", 16, "--levels", "target,mtp", "--check"]
    done = run("generate", package, *words)
    assert done.exit_code == 0, done.stderr
    assert "1 of 1 texts identical to plain decoding" in done.stdout
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "import os"}\n')
    proof = run("verify", package, "--decode", prompts, "--max-new-tokens", 8, "--levels", "target,mtp", "--json")
    assert proof.exit_code == 0 and proof.json["ok"] and proof.json["decode"]["num_token_mismatches"] == 0


@pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
def test_with_memory_the_target_waits_for_the_disk_and_longer_drafts_pay(
    run: Any, package: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("cost", package, "--hardware", "core-ultra-9-285k", "--acceptance", 0.97, "--model", "speedup", "--json")
    plain = run(*asked).json["models"][0]["outputs"]
    whole = run(*asked, "--memory", "1TB")
    assert whole.exit_code == 0, whole.stderr
    assert whole.json["models"][0]["outputs"] == plain and whole.json["memory"]["read"] == 0
    monkeypatch.setattr(placement, "num_that_fit", lambda *_: 0)
    streamed = run(*asked, "--memory", "1TB")
    found, memory = streamed.json["models"][0]["outputs"], streamed.json["memory"]
    assert (memory["kept"], memory["read"]) == (0, whole.json["memory"]["kept"])
    rate = memory["read_gigabytes_per_second"] * 1e9
    assert found["greedy"]["tokens_per_second"] == pytest.approx(rate / memory["read"])
    assert found["mxfp4"]["num_draft_tokens"][0] > 16 > plain["mxfp4"]["num_draft_tokens"][0]
    assert found["mxfp4"]["speedup"] > plain["mxfp4"]["speedup"]
    assert "read in each round" in streamed.stderr and "this disk gives " in streamed.stderr
    two = run(*asked, "--memory", "1TB", "--levels", "target,mxfp4").json
    assert set(two["models"][0]["outputs"]) == {"greedy", "mxfp4"} and two["memory"]["resident"] < memory["resident"]
    monkeypatch.undo()
    refused = run("cost", package, "--memory", "1MB")
    assert refused.exit_code == 1 and "; --memory allows 0.00 GB. Give more" in refused.stderr
    assert run("cost", "--config", config, "--memory", "1GB").exit_code == 2
