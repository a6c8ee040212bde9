"""The real command line, in this process or in one of its own, and tiny packages to run it on."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

from mxconv.cli.main import main


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """The last line of stdout."""
        parsed: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return parsed


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("quantize", ...)` as the shell would, without the time a new process takes."""
    monkeypatch.delenv("MXCONV_DEBUG", raising=False)
    monkeypatch.delenv("MXCONV_KERNEL", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run_main(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["mxconv", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main()
        captured = capsys.readouterr()
        code = exit_info.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), captured.out, captured.err)

    return run_main


def start(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """A process of its own."""
    command = [sys.executable, "-m", "mxconv.cli.main", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture(scope="session")
def process() -> Callable[..., "subprocess.Popen[str]"]:
    return start


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("cli") / "source", num_hidden_layers=1)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("cli") / "small", seed=1, num_hidden_layers=1)


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory, source: Path, small: Path) -> Path:
    """target <- mxfp4 <- small; tests only read it."""
    path = tmp_path_factory.mktemp("cli") / "package"
    quantize(source, path, drafts=(f"checkpoint:{small}",))
    return path


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("Once upon", "A dog", "[bold] 1 [/]")))
    return path
