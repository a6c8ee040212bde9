"""The lines of docs/drafts.md and docs/training.md run as they are printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("drafts", "training")}
NUM_LINES = {"drafts": 14, "training": 10}
SAID = {"drafts": "0 token mismatches, 0 logit mismatches", "training": "trained in"}  # at least once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's reader is: beside a package, with the repository's examples."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "examples").symlink_to(ROOT / "examples")
    run(folder, "-m", "mxconv.cli.main", "quantize", "examples/models/pylib-1.5m", "-o", "package")
    return folder


def run(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], check=False, cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_pages_commands_work(page: str, folder: Path) -> None:
    lines = "".join(blocks(page, "sh")).splitlines()
    assert len(lines) == NUM_LINES[page]
    said = ""
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "mxconv"
        out = run(folder, "-m", "mxconv.cli.main", *words[1:])
        if "--check" in words:
            assert "1 of 1 texts identical to plain decoding" in out
        said += out
    assert SAID[page] in said


def test_the_pages_python_works(folder: Path) -> None:
    (code,) = blocks("drafts", "python")
    assert "rounds" not in run(folder, "-c", code).lower()


def test_the_page_names_every_kind_of_draft() -> None:
    from mxconv.checkpoint.draft_spec import OF_KIND

    for kind in OF_KIND:
        assert f"`{kind}" in PAGES["drafts"]
