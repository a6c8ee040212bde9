"""The rules by which a level chooses its tokens and accepts those of its draft: a file each."""
