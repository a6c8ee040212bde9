"""How a kind of draft is added: its class, an object of it, and the table's line; CONTRIBUTING.md refers to this."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import pytest
from checkpoints import write_tiny_llama
from loaded_packages import pack
from pydantic import Field

from mxconv.drafts.kind import LookUpKind, Parameter
from mxconv.drafts.kinds import KINDS, LEVEL_KINDS, parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.look_up import LookUp
from mxconv.errors import MxconvError
from mxconv.package.level_record import LevelBase
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel, Proposer
from mxconv.speculation.statistics import LevelStatistics

PROMPT = [5, 3, 5, 3, 5]


class EchoRecord(LevelBase):
    """What a manifest says of such a level; of a kind that packages hold it is one of `LevelRecord`."""

    kind: Literal["echo"]
    period: Annotated[int, Field(ge=1, le=64)]


class EchoDraft(LookUp[tuple[int, ...]]):
    """Proposes the last tokens again and again; its state is what comes next.

    Args:
        statistics: what it did.
        period: how many tokens.
    """

    def __init__(self, statistics: LevelStatistics, period: int) -> None:
        super().__init__(statistics)
        self._period = period

    def state(self, context: Sequence[int]) -> tuple[int, ...]:
        return tuple(context[-self._period :])

    def continuations(self, state: tuple[int, ...]) -> list[tuple[int, float, tuple[int, ...]]]:
        return [(state[0], 0.5, (*state[1:], state[0]))]


class Echo(LookUpKind):
    """`echo:period=2`."""

    name = "echo"
    record_type = EchoRecord  # type: ignore[assignment]
    parameters = (Parameter("period", 1, 64, default=2),)

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        return lambda statistics, _: EchoDraft(statistics, loaded.record.period)


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the table."""
    monkeypatch.setitem(KINDS, "echo", Echo())
    monkeypatch.setitem(LEVEL_KINDS, "echo", KINDS["echo"])


@pytest.mark.usefixtures("echo")
def test_a_kind_that_is_added_decodes_what_the_target_decodes(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "source")
    package = pack(tmp_path / "source", tmp_path / "package")
    with LoadedPackage(package, ["target"], drafts=[parse_draft("echo:num_draft_tokens=3,period=1")]) as loaded:
        plain = Hierarchy(loaded.levels[:1]).generate(PROMPT, 30)
        drafted = Hierarchy(loaded.levels).generate(PROMPT, 30)
        assert loaded.bytes_per_pass(loaded.levels[1]) == 0
    assert drafted.token_ids == plain.token_ids
    assert drafted.trace.statistics[1].num_proposed > 0


@pytest.mark.usefixtures("echo")
def test_its_parameters_are_checked() -> None:
    with pytest.raises(MxconvError, match=r"^--draft echo:period=0: period is 0; 1 to 64 is required\.$"):
        parse_draft("echo:period=0")
