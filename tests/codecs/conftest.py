"""Hypothesis without deadlines: these tests also run on machines that are busy with something else."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
