"""Drafts that leave out parts of the target change nothing, and come to leave out what adds nothing."""

from pathlib import Path
from typing import Any

import pytest
from packages import quantize
from plug_ins import PAPERS, RECYCLING
from tiny_levels import (
    assert_lossless,
    by_hand,
    decoder_of,
    dense,
    look_up,
    norms,
    record,
    record_of,
    self_draft,
    speculate,
    target_level,
    tiny_config,
    tiny_values,
)

from mxconv.codecs.float16 import BF16
from mxconv.drafts.kinds import KINDS, parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling

SWIFT, EARLY_EXIT = f"{PAPERS / 'swift.py'}:SwiftKind", f"{PAPERS / 'swift.py'}:EarlyExitKind"
COUPLED = Selection(Sampling(0.9), "coupled", 3)
PROMPT = [3, 1, 4, 1, 5, 9, 2]
SIZES = {"num_layers": 6, "max_position_embeddings": 400}
PYLIB = Path(__file__).parents[2] / "examples" / "models" / "pylib-0.2m"  # three layers


def level_of(spec: str, target: LoadedLevel) -> tuple[LoadedLevel, Any]:
    """A level of a target, and its choice of parts."""
    found = parse_draft(spec)
    kind: Any = KINDS[found.kind]
    made = record_of(found, kind.name)
    choice = kind.choice(decoder_of(target), made)
    return LoadedLevel(made, None, reader=choice, kind=kind), choice


@pytest.mark.parametrize("spec", [SWIFT, EARLY_EXIT])
@pytest.mark.parametrize("selection", [GREEDY, COUPLED])
@pytest.mark.parametrize("tree", [6, "chain"])
def test_tokens_and_logits_are_the_targets_own(spec: str, selection: Selection, tree: int | str) -> None:
    target = target_level(**SIZES)
    for levels in ([target], [target, self_draft(**SIZES)]):
        draft, choice = level_of(spec, target)
        assert_lossless(Hierarchy([*levels, draft], [4], [0.0], tree), PROMPT, 40, (), selection)  # type: ignore[arg-type]
        assert any(known.weight > 2 for known in choice.known.values())
    found, _ = speculate(Hierarchy([*levels, draft, look_up(RECYCLING)], "auto"), PROMPT, 40, (), selection)
    assert found == by_hand(decoder_of(target), PROMPT, 40, (), selection)


@pytest.mark.parametrize(("codec", "kernel"), [("bsfp", "numpy"), ("mxfp4", None)])
def test_a_package_decodes_as_without_them(tmp_path: Path, codec: str, kernel: str | None) -> None:
    package = tmp_path / "package"
    quantize(PYLIB, package, codec=codec)
    for spec in (SWIFT, EARLY_EXIT):
        with LoadedPackage(package, ["target"], kernel=kernel, num_threads=2, drafts=[parse_draft(spec)]) as loaded:
            ids = loaded.tokenizer.encode("import os\n\ndef ")
            plain = Hierarchy(loaded.levels[:1]).generate(ids, 20, selection=COUPLED)
            drafted = Hierarchy(loaded.levels).generate(ids, 20, selection=COUPLED)
        assert drafted.token_ids == plain.token_ids
        assert drafted.trace.statistics[1].num_proposed > 0


@pytest.mark.parametrize(
    ("spec", "idle"),
    [
        (f"{SWIFT},skip=0.2,confidence=0", {("layer", 2)}),
        (f"{EARLY_EXIT},confidence=0", {("layer", 3), ("layer", 4), ("layer", 5)}),
    ],
)
def test_a_draft_comes_to_leave_out_what_the_target_does_without(spec: str, idle: set[tuple[str, int]]) -> None:
    config = tiny_config(**SIZES)
    values = tiny_values(config, 5)
    for part, layer in idle:
        for name in ["mlp.down_proj"] + ["self_attn.o_proj"] * (part == "layer"):
            values[f"model.layers.{layer}.{name}.weight"][:] = 0
    target = LoadedLevel(record("target"), Decoder(config, ModelWeights(dense(values, BF16), norms(config)), "target"))
    draft, choice = level_of(spec, target)
    hierarchy = Hierarchy([target, draft])
    for number in range(3):
        generation = hierarchy.generate([number, *PROMPT], 150, selection=Selection(Sampling(1.0), seed=1))
    assert choice.best == idle
    assert generation.trace.statistics[1].acceptance_rate == 1.0


def test_what_cannot_leave_anything_out_is_refused(tmp_path: Path) -> None:
    quantize(PYLIB, tmp_path / "package")
    with pytest.raises(ModelError, match=r"^swift: no part of target to leave out; one at least is required\."):
        LoadedPackage(tmp_path / "package", ["target"], drafts=[parse_draft(f"{SWIFT},skip=0.1")])
    specs = [parse_draft(f"checkpoint:{PYLIB}"), parse_draft(SWIFT)]
    with pytest.raises(ModelError, match=r"^level swift: below pylib-0\.2m, which has a cache of its own"):
        LoadedPackage(tmp_path / "package", ["target"], drafts=specs)
