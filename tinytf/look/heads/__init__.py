"""Heads: their measures, the kinds that these tell, and the census of a model's."""
