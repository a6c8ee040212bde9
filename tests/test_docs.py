"""The lines of seven pages of docs/ run as printed; CONTRIBUTING.md and SECURITY.md name what exists."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import TRAINING, environment, run_forked

ROOT = Path(__file__).parent.parent
SAID = {  # of each page, at least once
    "quantize": "tokens that were held out",
    "generate": "0 token mismatches, 0 logit mismatches",
    "drafts": "0 token mismatches, 0 logit mismatches",
    "training": "trained in",
    "publish": "signed by release@example.org",
    "verify": "the draft's codes of",
    "evaluate": "wrote parts.svg",
}
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in SAID}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the page's reader is: beside a package, with the repository's examples."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "repeat.py").write_text(blocks("drafts", "python")[0])
    (folder / "examples").symlink_to(ROOT / "examples")
    run(folder, "quantize", "examples/models/pylib-1.5m", "-o", "package")
    return folder


def run(folder: Path, *words: str) -> str:
    done = run_forked(words, environment(), folder, TRAINING)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_other(folder: Path, *words: str) -> None:
    """A command that another program has, as the page's reader has it on the path."""
    assert words[0] in ("openssl", "model_signing")
    command = [sys.executable, "-m", *words] if words[0] == "model_signing" else words
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_pages_commands_work(page: str, folder: Path) -> None:
    lines = "".join(blocks(page, "sh")).splitlines()
    assert lines
    said = ""
    for line in lines:
        words = shlex.split(line)
        if words[0] != "mxconv":
            run_other(folder, *words)
            continue
        out = run(folder, *words[1:])
        if "--check" in words:
            assert "1 of 1 texts identical to plain decoding" in out
        said += out
    assert SAID[page] in said


@pytest.mark.slow
def test_the_pages_python_works(folder: Path) -> None:
    for code in blocks("generate", "python"):
        (folder / "page.py").write_text(code)
        run(folder, "page.py")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_files_and_targets_that_a_page_names_exist(page: str) -> None:
    named = re.findall(r"`([^`\n]+)`", (ROOT / page).read_text())
    words = [word for text in named for word in text.split()]
    paths = [
        word for word in words if re.match(r"(\.ci|\.github|mxconv|tests|formats|docs|examples)/|[A-Z]+\.md$", word)
    ]
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert paths and missing == []
    targets = {text.split()[1] for text in named if text.startswith("make ")}
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets)


def test_options_that_the_pages_name_exist() -> None:
    words = ("generate",), ("serve",), ("push",), ("pull",), (), ("bench", "kernels")
    known = "".join(run(ROOT, *command, "--help") for command in words)
    for page in ("CONTRIBUTING.md", "SECURITY.md"):
        for option in re.findall(r"`[^`\n]*?(--[a-z-]+)", (ROOT / page).read_text()):
            assert option in known, option


def test_the_page_names_every_kind_of_draft() -> None:
    from mxconv.drafts.kinds import WORDS

    for word in WORDS:
        assert f"`{word}" in PAGES["drafts"]


DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "formats").glob("*.md")]


def anchors(page: Path) -> set[str]:
    """Names of a page's headings in links, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("folder", ["docs", "formats"])
def test_the_index_lists_every_page(folder: str) -> None:
    index = ROOT / folder / "README.md"
    pages = {str(page.relative_to(index.parent)) for page in index.parent.rglob("*.md")} - {"README.md"}
    assert pages == {page for page in pages if f"({page})" in index.read_text()}


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_its_links_lead_to_its_files(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="`make docs` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    page = (tmp_path / "drafts.html").read_text()
    links = {link for link in re.findall(r'href="([^"#]+)', page) if "://" not in link}
    assert {"examples/papers/swift.py", "formats/spire.html", "glossary.html"} <= links
    assert [link for link in links if not (tmp_path / link).is_file()] == []


def test_the_index_says_how_many_minutes_a_page_takes() -> None:
    index = ROOT / "docs" / "README.md"
    rows = re.findall(r"\| \[[^]]*\]\(([^)#]+)\) \| (\d+) \|", index.read_text())
    assert len(rows) >= 17
    for page, minutes in rows:
        words = len((index.parent / page).read_text().split())
        assert abs(words / 230 - int(minutes)) < 1.5, f"{page}: {words} words"
