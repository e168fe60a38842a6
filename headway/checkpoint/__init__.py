"""Checkpoints on disk: found, opened without running code, read lazily and written whole or not at all."""
