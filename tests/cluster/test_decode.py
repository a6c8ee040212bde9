"""`verify --decode` on a cluster: the counts of one process, and one kernel in a claim."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packages import quantize
from trained_levels import PROMPTS, write_noisy

from mxconv.cluster.executor import RayExecutor
from mxconv.drafts.kinds import parse_draft
from mxconv.errors import MxconvError
from mxconv.kernels.engine import choose_kernel
from mxconv.package.manifest import DecodeRecord
from mxconv.speculation.selection import Selection
from mxconv.system.processor import cpu_name
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import DecodeSettings, decode_by, joined, verify_decoding
from mxconv.workers import Workers

TEXTS = [f"{prompt} {number}" for number in range(4) for prompt in PROMPTS]
CHAT = [{"role": "system", "content": "import"}, {"role": "user", "content": "os"}]
ASKED = [*TEXTS, CHAT]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decode")
    source = write_noisy(folder / "source")
    (source / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}")
    quantize(source, folder / "package")
    return folder / "package"


@pytest.mark.parametrize("batch", [None, 3])
def test_pieces_are_one_claim(make: Callable[[], RayExecutor], package: Path, batch: int | None) -> None:
    selection = Selection(Sampling(0.8), seed=5)
    drafts = [parse_draft("prompt-lookup")]
    settings = DecodeSettings(
        package, ["target", "mxfp4"], drafts, max_new_tokens=6, selection=selection, batch=batch, num_threads=1
    )
    loaded, hierarchy = settings.open()
    with loaded:
        whole = verify_decoding(loaded, hierarchy, ASKED, 6, selection, batch=batch)
    told: list[tuple[str, int, int]] = []
    for executor in (make(), Workers(2)):
        told.clear()
        assert decode_by(executor, settings, ASKED, lambda *each: told.append(each)) == whole
        assert told[-1] == ("decode", len(ASKED), len(ASKED))
    assert (whole.num_prompts, whole.num_token_mismatches, whole.num_logit_mismatches) == (len(ASKED), 0, 0)
    assert whole.num_chat_prompts == 1
    assert (whole.kernel, whole.processors) == (choose_kernel(), [cpu_name()])


def answer(*words: object) -> dict[str, Any]:
    """What the command line says in JSON."""
    command = [sys.executable, "-m", "mxconv.cli.main", *map(str, words), "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_command_splits_prompts_over_workers(package: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    with prompts.open("a") as file:
        file.write(json.dumps({"messages": CHAT}) + "\n")
    command = ("verify", package, "--decode", prompts, "--max-new-tokens", 4)
    split = answer(*command, "--workers", "ray", "--threads", 2)  # a cluster of its own
    assert split["ok"] and split == answer(*command)
    assert (split["decode"]["num_prompts"], split["decode"]["num_chat_prompts"]) == (len(ASKED), 1)


def test_a_prompt_that_cannot_be_decoded_is_an_error_of_the_command(
    make: Callable[[], RayExecutor], package: Path
) -> None:
    settings = DecodeSettings(package, ["target", "mxfp4"], num_threads=1)
    with pytest.raises(MxconvError, match="positions"):
        decode_by(make(), settings, ["word " * 10_000])
    with pytest.raises(MxconvError, match="kernel"):
        decode_by(make(), DecodeSettings(package, ["target"], kernel="abacus", num_threads=1), TEXTS[:1])


def test_two_kernels_are_not_one_claim() -> None:
    def record(kernel: str, processor: str) -> DecodeRecord:
        return DecodeRecord(
            num_prompts=2, num_tokens=9, num_token_mismatches=1, num_logit_mismatches=3, kernel=kernel,
            processors=[processor],
        )  # fmt: skip

    one = joined([record("avx2", "B"), record("avx2", "A"), record("avx2", "B")])
    assert (one.num_prompts, one.num_tokens, one.num_token_mismatches, one.num_logit_mismatches) == (6, 27, 3, 9)
    assert (one.kernel, one.processors) == ("avx2", ["A", "B"])
    with pytest.raises(MxconvError, match="avx2 on B; avx512vnni on A; bits are promised for a kernel"):
        joined([record("avx512vnni", "A"), record("avx2", "B")])
