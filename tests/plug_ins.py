"""Specifications of plug-ins that tests use as look-ups: drafts of papers, in the files of examples/papers."""

import sys
from pathlib import Path
from types import ModuleType

from mxconv.drafts.kinds import KINDS

PAPERS = Path(__file__).parents[1] / "examples" / "papers"
RECYCLING = f"{PAPERS / 'token_recycling.py'}:TokenRecyclingKind"
SWIFT = f"{PAPERS / 'swift.py'}:SwiftKind"
STAND = f"{PAPERS / 'stand.py'}:StandKind"


def plug_in_module(word: str) -> ModuleType:
    """The module of a kind that was loaded by its specification."""
    return sys.modules[type(KINDS[word]).__module__]
