"""Drafts without a model: what was said before, by the text, the target or a corpus."""
