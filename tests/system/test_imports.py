"""Every module is imported where Unix's own modules are missing, as on Windows."""

import subprocess
import sys

PROGRAM = """
import importlib, pkgutil, sys
import psutil  # has a file for each system
for name in ("fcntl", "resource", "termios", "pwd", "grp", "syslog"):
    sys.modules[name] = None  # importing it now raises ImportError
import mxconv
# these need transformers, or Triton, which is for Linux
EXTRA = "mxconv.train", "mxconv.interop.transformers", "mxconv.gpu", "mxconv.bench.gpu_"
names = [found.name for found in pkgutil.walk_packages(mxconv.__path__, "mxconv.", onerror=print)]
taken = [n for n in names if not n.startswith(EXTRA) and "__main__" not in n]
for name in taken:
    importlib.import_module(name)
print(len(taken))
"""


def test_no_import_needs_a_module_of_unix() -> None:
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout.splitlines()[-1]) > 200
