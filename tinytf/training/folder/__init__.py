"""The folder of a run: which files it has, reading them, and what follows from them."""
