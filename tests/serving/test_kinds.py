"""Drafts of every kind beside each other: each text is the target's own, of BF16, BSFP and 4-bit targets."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from batches import alone, assert_as_alone, position_bytes, run_all
from family_checkpoints import make_model, write_checkpoint
from gemma4_assistants import CLUSTERS, make_assistant, write_assistant
from mtp_packages import write_mimo
from ngram_tables import write_table
from packages import quantize
from plug_ins import RECYCLING, STAND, SWIFT
from reader_files import WRITERS
from trained_levels import PROMPTS, TRAINED, write_mixture, write_noisy, write_renumbered

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Request, Selection
from mxconv.text.constraint import Constraint, ConstraintVocabulary, Grammar
from mxconv.text.distribution import Sampling

CONFIG = json.loads((TRAINED / "config.json").read_text())
KINDS: dict[str, tuple[str, list[str], list[str], Any, Any]] = {
    # package, levels, further drafts, lengths, tree
    "BSFP and its 4 bits": ("bsfp", ["target", "bsfp"], ["prompt-lookup"], "auto", "auto"),
    "BSFP, fixed trees": ("bsfp", ["target", "bsfp"], [RECYCLING], [4], 12),
    "4 bits as the target": ("mxfp4", ["mxfp4"], [f"{STAND},confidence=0"], [4], 12),
    "layers left out": ("mxfp4", ["target"], [f"{SWIFT},confidence=0"], [3], "chain"),
    "a window": ("mxfp4", ["target", "mxfp4"], ["streaming,sink=1,window=6"], [3], 8),
    "a window of 4 bits": ("bsfp", ["target"], ["streaming,sink=1,window=6,bits=4"], [3], "chain"),
    "retrieved pages": ("mxfp4", ["target"], ["retrieval,pages=1,window=64"], [3], 8),
    "pages by 16 bits": ("bsfp", ["target", "bsfp"], ["retrieval,pages=1,window=64,bits=16"], "auto", "auto"),
    "SPIRe": ("mxfp4", ["target", "mxfp4"], ["spire:HERE/spire"], [3], 12),
    "EAGLE-3": ("mxfp4", ["target"], ["eagle3:HERE/eagle3"], [3], 12),
    "DFlash": ("mxfp4", ["target"], ["dflash:HERE/dflash"], [4], "chain"),
    "DFlash below a copy": ("mxfp4", ["target", "mxfp4"], ["dflash:HERE/dflash"], "auto", "auto"),
    "DFlash's trees": ("mxfp4", ["target"], ["dflash:HERE/dflash"], [4], 12),
    "a speculator": ("mxfp4", ["target"], ["speculator:HERE/speculator"], [3], "chain"),
    "a speculator's trees": ("mxfp4", ["target"], ["speculator:HERE/speculator"], [3], 8),
    "Medusa's heads": ("mxfp4", ["target"], ["medusa:HERE/medusa"], [3], 12),
    "Medusa's heads of a copy": ("bsfp", ["target", "bsfp"], ["medusa:HERE/medusa"], [3], "chain"),
    "Gemma 4's assistant": ("gemma4", ["target"], ["gemma4-assistant:HERE/assistant"], [3], 12),
    "an assistant of clusters": ("gemma4", ["target", "mxfp4"], ["gemma4-assistant:HERE/clusters"], [3], "chain"),
    "an n-gram table": ("mxfp4", ["target", "mxfp4"], ["ngram:HERE/table"], [3], "chain"),
    "a package": ("mxfp4", ["target"], ["package:HERE/bsfp"], [3], 8),
    "an MTP module": ("mimo", ["target"], ["mtp,confidence=0"], [3], 12),
    "fewer experts": ("mixture", ["target", "bsfp"], ["fewer-experts:1,confidence=0"], [3], 12),
    "another tokenizer": ("mxfp4", ["target"], ["checkpoint:HERE/renumbered"], [3], "chain"),
}

CONSTRAINTS = (
    Constraint("json_schema", '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'),
    Constraint("regex", "[a-z ]+(, [a-z ]+)*"),
    Constraint("choice", '["import os and sys", "import json", "x = 1"]'),
    Constraint("grammar", 'start: word (" = " word)*\nword: /[a-z_]{1,9}/'),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    source = write_noisy(folder / "source", 0.0)
    for codec in ("mxfp4", "bsfp"):
        quantize(source, folder / codec, codec=codec)
    quantize(write_mimo(folder / "mimo-source"), folder / "mimo")
    quantize(write_mixture(folder / "mixture-source"), folder / "mixture", codec="bsfp")
    (folder / "text.txt").write_text("\n".join(PROMPTS) * 20)
    quantize(write_gemma4(folder), folder / "gemma4")
    write_table(folder / "table", sha256_file(source / "tokenizer.json"), CONFIG["vocab_size"])
    for kind, write in WRITERS.items():
        write(folder / kind)
    write_renumbered(folder / "renumbered")
    return folder


def write_gemma4(folder: Path) -> Path:
    """A random Gemma 4 with the trained model's tokenizer, and assistants for it."""
    size, source = CONFIG["vocab_size"], folder / "gemma4-source"
    sizes = {"vocab_size": size, "vocab_size_per_layer_input": size, "max_position_embeddings": 1024}
    write_checkpoint(make_model("gemma4", **sizes), source)
    shutil.copy(TRAINED / "tokenizer.json", source)
    for name, changes in (("assistant", {}), ("clusters", CLUSTERS | {"num_centroids": 16})):
        write_assistant(folder / name, make_assistant(size, **changes))
    return source


def check(loaded: LoadedPackage, lengths: Any, tree: Any, grammars: Sequence[Grammar | None] = (None,) * 4) -> None:
    """Four texts, greedily and drawn, alone and beside each other, with little room for their caches."""
    num_drafts = len(loaded.levels) - 1
    confidence = None if lengths == "auto" else [0.0] * num_drafts
    hierarchy = Hierarchy(loaded.levels, lengths, confidence, tree)
    selections = [GREEDY, Selection(Sampling(0.8, top_p=0.95), seed=7), GREEDY, Selection(Sampling(1.0), seed=2**60)]
    requests = [
        Request(
            loaded.tokenizer.encode(prompt), 16, loaded.tokenizer.eos_token_ids, replace(selection, constraint=grammar)
        )
        for prompt, selection, grammar in zip([*PROMPTS, PROMPTS[1] * 8], selections, grammars, strict=True)
    ]
    known = [alone(loaded.levels[0], request) for request in requests]
    for at_a_time, kv_bytes in ((1, None), (3, None), (4, 400 * position_bytes(hierarchy))):
        sequences, heard = run_all(Engine(hierarchy, at_a_time, kv_bytes), requests)
        assert_as_alone(loaded.levels[0], requests, sequences, heard, known)
        if lengths != "auto" and not any(grammars):
            proposed = [each.generation.trace.statistics[1].num_proposed for each in sequences]
            assert sum(proposed) > 0


@pytest.mark.parametrize("is_constrained", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_every_text_is_the_targets_own(folder: Path, name: str, is_constrained: bool) -> None:
    package, levels, drafts, lengths, tree = KINDS[name]
    specs = [parse_draft(text.replace("HERE", str(folder))) for text in drafts]
    with LoadedPackage(folder / package, levels, drafts=specs) as loaded:
        if lengths != "auto":
            lengths = [lengths[0]] * (len(loaded.levels) - 1)
        vocabulary = ConstraintVocabulary(loaded.tokenizer, loaded.target.config.vocab_size)
        check(loaded, lengths, tree, [vocabulary.compile(each) if is_constrained else None for each in CONSTRAINTS])
