"""Drafts that read what the target computed: its hidden states. A kind is a file."""
