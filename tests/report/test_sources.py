import json
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.preparation import prepare
from mxconv.errors import MxconvError, PackageError
from mxconv.package.manifest import (
    DraftWeightsRecord,
    EvaluationRecord,
    QualityRecord,
    read_manifest,
    replace_manifest,
)
from mxconv.report.inspection import Inspection
from mxconv.report.sources import open_weights

Inspect = Callable[..., Inspection]
Convert = Callable[..., Path]
OF_A_PACKAGE = ("codec", "stored_bits_per_weight", "stored_draft_sqnr_db")


def figures(inspection: Inspection) -> list[dict[str, object]]:
    found = [tensor.to_json() for tensor in (*inspection.tensors, *inspection.groups, inspection.total)]
    return [{key: value for key, value in row.items() if key not in OF_A_PACKAGE} for row in found]


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "bsfp"},
        {"codec": "bsfp", "segments": "paper"},
        {"codec": "mxfp4"},
        {"codec": "mxfp4", "target": "reference"},
    ],
    ids=str,
)
def test_a_package_gives_the_numbers_of_its_source(
    options: dict[str, str], tiny_llama: Path, inspect_path: Inspect, package: Convert
) -> None:
    converted = inspect_path(package(tiny_llama, **options))
    assert figures(converted) == figures(inspect_path(tiny_llama))
    assert converted.kind == "package"


def test_a_package_says_how_well_it_drafts_or_how_to_measure_it(
    tiny_llama: Path, inspect_path: Inspect, package: Convert, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(package(tiny_llama, codec="bsfp"), tmp_path / "p"))
    cast = inspect_path(folder).notes[0]
    assert "is a direct cast" in cast and "`mxconv evaluate PACKAGE --texts FILE --write` measures" in cast
    assert cast.endswith("`mxconv quantize --calibrate` makes it agree more often.")
    manifest = read_manifest(folder)
    given = DraftWeightsRecord(sha256="0" * 64, description={}, tensors=["w"])
    assert "codes that texts chose" in manifest.model_copy(update={"draft_weights": given}).draft_quality
    names = [field for field in QualityRecord.model_fields if field != "name"]
    levels = [QualityRecord(name=name, **dict.fromkeys(names, 0.801)) for name in ("target", "bsfp")]
    what = {"sha256": "0" * 64, "num_bytes": 9, "context": 8, "num_texts": 1, "num_tokens": 8160}
    found = EvaluationRecord(created_by="t", activations="int8", kernel="numpy", levels=levels, **what)
    replace_manifest(folder, manifest.model_copy(update={"evaluation": found}))
    with open_weights(str(folder)) as weights:
        assert weights.notes[0] == "Share of 8,160 tokens at which drafts agree with the target: bsfp 0.801."


def test_what_a_package_stores_is_measured_from_its_bytes(
    tiny_llama: Path, inspect_path: Inspect, package: Convert
) -> None:
    fitted = inspect_path(package(tiny_llama, codec="bsfp")).total
    assert fitted.stored_draft_sqnr_db == pytest.approx(fitted.bsfp_draft_sqnr_db, abs=1e-12)
    assert fitted.stored is not None and fitted.drafts is not None
    assert fitted.stored.bits_per_weight == fitted.drafts.bsfp_bits_per_weight
    paper = inspect_path(package(tiny_llama, codec="bsfp", segments="paper")).total
    assert paper.stored_draft_sqnr_db == pytest.approx(paper.bsfp_paper_draft_sqnr_db, abs=1e-12)
    ocp = inspect_path(package(tiny_llama, lm_head="quantize")).total
    assert ocp.stored_draft_sqnr_db == pytest.approx(ocp.mxfp4_sqnr_db, abs=1e-12)
    (head,) = inspect_path(package(tiny_llama), tensor_glob="lm_head.weight").tensors
    assert head.stored_draft_sqnr_db is not None and head.mxfp4_sqnr_db is not None
    assert head.stored_draft_sqnr_db > head.mxfp4_sqnr_db + 20  # four more bits, of 6.02 dB each, less saturation
    mse = inspect_path(package(tiny_llama, scale_rule="mse", lm_head="quantize")).total
    assert mse.stored_draft_sqnr_db is not None and mse.mxfp4_sqnr_db is not None
    assert mse.stored_draft_sqnr_db > mse.mxfp4_sqnr_db


