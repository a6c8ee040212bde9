"""What every command refuses, a model where a package is required among it: words, exit code, nothing written."""

import shlex
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf

NUMBERS = "joined by commas, are required."
BENCH = "bench kernels --out-features 48 --in-features 160 --samples 20"
COST = "cost P --hardware h100-sxm"
REFUSED = [  # the command, with P for a package and S for its source; the exit code; what is said
    ("transmogrify", 2, "No such command 'transmogrify'"),
    ("verify", 2, "Missing argument"),
    ("verify p --nonsense", 2, "No such option: --nonsense"),
    ("generate p --max-new-tokens many --prompt a", 2, "--max-new-tokens"),
    ("generate p --max-new-tokens 0 --prompt a", 2, "--max-new-tokens"),
    ("quantize", 2, "Missing argument 'SOURCE'"),
    ("quantize ./nowhere -o p", 1, "nowhere"),
    ("verify nowhere", 1, "nowhere"),
    ("generate nowhere --prompt a", 1, "nowhere"),
    ("serve nowhere/p elsewhere/p", 2, "--model-name: 'p' twice; names that differ are required"),
    ("serve nowhere/p elsewhere/p --model-name a", 2, "--model-name: 1 for 2 packages; one each is required"),
    ("serve nowhere/p elsewhere/p --model-name a --model-name a", 2, "--model-name: 'a' twice"),
    ("serve nowhere/p elsewhere/p --model-name a --model-name ''", 2, "--model-name: an empty name"),
    ("generate P", 2, "give either --prompt or --prompts"),
    ("generate P --prompt a --prompts b", 2, "give either --prompt or --prompts"),
    ("generate P -p a --num-draft-tokens x", 2, f"--num-draft-tokens: 'x'; whole numbers from 1 to 64, {NUMBERS}"),
    ("generate P -p a --num-draft-tokens 4,65", 2, f"'4,65'; whole numbers from 1 to 64, {NUMBERS}"),
    ("generate P -p a --tree oak", 2, "--tree: 'oak'; auto, chain or a number from 1 to 63 is required."),
    ("generate P -p a --tree 64", 2, "--tree: '64'; auto, chain or a number from 1 to 63 is required."),
    ("generate P -p a --confidence 1.5", 2, f"--confidence: '1.5'; numbers from 0 to 1, {NUMBERS}"),
    ("generate P -p a --confidence nan", 2, f"--confidence: 'nan'; numbers from 0 to 1, {NUMBERS}"),
    ("generate P -p a --temperature 1 --accept block --check", 2, "under --accept block those differ"),
    ("generate P -p a --batch 2", 2, "--batch needs --prompts"),
    ("generate P -p a --kv-bytes 2", 2, "--kv-bytes needs --batch"),
    ("generate P -p a --levels target,bsfp", 1, "levels target, bsfp; at least one, out of target, mxfp4, small, is"),
    ("generate P -p a --levels absent", 1, "levels absent; at least one, out of target, mxfp4, small, is required."),
    ("generate P -p a --levels mxfp4,target", 1, "level target below mxfp4; a draft must be cheaper than what it"),
    ("generate P -p a --levels small,mxfp4", 1, "level mxfp4 drafts for small; the 4-bit copy drafts for the 16-bit"),
    ("generate P -p a --num-draft-tokens 1,2,3", 1, "3 numbers for 2 draft levels; one for all, or one each, is"),
    ("generate P -p ''", 1, "prompt: 0 tokens; at least one is required. Give a text."),
    (f"generate P -p {'a' * 129}", 1, "prompt: 129 tokens; the target has 128 positions (max_position_embeddings)."),
    ("generate P -p a --kernel mmx", 1, "--kernel: 'mmx'; on this processor one of "),
    ("generate P --prompts /nowhere/p.jsonl", 1, "/nowhere/p.jsonl: no such file; a readable file is"),
    ("generate P -p a --trace /nowhere/t.jsonl", 1, "/nowhere/t.jsonl: its folder /nowhere does not exist; it must."),
    ("generate P -p a --chat", 1, "there is no chat template; chat_template.jinja, or chat_template in"),
    ("chat P", 1, "there is no chat template"),
    ("serve P --kv-dtype fp8", 2, "'fp8' is not one of 'fp32', 'bf16', 'fp16'."),
    ("serve P --kv-bytes 5XB", 2, "'5XB'; a number of bytes such as 5GB or 512MiB is required."),
    ("quantize S -o p --codec int4", 2, "--codec: 'int4'; one of mxfp4, bsfp is required."),
    ("quantize S -o p --scale-rule max", 2, "--scale-rule: 'max'; one of ocp, even, ceil, ggml, mse is required."),
    ("quantize S -o p --codec bsfp --residual-bits many", 2, "--residual-bits: 'many'; auto or a number from 8 to 12"),
    ("quantize S -o p --codec bsfp --residual-bits ²", 2, "--residual-bits: '²'; auto or a number from 8 to 12"),
    ("quantize S -o p --codec bsfp --residual-bits 13", 2, "--residual-bits: 13; one of 8, 9, 10, 11, 12 is required."),
    ("quantize S -o p --threads 0", 2, "--threads: 0; at least 1 is required."),
    ("quantize S -o p --outliers rescale", 2, "--outliers: 'rescale' with --codec mxfp4; only bsfp has this option."),
    ("evaluate P", 2, "give either --texts or --prompts"),
    ("evaluate P --texts a --prompts b", 2, "give either --texts or --prompts"),
    ("evaluate P --texts a --chat", 2, "--chat needs --prompts"),
    ("evaluate P --texts a --plot a.png", 2, "--plot needs --by-layer"),
    ("evaluate P --texts a --context 4", 2, "Input should be greater than or equal to 8"),
    ("evaluate P --texts SHORT --context 100", 1, "a window of 100 is required. Give a longer file"),
    ("evaluate me/model --texts a --write", 1, "a package on the Hub; the evaluation is written into a local folder"),
    ("verify P --chat", 2, "--chat needs --decode"),
    ("verify P --decode a --system b", 2, "--system needs --chat"),
    ("bench decode P --system b", 2, "--system needs --chat"),
    ("bench decode P --batch 0", 2, f"--batch: '0'; whole numbers from 1 to 1024, {NUMBERS}"),
    ("bench decode P --batch 2 --ablation", 2, "no --ablation or --plot"),
    ("export P --to onnx -o x", 2, "'onnx' is not one of"),
    ("export P --to compressed-tensors -o x --level draft", 2, "compressed-tensors holds the 4-bit draft alone"),
    ("attest P", 2, "Missing option '--private-key'"),
    ("attest P --private-key K --certificate-chain C", 2, "needs --signing-certificate"),
    ("verify P --identity me", 2, "need --attestation"),
    ("verify P --attestation A", 2, "--public-key, or --certificate-chain and --identity, is required"),
    ("verify P --attestation A --public-key K --certificate-chain C", 2, "is required"),
    ("verify P --attestation A --certificate-chain C", 2, "--certificate-chain and --identity, is"),
    ("verify P --attestation A --public-key K --write", 2, "--write changes the manifest"),
    ("push P me/tiny --attestation A --drafts-only", 2, "--attestation with --drafts-only; it is about a whole"),
    (f"{BENCH} --kernel sse9", 1, "--kernel: 'sse9'"),
    (f"{BENCH} --kernel numpy", 1, "kernels numpy: no native kernels"),
    (f"{BENCH} --only q4", 2, "--only: 'q4'"),
    (f"{BENCH} --num-tokens 1,65", 2, "numbers from 1 to 64"),
    (f"{BENCH} --num-tokens 1,", 2, "numbers from 1 to 64"),
    (f"{BENCH} --samples 19", 2, "--samples"),
    (f"{BENCH} --plot a.pdf", 1, ".png or .svg is required"),
    ("bench kernels --device cuda --kernel avx2", 2, "--kernel with --device cuda; it is for the CPU: leave it out."),
    ("bench kernels --device cuda --threads 2", 2, "--threads with --device cuda"),
    ("bench kernels --device cuda:1 --roofline a.png", 2, "--roofline with --device cuda:1"),
    ("bench kernels --device gpu", 2, "--device: 'gpu'; cpu, cuda or cuda:N is required"),
    ("bench kernels --device cuda --num-tokens 65", 2, "numbers from 1 to 64"),
    ("cost --hardware h100-sxm", 2, "give either a package or --config"),
    ("cost P --config P --hardware h100-sxm", 2, "give either a package or --config"),
    (f"{COST} --acceptance 1.5", 1, "acceptance: 1.5; a probability from 0 to 1 is required"),
    (f"{COST} --acceptance most", 2, f"--acceptance: 'most'; numbers, {NUMBERS}"),
    (f"{COST} --acceptance 0.9,0.8,0.7", 2, "3 numbers for 2 draft levels; at most one each is required"),
    (f"{COST} --model accelerator", 1, "hardware h100-sxm: accelerator.num_tiles is missing; the keys num_tiles"),
    ("cost P --hardware abacus", 1, "hardware 'abacus': unknown"),
    (f"{COST} --plot a.pdf", 1, ".png or .svg is required"),
    ("inspect /nowhere --plot a.gif", 1, "a picture that ends in '.gif'; .png or .svg is required"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("command", "code", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_refusal_says_why_and_writes_nothing(
    run: Any, package: Path, source: Path, folder: Path, command: str, code: int, message: str
) -> None:
    if command.startswith("bench"):
        pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")
    named = {"P": package, "S": source, "SHORT": package / "generation_config.json"}
    words = [named.get(word, word) for word in shlex.split(command)]
    outcome = run(*words)
    assert (outcome.exit_code, outcome.stdout) == (code, ""), outcome.stderr
    assert message in " ".join(outcome.stderr.split()) and "Traceback" not in outcome.stderr
    assert outcome.stderr.startswith("mxconv: ") or code == 2
    assert list(folder.iterdir()) == []


WRITERS = [  # the command, whose last word names the file; whether --force is tried
    ("generate P -p a --max-new-tokens 1 --trace trace.jsonl", False),
    ("train ngram P/tokenizer.json --tokenizer P -o table.safetensors", True),
    (f"{COST} --model roofline --html page.html", True),
    (f"{COST} --figure roofline --plot a.svg", True),
    ("inspect S --tensor *k_proj* --plot a.png", True),
    ("inspect S --tensor *k_proj* --html page.html", True),
    ("evaluate P --texts P/tokenizer.json --tokens 64 --context 16 --by-layer --plot a.svg", True),
    ("export P --to gguf --level draft -o a.gguf", False),
    ("attest P --private-key K -o a.json", False),
]


@pytest.mark.parametrize(("command", "is_forced"), WRITERS, ids=lambda value: str(value)[:40])
def test_nothing_is_overwritten_without_force(
    run: Any, package: Path, source: Path, folder: Path, command: str, is_forced: bool
) -> None:
    words = [word.replace("P/", f"{package}/") for word in shlex.split(command)]
    arguments = [{"P": package, "S": source}.get(word, word) for word in words]
    path = folder / words[-1]
    path.write_text("mine")
    outcome = run(*arguments)
    assert outcome.exit_code == 1
    assert f"{path.name}: exists; nothing is overwritten. Choose another name" in outcome.stderr
    assert path.read_text() == "mine"
    if is_forced:
        outcome = run(*arguments, "--force")
        assert outcome.exit_code == 0, outcome.stderr
        assert path.read_bytes() != b"mine" and [each.name for each in folder.iterdir()] == [path.name]


COMMANDS = {
    "verify": ("verify", "MODEL"),
    "export": ("export", "MODEL", "--to", "gguf", "-o", "OUTPUT"),
    "push": ("push", "MODEL", "me/tiny"),
    "bench decode": ("bench", "decode", "MODEL"),
    "cost": ("cost", "MODEL"),
    "evaluate": ("evaluate", "MODEL", "--texts", "TEXT"),
    "recipe": ("recipe", "MODEL", "-o", "RECIPE"),
    "attest": ("attest", "MODEL", "--private-key", "TEXT"),
    "a draft": ("generate", "PACKAGE", "--prompt", "a", "--draft", "package:MODEL"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["a folder", "a file", "a GGUF file", "a folder with a GGUF file"])
def test_a_model_is_no_package(run: Any, source: Path, package: Path, tmp_path: Path, command: str, kind: str) -> None:
    model = {
        "a folder": source,
        "a file": source / "model.safetensors",
        "a GGUF file": tmp_path / "made" / "a.gguf",
        "a folder with a GGUF file": tmp_path / "made",
    }[kind]
    (tmp_path / "made").mkdir()
    write_gguf(tmp_path / "made" / "a.gguf")
    (tmp_path / "text").write_text("Once")
    named = {
        "OUTPUT": tmp_path / "output",
        "RECIPE": tmp_path / "r.json",
        "TEXT": tmp_path / "text",
        "PACKAGE": package,
        "MODEL": model,
    }
    arguments = [named.get(word, word.replace("MODEL", str(model))) for word in COMMANDS[command]]
    outcome = run(*arguments)
    assert outcome.exit_code == 1
    assert (
        f"{model}: a model, and no package, since it holds no mxconv.json; a package is required. Convert it first: "
        f"mxconv quantize {model}\n"
    ) in outcome.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"made", "text"}


def test_a_package_is_no_model(run: Any, package: Path, tmp_path: Path) -> None:
    for arguments in (
        ("quantize", package, "-o", tmp_path / "p"),
        ("quantize", package, "-o", tmp_path / "p", "--dry-run"),
        ("verify", package, "--source", package),
        ("generate", package, "--prompt", "a", "--draft", f"checkpoint:{package}"),
    ):
        outcome = run(*arguments)
        assert outcome.exit_code == 1
        assert (
            f"{package}: holds mxconv.json, so it is a package that mxconv wrote; a model's own weights are required. "
            "Give the model that it was converted from, or write those first: mxconv export PACKAGE --to safetensors\n"
        ) in outcome.stderr
    assert not (tmp_path / "p").exists()
