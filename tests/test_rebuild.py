"""Recipes: what they build is the package, byte for byte, wherever the source lies; anything else is refused."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_sharded, write_tiny_llama
from ngram_tables import write_table
from packages import (
    files_of,
    flip,
    forge,
    header_of,
    patch_array,
    quantize,
    sealed_text,
    with_compact_source,
)
from trained_levels import TRAINED, write_mixture

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.errors import MxconvError, PackageError
from mxconv.kernels.engine import kernel_names
from mxconv.rebuild import build, check_rebuild, write_recipe
from mxconv.verify import verify, write_certificate

TEXT = Path(__file__).parents[1] / "mxconv" / "convert.py"


def _fp8(folder: Path) -> Path:
    return pytest.importorskip("fp8_models", reason="torch and transformers make it").write_fp8_model(folder)


def _stacked(folder: Path) -> Path:
    models = pytest.importorskip("stacked_models", reason="torch and transformers make it")
    path: Path = models.write_random_model(folder, "granitemoe")
    return path


SOURCES: dict[str, Callable[[Path], Path]] = {
    "shards": lambda folder: write_tiny_llama(folder, num_shards=3),
    "FP16": lambda folder: write_tiny_llama(folder, dtype="F16"),
    "F32": lambda folder: write_tiny_llama(folder, dtype="F32"),
    "trained": lambda folder: TRAINED,
    "experts": write_mixture,
    "stacked experts": _stacked,
    "FP8": _fp8,
}
CALIBRATED: dict[str, Any] = {"calibrate": (str(TEXT),), "calibration_tokens": 512}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "MXFP4": ("shards", {"codec": "mxfp4", "scale_rule": "mse", "skip": ("*down_proj*",)}),
    "MXFP4, small files": ("shards", {"codec": "mxfp4", "max_shard_bytes": 9000, "lm_head": "keep"}),
    "MXFP4, a target elsewhere": ("shards", {"codec": "mxfp4", "target": "reference"}),
    "MXFP4, rounded": ("F32", {"codec": "mxfp4", "dtype": "bf16", "max_shard_bytes": 30_000}),
    "MXFP4, calibrated": ("trained", {"codec": "mxfp4", **CALIBRATED}),
    "MXFP4, experts": ("experts", {"codec": "mxfp4"}),
    "MXFP4, FP8": ("FP8", {"codec": "mxfp4"}),
    "BSFP": ("shards", {"codec": "bsfp", "max_shard_bytes": 60_000}),
    "BSFP, FP16": ("FP16", {"codec": "bsfp", "segments": "paper"}),
    "BSFP, calibrated": ("trained", {"codec": "bsfp", **CALIBRATED}),
    "BSFP, stacked experts": ("stacked experts", {"codec": "bsfp"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


@pytest.fixture(scope="module")
def made(folder: Path) -> Callable[[str], Path]:
    """The package of a case, its recipe beside it."""

    def make(name: str) -> Path:
        source, options = CASES[name]
        package = folder / name / "package"
        if not package.exists():
            path = folder / source
            path = path if path.exists() else SOURCES[source](path)
            quantize(path, package, **options)
            write_recipe(package, package.with_name("recipe.json"))
        return package

    return make


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_builds_the_package_on_every_kernel(
    made: Callable[[str], Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = made(name)
    recipe = package.with_name("recipe.json")
    assert recipe.stat().st_size < 15_000 and package.with_name("recipe.files").exists() == (
        "calib" in name or "voc" in name
    )
    for number, kernel in enumerate(kernel_names()):
        monkeypatch.setenv("MXCONV_KERNEL", kernel)
        build(recipe, tmp_path / kernel, num_threads=1 + number % 2)
        assert files_of(tmp_path / kernel) == files_of(package)
    check_rebuild(package)
    write_recipe(tmp_path / "numpy", tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == recipe.read_bytes()


def test_drafts_lie_beside_the_recipe(made: Callable[[str], Path], folder: Path, tmp_path: Path) -> None:
    made("BSFP")
    table = write_table(tmp_path / "table", sha256_file(folder / "shards" / "tokenizer.json"))
    small = write_tiny_llama(tmp_path / "small", num_hidden_layers=1)
    drafts = (f"checkpoint:{small}", "streaming", f"ngram:{table}")
    quantize(folder / "shards", tmp_path / "package", codec="bsfp", drafts=drafts)
    recipe = write_recipe(tmp_path / "package", tmp_path / "recipe.json")
    names = {record.path for record in recipe.further}
    assert {"drafts/1-small/model.safetensors", "drafts/3-table/table"} <= names
    assert build(tmp_path / "recipe.json", tmp_path / "built").levels == recipe.package.levels
    assert files_of(tmp_path / "built") == files_of(tmp_path / "package")
    flip(tmp_path / "recipe.files" / "drafts/1-small/model.safetensors", 9000)
    with pytest.raises(PackageError, match=r"1-small/model.safetensors: its SHA-256 is not the one in .*recipe\.json"):
        build(tmp_path / "recipe.json", tmp_path / "other")


def test_a_certificate_is_part_of_what_is_built(made: Callable[[str], Path], tmp_path: Path) -> None:
    build(made("BSFP").with_name("recipe.json"), tmp_path / "certified")
    write_certificate(tmp_path / "certified", verify(tmp_path / "certified"))
    write_recipe(tmp_path / "certified", tmp_path / "recipe.json")
    manifest = build(tmp_path / "recipe.json", tmp_path / "built")
    assert manifest.certificate is not None and files_of(tmp_path / "built") == files_of(tmp_path / "certified")


def test_a_recipe_with_a_compact_source_is_built_from_its_source(made: Callable[[str], Path], tmp_path: Path) -> None:
    package, recipe = made("BSFP, calibrated"), tmp_path / "recipe.json"
    write_recipe(package, recipe)
    recipe.write_text(sealed_text(with_compact_source(json.loads(recipe.read_bytes()))))
    message = r"recipe\.json: 'mxconv 0\.1\.0' wrote it with the source in compact files.* --source SOURCE -o FOLDER\."
    with pytest.raises(PackageError, match=message):
        build(recipe, tmp_path / "built")
    assert not (tmp_path / "built").exists()
    build(recipe, tmp_path / "built", str(TRAINED))
    assert files_of(tmp_path / "built") == files_of(package)


@pytest.mark.parametrize("name", ["MXFP4", "BSFP"])
def test_another_source_is_refused_and_nothing_is_left(
    made: Callable[[str], Path], folder: Path, tmp_path: Path, name: str
) -> None:
    package, source = made(name), tmp_path / "source"
    write_tiny_llama(source, num_shards=3)
    shard = "model-00002-of-00003.safetensors"
    tensor = next(name for name in header_of(source / shard)[0] if name.endswith("proj.weight"))
    patch_array(source / shard, tensor, 6, b"\x11")
    recipe = package.with_name("recipe.json")
    with pytest.raises(PackageError) as caught:
        build(recipe, tmp_path / "built", str(source))
    message = str(caught.value)
    assert message.startswith(f"source {folder / 'shards'}: {shard} has SHA-256 {sha256_file(source / shard)}; of its")
    assert f"of its tensors {tensor} is the first that differs; the recipe's" in message
    with pytest.raises(PackageError, match=f"{shard}|mxfp4|bsfp"):
        check_rebuild(package, str(source))
    (source / shard).write_bytes((source / shard).read_bytes() + b"\0")
    with pytest.raises(MxconvError, match=shard):
        build(recipe, tmp_path / "built", str(source))
    write_sharded(source, {"model.norm.weight": np.zeros((4, 4), np.float16)}, 1)
    with pytest.raises(PackageError, match=r"model-00001-of-00003.safetensors is missing; the recipe was made of a so"):
        build(recipe, tmp_path / "built", str(source / "model-00001-of-00001.safetensors"))
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_a_changed_recipe_is_refused(made: Callable[[str], Path], tmp_path: Path) -> None:
    original = made("MXFP4").with_name("recipe.json").read_bytes()

    def refused(change: Callable[[dict[str, Any]], Any], *, seal: bool = True) -> str:
        members = json.loads(original)
        change(members)
        (tmp_path / "recipe.json").write_text(sealed_text(members) if seal else json.dumps(members, indent=1))
        with pytest.raises(PackageError) as caught:
            build(tmp_path / "recipe.json", tmp_path / "built")
        assert {path.name for path in tmp_path.iterdir()} == {"recipe.json"}
        return str(caught.value)

    options = {"scale_rule": "ceil"}
    assert "its SHA-256 is not the recorded" in refused(lambda m: m["package"]["options"].update(options), seal=False)
    message = refused(lambda m: m["package"]["options"].update(options))
    assert (
        message.startswith("package: mxfp4.safetensors has SHA-256") and ".weight is the first that differs" in message
    )
    assert "format 'mxconv-recipe', version 2; this program reads" in refused(lambda m: m.update(format_version=2))
    assert "package.format_version" in refused(lambda m: m["package"].update(format_version=2))
    assert "max_shard_bytes" in refused(lambda m: m.update(max_shard_bytes=0))
    assert "package: mxfp4" in refused(lambda m: m.update(max_shard_bytes=9000))
    assert "checks" in refused(lambda m: m.update(checks="123"))
    assert "SHA-256" in refused(lambda m: m["package"]["files"][0].update(sha256="0" * 63 + "1"))
    assert "mxconv.json: bits_per_weight is not that" in refused(lambda m: m["package"].update(bits_per_weight=1.0))
    message = refused(lambda m: m["package"].update(manifest_sha256="0" * 63 + "1"))
    assert message.startswith("mxconv.json: tensors is not that of the recipe.")
    assert "../x" in refused(lambda m: m.update(further=[{"path": "../x", "num_bytes": 1, "sha256": "0" * 64}]))
    assert "no such file or folder" in refused(lambda m: m["package"]["source"].update(id="/nowhere"))


def test_a_package_that_its_source_does_not_give_is_refused(
    made: Callable[[str], Path], folder: Path, tmp_path: Path
) -> None:
    """Its own hashes are right: whoever made it chose other codes, or other records."""
    build(made("BSFP").with_name("recipe.json"), tmp_path / "p")
    name = "model.layers.0.mlp.down_proj.weight.scales"
    shard = next(path for path in sorted((tmp_path / "p").glob("bsfp-*-of-*")) if name in header_of(path)[0])
    patch_array(shard, name, 4, b"\x01")
    forge(tmp_path / "p")
    with pytest.raises(PackageError, match=f"{shard.name}: array {name} differs; the package is not what its source g"):
        check_rebuild(tmp_path / "p")
    build(made("MXFP4").with_name("recipe.json"), tmp_path / "q")
    forge(tmp_path / "q", lambda members: members.update(bits_per_weight=1.5))
    with pytest.raises(PackageError, match=r"mxconv\.json: bits_per_weight is not that of the recipe"):
        check_rebuild(tmp_path / "q")
    build(made("MXFP4").with_name("recipe.json"), tmp_path / "r")
    (tmp_path / "r" / "config.json").write_text((tmp_path / "r" / "config.json").read_text() + " ")
    forge(tmp_path / "r")
    with pytest.raises(PackageError, match=r"config\.json: its content differs; the package is not what its source"):
        check_rebuild(tmp_path / "r")


def test_nothing_is_overwritten(made: Callable[[str], Path], tmp_path: Path) -> None:
    package = made("MXFP4, calibrated")
    recipe = package.with_name("recipe.json")
    for path, message in (
        (recipe, "recipe.json: exists; nothing is overwritten"),
        (tmp_path / "recipe", "ends in ''; a name that ends in .json is required"),
        (tmp_path / "no" / "recipe.json", "its folder .*no does not exist"),
    ):
        with pytest.raises(MxconvError, match=message):
            write_recipe(package, path)
    build(recipe, tmp_path / "p")
    with pytest.raises(PackageError, match="p: exists; nothing is overwritten"):
        build(recipe, tmp_path / "p")
    (tmp_path / "q.files").mkdir()
    with pytest.raises(PackageError, match=r"q\.files: exists; the recipe's further files go there"):
        write_recipe(package, tmp_path / "q.json")
    (tmp_path / "q.files").rmdir()
    flip(tmp_path / "p" / "mxfp4.safetensors", 9000)
    with pytest.raises(PackageError, match=r"mxfp4.safetensors: its SHA-256 is not the one in the manifest; a whole p"):
        write_recipe(tmp_path / "p", tmp_path / "q.json")
    assert {path.name for path in tmp_path.iterdir()} == {"p"}


def test_a_killed_build_leaves_no_package(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {f"w{n:02}.weight": rng.standard_normal((512, 512)).astype(np.float16) for n in range(40)}
    source = write_sharded(tmp_path / "source", tensors, 2)
    quantize(source, tmp_path / "package", codec="bsfp", segments="paper")
    write_recipe(tmp_path / "package", tmp_path / "recipe.json")
    command = [sys.executable, "-m", "mxconv.cli.main", "build", str(tmp_path / "recipe.json"), "-o"]
    for number, seconds in enumerate((0.0, 0.1, 0.3)):
        target = tmp_path / f"built-{number}"
        process = subprocess.Popen([*command, str(target)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        journal = target.with_name(target.name + ".partial") / ".mxconv-journal"
        while process.poll() is None and not journal.exists():
            time.sleep(0.001)
        time.sleep(seconds)
        process.kill()
        assert process.wait() in (0, -signal.SIGKILL)
        assert not target.exists() or files_of(target) == files_of(tmp_path / "package")
        subprocess.run([*command, str(target), "--force"], check=True, stdout=subprocess.DEVNULL)
        assert files_of(target) == files_of(tmp_path / "package")
