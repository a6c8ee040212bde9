"""Parts of kernels: a step of 128 columns from stored bytes to the numbers that are multiplied."""
