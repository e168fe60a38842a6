"""Tensor functions without parameters: B rows, T queries, S keys, H heads, K key heads, E head size, D width."""