def test_a_checkpoint_is_judged_as_quantize_would(tiny_llama: Path, inspect_path: Inspect) -> None:
    with open_checkpoint(tiny_llama) as checkpoint:
        preparation = prepare(checkpoint, QuantizeOptions(codec="bsfp"))
    found = inspect_path(tiny_llama)
    assert {tensor.name: tensor.reason for tensor in found.tensors} == {
        survey.plan.name: survey.plan.reason for survey in preparation.surveys
    }
    assert found.total.num_quantized == len(preparation.quantized)
    assert found.total.drafts is not None
    assert found.total.drafts.bsfp_bits_per_weight == preparation.bits_per_weight


def test_a_rescaled_package_says_that_it_is_not_the_source(
    tmp_path: Path, inspect_path: Inspect, package: Convert
) -> None:
    weights = (np.random.default_rng(1).standard_normal((32, 128)) * 0.3).astype(ml_dtypes.bfloat16)
    weights[3, 4] = 2.40625
    source = write_safetensors(tmp_path / "model.safetensors", {"w": weights})
    found = inspect_path(package(source, codec="bsfp", segments="paper", outliers="rescale"))
    assert found.notes[1:] == (
        "some tensors were rescaled: what is counted is the package's reconstruction, not the source.",
    )
    assert found.tensors[0].note is not None
    assert found.tensors[0].note.startswith("rescaled by 0.8")
    assert found.tensors[0].stored_draft_sqnr_db == pytest.approx(found.total.bsfp_paper_draft_sqnr_db, abs=3)


def test_f32_is_counted_as_rounded_with_dtype(tmp_path: Path, inspect_path: Inspect) -> None:
    single = write_tiny_llama(tmp_path / "f32", dtype="F32", num_hidden_layers=1)
    uncounted = inspect_path(single)
    assert uncounted.total.exponents is None and uncounted.total.drafts is None
    assert uncounted.notes == (
        "12 of 12 tensors are F32 and not counted; quantize needs --dtype bf16 or fp16 for them, and so does inspect.",
    )
    rounded = inspect_path(single, dtype="bf16")
    expected = inspect_path(write_tiny_llama(tmp_path / "bf16", num_hidden_layers=1))
    assert rounded.notes == ()
    assert {tensor.note for tensor in rounded.tensors} == {"rounded from F32"}
    assert rounded.total.to_json() == expected.total.to_json()


def rename_head(source: Path) -> None:
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b"lm_head.weight", b"lm_hand.weight"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, r"llama: no such file or folder; .*package references its weights there\. Restore it"),
        (
            lambda source: write_tiny_llama(source, vocab_size=80, num_hidden_layers=1),
            r"bytes; .*package was converted from a file of 116,800\. Restore the",
        ),
        (rename_head, r"tensor lm_head\.weight is missing; .* was converted from BF16 \[96, 64\]"),
    ],
    ids=["gone", "another length", "another tensor"],
)
def test_a_referenced_source_must_be_what_it_was(
    change: Callable[[Path], object],
    message: str,
    tiny_llama: Path,
    tmp_path: Path,
    inspect_path: Inspect,
    package: Convert,
) -> None:
    own = Path(shutil.copytree(tiny_llama, tmp_path / "llama"))
    converted = package(own, target="reference")
    change(own)
    with pytest.raises(PackageError, match=message):
        inspect_path(converted)


def test_options_of_checkpoints_do_not_go_with_packages(tiny_llama: Path, package: Convert) -> None:
    converted = str(package(tiny_llama))
    with (
        pytest.raises(
            MxconvError, match=r"package: revision 'main' was given for a local path; only Hub repositories have"
        ),
        open_weights(converted, revision="main"),
    ):
        pass
    with (
        pytest.raises(MxconvError, match=r"--dtype bf16 with a package; only a checkpoint takes it\. Leave it out"),
        open_weights(converted, dtype="bf16"),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {},
            "eagle3 (speculators format), for llama: 1 layers of width 32; it knows 24 of the target's 96 tokens",
        ),
        (
            {"speculators_model_type": "eagle", "draft_vocab_size": None},
            "knows all of the target's 96 tokens",
        ),
        ({"transformer_layer_config": 3, "speculators_config": []}, "for an unnamed model: ? layers of width ?"),
    ],
)
def test_a_draft_head_is_listed_as_what_it_is(
    changes: dict[str, object], expected: str, tmp_path: Path, inspect_path: Inspect
) -> None:
    config = {
        "draft_vocab_size": 24,
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "llama"}},
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 96},
    }
    write_safetensors(tmp_path / "model.safetensors", {"fc.weight": np.ones((32, 96), ml_dtypes.bfloat16)})
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    assert expected in inspect_path(tmp_path).notes[0]
