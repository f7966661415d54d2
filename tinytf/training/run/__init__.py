"""A run: its steps, the files it writes, and the checkpoints it resumes from."""
