"""A small C library and its binding: packed linears, attention, norms, and a tape of calls; no torch, no Python ABI."""
