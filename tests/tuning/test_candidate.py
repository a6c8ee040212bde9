"""What tuning chooses between."""

from typing import Any

from mxconv.package.manifest import LevelRecord
from mxconv.tuning.candidate import LENGTHS, THRESHOLDS, Candidate, first_candidates, neighbours


def record(kind: Any, **values: Any) -> LevelRecord:
    return LevelRecord(name=kind, kind=kind, codec=None, location="package", files=[], shares=[], **values)


LEVELS = [
    record("target"),
    record("self-draft", num_draft_tokens=8, confidence=0.6),
    record("model"),
    record("prompt-lookup", num_draft_tokens=5, confidence=0.4),
    record("ngram", num_draft_tokens=5),
]


def test_every_choice_of_drafts_is_there_with_the_packages_own_numbers_first() -> None:
    found = first_candidates(LEVELS[:4])
    assert found[0] == Candidate((1, 2, 3), (8, 8, 5), (0.6, 0.4, 0.4))
    assert {c.drafts for c in found[:7]} == {(1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)}
    assert Candidate((1,), (2,), (0.6,)) in found
    assert Candidate((1, 3), (4, 4), (0.6, 0.4)) in found
    assert len(found) == len(set(found))


def test_a_look_up_stands_last_and_alone() -> None:
    drafts = {candidate.drafts for candidate in first_candidates(LEVELS)}
    assert (1, 2, 4) in drafts and (1, 2, 3) in drafts
    assert not any({3, 4} <= set(chosen) for chosen in drafts)


def test_a_target_alone_leaves_no_choice() -> None:
    assert first_candidates(LEVELS[:1]) == []


def test_neighbours_differ_in_one_number_by_one_step() -> None:
    candidate = Candidate((1, 3), (8, 5), (0.6, 0.4))
    found = neighbours(candidate, LEVELS)
    assert {c.num_draft_tokens for c in found} == {(8, 5), (6, 5), (12, 5), (8, 4), (8, 6)}
    assert {c.confidence for c in found} == {(0.6, 0.4), (0.5, 0.4), (0.7, 0.4)}  # a look-up in the prompt has none
    assert len(found) == 6


def test_scales_end() -> None:
    lowest = Candidate((1,), (LENGTHS[0],), (THRESHOLDS[0],))
    assert set(neighbours(lowest, LEVELS)) == {Candidate((1,), (2,), (0.0,)), Candidate((1,), (1,), (0.2,))}
    highest = Candidate((1,), (LENGTHS[-1],), (THRESHOLDS[-1],))
    assert set(neighbours(highest, LEVELS)) == {Candidate((1,), (12,), (0.9,)), Candidate((1,), (16,), (0.8,))}
