"""Whether a model gives the numbers of transformers: ids, every layer and logits, on texts that break things."""
