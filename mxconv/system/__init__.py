"""Differences between operating systems: one matter a file, each with what to do where the system cannot."""
