"""The weights of a package's own model: which matrix is exact, which is 4-bit, where they are read, and their bytes."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import llama_tensors, write_safetensors, write_tiny_llama
from loaded_packages import PROJECTION, kind, logits, pack, source_logits
from packages import header_of, quantize
from plug_ins import RECYCLING
from stacked_models import write_random_model

from mxconv.cost.counts import multiplied_weights
from mxconv.cost.levels import Workload, level_count
from mxconv.cost.package_levels import package_levels
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.pass_cost import checkpoint_bytes, head_bytes, package_bytes
from mxconv.engine.stored_weights import EMBEDDING, HEAD
from mxconv.errors import PackageError
from mxconv.kernels.draft_matrix import EightBitMatrix, FourBitFloatMatrix, FourBitMatrix
from mxconv.kernels.matrix import BsfpMatrix, DenseMatrix
from mxconv.package.package import Package
from mxconv.report.sources import open_weights


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes (once) a package of a tiny Llama; its source lies beside it."""

    @cache
    def make(codec: str = "mxfp4", dtype: str = "BF16", tied: bool = False, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp("packed")
        source = write_tiny_llama(folder / "source", dtype=dtype, tie_word_embeddings=tied)
        if (codec, dtype) == ("bsfp", "F16"):
            options["residual_bits"] = 10  # fitting one width takes a third of the time
        return pack(source, folder / "package", codec=codec, **options)

    return make


@pytest.mark.parametrize(
    ("codec", "dtype", "tied", "lm_head", "kernel"),
    [
        ("mxfp4", "BF16", False, "quantize", "numpy"),
        ("mxfp4", "BF16", True, "keep", None),
        ("mxfp4", "F16", False, "quantize", None),
        ("bsfp", "BF16", False, "keep", None),
        ("bsfp", "BF16", True, "quantize", "numpy"),
        ("bsfp", "F16", False, "quantize", None),
    ],
)
def test_the_target_is_the_source_bit_for_bit_and_the_draft_is_near(
    packed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, codec: str, dtype: str, tied: bool, lm_head: str,
    kernel: str | None,
) -> None:  # fmt: skip
    package = packed(codec, dtype, tied, lm_head=lm_head)
    if kernel is not None:
        monkeypatch.setenv("MXCONV_KERNEL", kernel)
    expected = source_logits(package.parent / "source")
    with LoadedPackage(package) as loaded:
        target, draft = loaded.levels
        assert [target.name, draft.name] == ["target", codec]
        assert (target.shares_cache, draft.shares_cache) == (False, True)
        assert logits(target.decoder).tobytes() == expected.tobytes()
        found = logits(draft.decoder)
        assert not (found == expected).all()
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(
    ("codec", "lm_head", "tied", "embedding", "head"),
    [
        ("mxfp4", None, True, DenseMatrix, EightBitMatrix),
        ("mxfp4", "quantize", True, DenseMatrix, FourBitMatrix),
        ("bsfp", "quantize", True, BsfpMatrix, FourBitMatrix),
        ("bsfp", "exact", True, BsfpMatrix, BsfpMatrix),
        ("bsfp", "exact", False, DenseMatrix, BsfpMatrix),
        ("bsfp", "keep", True, DenseMatrix, DenseMatrix),
        ("bsfp", "keep", False, DenseMatrix, DenseMatrix),
    ],
)
def test_the_embedding_stays_exact_and_the_head_has_the_bits_that_were_chosen(
    packed: Callable[..., Path], codec: str, lm_head: str | None, tied: bool, embedding: type, head: type
) -> None:
    """A head that is kept or read as a whole is the target's own; a tied one may have fewer bits than the embedding."""
    package = packed(codec, tied=tied, lm_head=lm_head)
    tensors = safetensors.numpy.load_file(package.parent / "source/model.safetensors")
    embedded, stored = (tensors[name].astype(np.float32) for name in (EMBEDDING, EMBEDDING if tied else HEAD))
    with LoadedPackage(package) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        assert (kind(target.embedding), kind(draft.head)) == (embedding, head)
        assert (target.head is target.embedding) == tied
        assert draft.embedding is target.embedding
        assert (draft.embedding.rows(np.arange(96)) == embedded).all()
        is_exact = lm_head in ("exact", "keep")
        assert (draft.head is target.head) == is_exact
        assert (draft.head.rows(np.arange(96)) == stored).all() == is_exact
        assert kind(draft.layers[0].mlp.gate.matrix) is FourBitMatrix
    if lm_head == "exact":
        with LoadedPackage(package, ["bsfp"]) as loaded:
            alone = loaded.levels[0].decoder
            assert kind(alone.head) is BsfpMatrix
            assert (alone.head.rows(np.arange(96)) == stored).all()


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_activations_decide_how_4_bit_matrices_multiply_and_nothing_else(
    packed: Callable[..., Path], codec: str
) -> None:
    package = packed(codec, lm_head=None)
    with LoadedPackage(package) as loaded, LoadedPackage(package, activations="fp32") as other:
        target, draft = (level.decoder for level in other.levels)
        assert kind(draft.layers[0].mlp.gate.matrix) is FourBitFloatMatrix
        # MXINT8 values are BF16 numbers, and multiplied as such
        assert kind(draft.head) is {"mxfp4": DenseMatrix, "bsfp": FourBitFloatMatrix}[codec]
        assert kind(target.head) is kind(loaded.levels[0].decoder.head)
        assert logits(target).tobytes() == logits(loaded.levels[0].decoder).tobytes()
        found, expected = logits(draft), logits(loaded.levels[1].decoder)
        assert not (found == expected).all()
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.99


def test_skipped_tensors_are_the_targets_own_in_the_draft(packed: Callable[..., Path]) -> None:
    package = packed("bsfp", skip=("*.layers.0.*", "lm_head.weight"))
    with LoadedPackage(package) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        for projection in ("query", "key", "value", "output", "gate", "up", "down"):
            of_target, of_draft = (_projection(decoder.layers[0], projection).matrix for decoder in (target, draft))
            assert of_draft is of_target
            assert kind(of_draft) is DenseMatrix
            assert kind(_projection(draft.layers[1], projection).matrix) is FourBitMatrix
        assert draft.head is target.head


def test_the_paper_table_drafts_in_float32(packed: Callable[..., Path]) -> None:
    package = packed("bsfp", segments="paper")
    with LoadedPackage(package) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        assert kind(draft.layers[1].mlp.down.matrix) is FourBitFloatMatrix
        assert logits(target).tobytes() == source_logits(package.parent / "source").tobytes()


def test_a_rescaled_tensor_is_the_target_that_the_package_can_rebuild(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    tensors = llama_tensors()
    tensors[PROJECTION][5, 6] = 7.0
    write_safetensors(source / "model.safetensors", tensors)
    with LoadedPackage(pack(source, tmp_path / "package", codec="bsfp", outliers="rescale")) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        (record,) = (record for record in loaded.package.manifest.tensors if record.name == PROJECTION)
        stored = loaded.package.bsfp(record)
        assert stored.rescale_factor != 1.0
        tensors[PROJECTION] = stored.target_rows(0, stored.shape[0]).view(ml_dtypes.bfloat16)
        write_safetensors(source / "model.safetensors", tensors)
        assert logits(target).tobytes() == source_logits(source).tobytes()
        assert kind(draft.layers[0].mlp.gate.matrix) is FourBitMatrix


def test_a_checkpoint_with_tensors_at_odd_addresses_loads_as_it_is(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    expected = source_logits(source)
    file = source / "model.safetensors"
    header, begin = header_of(file)
    header = {name: entry for name, entry in header.items() if name != "__metadata__"}
    content = file.read_bytes()[begin:]
    for entry in header.values():
        entry["data_offsets"] = [offset + 1 for offset in entry["data_offsets"]]
    header["pad"] = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" + content)
    assert source_logits(source).tobytes() == expected.tobytes()


def test_a_referenced_target_is_read_from_the_source(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source", num_shards=3)
    package = pack(source, tmp_path / "package", target="reference")
    assert not list(package.glob("model*.safetensors"))
    with LoadedPackage(package) as loaded:
        assert loaded.levels[0].record.location == "source"
        assert logits(loaded.levels[0].decoder).tobytes() == source_logits(source).tobytes()


def test_norms_in_f32_beside_16_bit_matrices_are_taken_as_they_are(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    tensors = llama_tensors()
    norm = np.linspace(0.5, 1.5, 64, dtype=np.float32) + np.float32(1e-5)
    tensors["model.norm.weight"] = norm
    tensors["steps"] = np.arange(3)  # no weight of this model
    write_safetensors(source / "model.safetensors", tensors)
    with LoadedPackage(pack(source, tmp_path / "package")) as loaded:
        assert all((level.decoder.norm.weight == norm).all() for level in loaded.levels)


def test_a_matrix_of_infinities_that_was_kept_flows_through_target_and_draft(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    tensors = llama_tensors()
    tensors[PROJECTION][3, 4] = np.inf
    write_safetensors(source / "model.safetensors", tensors)
    with LoadedPackage(pack(source, tmp_path / "package", codec="bsfp", on_nonfinite="keep")) as loaded:
        for level in loaded.levels:
            assert kind(level.decoder.layers[0].mlp.gate.matrix) is DenseMatrix
            assert not np.isfinite(logits(level.decoder)).all()


def test_a_referenced_source_that_is_gone_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path / "models/tiny")
    monkeypatch.chdir(tmp_path)
    package = pack(Path("models/tiny"), tmp_path / "package", target="reference")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    LoadedPackage(package).close()  # found from anywhere
    (tmp_path / "models").rename(tmp_path / "moved")
    message = (
        "^/.*models/tiny: no such file or folder; .*package references its weights there. Restore it, "
        "or convert again with --target include.$"
    )
    with pytest.raises(PackageError, match=message):
        LoadedPackage(package)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            {"num_hidden_layers": 3},
            "/model.safetensors: .* bytes; .*package was converted from a file of {:,}. Restore",
        ),
        ({"num_shards": 2}, "/model-00001-of-00002.safetensors: .* bytes; .*was converted from other files. Restore"),
    ],
)
def test_a_referenced_source_that_changed_is_refused(tmp_path: Path, written: dict[str, int], message: str) -> None:
    source = write_tiny_llama(tmp_path / "source")
    package = pack(source, tmp_path / "package", target="reference")
    num_bytes = (source / "model.safetensors").stat().st_size
    (source / "model.safetensors").unlink()
    write_tiny_llama(source, **written)
    with pytest.raises(PackageError, match=message.format(num_bytes)):
        LoadedPackage(package)


def _projection(layer: Any, name: str) -> Any:
    return getattr(layer.mlp if name in ("gate", "up", "down") else layer.attention, name)


# ---- bytes ----


def test_stacked_experts_are_counted_at_what_is_stored_of_them(tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "m", "gpt_oss")
    quantize(source, tmp_path / "p")
    with Package(tmp_path / "p") as package:
        target, draft = package_levels(package)
    a = target.architecture
    assert a is not None and target.num_bytes is not None and draft.num_bytes is not None
    weights = multiplied_weights(a, float("inf"))  # of all experts
    assert target.num_bytes == checkpoint_bytes(source) == pytest.approx(2 * weights, rel=0.01)  # biases are 0.2%
    head = a.vocab_size * a.hidden_size
    expected = 4.25 / 8 * (weights - head) + 8.25 / 8 * head
    assert draft.num_bytes == pytest.approx(expected, rel=0.02)  # routers stay in 16 bits
    for num_tokens in (1, 4):  # whose passes read the experts that they choose
        found = level_count(target, Workload(), num_tokens)
        assert found.weight_bytes + found.scale_bytes == pytest.approx(2 * multiplied_weights(a, num_tokens), rel=0.01)


@pytest.mark.parametrize(
    ("codec", "lm_head", "bits", "kind", "tied"),
    [
        ("mxfp4", None, 8.25, "MXINT8", False),
        ("mxfp4", "quantize", 4.25, "4 bits", True),
        ("mxfp4", "keep", 16, "16 bits", False),
        ("bsfp", "exact", None, "all bits of the exact weights", True),
        ("bsfp", None, 4.125, "4 bits", False),
    ],
)
def test_the_head_of_a_draft_has_the_bits_that_were_asked_for(
    tmp_path: Path, codec: str, lm_head: str | None, bits: float | None, kind: str, tied: bool
) -> None:
    source = write_tiny_llama(tmp_path / "m", tie_word_embeddings=tied, hidden_size=128)
    quantize(source, tmp_path / "p", codec=codec, lm_head=lm_head, segments="paper" if codec == "bsfp" else "fitted")
    with Package(tmp_path / "p") as package:
        head, draft = head_bytes(package, is_draft=True), package_bytes(package, is_draft=True)
        assert head == (96 * 128 * bits / 8 if bits else head_bytes(package, is_draft=False))
        assert 96 * 128 / 2 < head < draft
        with open_weights(str(tmp_path / "p")) as weights:
            share = f"the output head is {head:,} of the {draft:,} bytes that a pass of the draft reads "
            assert f"{share}({head / draft:.0%}): {kind}." in weights.notes


# ---- of every level, against the arrays in the files ----


def stored(package: Package, *endings: str) -> int:
    """Bytes of the arrays whose names end so."""
    return sum(array.num_bytes for name, array in package.arrays.items() if name.endswith(endings))


def per_level(path: Path) -> dict[str, int]:
    with LoadedPackage(path, kernel="numpy") as loaded:
        return {level.name: loaded.bytes_per_pass(level) for level in loaded.levels}


def test_an_mxfp4_package_reads_16_bits_for_the_target_and_codes_and_scales_for_the_draft(tmp_path: Path) -> None:
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package", target="include")
    with Package(tmp_path / "package") as package:
        target = stored(package, "proj.weight", "lm_head.weight")
        draft = stored(package, ".codes", ".elements", ".scales")
    assert per_level(tmp_path / "package") == {"target": target, "mxfp4": draft}


def test_bsfp_reads_one_set_of_bytes_twice(tmp_path: Path) -> None:
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package", codec="bsfp")
    with Package(tmp_path / "package") as package:
        embedding = "model.embed_tokens.weight"
        draft = stored(package, "proj.weight.codes", "proj.weight.scales", "head.weight.codes", "head.weight.scales")
        parts = ("codes", "residual_low", "residual_high", "row_shifts", "counts", "offsets", "positions", "high")
        target = sum(
            array.num_bytes
            for name, array in package.arrays.items()
            if not name.startswith(embedding) and ".weight." in name and name.endswith(parts)
        )
    assert per_level(tmp_path / "package") == {"target": target, "bsfp": draft}


def test_a_model_level_reads_its_own_matrices(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(tmp_path / "small", num_hidden_layers=1)
    quantize(small, tmp_path / "nested", codec="bsfp")
    quantize(source, tmp_path / "package", drafts=(f"checkpoint:{small}", f"package:{tmp_path / 'nested'}"))
    found = per_level(tmp_path / "package")
    assert found["small"] == checkpoint_bytes(small)
    assert found["nested"] == per_level(tmp_path / "nested")["bsfp"]
    config = json.loads((small / "config.json").read_text())
    hidden, middle, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    assert found["small"] == 2 * (3 * hidden * hidden + 3 * hidden * middle + vocabulary * hidden)


@pytest.mark.parametrize("kind", ["reference", "include"])
def test_a_referenced_target_reads_as_much_as_an_included_one(tmp_path: Path, kind: str) -> None:
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package", target=kind)
    assert per_level(tmp_path / "package")["target"] == checkpoint_bytes(tmp_path / "source")


@pytest.mark.parametrize("first", ["mxfp4", "target"])
def test_a_view_of_the_runs_target_reads_that_targets_bytes(tmp_path: Path, first: str) -> None:
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package")
    specs = [parse_draft(text) for text in ("streaming", "retrieval", RECYCLING)]
    with LoadedPackage(tmp_path / "package", [first], kernel="numpy", drafts=specs) as loaded:
        whole, streaming, retrieval, look_up = (loaded.bytes_per_pass(level) for level in loaded.levels)
    with Package(tmp_path / "package") as package:
        endings = (".codes", ".elements", ".scales") if first == "mxfp4" else ("proj.weight", "lm_head.weight")
        assert whole == stored(package, *endings)
        assert retrieval == stored(package, ".codes", ".elements", ".scales")
    assert (streaming, look_up) == (whole, 0)
