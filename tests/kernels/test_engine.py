"""Which kernels are chosen, by whom, and what is said when there are none."""

import os
import re
import subprocess
import sys

import pytest

from mxconv.errors import ModelError
from mxconv.kernels import engine as engine_module
from mxconv.kernels.engine import choose_engine, choose_kernel, kernel_names, native_names, usable_processors

WITHOUT_EXTENSION = """
import sys
sys.modules["mxconv.kernels._native"] = None  # importing it now raises ImportError, as if it had not been built
from mxconv.kernels.engine import choose_engine, kernel_names
assert kernel_names() == ("numpy",)
"""

with_native = pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MXCONV_KERNEL", raising=False)


@with_native
def test_the_widest_implementation_comes_first_and_numpy_last() -> None:
    narrower = ["avxvnniint8", "avxvnni", "avx2", "neonbf16", "neoni8mm", "neon", "portable", "numpy"]
    bf16_fast, bf16_slow = ["avx512bf16", "avx512vnni", *narrower], ["avx512vnni", "avx512bf16", *narrower]  # cpuid.hpp
    found = list(kernel_names())
    assert found in [[name for name in known if name in found] for known in (bf16_fast, bf16_slow)]
    assert kernel_names()[-2:] == ("portable", "numpy")
    assert choose_kernel() == kernel_names()[0]


@with_native
def test_a_flag_goes_before_the_environment_and_that_before_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXCONV_KERNEL", "portable")
    assert choose_kernel() == "portable"
    assert choose_kernel("numpy") == "numpy"
    assert choose_engine("numpy") is None
    monkeypatch.setenv("MXCONV_KERNEL", "")
    assert choose_kernel() == kernel_names()[0]


@with_native
@pytest.mark.parametrize("name", native_names())
def test_the_forced_implementation_is_the_one_that_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXCONV_KERNEL", name)
    engine = choose_engine(num_threads=2)
    assert engine is not None
    assert (engine.name, engine.num_threads) == (name, 2)
    assert choose_engine(num_threads=2) is engine  # one team for all who ask for the same


@pytest.mark.parametrize("flag", [None, "sse9", ""])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(
    flag: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXCONV_KERNEL", "neon2")
    origin = "MXCONV_KERNEL: 'neon2'" if flag is None else f"--kernel: {flag!r}"
    message = re.escape(f"{origin}; on this processor one of {', '.join(kernel_names())} is required. Leave it out")
    with pytest.raises(ModelError, match=f"^{message}"):
        choose_engine(flag)


@with_native
def test_a_processor_without_the_instructions_does_not_offer_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "native_names", lambda: ("portable",))
    with pytest.raises(ModelError, match=r"^--kernel: 'avx2'; on this processor one of portable, numpy is required\."):
        choose_kernel("avx2")


@with_native
def test_all_usable_processors_work_unless_told_otherwise() -> None:
    engine = choose_engine()
    assert engine is not None
    assert engine.num_threads == usable_processors() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("num_threads", [0, -3, 1025])
def test_an_impossible_number_of_threads_is_an_error(num_threads: int) -> None:
    for kernel in kernel_names():
        with pytest.raises(ModelError, match=f"^--threads: {num_threads}; 1 to 1024 is required"):
            choose_engine(kernel, num_threads)


MISSING = (
    r"mxconv: the native kernels are missing \(.*\); running on NumPy, slowly\. Install again with a C\+\+ compiler\.\n"
)
PROCESSES = {  # what a process runs, how it ends, and what it says
    "whoever asks for nothing is told once": (
        WITHOUT_EXTENSION + "assert choose_engine() is None and choose_engine() is None", 0, MISSING,
    ),
    "whoever asks for numpy is told nothing": (WITHOUT_EXTENSION + "assert choose_engine('numpy') is None", 0, ""),
    "a native name is an error": (
        WITHOUT_EXTENSION + "choose_engine('portable')", 1,
        r"(?s).*--kernel: 'portable'; on this processor one of numpy is required\..*",
    ),
    "an engine ends with its process": (
        "from mxconv.kernels.engine import choose_engine\nchoose_engine(num_threads=3)", 0, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PROCESSES)
def test_a_process_says_what_is_missing_and_ends_quietly(case: str) -> None:
    code, exit_code, said = PROCESSES[case]
    if "engine ends" in case and not native_names():
        pytest.skip("the extension is not built on this machine")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (exit_code, "")
    assert re.fullmatch(said, result.stderr)
