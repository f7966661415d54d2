"""GGUF files, as llama.cpp writes them, quantised or not, in one part or several."""

from tinytf.checkpoints.gguf.load import checkpoint_of, gguf_tokenizer, read_gguf
from tinytf.checkpoints.gguf.split import parts_of, read_parts
from tinytf.checkpoints.gguf.vocabulary import tokenizer_of

__all__ = ["checkpoint_of", "gguf_tokenizer", "parts_of", "read_gguf", "read_parts", "tokenizer_of"]
