"""Look at a model: the numbers that it holds, and those that one run of it computes."""
