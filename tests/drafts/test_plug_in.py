"""A kind of draft of somebody else: its class in a file, named there or by an entry point."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import pytest
from checkpoints import write_tiny_llama
from loaded_packages import pack
from packages import quantize
from pydantic import Field

from mxconv.drafts.kind import LookUp, LookUpKind, Parameter
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import MxconvError
from mxconv.package.level_record import LevelBase
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel, Proposer
from mxconv.speculation.statistics import LevelStatistics

PROMPT = [5, 3, 5, 3, 5]
WORD = f"{__file__}:Echo"


class EchoRecord(LevelBase):
    """What is said of such a level."""

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
    """`test_plug_in.py:Echo,period=2`."""

    name = "echo"
    record_type = EchoRecord  # type: ignore[assignment]
    parameters = (Parameter("period", 1, 64, default=2),)

    def proposer(self, loaded: LoadedLevel, vocab_size: int, confidence: float) -> Proposer:
        return lambda statistics, _: EchoDraft(statistics, loaded.record.period)


def write_distribution(folder: Path, entry_point: str) -> None:
    """An installed distribution with one entry point."""
    info = folder / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mxconv.drafts]\n{entry_point}\n")


def test_it_decodes_what_the_target_decodes(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "source")
    package = pack(tmp_path / "source", tmp_path / "package")
    with LoadedPackage(package, ["target"], drafts=[parse_draft(f"{WORD},num_draft_tokens=3,period=1")]) as loaded:
        plain = Hierarchy(loaded.levels[:1]).generate(PROMPT, 30)
        drafted = Hierarchy(loaded.levels).generate(PROMPT, 30)
        assert loaded.levels[1].name == "echo" and loaded.bytes_per_pass(loaded.levels[1]) == 0
    assert drafted.token_ids == plain.token_ids
    assert drafted.trace.statistics[1].num_proposed > 0


def test_an_entry_point_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_drafts.py").write_text(Path(__file__).read_text().replace('"echo"', '"mine"'))
    write_distribution(tmp_path, "mine = mine_drafts:Echo")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert parse_draft("mine:period=4").parameters == {"period": 4}
    with pytest.raises(MxconvError, match=r"kind 'mime'; one of .*, mtp, mine, FILE\.py:CLASS is required\.$"):
        parse_draft("mime")


def test_its_parameters_are_checked() -> None:
    with pytest.raises(MxconvError, match=r"Echo,period=0: period is 0; 1 to 64 is required\.$"):
        parse_draft(f"{WORD},period=0")


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        (None, "no such file; a Python file is required before the colon."),
        ("", "the file has no Mine; the name of a class in it is required."),
        ("Mine = 3", "is 3; a subclass of mxconv.drafts.kind.DraftKind is required, such as LookUpKind."),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        (
            "from mxconv.drafts.kind import LookUpKind\nclass Mine(LookUpKind):\n    name = 'ngram'",
            "its name is 'ngram', which another kind has. Give it another name.",
        ),
    ],
)
def test_what_is_no_kind_is_refused(tmp_path: Path, code: str | None, complaint: str) -> None:
    if code is not None:
        (tmp_path / "mine.py").write_text(code)
    with pytest.raises(MxconvError) as caught:
        parse_draft(f"{tmp_path}/mine.py:Mine")
    assert str(caught.value) == f"--draft {tmp_path}/mine.py:Mine: {complaint}"


def test_no_package_holds_it(tmp_path: Path) -> None:
    with pytest.raises(MxconvError, match="a plug-in; packages hold kinds of mxconv alone, so that anybody can read"):
        quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package", drafts=(WORD,))
    assert not (tmp_path / "package").exists()
