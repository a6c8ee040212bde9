"""Installing mxconv where no compiler is, by a real pip."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama

from mxconv import __version__

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "mxconv")


@dataclass(frozen=True)
class Build:
    exit_code: int
    output: str
    folder: Path

    @property
    def wheel(self) -> Path:
        (wheel,) = self.folder.glob("wheels/*.whl")
        return wheel


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """`pip wheel` of a copy of the sources, with compilers that fail."""
    folder = tmp_path_factory.mktemp("build")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    failing = shutil.which("false")
    assert failing is not None
    command = [sys.executable, "-m", "pip", "wheel", "-v", ".", "--no-deps", "--no-build-isolation", "-w", "wheels"]
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "CC": failing, "CXX": failing, "PATH": scripts}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return Build(result.returncode, result.stdout + result.stderr, folder)


@pytest.fixture(scope="module")
def installed(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, to stand before everything else on the import path."""
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(build.wheel) as file:
        file.extractall(target)
    return target


def test_the_version_is_the_same_wherever_it_stands() -> None:
    texts = {
        name: (ROOT / name).read_text() for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "README.md")
    }
    assert f'\nversion = "{__version__}"\n' in texts["pyproject.toml"]
    assert f"\nversion: {__version__}\n" in texts["CITATION.cff"]
    heading = re.search(r"^## (\S+) - (\S+)$", texts["CHANGELOG.md"], re.MULTILINE)
    assert heading is not None and heading[1] == __version__
    assert f"\ndate-released: {heading[2]}\n" in texts["CITATION.cff"]
    assert f"version {__version__.rpartition('.')[0]}\n" in texts["README.md"]


def test_without_a_compiler_the_build_makes_a_pure_python_wheel_and_says_so_in_one_line(build: Build) -> None:
    assert build.exit_code == 0, build.output[-3000:]
    assert build.wheel.name.endswith("-py3-none-any.whl")
    line = next(line for line in build.output.splitlines() if "built without native kernels" in line)
    assert "NumPy" in line and "Install a C++17 compiler" in line


def test_the_wheel_holds_the_python_package_and_no_sources_of_the_kernels(installed: Path) -> None:
    files = {path.relative_to(installed).as_posix() for path in installed.rglob("*") if path.is_file()}
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "mxconv").rglob("*")
        if path.suffix in (".py", ".pyi", ".j2", ".html", ".js", ".css", ".toml", ".jsonl", ".typed")
    }
    assert {file for file in files if file.startswith("mxconv/")} == expected
    assert "mxconv/py.typed" in files
    assert all(file.startswith(("mxconv/", "mxconv-")) for file in files)


def test_without_native_kernels_a_model_is_quantized_and_decoded(installed: Path, tmp_path: Path) -> None:
    source, package = write_tiny_llama(tmp_path / "source"), tmp_path / "package"
    quantized = run(installed, "mxconv.cli.main", "quantize", source, "-o", package, "--codec", "bsfp")
    assert quantized.returncode == 0, quantized.stderr
    arguments = ("generate", package, "--prompt", "Once", "--max-new-tokens", 8, "--check")
    decoded = run(installed, "mxconv.cli.main", *arguments, MXCONV_KERNEL="numpy")
    assert decoded.returncode == 0, decoded.stderr
    assert "1 of 1 texts identical" in decoded.stdout


def test_a_users_program_is_checked_against_the_types(installed: Path, tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api", reason="mypy comes with the extra `lint`")
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    shutil.copytree(installed / "mxconv", site / "mxconv")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import mxconv\n"
        "with mxconv.load('package') as model:\n"
        "    reveal_type(model.generate('Once', max_new_tokens=8).text)\n"
        "    model.generate(max_new_tokens='many')\n"
    )
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\nstrict = true\ncache_dir = {tmp_path / 'cache'}\n"
        "follow_imports = skip\n"  # of other packages, which take a minute
        "[mypy-mxconv.*]\nfollow_imports = silent\n"
    )
    options = ["--python-executable", str(environment / "bin" / "python"), "--config-file", str(tmp_path / "mypy.ini")]
    output, errors, exit_code = api.run([*options, str(program)])
    assert (errors, exit_code) == ("", 1)
    assert f'{program}:3: note: Revealed type is "str"' in output
    assert f'{program}:4: error: Argument "max_new_tokens"' in output
    assert "import-untyped" not in output


def run(installed: Path, module: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m module` with the installed package alone: -S keeps an editable mxconv of this environment out."""
    paths = [str(installed), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    probe = "import mxconv; print(mxconv.__file__)"
    found = subprocess.run(
        [sys.executable, "-S", "-c", probe], cwd=installed, env=environment, capture_output=True, text=True
    )
    assert found.stdout.startswith(str(installed)), found.stdout + found.stderr
    command = [sys.executable, "-S", "-m", module, *map(str, arguments)]
    return subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, timeout=300)
