"""What a shell is offered, by the program that it asks."""

from typing import Any, get_args

import pytest

from mxconv.codecs.mxfp4 import SCALE_RULES
from mxconv.conversion.options import Codec
from mxconv.cost.hardware import hardware_names
from mxconv.drafts.kinds import all_kinds
from mxconv.kernels.engine import kernel_names, native_names


def test_names_are_offered(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MXCONV_COMPLETE", "complete_bash")
    for line, words in (
        ("mxconv quantize s --codec ", list(get_args(Codec))),
        ("mxconv quantize s --scale-rule ", list(SCALE_RULES)),
        ("mxconv quantize s --scale-rule e", ["even"]),
        ("mxconv quantize s --draft ", [kind.name + ":" * bool(kind.subject) for kind in all_kinds()]),
        ("mxconv generate p --kernel ", list(kernel_names())),
        ("mxconv generate p --accept ", ["coupled", "rejection", "block"]),
        ("mxconv bench kernels --kernel ", [*native_names(), "all"]),
        ("mxconv cost --hardware ", [*hardware_names(), "list"]),
        ("mxconv exp", ["export"]),
    ):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
        found = run()
        assert (found.stderr, found.stdout.split()) == ("", words), line
