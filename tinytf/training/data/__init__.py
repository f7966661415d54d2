"""What a run starts from: tokens of a corpus, examples of every objective, first weights."""
