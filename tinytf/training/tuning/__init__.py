"""One step on the weights: losses, the optimiser, what is moved, on how many processes."""
