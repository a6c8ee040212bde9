"""How a kind of draft is added: its class, an object of it, and the table's line; CONTRIBUTING.md refers to this."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from checkpoints import write_tiny_llama
from loaded_packages import pack

from mxconv.arrays import F32
from mxconv.drafts.kind import LoadedLevel, LookUpKind, Proposer
from mxconv.drafts.kinds import KINDS, LEVEL_KINDS, parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.statistics import LevelStatistics
from mxconv.package.level_record import LevelBase
from mxconv.speculation.hierarchy import Hierarchy

PROMPT = [5, 3, 5, 3, 5]


class EchoRecord(LevelBase):
    kind: Literal["echo"]


class EchoDraft:
    """Proposes the last token again and again."""

    def __init__(self, statistics: LevelStatistics) -> None:
        self.statistics = statistics

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        with self.statistics.forward():
            return Proposal([context[-1]] * num_tokens)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """It learns nothing."""


class Echo(LookUpKind):
    """`echo`."""

    name = "echo"
    record_type = EchoRecord  # type: ignore[assignment]  # a kind that packages hold is in the union `LevelRecord`

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        return lambda statistics, _: EchoDraft(statistics)


def test_a_kind_that_is_added_decodes_what_the_target_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "echo", Echo())
    monkeypatch.setitem(LEVEL_KINDS, "echo", KINDS["echo"])
    write_tiny_llama(tmp_path / "source")
    package = pack(tmp_path / "source", tmp_path / "package")
    with LoadedPackage(package, ["target"], drafts=[parse_draft("echo:num_draft_tokens=3")]) as loaded:
        plain = Hierarchy(loaded.levels[:1]).generate(PROMPT, 30)
        drafted = Hierarchy(loaded.levels).generate(PROMPT, 30)
    assert drafted.token_ids == plain.token_ids
    assert drafted.trace.statistics[1].num_proposed > 0
