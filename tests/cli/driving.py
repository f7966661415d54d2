"""How the tests drive the command line: streams that tell what they got, and a model that is not dull."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer

CORPUS = ["The cat sat on the mat. The dog saw the cat, and the cat ran away from the big red dog. " * 8]
SENTENCE = "The cat sat on the mat"

Tinytf = Callable[..., "Ran"]
Program = Callable[..., Any]


@dataclass(frozen=True)
class Ran:
    """What one run of the command line left behind."""

    status: int
    data: bytes
    err: str

    @property
    def out(self) -> str:
        return self.data.decode("utf-8")

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Stream(io.TextIOWrapper):
    """A standard stream over bytes in memory, which may say that it is a terminal."""

    def __init__(self, data: bytes = b"", *, screen: bool = False, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(data), encoding=encoding, errors="strict", newline="")
        self.screen = screen

    def isatty(self) -> bool:
        return self.screen

    def got(self) -> bytes:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue()


def lively(config: ModelConfig, seed: int = 0) -> Transformer:
    """A random model whose weights are large enough that heads differ from each other."""
    model = Transformer.initialised(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.4, generator=generator)
    return model
