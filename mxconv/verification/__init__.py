"""The rooms off verify.py: tensors, and decoding with and without drafts."""
