"""GGUF files, as llama.cpp writes them: Llama and Qwen2, quantised or not."""

from tinytf.checkpoints.gguf.load import gguf_tokenizer, read_gguf

__all__ = ["gguf_tokenizer", "read_gguf"]
