"""The parts of a model: a frozen configuration each, with its own checks and its rows of the table. Free of torch."""
