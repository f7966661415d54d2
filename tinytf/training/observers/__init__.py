"""What watches a training loop: each adds what it measures to the line of a step, or writes it somewhere."""
