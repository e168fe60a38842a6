"""Tensor functions without parameters: B batch, T queries, S keys, D width, H heads, K key heads, E head size, V vocabulary."""
