"""Hypothesis without deadlines, since tests also run on busy machines; in CI the same examples every time."""

import os

from hypothesis import settings

settings.register_profile("mxconv", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("mxconv")
