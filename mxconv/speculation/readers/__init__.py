"""Drafts that read the hidden states of the level above."""
