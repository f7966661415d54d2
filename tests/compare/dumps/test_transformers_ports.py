"""What a plain script of transformers writes, with one thing changed in its model: joint matrices, module paths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked
from ports import llama
from reference import pair, saved
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import tinytf
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import open_dump

IDS = [3, 14, 15, 9, 2, 6, 5]


def compared(family: str, change: Callable[[Any], object], path: Path, **settings: Any) -> Difference:
    """The model of transformers, changed and watched, with the model that its own files hold."""
    theirs = pair(family).theirs
    with torch.no_grad():
        change(theirs)
        with tinytf.capture(theirs) as dump:
            made = theirs(input_ids=torch.tensor([IDS]), output_attentions=True, **settings)
    for layer, weights in enumerate(made.attentions):
        dump.tensors[f"attentions.{layer}"] = weights
    dump.save(path)
    model = asked(read_directory(saved(family)).load().transformer)
    return model.diff(None, open_dump(path))


def other_base(model: Any) -> None:
    model.config.rope_parameters["rope_theta"] /= 10
    model.model.rotary_emb = LlamaRotaryEmbedding(model.config)


def other_eps(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-3


def swapped(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    mlp.up_proj.weight.data, mlp.gate_proj.weight.data = mlp.gate_proj.weight.data, mlp.up_proj.weight.data


def exchanged_activation(model: Any) -> None:
    model.transformer.h[1].mlp.act = nn.GELU()


def transposed(model: Any) -> None:
    model.transformer.h[2].attn.c_proj.weight.t_()


@pytest.mark.share(8)
@pytest.mark.parametrize(
    ("family", "change", "settings", "first", "step", "words"),
    [
        ("llama", other_base, {}, "L0.weights", "L0.q_rot and L0.k_rot", "a rotary base of 50 instead of 500"),
        ("llama", other_eps, {}, "L0.norm1", "L0.norm1", "eps 0.001 instead of 3e-05"),
        ("llama", swapped, {}, "L1.ffn.hidden", "L1.ffn.hidden", "the numbers of L1.ffn.gate"),
        ("gpt2", exchanged_activation, {}, "L1.ffn.act", "L1.ffn.act", "the activation is GELU(erf)"),
        ("gpt2", lambda m: m.transformer.h[0].attn.c_attn.bias.zero_(), {}, "L0.q", "L0.q",
         "the bias is left out"),
        ("gpt2", transposed, {}, "L2.attn", "L2.attn", "the matrix is transposed"),
        ("gpt2", lambda m: None, {"position_ids": torch.arange(1, 8)[None]}, "embed.positions", "embed.positions",
         "positions start at 1"),
    ],
    ids=["base", "eps", "swapped", "activation", "bias", "transposed", "positions"],
)  # fmt: skip
@pytest.mark.slow
def test_a_change_in_transformers_is_named_with_its_cause(
    tmp_path: Path, family: str, change: Any, settings: dict[str, Any], first: str, step: str, words: str
) -> None:
    found = compared(family, change, tmp_path / "theirs.safetensors", **settings)
    assert found.first is not None
    assert found.first.name == first
    assert found.cause is not None
    assert (found.cause.step, found.cause.found) == (step, True)
    assert found.cause.words.startswith(words)


def without_joint_bias(model: Any) -> None:
    for block in model.transformer.h:
        block.attn.c_attn.bias.zero_()


def one_layer_without_joint_bias(model: Any) -> None:
    model.transformer.h[0].attn.c_attn.bias.zero_()


def other_activation_in_two_layers(model: Any) -> None:
    for layer in (0, 2):
        model.transformer.h[layer].mlp.act = nn.GELU()


def one_norm_for_both(model: Any) -> None:
    for layer in model.model.layers:
        layer.post_attention_layernorm.weight.data = layer.input_layernorm.weight.data


@pytest.mark.share(8)
@pytest.mark.parametrize(
    ("family", "change", "layers", "said"),
    [
        ("gpt2", without_joint_bias, (0, 1, 2), "the same in all 3 layers"),
        ("gpt2", one_layer_without_joint_bias, (0,), ""),
        ("gpt2", other_activation_in_two_layers, (0, 2), "the same in layers 0 and 2"),
        ("llama", one_norm_for_both, (0, 1, 2), "the same in all 3 layers"),
    ],
)
def test_a_fault_in_several_layers_is_one_that_explains_all_that_differs(
    tmp_path: Path, family: str, change: Any, layers: tuple[int, ...], said: str
) -> None:
    (cause,) = compared(family, change, tmp_path / "theirs.safetensors").causes
    assert cause.found
    assert cause.layers == layers
    assert cause.explained == cause.later > 20
    assert cause.in_words.endswith(said)


def test_faults_that_differ_by_layer_stay_separate(tmp_path: Path) -> None:
    def alternating(model: Any) -> None:
        for number, block in enumerate(model.transformer.h):
            if number % 2:
                block.mlp.act = nn.GELU()
            else:
                block.attn.c_proj.bias.data.zero_()

    found = compared("gpt2", alternating, tmp_path / "theirs.safetensors").causes
    assert [(one.first, one.layers) for one in found] == [("L0.attn", (0, 2)), ("L1.ffn.act", (1,))]
    assert [one.words for one in found] == ["the bias is left out", "the activation is GELU(erf)"]


@pytest.mark.slow
def test_embeddings_without_their_scale_are_the_cause_and_nothing_after_them(tmp_path: Path) -> None:
    """The norm of an unscaled stream has the numbers of another eps, which explains less of what follows."""

    def unscaled(model: Any) -> None:
        model.model.embed_tokens.embed_scale = torch.tensor(1.0)

    found = compared("gemma 3", unscaled, tmp_path / "theirs.safetensors")
    assert found.first is not None
    assert found.first.name == "embed.tokens"
    assert found.cause is not None
    assert (found.cause.step, found.cause.words) == ("embed.tokens", "token embeddings are not multiplied by √d_model")
    assert (found.cause.explained, len(found.causes), found.rescaled) == (found.cause.later, 1, None)
    assert found.cause.later > 20


def test_a_cause_is_named_where_the_stream_after_rescaled_embeddings_is_right(tmp_path: Path) -> None:
    def swapped_and_raw(model: Any) -> None:
        swapped(model)
        raw = model.model.embed_tokens.weight
        model.model.embed_tokens.register_forward_hook(lambda *_: raw[IDS][None])
        model.model.layers[0].register_forward_pre_hook(lambda _, given: (given[0] * 24**0.5, *given[1:]))

    found = compared("gemma 3", swapped_and_raw, tmp_path / "theirs.safetensors")
    assert found.cause is not None
    assert (found.cause.step, found.cause.found, found.rescaled) == ("L1.ffn.hidden", True, None)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert with a masked head", "starcoder", "pythia"])
def test_without_a_change_nothing_differs(tmp_path: Path, family: str) -> None:
    found = compared(family, lambda model: None, tmp_path / "theirs.npz")
    assert found.first is None
    assert not found.incomparable
    assert found.cause is None
    assert len(found.steps) > 20


def test_the_graph_of_llama_cpp_has_rows_in_pairs_and_one_name_for_two_steps(tmp_path: Path) -> None:
    """Written as llama.cpp's callback gives them: tokens before heads, queries after RoPE under the name of before."""
    folder = saved("llama, biases everywhere")
    ours = llama(folder, IDS, "no mistake but other rows")
    steps = {"attn_norm": "norm1", "Qcur": "q_rot", "Kcur": "k_rot", "Vcur": "v", "kq_soft_max": "weights",
             "kqv_out": "attn", "ffn_inp": "mid", "ffn_norm": "norm2", "ffn_up": "ffn.hidden", "ffn_gate": "ffn.gate",
             "ffn_out": "ffn", "l_out": "out"}  # fmt: skip
    arrays = {f"{name}-{layer}": ours[f"L{layer}.{step}"] for name, step in steps.items() for layer in range(3)}
    arrays = {name: one.swapaxes(0, 1) if name[1:4] == "cur" else one for name, one in arrays.items()}
    arrays |= {"result_norm": ours["final.norm"], "result_output": ours["logits"], "ids": np.array(IDS)}
    np.savez(tmp_path / "graph.npz", **arrays)
    found = asked(read_directory(folder).load().transformer).diff(None, open_dump(tmp_path / "graph.npz"))
    assert found.first is None
    assert {f"L{layer}.{step}" for step in steps.values() for layer in range(3)} <= {one.name for one in found.steps}
    assert {"L0.q", "L0.k"} <= set(found.missing)
