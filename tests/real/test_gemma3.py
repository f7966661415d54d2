"""Gemma 3 270M, a quantised GGUF file: our numbers are those of an independent reading of the same file."""

import math
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from covering import sample
from torch import Tensor, nn

from tinytf.checkpoints.gguf.header import read_header
from tinytf.loading import Model, load

pytestmark = pytest.mark.real

PROMPTS = [
    "The capital of France is the city of",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "Die Katze saß auf der Matte,  und 12 Hunde sahen ihr zu. 日本の首都は",
]
PAGE = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it "
    "was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
    "Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing "
    "before us, we were all going direct to Heaven, we were all going direct the other way. There were a king with a "
    "large jaw and a queen with a plain face, on the throne of England; there were a king with a large jaw and a queen "
    "with a fair face, on the throne of France. In both countries it was clearer than crystal to the lords of the "
    "State preserves of loaves and fishes, that things in general were settled for ever."
)


@pytest.fixture(scope="module")
def path() -> Path:
    folder = os.environ.get("TINYTF_REAL_WEIGHTS")
    found = sorted(Path(folder).rglob("gemma-3-270m*.gguf")) if folder else []
    if not found:
        pytest.skip("TINYTF_REAL_WEIGHTS names no folder with gemma-3-270m.gguf")
    return found[0]


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load(str(path), device="cpu")


@pytest.fixture(scope="module")
def theirs(path: Path) -> nn.Module:
    """transformers' model with the numbers that the gguf library reads; its settings from the file's metadata.

    No key has the base of the layers with a window, nor which layers they are: both are those of Gemma 3's paper. The
    library's own reader takes ten seconds for the vocabulary, and is held to ours in test_gguf.py.
    """
    header = read_header(path)
    said = {name.removeprefix("gemma3."): value for name, value in header.metadata.items()}
    base = {"rope_type": "default", "rope_theta": said["rope.freq_base"]}
    config = transformers.Gemma3TextConfig(
        vocab_size=header.tensors["token_embd.weight"].shape[0],
        hidden_size=said["embedding_length"],
        intermediate_size=said["feed_forward_length"],
        num_hidden_layers=said["block_count"],
        num_attention_heads=said["attention.head_count"],
        num_key_value_heads=said["attention.head_count_kv"],
        head_dim=said["attention.key_length"],
        query_pre_attn_scalar=said["attention.key_length"],
        max_position_embeddings=said["context_length"],
        rms_norm_eps=said["attention.layer_norm_rms_epsilon"],
        sliding_window=said["attention.sliding_window"],
        rope_parameters={"full_attention": base, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}},
    )
    assert [kind == "full_attention" for kind in config.layer_types] == [layer % 6 == 5 for layer in range(18)]
    with torch.device("meta"):
        empty = transformers.Gemma3ForCausalLM(config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, config.num_hidden_layers)
    state = {}
    for name, parameter in empty.named_parameters():
        tensor = header.tensors[names.get_name(name, try_suffixes=(".weight",))]
        stored = np.fromfile(path, np.uint8, tensor.n_bytes, offset=tensor.start)
        numbers = torch.from_numpy(gguf.quants.dequantize(stored, tensor.kind)).view(parameter.shape)
        state[name] = numbers - 1 if name.endswith("norm.weight") else numbers  # the file has Gemma's 1 + w
    return transformers.Gemma3ForCausalLM.from_pretrained(
        None, config=config, state_dict=state, attn_implementation="eager", dtype=torch.float32
    ).eval()


@torch.no_grad()
def logprobs(model: Any, ids: Tensor) -> Tensor:
    said = model(ids)
    return torch.log_softmax(getattr(said, "logits", said)[0], dim=-1)


@pytest.mark.exhaustive
@sample("prompt", PROMPTS)
def test_log_probabilities_are_those_of_the_other_reading(model: Model, theirs: nn.Module, prompt: str) -> None:
    ids = torch.tensor([model.tokenizer.encode(prompt).ids])
    assert (logprobs(model.transformer, ids) - logprobs(theirs, ids)).abs().max() < 1e-3


@pytest.mark.exhaustive
def test_greedy_text_is_that_of_the_other_reading(model: Model, theirs: nn.Module) -> None:
    ids = torch.tensor([model.tokenizer.encode(PROMPTS[0]).ids])
    expected = theirs.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :].tolist()
    found = model.generation(PROMPTS[0], max_tokens=8)
    assert [step.id for step in found.steps] == expected


@pytest.mark.exhaustive
def test_a_page_of_english_is_as_probable_as_to_the_other_reading(model: Model, theirs: nn.Module) -> None:
    ids = torch.tensor([model.tokenizer.encode(PAGE).ids])

    def perplexity(rows: Tensor) -> float:
        return math.exp(-float(rows[:-1].gather(1, ids[0, 1:, None]).mean()))

    ours = perplexity(logprobs(model.transformer, ids))
    assert ours == pytest.approx(perplexity(logprobs(theirs, ids)), rel=1e-4)
    assert ours < 20


def test_trace_attention_lens_attribution_ablation_and_patching_hold(model: Model) -> None:
    text = "The capital of Italy is the city of"
    trace = model.trace(text)
    assert model.attention(trace).check.holds
    assert model.lens(trace).holds
    assert model.attribute(trace).holds
    sweep = model.ablate_sweep(text, "heads")
    assert sweep.check.holds
    assert sweep.strongest(1)[0][1].change < -0.1
    patched = model.patch_sweep(text, "The capital of France is the city of", "residual", answer="Rome", versus="Paris")
    assert all(check.holds for check in patched.checks)
