"""The model card of a package, read back by the Hub client's own parser."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from packages import compare, forge, quantize

from mxconv.errors import MxconvError
from mxconv.interop.hub.card import MARKER, SourceCard, model_card, read_measurements, read_source_card
from mxconv.package.manifest import DecodeRecord, EvaluationRecord, QualityRecord, read_manifest, replace_manifest
from mxconv.verify import verify, write_certificate

APACHE = SourceCard(license="apache-2.0", language=["en"])


def card_of(package: Path, source: SourceCard = APACHE, **changes: Any) -> ModelCard:
    """The card, where the source is org/base at a commit unless something else is said."""

    def change(members: dict[str, Any]) -> None:
        members["source"] |= {"id": "org/base", "commit": "c0ffee"} | changes

    forge(package, change)
    return ModelCard(model_card(read_manifest(package), "me/tiny", source))


@pytest.fixture
def package(bsfp: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bsfp, tmp_path / "package"))


def test_the_metadata_is_what_the_hub_understands(package: Path) -> None:
    data = card_of(package).data
    assert data.to_dict() == {
        "base_model": "org/base",
        "base_model_relation": "quantized",
        "language": ["en"],
        "library_name": "mxconv",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["mxconv", "bsfp", "speculative-decoding"],
    }


def test_a_local_source_is_no_base_model_and_its_path_stays_private(package: Path) -> None:
    card = card_of(package, SourceCard(), id="/home/someone/models/secret-base", commit=None)
    assert "base_model" not in card.data.to_dict() and "license" not in card.data.to_dict()
    assert "`secret-base`, a local checkpoint" in card.text and "/home/someone" not in card.content
    assert "That of the base model.\n" in card.text


def test_bits_losslessness_and_levels_come_from_the_manifest(package: Path) -> None:
    card, manifest = card_of(package), read_manifest(package)
    assert f"- **Bits a weight:** {manifest.bits_per_weight:.2f} in the 15 quantized of 21 tensors\n" in card.text
    assert "`org/base` at commit `c0ffee`\n" in card.text and "segment table `fitted`, outliers `exact`" in card.text
    assert "Every 16-bit weight can be rebuilt from these files bit for bit." in card.text
    (file,) = [record for record in manifest.files if record.path == "bsfp.safetensors"]
    assert f"| `bsfp` | self-draft | bsfp | here, {file.num_bytes / 1000:.1f} kB | 8 | 0.6 |" in card.text
    assert "This package has no certificate yet." in card.text and card.content.rstrip().endswith(MARKER)


@pytest.mark.parametrize("level", ["target", "bsfp", None])
def test_the_certificate_is_shown_and_which_level_was_decoded(package: Path, level: str | None) -> None:
    decode = DecodeRecord(num_prompts=3, num_tokens=99, num_token_mismatches=0, num_logit_mismatches=0, target=level)
    write_certificate(package, replace(verify(package), decode=decode))
    text = card_of(package).text
    assert "`: 21 of 21 tensors bit-exact, rebuilt from the package and compared with the recorded hashes; 6 k" in text
    decoded = f"99 tokens of 3 prompts were decoded by the level `{level or 'target'}` with and without drafts:\n0 to"
    assert decoded in text
    assert ("The certificate does not cover decoding with the target, `target`." in text) == (level == "bsfp")


def test_the_card_of_a_draft_alone_claims_no_bit(source: Path, tmp_path: Path) -> None:
    quantize(source, package := tmp_path / "package", target="reference", scale_rule="ggml")
    write_certificate(package, compare(package, source))
    text = card_of(package).text
    assert "0 of 21 tensors bit-exact, rebuilt from the package and compared with the source; 6 kept as they ar" in text
    assert "MXFP4 (OCP E2M1, blocks of 32), scale rule `ggml`" in text
    assert "The 16-bit target is not in this repository; it is\nread from" in text


def test_the_evaluation_is_shown(package: Path) -> None:
    assert "How close" not in card_of(package).text
    members = {"perplexity": 8.0364, "perplexity_error": 0.20112, "mean_kl": 0.5, "mean_kl_error": None}
    members |= {"p99_kl": None, "agreement": 0.75, "agreement_error": 0.0125}
    record = EvaluationRecord(
        created_by="mxconv 0",
        sha256="ab" * 32,
        num_bytes=9,
        context=512,
        num_texts=32,
        num_tokens=8160,
        activations="int8",
        kernel="numpy",
        levels=[QualityRecord(name="target", **members), QualityRecord(name="b|sfp", **members)],
    )
    replace_manifest(package, read_manifest(package).model_copy(update={"evaluation": record}))
    text = card_of(package).text
    assert "8,160 tokens of 32 windows of 512 tokens (file with the SHA-256 `abababababababab...`), int8" in text
    assert "| `b?sfp` | 8.036 ± 0.201 | 0.5000 ± - | - | 0.750 ± 0.013 |" in text


DECODED: dict[str, Any] = {
    "machine": {"cpu": "A processor", "threads": 2},
    "results": [
        {"strategy": "greedy", "num_prompts": 4, "tokens_per_second": 20, "speedup": 1.0, "acceptance_rates": []}
        | {"identical_to_greedy": True},
        {"strategy": "bsfp", "num_prompts": 4, "tokens_per_second": 41.26, "speedup": 2.0634}
        | {"acceptance_rates": [0.8125, None], "identical_to_greedy": True},
    ],
}


def test_measurements_become_a_table(package: Path, tmp_path: Path) -> None:
    assert "## Measured" not in card_of(package).text
    path = tmp_path / "decode.json"
    for target, words in ((None, ""), ("bsfp", " of the level `bsfp`")):
        path.write_text(json.dumps(DECODED | {"target": target}))
        text = model_card(read_manifest(package), "me/tiny", APACHE, read_measurements(path))
        assert f"4 prompts, greedy decoding{words}, 2 threads of `A processor`. Every strategy" in text
    assert "| `greedy` | 20.0 | 1.00 |  |" in text and "| `bsfp` | 41.3 | 2.06 | 0.812, - |" in text


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([], r"decode\.json: no result of decoding \(results: List .*\); the object that `mxconv bench decode"),
        ([{"strategy": "greedy"}], r"decode\.json: no result of decoding \(results\.0\.num_prompts: Field required\)"),
        ([DECODED["results"][0] | {"speedup": float("inf")}], r"results\.0\.speedup: Input should be a finite number"),
        ([DECODED["results"][0] | {"identical_to_greedy": False}], r"json: a strategy whose tokens differ"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path: Path, results: list[Any], words: str) -> None:
    path = tmp_path / "decode.json"
    path.write_text(json.dumps({"results": results}))
    with pytest.raises(MxconvError, match=words):
        read_measurements(path)


def test_names_of_a_manifest_cannot_break_the_card(package: Path) -> None:
    def rename(members: dict[str, Any]) -> None:
        members["levels"][1]["name"] = "`|\n# <b>{{ 7 * 7 }}"

    forge(package, rename)
    lines = card_of(package, id="org/base; rm -rf").text.splitlines()
    assert any(line.startswith("| `???# <b>{{ 7 * 7 }}` |") for line in lines)
    assert not any("rm -rf" in line for line in lines if line.startswith("mxconv"))


def test_licence_and_language_carry_over_from_the_card_in_the_source_folder(
    bsfp: Path, source: Path, tmp_path: Path
) -> None:
    record = read_manifest(bsfp).source
    assert record.id == str(source)
    assert read_source_card(record) == SourceCard(license="apache-2.0", language=["en"])
    assert read_source_card(record.model_copy(update={"id": str(tmp_path / "gone")})) == SourceCard()
    (tmp_path / "README.md").write_text("---\nlicense: [a, list]\nlanguage: 3\n---\n")
    assert read_source_card(record.model_copy(update={"id": str(tmp_path)})) == SourceCard()
    (tmp_path / "README.md").write_text("---\n: : no yaml {\n---\n")
    assert read_source_card(record.model_copy(update={"id": str(tmp_path)})) == SourceCard()
