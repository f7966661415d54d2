"""A small model of our own, and the command line run inside this process."""

import json
import sys
from pathlib import Path

import pytest

from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.run import save_run
from tinytf.config import ModelConfig
from tinytf.loading import Model, load
from tinytf.text.tokenizer import Tokenizer
from tinytf.text.train import train_bpe, train_characters, train_wordpiece
from tinytf_cli.main import run

sys.path.insert(0, str(Path(__file__).parent))

from driving import CORPUS, SENTENCE, WIDE, Ran, Stream, Tinytf, lively, streams
from followed import made
from schemas import hold

_RECIPE = """
tokenizer = "char"
steps = 2
batch = 2
block = 8
warmup = 0
eval_every = 2

[model]
d_model = 8
n_layers = 1
n_heads = 1
d_ff = 8
context = 16
"""


@pytest.fixture(scope="session")
def tinytf() -> Tinytf:
    """Run the command line in this process: ``tinytf("trace", "The cat", stdin=b"", screen=False)``.

    JSON that it prints is held against its schema.
    """

    def call(*arguments: str | Path, stdin: bytes = b"", screen: bool = False, encoding: str = "utf-8") -> Ran:
        out = Stream(screen=screen, encoding=encoding)
        err = Stream(screen=screen)
        with streams(stdout=out, stderr=err, stdin=Stream(stdin)):
            status = run([str(argument) for argument in arguments])
        ran = Ran(status, out.got(), err.got().decode("utf-8"))
        if "--json" in arguments and ran.data.startswith(b"{"):
            hold(json.loads(ran.data))
        return ran

    return call


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    return train_bpe(CORPUS, 300)


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory, bpe: Tokenizer) -> Path:
    """The folder of a decoder, 2 layers × 2 heads, that takes 64 tokens."""
    config = ModelConfig.of(vocab_size=bpe.vocab_size, d_model=16, n_layers=2, n_heads=2, d_ff=32, context=64)
    folder = tmp_path_factory.mktemp("models") / "decoder"
    save_run(folder, lively(config), bpe)
    return folder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder after the paper: post-norm, sinusoidal, WordPiece; fills masks, and has a pooler."""
    tokenizer = train_wordpiece(CORPUS, 120)
    config = ModelConfig.of(
        vocab_size=tokenizer.vocab_size, d_model=16, n_layers=2, n_heads=2, d_ff=32, context=64,
        causal=False, norm_order="post", positions="sinusoidal", embed_scale=4.0, head="mlm", pooler=True,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "encoder"
    save_run(folder, lively(config), tokenizer)
    return folder


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory, bpe: Tokenizer) -> Path:
    """A directory of transformers: a Llama with the tokenizer of the small decoder."""
    config = ModelConfig.of(
        vocab_size=bpe.vocab_size, d_model=24, n_layers=3, n_heads=4, n_kv_heads=2, d_ff=32, context=64,
        positions="rotary", norm="rmsnorm", activation="silu", gated=True,
        qkv_bias=False, o_bias=False, ffn_bias=False,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("hf") / "llama"
    export(lively(config, 5), bpe, folder)
    return folder


@pytest.fixture(scope="session")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a decoder whose tokens are single characters, narrow, wide and combining ones."""
    tokenizer = train_characters([*WIDE.values(), SENTENCE])
    config = ModelConfig.of(vocab_size=tokenizer.vocab_size, d_model=8, n_layers=1, n_heads=2, d_ff=8, context=64)
    folder = tmp_path_factory.mktemp("models") / "characters"
    save_run(folder, lively(config), tokenizer)
    return folder


@pytest.fixture(scope="session")
def opened(decoder: Path) -> Model:
    """The decoder, opened by the library."""
    return load(str(decoder), device="cpu")


@pytest.fixture(scope="session")
def twelve_by_twelve(bpe: Tokenizer) -> Model:
    """As many heads as GPT-2 small has, and 256 tokens of context."""
    config = ModelConfig.of(vocab_size=bpe.vocab_size, d_model=48, n_layers=12, n_heads=12, d_ff=48, context=256)
    return Model("twelve", lively(config), bpe, "random weights")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A TOML file for two steps of the smallest decoder."""
    path = tmp_path / "recipe.toml"
    path.write_text(_RECIPE, "utf-8")
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A text file."""
    path = tmp_path / "corpus.txt"
    path.write_text(CORPUS[0], "utf-8")
    return path


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder of two runs, one of them unfinished and the better one."""
    made(tmp_path / "runs" / "slow", held_out=3.0)
    made(tmp_path / "runs" / "good", last=15, held_out=2.0)
    return tmp_path / "runs"
