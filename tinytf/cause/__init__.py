"""Why: something in a model is taken out or replaced, and what becomes of its predictions."""
