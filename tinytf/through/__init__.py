"""A model that runs through transformers: hooks on its modules, recomputed where a formula fits, and what they show."""
