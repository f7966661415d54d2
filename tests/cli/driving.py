"""How the tests drive the command line: streams that tell what they got, and a model that is not dull."""

import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from insides import INSIDES

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer


def digits(data: Any) -> Any:
    """Numbers, nested as they are, with the digits that JSON gives to those of float32."""
    if isinstance(data, list | tuple):
        return type(data)(digits(one) for one in data)
    if isinstance(data, dict):
        return {name: digits(one) for name, one in data.items()}
    return float(str(np.float32(data))) if isinstance(data, float) and float(np.float32(data)) == data else data


CORPUS = ["The cat sat on the mat. The dog saw the cat, and the cat ran away from the big red dog. " * 8]
SENTENCE = "The cat sat on the mat"
WIDE = {
    "emoji": "I like 🐈 and 👩‍👩‍👧 and 👍🏽 and 🇩🇪 a lot",
    "CJK": "猫が座った the cat 고양이 坐",
    "combining": "e\u0301 n\u0303 a\u0308\u0323 \u0301 x\u20dd ก็ नि",
    "fullwidth": "ＡＢＣ the ｶﾀｶﾅ",
    "variation": "❤️ ☎︎ ⚖️",
}

Tinytf = Callable[..., "Ran"]

_ERROR = re.compile(r"tinytf: error: [^\n]+\n(hint: [^\n]+\n)?")


@dataclass(frozen=True)
class Ran:
    """What one run of the command line left behind."""

    status: int
    data: bytes
    err: str

    def __post_init__(self) -> None:
        found = INSIDES.search(self.data.decode("utf-8", "replace"))
        assert found is None, f"the insides of the program are in what it wrote: {found[0]}"

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


@contextmanager
def streams(**streams: Any) -> Iterator[None]:
    """Standard streams for a while; None is a closed one."""
    before = {name: getattr(sys, name) for name in streams}
    for name, stream in streams.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in before.items():
            setattr(sys, name, stream)


def lively(config: ModelConfig, seed: int = 0) -> Transformer:
    """A random model whose weights are large enough that heads differ from each other."""
    model = Transformer.initialised(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.4, generator=generator)
    return model


def is_a_clean_error(ran: Ran, status: int = 2) -> bool:
    """Nothing on stdout, one error line and at most one hint on stderr, all of it printable."""
    assert ran.data == b""
    assert "Traceback" not in ran.err
    assert _ERROR.fullmatch(ran.err), ran.err
    assert all(char.isprintable() or char == "\n" for char in ran.err), ascii(ran.err)
    assert ran.status == status
    return True


def without_colour(text: str) -> str:
    """The text without its colour codes; any other escape code stays."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
