"""GGUF files, as llama.cpp writes them: Llama and Qwen2, quantised or not."""

from tinytf.checkpoints.gguf.load import gguf_tokenizer, read_gguf
from tinytf.checkpoints.gguf.split import parts_of

__all__ = ["gguf_tokenizer", "parts_of", "read_gguf"]
