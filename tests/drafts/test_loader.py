"""From packages to decoders: files that lack, kernels and threads, and what is unmapped."""

import json
from itertools import cycle
from pathlib import Path

import pytest
from checkpoints import TINY_LLAMA, write_tiny_llama
from loaded_packages import pack, three_levels

from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.errors import CheckpointError, ModelError
from mxconv.kernels.engine import kernel_names, native_names

MISSING = {
    "config.json": (CheckpointError, "config.json: no such file"),
    "tokenizer.json": (ModelError, "tokenizer.json: there is no such file; a fast tokenizer is required"),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_package_without_the_files_of_a_model_cannot_be_run(tmp_path: Path, name: str) -> None:
    source = write_tiny_llama(tmp_path / "source")
    (source / name).unlink()
    error, message = MISSING[name]
    with pytest.raises(error, match=message):
        LoadedPackage(pack(source, tmp_path / "package"))


def test_a_config_that_does_not_fit_the_weights_is_refused(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    (source / "config.json").write_text(json.dumps(TINY_LLAMA | {"intermediate_size": 176}))
    with pytest.raises(
        ModelError, match=r"tensor model.layers.0.mlp.gate_proj.weight has shape \[172, 64\]; \[176, 64\]"
    ):
        pack(source, tmp_path / "package")


def test_kernels_are_chosen_by_name_or_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = three_levels(tmp_path)
    names = ", ".join(kernel_names())
    with LoadedPackage(package, kernel="numpy") as loaded:
        assert [type(level.decoder) for level in loaded.levels] == [Decoder] * 3
    message = f"^--kernel: 'mmx'; on this processor one of {names} is required. Leave it out for the best.$"
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, kernel="mmx")
    monkeypatch.setenv("MXCONV_KERNEL", "cuda")
    with pytest.raises(ModelError, match=r"^MXCONV_KERNEL: 'cuda'; on this processor one of"):
        LoadedPackage(package)
    LoadedPackage(package, kernel="numpy").close()
    monkeypatch.setenv("MXCONV_KERNEL", "")
    with LoadedPackage(package) as loaded:
        assert engine_names(loaded) == [kernel_names()[0]] * 3


@pytest.mark.parametrize(("name", "num_threads"), [*zip(native_names(), cycle((1, 3)))])
def test_every_level_runs_on_the_kernels_and_threads_asked_for(tmp_path: Path, name: str, num_threads: int) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(tmp_path / "small", seed=1, num_hidden_layers=1)
    nested = pack(write_tiny_llama(tmp_path / "nested", seed=2, num_hidden_layers=1), tmp_path / "nested-package")
    package = pack(source, tmp_path / "package", drafts=(f"checkpoint:{small}", f"package:{nested}"))
    with LoadedPackage(package, kernel=name, num_threads=num_threads) as loaded:
        assert engine_names(loaded) == [name] * 4
        assert {level.decoder.engine.num_threads for level in loaded.levels} == {num_threads}


def test_an_impossible_number_of_threads_is_refused(tmp_path: Path) -> None:
    for num_threads in (0, -1, 1025):
        message = f"^--threads: {num_threads}; 1 to 1024 is required. Leave it out for all processors.$"
        with pytest.raises(ModelError, match=message):
            LoadedPackage(tmp_path, num_threads=num_threads)


def engine_names(loaded: LoadedPackage) -> list[str]:
    decoders = [level.decoder for level in loaded.levels]
    return [decoder.engine.name if hasattr(decoder, "engine") else "numpy" for decoder in decoders]


def test_closing_unmaps_the_files_and_a_refused_package_stays_mapped_nowhere(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    with LoadedPackage(package):
        assert mapped_files(package)
    assert not mapped_files(package)
    with pytest.raises(ModelError):
        LoadedPackage(package, ["target", "nonsense"])
    assert not mapped_files(package)


def mapped_files(package: Path) -> set[str]:
    """Files of a package that this process has mapped (Linux)."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("mappings are listed in /proc, which this system lacks")
    return {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if f"{package}/" in line}
