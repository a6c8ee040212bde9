"""`mxconv quantize`: the JSON contract, the plan, and every refusal."""

import hashlib
import json
import re
import shutil
from math import prod
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf
from packages import files_of

from mxconv.conversion.calibration_texts import OWN_PROMPTS
from mxconv.package.manifest import read_manifest
from mxconv.report.tables import format_bytes
from mxconv.text.messages import read_prompts

KEYS = {
    "package", "codec", "num_tensors", "num_quantized", "num_bytes_source", "num_bytes_package", "num_bytes_target",
    "num_bytes_draft", "bits_per_weight", "lossless", "rounded_from", "seconds", "input_gigabytes_per_second",
    "peak_rss_bytes", "levels",
}  # fmt: skip
NUM_TENSORS = 12  # of the one-layer model: 3 norms, the embedding, 8 matrices
NUM_QUANTIZED = 8


@pytest.mark.parametrize(("codec", "lossless"), [("mxfp4", True), ("bsfp", True)])
def test_the_last_line_of_stdout_is_the_contracts_object(
    run: Any, source: Path, tmp_path: Path, codec: str, lossless: bool
) -> None:
    package = tmp_path / "package"
    outcome = run("quantize", source, "-o", package, "--codec", codec, "--json")
    assert outcome.exit_code == 0
    assert len(outcome.stdout.splitlines()) == 1
    result = outcome.json
    assert set(result) == KEYS
    assert result["package"] == str(package)
    assert (result["codec"], result["lossless"]) == (codec, lossless)
    assert (result["num_tensors"], result["num_quantized"]) == (NUM_TENSORS, NUM_QUANTIZED)
    assert result["peak_rss_bytes"] > 0
    assert result["num_bytes_source"] == sum(2 * prod(record.shape) for record in read_manifest(package).tensors)
    on_disk = sum(path.stat().st_size for path in package.rglob("*") if path.name != "mxconv.json")
    assert result["num_bytes_package"] == on_disk
    assert [level["name"] for level in result["levels"]] == ["target", codec]
    assert f"{NUM_QUANTIZED} of {NUM_TENSORS} tensors" in outcome.stderr
    own = {path.name: path.stat().st_size for path in package.glob("*.safetensors")}
    draft = own.pop("mxfp4.safetensors", 0)
    assert (result["num_bytes_target"], result["num_bytes_draft"]) == (sum(own.values()), draft)
    assert "The draft is a direct cast" in outcome.stderr


REFERENCE, EXACT = ("--target", "reference"), "target: exact, the source's weights"


@pytest.mark.parametrize(
    ("options", "target", "draft"),
    [
        ((), f"{EXACT} as they are", "draft: 8 of 12 tensors in 4 bits (MXFP4), 4."),
        (REFERENCE, f"{EXACT}, which stay there and are no part of the package", "draft: 8 of 12 tensors in 4 bits"),
        (("--codec", "bsfp"), f"{EXACT} rebuilt bit for bit; 1", "draft: 4 of these bits (BSFP), which take no bytes"),
    ],
)
def test_the_last_lines_say_bytes_what_is_exact_and_what_the_draft_is(
    run: Any, source: Path, tmp_path: Path, options: tuple[str, ...], target: str, draft: str
) -> None:
    planned = run("quantize", source, "-o", tmp_path / "package", *options, "--dry-run")
    outcome = run("quantize", source, "-o", tmp_path / "package", *options)
    assert outcome.exit_code == 0 and outcome.stderr == ""
    first, *exactness = outcome.stdout.splitlines()
    assert re.match(r"\S+package: [\d.]+ kB became [\d.]+ kB", first) and len(exactness) == 3
    assert ("of the target and" in first) == (not options)
    assert exactness[0].startswith(target) and exactness[1].startswith(draft)
    assert "mxconv evaluate" in exactness[2] and "--calibrate" in exactness[2]  # what a cast cannot know of itself
    assert set(exactness[:2]) <= set(planned.stdout.splitlines())


