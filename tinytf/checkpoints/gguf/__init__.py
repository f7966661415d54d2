"""GGUF files, as llama.cpp writes them: Llama and Qwen2, quantised or not."""

from tinytf.checkpoints.gguf.load import GgufModel, gguf_tokenizer, load_gguf, read_gguf_config

__all__ = ["GgufModel", "gguf_tokenizer", "load_gguf", "read_gguf_config"]
