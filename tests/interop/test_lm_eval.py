"""lm-evaluation-harness on a task that is made here: mxconv's results are those of transformers in the same harness."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packages import quantize

pytest.importorskip("lm_eval", reason="pip install '.[evaluate]': 600 MB, which make test does without")

PYLIB = Path(__file__).parents[2] / "examples" / "models" / "pylib-1.5m"
LINES = [
    {"text": "import", "choices": [" os", " and", " )"], "answer": 0},
    {"text": "for i in ", "choices": ["range(10):", "def", "return"], "answer": 0},
    {"text": "def f(self", "choices": ["):", " import", "class"], "answer": 0},
]
KINDS = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}{{choices[0]}} {{choices[1]}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
    "continued": {
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{choices[0]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tasks, as JSON, which is YAML."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    files = {"data_files": {"test": str(folder / "lines.jsonl")}}
    common = {"dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
    for name, members in KINDS.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name} | common | members))
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("harness") / "package"
    quantize(PYLIB, path)
    return path


def responses(tasks: Path, output: Path, model: str, arguments: str) -> dict[str, list[Any]]:
    """What the harness's own command got from a model, by task, in the order of the lines."""
    words = ["--model", model, "--model_args", arguments, "--tasks", ",".join(KINDS), "--include_path", str(tasks)]
    words += ["--output_path", str(output), "--log_samples", "--device", "cpu"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tasks / "home"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mxconv.interop.lm_eval", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {}
    for name in KINDS:
        (path,) = output.rglob(f"samples_{name}_*.jsonl")
        samples = sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])
        found[name] = [response[0] for sample in samples for response in sample["resps"]]
    return found


def scores(found: list[Any]) -> list[float]:
    """Log-probabilities, which the harness writes as text, some beside whether they are the greedy choice."""
    return [float(response if isinstance(response, str) else response[0]) for response in found]


def test_the_target_scores_and_writes_as_in_transformers(tasks: Path, package: Path, tmp_path: Path) -> None:
    ours = responses(tasks, tmp_path / "ours", "mxconv", f"package={package},kernel=numpy")
    theirs = responses(tasks, tmp_path / "theirs", "hf", f"pretrained={PYLIB},dtype=float32")
    assert ours["continued"] == theirs["continued"]
    assert (len(ours["choices"]), len(ours["rolling"])) == (9, 3)
    for name in ("choices", "rolling"):
        assert scores(ours[name]) == pytest.approx(scores(theirs[name]), abs=1e-3)
    assert [found[1] for found in ours["choices"]] == [found[1] for found in theirs["choices"]]


def test_a_level_is_another_model_near_its_target(tasks: Path, package: Path, tmp_path: Path) -> None:
    target = responses(tasks, tmp_path / "target", "mxconv", f"package={package}")
    draft = responses(tasks, tmp_path / "draft", "mxconv", f"package={package},level=mxfp4")
    assert scores(draft["rolling"]) != scores(target["rolling"])
    assert scores(draft["rolling"]) == pytest.approx(scores(target["rolling"]), rel=0.1)
