"""The start of a run: tokens of a corpus, examples of every objective, initial weights."""
