"""One step on the weights: losses, the optimiser, frozen and adapted weights, in one process or several."""
