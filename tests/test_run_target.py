"""Any model of a package as a run's target: what it decodes, that drafts change none of it, what the proof says."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import safetensors.numpy
import torch
from checkpoints import write_safetensors, write_tiny_llama
from dequantized import dequantized
from packages import forge, quantize
from plug_ins import RECYCLING
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import PROMPTS, TRAINED, write_renumbered
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from mxconv.decode import TextModel
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError, PackageError
from mxconv.package.manifest import read_manifest
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import verify_decoding
from mxconv.verify import verify, write_certificate

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
GONE = "drafts/1-small/tokenizer.json"
TEXT = "Once upon a time there was"
COUPLED = Selection(Sampling(temperature=0.9, top_p=0.95), seed=3)
Lengths, Trees = Literal["auto"] | None, int | Literal["auto", "chain"]
# after the 4-bit level: further levels of the package, drafts beside it, lengths, trees
HIERARCHIES: dict[str, tuple[list[str], list[str], Lengths, Trees]] = {
    "a small model": (["small"], [], None, "chain"),
    "a look-up, chains": ([], [f"{RECYCLING},confidence=0"], None, "chain"),
    "a look-up, trees": ([], [f"{RECYCLING},confidence=0"], None, 16),
    "itself over a window": ([], ["streaming,sink=1,window=6"], None, "chain"),
    "itself over a window with its own cache": ([], ["streaming,sink=1,window=6,cache=own"], None, "chain"),
    "four levels": (["small"], ["streaming", "prompt-lookup"], None, 8),
    "what pays": (["small"], [RECYCLING], "auto", "auto"),
}


@pytest.fixture(scope="module")
def make_package(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """target <- 4 bits <- small <- prompt-lookup: random weights, a small model that is nearly the target."""
    made: dict[tuple[str, str], Path] = {}

    def make(codec: str, dtype: str) -> Path:
        if (codec, dtype) not in made:
            folder = tmp_path_factory.mktemp(f"{codec}-{dtype}")
            source = write_tiny_llama(folder / "source", dtype=dtype)
            small = write_tiny_llama(folder / "small", dtype=dtype)
            tensors = safetensors.numpy.load_file(small / "model.safetensors")
            tensors["model.layers.1.mlp.up_proj.weight"] *= 1.01
            write_safetensors(small / "model.safetensors", tensors)
            residual_bits = 10 if (codec, dtype) == ("bsfp", "F16") else None  # fitting one width is faster
            drafts = (f"checkpoint:{small}", "prompt-lookup:max_ngram=2")
            quantize(source, folder / "package", codec=codec, residual_bits=residual_bits, drafts=drafts)
            made[codec, dtype] = folder / "package"
        return made[codec, dtype]

    return make


def verified(loaded: LoadedPackage, hierarchy: Hierarchy, prompts: list[str], selection: Selection) -> Any:
    record = verify_decoding(loaded, hierarchy, prompts, 24, selection)
    assert (record.num_token_mismatches, record.num_logit_mismatches) == (0, 0)
    assert record.num_tokens > len(prompts)
    return record


@pytest.mark.parametrize("case", HIERARCHIES)
def test_drafts_change_no_token_and_no_logit_of_the_4_bit_level(make_package: Callable[..., Path], case: str) -> None:
    """Codecs take turns from case to case, and selections from pair to pair of them."""
    number = list(HIERARCHIES).index(case)
    codec, dtype = (("mxfp4", "BF16"), ("bsfp", "F16"))[number % 2]
    selection = (GREEDY, COUPLED)[number // 2 % 2]
    levels, drafts, lengths, tree = HIERARCHIES[case]
    specs = [parse_draft(text) for text in drafts]
    with LoadedPackage(make_package(codec, dtype), [codec, *levels], drafts=specs) as loaded:
        hierarchy = Hierarchy(loaded.levels, lengths, tree=tree)
        assert verified(loaded, hierarchy, [TEXT, "A dog"], selection).target == codec
        found, generation = speculate(hierarchy, loaded.tokenizer.encode(TEXT), 24, selection=selection)
        proposed = sum(level.num_proposed for level in generation.trace.statistics)
        assert proposed > 0 or lengths == "auto"  # which may find that nothing pays
    with LoadedPackage(make_package(codec, dtype), ["target", codec]) as other:  # the same level as a draft
        expected = by_hand(decoder_of(other.levels[1]), other.tokenizer.encode(TEXT), 24, selection=selection)
    assert (found.token_ids, found.logits) == (expected.token_ids, expected.logits)


@pytest.mark.parametrize(
    ("codec", "dtype", "tied"),
    [("mxfp4", "BF16", False), ("mxfp4", "F16", True), ("bsfp", "BF16", True)],
)
def test_the_4_bit_level_decodes_as_transformers_does_with_its_weights(
    tmp_path: Path, codec: str, dtype: str, tied: bool
) -> None:
    source = write_tiny_llama(tmp_path / "source", dtype=dtype, tie_word_embeddings=tied)
    quantize(source, tmp_path / "package", codec=codec)
    model = torch_model(tmp_path / "package", source)
    with LoadedPackage(tmp_path / "package", [codec], "numpy", activations="fp32") as loaded:
        ids = loaded.tokenizer.encode(TEXT)
        rows: list[np.ndarray] = []
        generation = Hierarchy(loaded.levels).generate(ids, 30, (), lambda _, row: rows.append(row.copy()))
        whole = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        text = torch.tensor([[*ids, *generation.token_ids]])
        theirs, sixteen_bits = (each(text).logits[0, len(ids) - 1 : -1].numpy() for each in (model, whole))
    assert np.abs(np.stack(rows) - theirs).max() <= 1e-4
    assert np.abs(np.stack(rows) - sixteen_bits).max() > 1e-2  # other weights are seen
    assert generation.token_ids == theirs.argmax(axis=1).tolist()


def torch_model(package: Path, source: Path) -> Any:
    """The source in float32 with the values of the 4-bit level where it has some; look-ups of embeddings stay exact."""
    values = safetensors.numpy.load_file(source / "model.safetensors")
    state = {name: torch.from_numpy(array.astype(np.float32)) for name, array in values.items()}
    drafts = dequantized(package)
    assert len(drafts) >= 15
    if EMBEDDING in drafts:
        drafts[HEAD] = drafts.pop(EMBEDDING)
    config = json.loads((source / "config.json").read_text()) | {"tie_word_embeddings": False, "torch_dtype": "float32"}
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    model.load_state_dict(state | {name: torch.from_numpy(array) for name, array in drafts.items()})
    return model


def test_a_small_model_of_the_package_is_decoded_in_its_own_tokens(tmp_path: Path) -> None:
    selection = COUPLED
    foreign = write_renumbered(tmp_path / "foreign")
    settings = {"bos_token_id": 1, "eos_token_id": 2, "stop_strings": ["<stop>"]}
    (foreign / "generation_config.json").write_text(json.dumps(settings))
    (foreign / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    nested = tmp_path / "nested"
    quantize(foreign, nested)
    quantize(TRAINED, tmp_path / "package", drafts=(f"package:{nested},level=target", "prompt-lookup"))
    with LoadedPackage(nested, ["target"]) as alone:
        expected = by_hand(decoder_of(alone.levels[0]), alone.tokenizer.encode(PROMPTS[0]), 24, selection=selection)
    with LoadedPackage(tmp_path / "package", ["target"]) as other:
        assert other.tokenizer.encode(PROMPTS[0]) != alone.tokenizer.encode(PROMPTS[0])
    recycling = parse_draft(f"{RECYCLING},confidence=0")
    for names, specs in (
        (["nested", "prompt-lookup"], []),
        (["nested"], [parse_draft("streaming,sink=1,window=5"), recycling]),
    ):
        with LoadedPackage(tmp_path / "package", names, drafts=specs) as loaded:
            assert loaded.folder == tmp_path / "package/drafts/1-nested"
            assert Path(loaded.tokenizer.name).parent == loaded.folder
            assert all(level.tokenizer is loaded.tokenizer for level in loaded.levels)
            assert loaded.config == decoder_of(loaded.levels[0]).config
            hierarchy = Hierarchy(loaded.levels)
            assert verified(loaded, hierarchy, [PROMPTS[0]], selection).target == "nested"
            found, _ = speculate(hierarchy, loaded.tokenizer.encode(PROMPTS[0]), 24, selection=selection)
            assert (found.token_ids, found.logits) == (expected.token_ids, expected.logits)
            model = TextModel(loaded)
            assert model.recommended.stop_strings == ("<stop>",)
            assert model.encode([{"role": "user", "content": "a"}]) == loaded.tokenizer.encode(
                "<a>", add_special_tokens=False
            )


def test_a_small_model_without_a_tokenizer_speaks_as_the_level_above(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(tmp_path / "small", num_hidden_layers=1, seed=1)
    package = tmp_path / "package"
    quantize(source, package, drafts=(f"checkpoint:{small}",))
    for has_its_own in (True, False):
        with LoadedPackage(package, ["small"]) as loaded:
            assert loaded.folder == (package / "drafts/1-small" if has_its_own else package)
            assert Path(loaded.tokenizer.name).parent == loaded.folder
            found, _ = speculate(Hierarchy(loaded.levels), loaded.tokenizer.encode(TEXT), 10)
        if has_its_own:
            expected = found
            (package / GONE).unlink()
            forge(package, lambda members: members.update(files=[f for f in members["files"] if f["path"] != GONE]))
    assert found == expected


def test_a_source_that_is_gone_keeps_none_from_running_who_needs_nothing_of_it(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(tmp_path / "small", num_hidden_layers=1, seed=1)
    quantize(source, tmp_path / "package", target="reference", drafts=(f"checkpoint:{small}", "prompt-lookup"))
    with LoadedPackage(tmp_path / "package", ["mxfp4", "small"]) as loaded:
        ids = loaded.tokenizer.encode(TEXT)
        speculate(Hierarchy(loaded.levels), ids, 4)
    source.rename(tmp_path / "moved")
    with LoadedPackage(tmp_path / "package", ["small", "prompt-lookup"]) as loaded:
        assert len(speculate(Hierarchy(loaded.levels), ids, 4)[0].token_ids) == 4
    message = (
        f"^{tmp_path}/source: no such file or folder; {tmp_path}/package references its weights there. Restore it, or "
        "convert again with --target include. Level mxfp4 needs it too: its embedding, its norms and other tensors "
        "that are not in 4 bits are there alone.$"
    )
    with pytest.raises(PackageError, match=message):
        LoadedPackage(tmp_path / "package", ["mxfp4", "small"])


REFUSED = {
    "a look-up first": (
        ["prompt-lookup", "small"],
        "level prompt-lookup first, a look-up, which drafts and decodes nothing by itself; a model is required.",
    ),
    "the target below its copy": (
        ["mxfp4", "target"],
        "level target below mxfp4; a draft must be cheaper than what it",
    ),
    "the target further down": (["mxfp4", "small", "target"], "level target below small; a draft must be cheaper than"),
    "the copy below another model": (["small", "mxfp4"], "level mxfp4 drafts for small; the 4-bit copy drafts for the"),
    "the copy below itself": (["mxfp4", "mxfp4"], "level mxfp4 drafts for mxfp4; the 4-bit copy drafts for the 16-bit"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_orders_that_make_no_sense_are_refused(make_package: Callable[..., Path], case: str) -> None:
    names, message = REFUSED[case]
    package = make_package("mxfp4", "BF16")
    with pytest.raises(ModelError, match=f"^{package}: {message}"):
        LoadedPackage(package, names)


def test_the_certificate_names_the_level_that_was_decoded(tmp_path: Path) -> None:
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package")
    assert read_manifest(tmp_path / "package").decoded_level is None
    for names in (["target", "mxfp4"], ["mxfp4"]):
        with LoadedPackage(tmp_path / "package", names) as loaded:
            record = verified(loaded, Hierarchy(loaded.levels), [TEXT], GREEDY)
        write_certificate(tmp_path / "package", replace(verify(tmp_path / "package"), decode=record))
        manifest = read_manifest(tmp_path / "package")
        assert manifest.certificate is not None and manifest.certificate.decode is not None
        assert manifest.decoded_level == manifest.certificate.decode.target == names[0]
