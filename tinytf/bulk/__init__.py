"""Activations of a whole corpus: windows of tokens, folders of what was recorded, and what reads them again."""
