"""Memory for keys and values: pages of positions, from a pool with a budget, some of them shared by sequences."""
