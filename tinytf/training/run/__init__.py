"""A run: its steps, what it writes, and where it goes on from."""
