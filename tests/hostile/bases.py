"""The sound files that are made hostile: a model, what a training run leaves, a GGUF file. Each made once."""

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.run import save_run
from tinytf.config import ModelConfig
from tinytf.features.coder import SparseCoder
from tinytf.model.transformer import Transformer
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import train_bpe

Files = Mapping[str, bytes]

TEXT = "The cat sat on the mat. The dog saw the cat, and the cat ran away from the big red dog. " * 8


@cache
def tokenizer() -> Tokenizer:
    return train_bpe([TEXT], 280)


def _config(**more: object) -> ModelConfig:
    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 8, "context": 128}
    return ModelConfig.of(vocab_size=tokenizer().vocab_size, **{**sizes, **more})  # type: ignore[arg-type]


def read(folder: Path) -> Files:
    """All that lies in a folder, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def within(folder: str, files: Files) -> dict[str, bytes]:
    """The same files in a folder."""
    return {f"{folder}/{name}": data for name, data in files.items()}


@cache
def ours() -> Files:
    """A model as a run of tinytf leaves it."""
    with tempfile.TemporaryDirectory() as made:
        save_run(Path(made), Transformer.initialised(_config(), 0), tokenizer())
        return read(Path(made))


@cache
def sae() -> Files:
    """A sparse autoencoder of 6 features for the output of that model's layer."""
    draw = torch.Generator().manual_seed(0)
    shapes = ((8, 6), (6,), (6, 8), (8,))
    weights = [torch.randn(shape, generator=draw) for shape in shapes]
    with tempfile.TemporaryDirectory() as made:
        SparseCoder("sae", "SAELens", "topk", *weights, reads="blocks.0.hook_resid_post", k=2).save(Path(made))
        return read(Path(made))


@cache
def llama() -> Files:
    """A directory of transformers."""
    config = _config(
        positions="rotary", norm="rmsnorm", activation="silu", gated=True, qkv_bias=False, o_bias=False, ffn_bias=False
    )
    with tempfile.TemporaryDirectory() as made:
        export(Transformer.initialised(config, 1), tokenizer(), Path(made) / "llama")
        return read(Path(made) / "llama")


@cache
def gpt2() -> Files:
    """Another one."""
    with tempfile.TemporaryDirectory() as made:
        config = _config(activation="gelu_tanh", d_ff=32)
        export(Transformer.initialised(config, 1), tokenizer(), Path(made) / "gpt2")
        return read(Path(made) / "gpt2")


def tensors() -> dict[str, torch.Tensor]:
    """The weights of ``llama`` by name."""
    from safetensors.torch import load

    return load(llama()["model.safetensors"])