def test_every_option_reaches_the_manifest(run: Any, source: Path, small: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    arguments = ["--skip", "*.mlp.*", "--skip", "lm_head.*", "--scale-rule", "mse", "--target", "reference"]
    arguments += ["--lm-head", "keep", "--on-nonfinite", "keep", "--threads", "1", "--max-shard-bytes", "9000"]
    arguments += ["--draft", f"checkpoint:{small},num_draft_tokens=3,confidence=0.25"]
    outcome = run("quantize", source, "-o", package, *arguments, "--json")
    assert outcome.exit_code == 0
    assert outcome.json["num_quantized"] == 4
    manifest = read_manifest(package)
    assert manifest.options.skip == ["*.mlp.*", "lm_head.*"]
    assert (manifest.options.scale_rule, manifest.options.target) == ("mse", "reference")
    assert (manifest.options.lm_head, manifest.options.on_nonfinite) == ("keep", "keep")
    assert (manifest.levels[2].num_draft_tokens, manifest.levels[2].confidence) == (3, 0.25)
    assert not manifest.lossless
    again = run("quantize", source, "-o", package, "--codec", "BSFP")  # names of choices may be in capitals
    assert again.exit_code == 1 and "--force" in again.stderr and read_manifest(package) == manifest
    assert run("quantize", source, "-o", package, "--codec", "BSFP", "--force").exit_code == 0
    assert read_manifest(package).options.codec == "bsfp"


def test_dry_run_prints_the_plan_and_writes_nothing(run: Any, source: Path, tmp_path: Path) -> None:
    outcome = run("quantize", source, "-o", tmp_path / "package", "--codec", "bsfp", "--dry-run", "--json")
    assert outcome.exit_code == 0
    assert list(tmp_path.iterdir()) == []
    done = {"input_gigabytes_per_second", "peak_rss_bytes", "num_bytes_target", "num_bytes_draft"}
    assert KEYS - done <= set(outcome.json)
    tensors = {tensor["name"]: tensor for tensor in outcome.json["tensors"]}
    assert len(tensors) == NUM_TENSORS
    assert tensors["model.embed_tokens.weight"]["reason"] == "embeddings"
    assert tensors["lm_head.weight"]["codec"] == "bsfp"
    assert "Nothing was written." in outcome.stderr
    real = run("quantize", source, "-o", tmp_path / "package", "--codec", "bsfp", "--json").json
    for key in ("num_tensors", "num_quantized", "bits_per_weight", "lossless", "num_bytes_source", "levels"):
        assert outcome.json[key] == real[key]
    assert outcome.json["seconds"] > 0


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (3e9, "3.0 GB"), (4.2e12, "4.2 TB")],
)
def test_bytes_are_shown_in_decimal_units(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_a_quantized_gguf_says_what_the_proof_is_about(run: Any, tmp_path: Path) -> None:
    source, package = (
        write_gguf(tmp_path / "a.gguf", matrix_type="Q4_1", types={"token_embd.weight": "Q8_0"}),
        tmp_path / "p",
    )
    note = (
        "The source is quantized (Q4_1, Q8_0): the proof is about its values rounded to BF16; what the quantizer lost"
    )
    refused = run("quantize", source, "-o", package)
    assert refused.exit_code == 1
    assert "Give --dtype bf16 or --dtype fp16 to round the values of all tensors" in " ".join(refused.stderr.split())
    done = run("quantize", source, "-o", package, "--dtype", "bf16", "--json")
    assert done.exit_code == 0 and note in done.stderr
    assert done.json["rounded_from"] == {"Q4_1": 8, "F32": 3, "Q8_0": 1}
    assert done.json["num_bytes_source"] < source.stat().st_size
    checked = run("verify", package, "--source", source, "--json")
    assert checked.exit_code == 0 and note in checked.stderr
    assert checked.json["rounded_from"] == done.json["rounded_from"]
    assert json.loads((package / "config.json").read_text())["torch_dtype"] == "bfloat16"
    referenced = run("quantize", source, "-o", tmp_path / "q", "--dtype", "bf16", "--target", "reference")
    assert referenced.exit_code == 1 and "a GGUF checkpoint; only 16-bit safetensors can be" in referenced.stderr


@pytest.mark.parametrize(("codec", "template"), [("mxfp4", True), ("bsfp", False)])
def test_without_a_file_a_draft_is_calibrated_by_prompts_that_come_with_mxconv(
    run: Any, tmp_path: Path, codec: str, template: bool
) -> None:
    source = tmp_path / "source"
    shutil.copytree(Path(__file__).parents[2] / "examples/models/pylib-0.2m", source)
    if template:
        (source / "chat_template.jinja").write_text("{% for each in messages %}# {{ each.content }}\n{% endfor %}")
    package, options = tmp_path / "package", ("--calibration-tokens", "300", "--codec", codec)
    outcome = run("quantize", source, "--calibrate", "-o", package, *options)
    assert outcome.exit_code == 0, outcome.stderr
    assert re.search(r"calibration: layer 1 of 3 took \d+\.\d s, the others take about \d+ (s|minutes)", outcome.stderr)
    (line,) = (line for line in outcome.stdout.splitlines() if line.startswith("agreement"))
    weights = read_manifest(package).draft_weights
    assert weights is not None
    shares, (own,) = weights.description["agreement"], weights.description["texts"]
    assert line == (
        f"agreement {shares['cast']:.2f} -> {shares['calibrated']:.2f} "
        f"({shares['num_tokens']} tokens that were held out)".replace("0.", ".")
    )
    is_worse = shares["calibrated"] < shares["cast"]
    assert ("These texts did not help" in outcome.stdout) == ("kept" in weights.description) == is_worse
    assert own["sha256"] == hashlib.sha256(OWN_PROMPTS.read_bytes()).hexdigest()
    assert own["num_bytes"] == OWN_PROMPTS.stat().st_size
    again = run("quantize", source, "-o", tmp_path / "again", *options, "--calibrate")
    assert again.exit_code == 0 and files_of(package) == files_of(tmp_path / "again")
    assert "--calibrate [FILE]" in run("quantize", "--help").stdout


def test_a_head_screen_that_does_not_pay_is_said(run: Any, tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "examples/models/pylib-0.2m"
    outcome = run("quantize", source, "-o", tmp_path / "package", "--head-screen", "--calibration-tokens", "300")
    assert outcome.exit_code == 0 and "No head screen: the vocabulary is small, or" in outcome.stdout
    assert run("verify", tmp_path / "package", "--source", source, "--json").json["num_draft_tensors_given"] == 0


def test_the_prompts_that_come_with_mxconv_are_enough_and_varied() -> None:
    chats = [prompt for prompt in read_prompts(OWN_PROMPTS, chat=True) if isinstance(prompt, list)]
    texts = [prompt for prompt in read_prompts(OWN_PROMPTS) if isinstance(prompt, str)]
    assert len(chats) == len(texts) == len(set(texts)) >= 72  # of 256 tokens: those of a calibration, and held out
    assert sum(len(chat) > 1 for chat in chats) >= 5
    assert sum(not text.isascii() for text in texts) >= 10
    assert OWN_PROMPTS.stat().st_size < 16_384


def test_a_vocabulary_that_is_left_out_is_said(run: Any, tmp_path: Path) -> None:
    outcome = run("quantize", write_gguf(tmp_path / "a.gguf"), "-o", tmp_path / "package")
    note = "note: no tokenizer.json is written: tokenizer.ggml.model of the GGUF file is absent."
    assert outcome.exit_code == 0 and note in outcome.stdout.replace("\n", " ")


PLACES = {  # what is typed, and where; the package's name without its codec
    "source": ("source", ".", "source"),
    "source with a slash": ("source/", ".", "source"),
    "here": (".", "source", "source"),
    "here with a slash": ("./", "source", "source"),
    "above": ("..", "source/sub", "source"),
    "a path": ("../v1.5-chat/", "source", "v1.5-chat"),
    "a file": ("source/model.safetensors", ".", "model"),
    "a file with dots": ("tiny.v2.BF16.GGUF", ".", "tiny.v2.BF16"),
    "a commit in the Hub cache": ("models--org--Tiny-1.5B/snapshots/0123abc", ".", "Tiny-1.5B"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_package_is_named_after_its_source(
    run: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    typed, where, name = PLACES[place]
    for folder in ("source", "v1.5-chat", "models--org--Tiny-1.5B/snapshots/0123abc"):
        shutil.copytree(source, tmp_path / folder)
    (tmp_path / "source/sub").mkdir()
    write_gguf(tmp_path / "tiny.v2.BF16.GGUF")
    monkeypatch.chdir(tmp_path / where)
    for codec in ("mxfp4", "bsfp"):
        outcome = run("quantize", typed, "--codec", codec, "--json")
        assert outcome.stderr.splitlines()[0] == f"No --output was given: the package is ./{name}-{codec}"
        assert outcome.json["package"] == f"{name}-{codec}"
        assert read_manifest(Path(f"{name}-{codec}")).options.codec == codec


def test_dry_run_says_what_workers_would_need(run: Any, source: Path, tmp_path: Path) -> None:
    arguments = ["quantize", source, "-o", tmp_path / "p", "--codec", "bsfp", "--threads", "2", "--dry-run", "--json"]
    usual = run(*arguments)
    assert usual.json["num_workers"] == 2
    assert "2 workers would each need" in usual.stderr
    need = run(*arguments, "--memory", 1)
    assert need.exit_code == 1
    least = int(re.search(r"--memory 1: at least ([\d,]+) bytes are required", need.stderr)[1].replace(",", ""))  # type: ignore[index]
    bounded = run(*arguments, "--memory", least)
    assert bounded.json["worker_bytes"] == least < usual.json["worker_bytes"]
    assert list(tmp_path.iterdir()) == []
