"""Many requests at a time: one pass over the weights for all, and each answer as if it were alone."""
