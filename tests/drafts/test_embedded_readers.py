"""The embedded drafts that read the embedded target: they are worth a token a round and more, at any place."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from packages import quantize
from tiny_levels import by_hand, decoder_of, speculate

from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.prompts import read_prompts
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = EXAMPLES / "models"
SPECULATOR, SPIRE = f"speculator:{MODELS}/pylib-1.5m-speculator", f"spire:{MODELS}/pylib-1.5m-spire"
PROMPTS = read_prompts(EXAMPLES / "prompts.jsonl")[:6]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers") / "package"
    quantize(MODELS / "pylib-1.5m", folder, codec="bsfp", drafts=(f"checkpoint:{MODELS}/pylib-0.2m",))
    return folder


def tokens_a_round(package: Path, levels: Sequence[str], draft: str, tree: int) -> float:
    num_rounds = num_tokens = 0
    with LoadedPackage(package, levels, drafts=[parse_draft(draft)]) as loaded:
        hierarchy = Hierarchy(loaded.levels, [4], [0.0], tree or "chain")
        for prompt in PROMPTS:
            ids = loaded.tokenizer.encode(prompt)
            found, generation = speculate(hierarchy, ids, 48)
            assert found == by_hand(decoder_of(loaded.levels[0]), ids, 48)
            num_rounds += generation.trace.num_rounds - 1
            num_tokens += len(generation.token_ids) - 1
    return num_tokens / num_rounds


@pytest.mark.parametrize(("draft", "chain", "tree"), [(SPECULATOR, 1.6, 2.0), (SPIRE, 1.6, 2.0)])
def test_they_know_what_the_target_says(draft: str, chain: float, tree: float, package: Path) -> None:
    assert tokens_a_round(package, ["target"], draft, 0) > chain
    assert tokens_a_round(package, ["target"], draft, 12) > tree


def test_a_hierarchy_of_five_levels_writes_the_targets_own_text(package: Path) -> None:
    drafts = [parse_draft(SPIRE), parse_draft(SPECULATOR)]
    with LoadedPackage(package, ["target", "bsfp", "pylib-0.2m"], drafts=drafts) as loaded:
        assert len(loaded.levels) == 5
        hierarchy = Hierarchy(loaded.levels, "auto")
        for selection in (GREEDY, Selection(Sampling(0.8), "coupled", 3)):
            for prompt in PROMPTS[:3]:
                ids = loaded.tokenizer.encode(prompt)
                found, _ = speculate(hierarchy, ids, 48, (), selection)
                assert found == by_hand(decoder_of(loaded.levels[0]), ids, 48, (), selection)
