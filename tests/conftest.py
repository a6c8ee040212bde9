"""Hypothesis without deadlines, since tests also run on busy machines; in CI the same examples every time.

Triton's kernels run in its interpreter, on the CPU; TRITON_INTERPRET=0 runs them on a GPU. Triton reads that once, when
it is imported, and other libraries import it too.
"""

import os

from hypothesis import settings

os.environ.setdefault("TRITON_INTERPRET", "1")
settings.register_profile("mxconv", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("mxconv")
