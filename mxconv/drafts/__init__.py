"""Kinds of drafts, a file each, and what they share: proposals, acceptance rules, trees, caches of texts."""
