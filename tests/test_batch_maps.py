"""The maps over batch and context: every cell from times and acceptance that are there."""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import MxconvError
from mxconv.package.manifest import read_manifest

EXAMPLES = Path(__file__).parent.parent / "examples"
TARGET = EXAMPLES / "models" / "pylib-1.5m"
ACCEPTANCE = json.loads((EXAMPLES / "acceptance_by_position.json").read_text())
BATCHES, CONTEXTS = (1, 3), (8, 70)


def of_examples(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mxconv.kernels._native", reason="native kernels were not built")
    path = tmp_path_factory.mktemp("maps") / "package"
    with open_checkpoint(TARGET) as source:
        convert(source, path, QuantizeOptions(codec="bsfp"))
    return path


@pytest.fixture(scope="module")
def folder(package: Path) -> Path:
    """What a run leaves."""
    work = package.parent
    places = ["--batches", ",".join(map(str, BATCHES)), "--contexts", ",".join(map(str, CONTEXTS))]
    words = [EXAMPLES / "batch_maps.py", package, work / "out", *places, "--widths", "1,2,5,9", "--json"]
    done = subprocess.run([sys.executable, *map(str, words)], check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads((work / "out" / "batch_maps.json").read_text())
    assert json.loads(done.stdout.splitlines()[-1]) == found
    assert (work / "out" / "batch_maps.md").read_text().strip() in done.stdout
    return work / "out"


@pytest.fixture(scope="module")
def cells(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "batch_maps.json").read_text())["cells"]
    return found


def test_every_cell_and_every_pass_has_a_time(cells: list[dict[str, Any]]) -> None:
    assert sorted((cell["batch"], cell["context"]) for cell in cells) == sorted(product(BATCHES, CONTEXTS))
    for cell in cells:
        assert list(cell["verify_seconds"]) == ["1", "2", "5", "9"]
        assert min(cell["verify_seconds"].values()) > 0
        assert cell["verify_seconds"]["1"] == cell["plain_seconds"]
        assert cell["plain_tokens_per_second"] == pytest.approx(cell["batch"] / cell["plain_seconds"])
        assert [method["method"] for method in cell["methods"]] == [method["method"] for method in ACCEPTANCE]
        for method in cell["methods"]:
            chain = [each["draft_seconds"] for each in method["outcomes"] if each["candidates"] == 1]
            assert chain[0] > 0
            if "heads" not in method["method"]:  # whose plans are trees of several widths
                assert all(short < long for short, long in pairwise(chain))


def test_rates_come_from_these_times_and_the_acceptance_that_was_given(cells: list[dict[str, Any]]) -> None:
    accepted = {method["method"]: method.get("accepted", []) for method in ACCEPTANCE}
    for cell, place in product(cells, range(len(ACCEPTANCE))):
        method = cell["methods"][place]
        chains = accepted[method["method"]]
        for each in method["outcomes"][: len(chains)]:
            assert each["tokens_a_round"] == pytest.approx(1 + sum(chains[: each["num_passes"]]))
            assert each["rows"] == each["num_passes"]
        for each in method["outcomes"]:
            assert each["rows"] <= 8  # --widths has no wider pass
            seconds = each["draft_seconds"] + each["verify_seconds"]
            assert each["tokens_per_second"] == pytest.approx(cell["batch"] * each["tokens_a_round"] / seconds)
            assert each["over_plain"] == pytest.approx(each["tokens_per_second"] / cell["plain_tokens_per_second"])
            assert each["predicted_over_plain"] > 0


def test_the_best_plan_is_that_with_most_tokens_a_second(cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        for method in cell["methods"]:
            rates = [each["tokens_per_second"] for each in method["outcomes"]]
            assert method["best"] == rates.index(max(rates))
            predicted = [each["predicted_over_plain"] for each in method["outcomes"]]
            assert method["predicted_best"] == predicted.index(max(predicted))


def test_the_tables_name_the_best_k(folder: Path, cells: list[dict[str, Any]]) -> None:
    text = (folder / "batch_maps.md").read_text()
    for cell in cells:
        for method in cell["methods"]:
            best = method["outcomes"][method["best"]]
            choice = (
                f"{best['label']}: {best['over_plain']:.2f}"
                if best["over_plain"] > 1
                else f"none, {best['over_plain']:.2f}"
            )
            table = text.partition(f"\n{method['method']}: best k")[2].partition("\n\n")[2].partition("\n\n")[0]
            (row,) = (line for line in table.splitlines() if line.startswith(f"| {cell['batch']} |"))
            assert row.split("|")[2 + CONTEXTS.index(cell["context"])].strip().startswith(choice)


def test_both_maps_are_drawn(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow reads pictures")
    for name in ("batch_speeds.png", "batch_measured_over_predicted.png"):
        with image.open(folder / name) as picture:
            assert picture.size[0] > 1000
            assert picture.convert("RGB").getpixel((2, 2)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--kv-bytes", "100000"],
            r"KV caches: [\d,]+ bytes for 16 sequences of 4096 positions in fp32; at most 100,000",
        ),
        (["--spire-layers", "7", "--contexts", "8"], "--spire-layers: 7; 1 to 6, the target's, are required"),
        (["--widths", "1"], "--widths: 1 rows at most; room for a plan of --acceptance is required"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], message: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", ["batch_maps.py", str(package), str(tmp_path), *options])
    with pytest.raises(MxconvError, match=message):
        importlib.import_module("batch_maps").main()
    assert not list(tmp_path.iterdir())


def test_a_package_without_its_4_bit_level_is_refused(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    manifest = read_manifest(package)
    (tmp_path / "mxconv.json").write_bytes(manifest.model_copy(update={"levels": manifest.levels[:1]}).to_bytes())
    monkeypatch.setattr(sys, "argv", ["batch_maps.py", str(tmp_path), str(tmp_path / "out")])
    with pytest.raises(MxconvError, match="no 4-bit level; one is required"):
        importlib.import_module("batch_maps").main()


def test_positions_that_are_learned_do_not_go_on(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    with_positions = importlib.import_module("batch_texts").with_positions
    with LoadedPackage(package, ["target"], "numpy") as loaded:
        decoder = loaded.levels[0].decoder
        assert decoder is not None
        assert with_positions(decoder, 512) is decoder
        assert with_positions(decoder, 5000).config.max_position_embeddings == 5000
        assert decoder.config.max_position_embeddings == 512
        decoder.config = replace(decoder.config, positions="wpe.weight")
        with pytest.raises(MxconvError, match="target: 512 learned positions; 5000 are required"):
            with_positions(decoder, 5000)


def test_models_with_recurrent_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    texts = importlib.import_module("batch_texts").Texts
    decoder = SimpleNamespace(name="target", config=SimpleNamespace(state_sizes=(1, 2)))
    with pytest.raises(MxconvError, match="target: layers with recurrent states; a model that attends in all layers"):
        texts(decoder, 1, 8, 8, 1 << 20)


GOOD = {"method": "own", "draft": "self-draft-4", "source": "a run", "accepted": [0.9, 0.5]}
TREE = {"heads": 2, "candidates": 2, "rows": 3, "tokens_a_round": 1.5, "draft_rows": [1, 2]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accepted": [0.5, 0.9]}, "accepted[1]: 0.9; a mean of what stood up to there, from 0 to 0.5 is required"),
        ({"accepted": [1.2]}, "accepted[0]: 1.2; a mean of what stood up to there, from 0 to 1 is required"),
        ({"accepted": [float("nan")]}, "accepted[0]: nan;"),
        ({"accepted": []}, "method 0: neither accepted nor plans; at least one plan is required"),
        ({"accepted": 0.9}, "accepted: 0.9; a list of at most 63 means by position is required"),
        ({"draft": "eagle"}, "draft: eagle; one of self-draft-4, magicdec-16,"),
        ({"source": ""}, "source: ; where the figures come from is required"),
        ({"method": ""}, "method: ; a name is required"),
        ({"rate": 2}, "method 0: key 'rate'; only accepted, draft, method, plans, source is required"),
        ({"plans": [TREE]}, "plans: candidate trees of self-draft-4; a speculator is required"),
        ({"draft": "speculator", "plans": [{"heads": 2}]}, "plan 0: {'heads': 2}; an object of candidates, draft_rows"),
        ({"draft": "speculator", "plans": [TREE | {"heads": 0}]}, "heads: 0; an integer from 1 to 63 is required"),
        ({"draft": "speculator", "plans": [TREE | {"rows": 1}]}, "rows: 1; a mean from 2, a path, to 63 is required"),
        ({"draft": "speculator", "plans": [TREE | {"draft_rows": [1]}]}, "draft_rows: [1]; rows of each of 2 passes"),
        ({"draft": "speculator", "plans": [TREE | {"draft_rows": [1, 0]}]}, "draft_rows: [1, 0]; integers from 1"),
        (
            {"draft": "speculator", "plans": [TREE | {"tokens_a_round": 3.1}]},
            "tokens_a_round: 3.1; a mean from 1 to 3, all of a path and the target's own is required",
        ),
    ],
)
def test_acceptance_that_nobody_can_have_measured_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "acceptance.json"
    path.write_text(json.dumps([GOOD | changes]))
    with pytest.raises(MxconvError, match=rf"^{re.escape(str(path))}: .*{re.escape(message)}"):
        of_examples("batch_plans").read_methods(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "a JSON list of methods is required"),
        ("[]", "no list of methods; at least one is required"),
        ("[3]", "method 0: 3; an object is required"),
        (json.dumps([GOOD, GOOD]), "two methods of one name; a name each is required"),
    ],
)
def test_a_file_that_is_no_list_of_methods_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    path.write_text(text)
    with pytest.raises(MxconvError, match=re.escape(message)):
        of_examples("batch_plans").read_methods(path)
