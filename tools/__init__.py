"""What keeps the repository itself in order: set-up, pins, the map of the code."""
