"""Exit codes, messages, signals and pipes: what every command has in common."""

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mxconv
from mxconv.kernels.engine import kernel_names, usable_processors
from mxconv.system.processor import cpu_name

COMMANDS = ("quantize", "inspect", "verify", "generate")
HEAVY = (  # not pydantic: some versions of typer look for it themselves when a command has options
    "numpy", "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "matplotlib", "ml_dtypes",
    "gguf", "rich.console", "rich.table", "rich.progress", "rich.markdown", "mxconv.convert", "mxconv.checkpoint",
    "ray", "fsspec",
)  # fmt: skip
MAIN = "from mxconv.cli.main import main\ntry:\n    main()\nexcept SystemExit as end:\n    assert not end.code"
LIGHT: dict[str, tuple[str, str, tuple[str, ...]]] = {  # a program, its arguments, and what it need not import
    "help": (MAIN, "generate --help", HEAVY),
    "cost": (MAIN, "cost --config S/config.json --hardware speq-28nm",
             ("numpy", "matplotlib", "jinja2", "mxconv.package.manifest")),
    "inspect": (MAIN, "inspect S --tensor *norm*", ("torch", "transformers", "matplotlib", "jinja2")),
    "a checkpoint": ("from mxconv.checkpoint.source import open_checkpoint\nopen_checkpoint(sys.argv[1]).close()", "S",
                     ("torch", "transformers", "huggingface_hub")),
    "workers": ("import mxconv.cli.main, mxconv.cluster, mxconv.convert", "", ("ray",)),
}  # fmt: skip


@pytest.mark.parametrize("what", LIGHT)
def test_what_takes_time_is_imported_only_where_it_is_needed(what: str, source: Path) -> None:
    program, arguments, heavy = LIGHT[what]
    program = f"import sys\n{program}\nprint('imported:', *[name for name in {heavy!r} if name in sys.modules])"
    command = [sys.executable, "-c", program, *arguments.replace("S", str(source)).split()]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines()[-1] == "imported:"


def test_help_says_what_the_program_is_for_and_names_every_command(run: Any) -> None:
    outcome = run("--help")
    assert outcome.exit_code == 0
    assert "Turn any 16-bit LLM checkpoint into its own draft" in " ".join(outcome.stdout.split())
    for command in COMMANDS:
        assert f"\n  {command} " in outcome.stdout


@pytest.mark.parametrize("arguments", [[], ["bench"], ["train"]])
def test_no_summary_in_a_list_of_commands_is_cut_off(run: Any, arguments: list[str]) -> None:
    short, long = (run(*arguments, flag).stdout for flag in ("-h", "--help"))
    summaries = long.partition("Commands:")[2]
    assert summaries and "..." not in summaries and short == long


def test_mxconv_debug_adds_the_traceback_to_the_message(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("verify", "./nowhere")
    monkeypatch.setenv("MXCONV_DEBUG", "1")
    debugged = run("verify", "./nowhere")
    assert (plain.exit_code, debugged.exit_code) == (1, 1)
    assert debugged.stderr.startswith("Traceback (most recent call last):")
    assert "mxconv.errors.PackageError" in debugged.stderr
    assert debugged.stderr.endswith(plain.stderr)


def wait_until_loaded(process: "subprocess.Popen[str]", package: Path) -> None:
    """Until the process has mapped the package's files."""
    maps = Path(f"/proc/{process.pid}/maps")
    if not maps.exists():
        process.kill()
        pytest.skip("mappings are listed in /proc, which this system lacks")
    deadline = time.monotonic() + 30
    while f"{package}/" not in maps.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)


def test_ctrl_c_ends_with_a_word_and_130(process: Callable[..., Any], package: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "many.jsonl"
    prompts.write_text('{"prompt": "Once upon a time"}\n' * 5000)
    running = process("verify", package, "--decode", prompts)
    wait_until_loaded(running, package)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=30)
    assert running.returncode == 130
    assert stdout == ""
    assert stderr == "mxconv: interrupted\n"


def test_a_reader_that_goes_away_causes_no_traceback(process: Callable[..., Any], package: Path) -> None:
    running = process("generate", package, "--prompt", "Once", "--max-new-tokens", 2)
    running.stdout.close()  # as `| head -1` does, only sooner
    stderr = running.stderr.read()
    running.stderr.close()
    assert running.wait(timeout=30) == 1
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_that_cannot_be_written_is_an_error(package: Path) -> None:
    command = [sys.executable, "-m", "mxconv.cli.main", "generate", str(package), "--prompt", "a", "--json"]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        finished = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("mxconv: output: No space left on device; ")
    assert "Traceback" not in finished.stderr


def test_text_that_the_terminal_cannot_show_is_replaced(package: Path) -> None:
    command = [sys.executable, "-m", "mxconv.cli.main", "generate", str(package), "--prompt", "é", "--max-new-tokens"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    finished = subprocess.run([*command, "2"], capture_output=True, env=environment, check=False)
    assert finished.returncode == 0
    assert finished.stdout.startswith(b"?")


def test_version_names_version_kernel_processor_threads_and_system(run: Any) -> None:
    outcome = run("--version")
    assert outcome.exit_code == 0
    version, kernel, processor, system = outcome.stdout.splitlines()
    best, *others = kernel_names()
    assert version == f"mxconv {mxconv.__version__}"
    assert kernel.split()[:2] == ["kernel", best]
    assert all(name in kernel for name in others)
    threads = f"{usable_processors()} thread" + ("s" if usable_processors() > 1 else "")
    assert processor == f"processor  {cpu_name()}, {threads}"
    assert system == f"system     {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def test_an_unknown_kernel_is_an_error_after_the_version(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXCONV_KERNEL", "sse9")
    outcome = run("--version")
    assert outcome.exit_code == 1
    assert outcome.stdout == f"mxconv {mxconv.__version__}\n"
    assert outcome.stderr.startswith("mxconv: MXCONV_KERNEL: 'sse9'; on this processor one of ")
