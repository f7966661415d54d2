"""Certify that a model gives the numbers of transformers: ids, every layer and logits, on hard texts."""
