"""Parts of the target as its draft, chosen while it decodes."""
