"""Model directories of Hugging Face's transformers: one table a family, read and written by it."""
