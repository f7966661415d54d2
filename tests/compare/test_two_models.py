"""Two models whose weights are one another's, and a model written in another gauge: what is said of them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked, config_of, lively
from torch import Tensor

from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import open_dump
from tinytf.compare.weights import compare_weights
from tinytf.loading import load
from tinytf.model.transformer import Transformer

IDS = [3, 14, 15, 9, 2, 6, 5]
TEXT = " ".join(map(str, IDS))
LLAMA, GPT2 = "llama, grouped", "gpt2"
HALVES_TO_PAIRS = [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]


def changed(kind: str, change: Callable[[Transformer], Any], **settings: Any) -> tuple[Transformer, Transformer]:
    """A model, and one whose weights are changed."""
    first = lively(config_of(kind, **settings))
    second = copy.deepcopy(first)
    with torch.no_grad():
        change(second)
    return first, second


def swap(first: Tensor, second: Tensor) -> None:
    first.data, second.data = second.data.clone(), first.data.clone()


def rows(matrix: Tensor, order: Any) -> None:
    matrix.data = matrix.data[order].clone()


def in_heads(matrix: Tensor, heads: int, order: list[int]) -> None:
    """The rows of each head in another order."""
    matrix.data = matrix.data.unflatten(0, (heads, -1))[:, order].flatten(0, 1)


def in_pairs(model: Transformer) -> None:
    for block in model.blocks:
        in_heads(block.attention.q.weight, 4, HALVES_TO_PAIRS)
        in_heads(block.attention.k.weight, 2, HALVES_TO_PAIRS)


def out_of_pairs(model: Transformer) -> None:
    for block in model.blocks:
        in_heads(block.attention.q.weight, 4, np.argsort(HALVES_TO_PAIRS).tolist())
        in_heads(block.attention.k.weight, 2, np.argsort(HALVES_TO_PAIRS).tolist())


def cut_the_other_way(model: Transformer) -> None:
    """A joint matrix [q; k; v] read as if q, k and v lay by head."""
    for block in model.blocks:
        parts = [getattr(block.attention, name).weight for name in "qkv"]
        joint = torch.cat([part.data for part in parts]).unflatten(0, (4, 3, 6))
        for number, part in enumerate(parts):
            part.data = joint[:, number].flatten(0, 1).clone()


def in_blocks(matrix: Tensor) -> Tensor:
    """Numbers of 8 bits with a scale for each row."""
    scale = matrix.abs().amax(-1, keepdim=True) / 127
    return (matrix / scale).round() * scale


def every(model: Transformer, change: Callable[[Tensor], Tensor]) -> None:
    for parameter in model.parameters():
        parameter.data = change(parameter.data)


SLIPS: dict[str, tuple[str, Callable[[Transformer], Any], str]] = {
    "queries and keys in pairs": (
        LLAMA,
        in_pairs,
        "B's W_Q and W_K are A's with their rows in another order: in pairs instead of halves, in all 2 layers",
    ),
    "queries and keys that were in halves already in a GGUF file": (
        LLAMA,
        out_of_pairs,
        "put from pairs into halves, where they were in halves, in all 2 layers",
    ),
    "gate and up": (
        LLAMA,
        lambda m: [swap(b.ffn.up.weight, b.ffn.gate.weight) for b in m.blocks],
        "B's ffn.W_up and ffn.W_gate are A's ffn.W_gate and ffn.W_up, in all 2 layers",
    ),
    "norms": (
        LLAMA,
        lambda m: [swap(b.norm1.weight, b.norm2.weight) for b in m.blocks],
        "B's norm1.gain and norm2.gain are A's norm2.gain and norm1.gain, in all 2 layers",
    ),
    "layers": (
        LLAMA,
        lambda m: [swap(*pair) for pair in zip(m.blocks[0].parameters(), m.blocks[1].parameters(), strict=True)],
        "B's layers 0 and 1 are A's 1 and 0: layers in another order",
    ),
    "keys and values of one layer": (
        LLAMA,
        lambda m: swap(m.blocks[0].attention.k.weight, m.blocks[0].attention.v.weight),
        "B's L0.W_K and L0.W_V are A's W_V and W_K",
    ),
    "transposed": (
        GPT2,
        lambda m: swap(m.blocks[0].attention.q.weight, m.blocks[0].attention.q.weight.T),
        "B's L0.W_Q is A's, transposed",
    ),
    "no bias": (
        GPT2,
        lambda m: [b.attention.q.bias.zero_() for b in m.blocks],
        "B's b_Q is all 0, in all 2 layers",
    ),
    "half": (GPT2, lambda m: m.blocks[1].attention.o.weight.mul_(0.5), "B's L1.W_O is A's, 0.5 times as large"),
    "a sign": (GPT2, lambda m: m.blocks[1].attention.o.weight.neg_(), "B's L1.W_O is A's, with the other sign"),
    "a gain without 1": (GPT2, lambda m: m.blocks[1].norm2.weight.sub_(1), "B's L1.norm2.gain is A's, with -1 added"),
    "a gain in the matrix": (
        GPT2,
        lambda m: m.blocks[1].ffn.up.weight.mul_(m.blocks[1].norm2.weight),
        "B's L1.ffn.W₁ is A's, with each column multiplied by norm2.gain",
    ),
    "rows": (
        GPT2,
        lambda m: rows(m.blocks[1].ffn.up.weight, torch.arange(40).flip(0)),
        "B's L1.ffn.W₁ is A's, its rows in another order",
    ),
    "columns": (
        GPT2,
        lambda m: swap(m.blocks[1].ffn.down.weight, m.blocks[1].ffn.down.weight.flip(1)),
        "B's L1.ffn.W₂ is A's, its columns in another order",
    ),
    "heads": (
        GPT2,
        lambda m: rows(m.blocks[1].attention.q.weight, torch.arange(24).roll(6)),
        "B's L1.W_Q is A's, its heads in another order: 3 0 1 2",
    ),
    "ids": (
        GPT2,
        lambda m: rows(m.embed.tokens.weight, torch.arange(31).roll(1)),
        "B's E is A's, its rows are rolled by 1",
    ),
    "bfloat16": (
        GPT2,
        lambda m: every(m, lambda x: x.bfloat16().float()),
        "36 of B's weights are A's rounded to bfloat16",
    ),
    "int8": (
        GPT2,
        lambda m: m.blocks[0].ffn.up.weight.copy_(in_blocks(m.blocks[0].ffn.up.weight)),
        "B's L0.ffn.W₁ is A's rounded to int8, a scale for each row",
    ),
    "a joint matrix": (
        GPT2,
        cut_the_other_way,
        "made of rows of A's W_K, W_Q and W_V, as if their joint matrix were cut the other way, in all 2 layers",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_of_a_conversion_is_said_in_one_sentence(slip: str) -> None:
    kind, change, sentence = SLIPS[slip]
    found = compare_weights(*changed(kind, change, **({"d_head": 10} if kind == LLAMA else {})))
    assert sentence in found.in_words()
    assert ";" not in found.in_words()
    assert found.explained == found.differ


def compared(slip: str) -> Difference:
    kind, change, _ = SLIPS[slip]
    first, second = changed(kind, change, **({"d_head": 10} if kind == LLAMA else {}))
    return asked(first, 2).diff(TEXT, asked(second, 2))


def test_the_cause_of_two_models_is_in_the_sentence_of_the_comparison() -> None:
    assert (
        "They differ from L0.q on: B's W_Q and W_K are A's with their rows"
        in compared("queries and keys in pairs").in_a_sentence()
    )


class Folded:
    """GPT-2 as TransformerLens writes it, by the definitions of ``fold_ln``, ``center_writing_weights``,
    ``center_unembed`` and ``fold_value_biases``; ``wrong`` changes the folded weights, by name.
    """

    def __init__(self, model: Transformer, wrong: Callable[[dict[str, np.ndarray]], None] = lambda _: None) -> None:
        self.model, self.config = model, model.config
        w = {name: one.detach().double().numpy() for name, one in model.named_parameters()}
        unembed = w.get("head.projection.weight", w["embed.tokens.weight"])  # (V, C)
        f = {"embed": w["embed.tokens.weight"], "positions": w["embed.positions.weight"]}
        for n in range(self.config.n_layers):
            at = f"blocks.{n}."
            reads = [("norm1", f"attention.{name}") for name in "qkv"] + [("norm2", "ffn.up")]
            for norm, name in reads:
                matrix, gain, bias = w[f"{at}{name}.weight"], w[f"{at}{norm}.weight"], w[f"{at}{norm}.bias"]
                f[f"{n}.{name}.b"] = w[f"{at}{name}.bias"] + matrix @ bias
                f[f"{n}.{name}"] = matrix * gain
            for name in ("attention.o", "ffn.down"):
                f[f"{n}.{name}"], f[f"{n}.{name}.b"] = w[f"{at}{name}.weight"], w[f"{at}{name}.bias"]
            f[f"{n}.attention.o.b"] = f[f"{n}.attention.o.b"] + f[f"{n}.attention.o"] @ f[f"{n}.attention.v.b"]
            f[f"{n}.attention.v.b"] = np.zeros_like(f[f"{n}.attention.v.b"])
            for name in ("attention.o", "ffn.down"):
                f[f"{n}.{name}"] = f[f"{n}.{name}"] - f[f"{n}.{name}"].mean(0)
                f[f"{n}.{name}.b"] = f[f"{n}.{name}.b"] - f[f"{n}.{name}.b"].mean()
        for name in ("embed", "positions"):
            f[name] = f[name] - f[name].mean(-1, keepdims=True)
        f["unembed"], f["unembed.b"] = unembed * _final(w, "weight"), unembed @ _final(w, "bias")
        f["unembed"], f["unembed.b"] = f["unembed"] - f["unembed"].mean(0), f["unembed.b"] - f["unembed.b"].mean()
        wrong(f)
        self.weights = f

    def steps(self, ids: list[int]) -> dict[str, np.ndarray]:
        f, heads, out = self.weights, self.config.n_heads, dict[str, np.ndarray]()

        def normed(x: np.ndarray) -> np.ndarray:
            x = x - x.mean(-1, keepdims=True)
            return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config.norm_eps)

        def linear(x: np.ndarray, name: str) -> np.ndarray:
            return x @ f[name].T + f[f"{name}.b"]

        out["embed.tokens"], out["embed.positions"] = f["embed"][ids], f["positions"][: len(ids)]
        x = out["embed.out"] = out["embed.tokens"] + out["embed.positions"]
        for n in range(self.config.n_layers):
            h = out[f"L{n}.norm1"] = normed(x)
            q, k, v = (linear(h, f"{n}.attention.{name}").reshape(len(ids), heads, -1).swapaxes(0, 1) for name in "qkv")
            scores = np.where(np.tri(len(ids)) > 0, q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]), -np.inf)
            e = np.exp(scores - scores.max(-1, keepdims=True))
            weights = e / e.sum(-1, keepdims=True)
            out |= {f"L{n}.q": q, f"L{n}.k": k, f"L{n}.v": v, f"L{n}.weights": weights, f"L{n}.head_out": weights @ v}
            a = out[f"L{n}.attn"] = linear((weights @ v).swapaxes(0, 1).reshape(len(ids), -1), f"{n}.attention.o")
            x = out[f"L{n}.mid"] = x + a
            h = out[f"L{n}.norm2"] = normed(x)
            u = out[f"L{n}.ffn.hidden"] = linear(h, f"{n}.ffn.up")
            u = out[f"L{n}.ffn.act"] = u / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
            x = out[f"L{n}.out"] = x + out.setdefault(f"L{n}.ffn", linear(u, f"{n}.ffn.down"))
        out["final.norm"] = normed(x)
        out["logits"] = linear(out["final.norm"], "unembed")
        return out


def _final(weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return next(one for path, one in weights.items() if path.endswith(f"norm.{name}") and "blocks" not in path)


def against(model: Transformer, steps: dict[str, np.ndarray], folder: Path) -> Difference:
    path = folder / "theirs.npz"
    np.savez(path, input_ids=np.array(IDS), **steps)
    return asked(model, 2).diff(None, open_dump(path))


def test_a_model_folded_and_centred_is_said_to_predict_the_same(tmp_path: Path) -> None:
    model = lively(config_of(GPT2))
    found = against(model, Folded(model).steps(IDS), tmp_path)
    assert found.first is None
    said = found.in_a_sentence()
    assert said.startswith("The same predictions; written differently: ")
    for words in ("centred streams", "logits without their mean", "gains and biases of norms", "value biases"):
        assert words in said


def test_logits_alone_are_the_same_up_to_a_number_for_each_token(tmp_path: Path) -> None:
    model = lively(config_of(GPT2))
    found = against(model, {"logits": Folded(model).steps(IDS)["logits"]}, tmp_path)
    assert found.in_a_sentence().startswith("The same predictions; written differently: logits without their mean;")


def another_order_of_heads(f: dict[str, np.ndarray]) -> None:
    order = [2, 0, 3, 1]
    for n in range(2):
        for name in "qkv":
            f[f"{n}.attention.{name}"] = f[f"{n}.attention.{name}"].reshape(4, 6, 24)[order].reshape(24, 24)
            f[f"{n}.attention.{name}.b"] = f[f"{n}.attention.{name}.b"].reshape(4, 6)[order].flatten()
        f[f"{n}.attention.o"] = f[f"{n}.attention.o"].reshape(24, 4, 6)[:, order].reshape(24, 24)


def another_basis(f: dict[str, np.ndarray]) -> None:
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    for n in range(2):
        for name in "qk":
            f[f"{n}.attention.{name}"] = (rotation @ f[f"{n}.attention.{name}"].reshape(4, 6, 24)).reshape(24, 24)
            f[f"{n}.attention.{name}.b"] = (f[f"{n}.attention.{name}.b"].reshape(4, 6) @ rotation.T).flatten()


def another_order_of_units(f: dict[str, np.ndarray]) -> None:
    order = np.random.default_rng(0).permutation(40)
    for n in range(2):
        f[f"{n}.ffn.up"], f[f"{n}.ffn.up.b"] = f[f"{n}.ffn.up"][order], f[f"{n}.ffn.up.b"][order]
        f[f"{n}.ffn.down"] = f[f"{n}.ffn.down"][:, order]


@pytest.mark.parametrize(
    ("gauge", "words"),
    [
        (another_order_of_heads, "heads in another order: 2 0 3 1"),
        (another_basis, "queries and keys turned by the same rotation"),
        (another_order_of_units, "hidden units in another order"),
    ],
)
def test_other_gauges_are_recognised_behind_the_folded_ones(gauge: Any, words: str, tmp_path: Path) -> None:
    model = lively(config_of(GPT2))
    found = against(model, Folded(model, gauge).steps(IDS), tmp_path)
    assert found.first is None
    assert words in found.in_a_sentence()


def test_a_fault_behind_a_gauge_is_still_found(tmp_path: Path) -> None:
    def wrong(f: dict[str, np.ndarray]) -> None:
        for name in ("1.attention.q", "1.attention.q.b"):
            f[name] = f[name] * 1.5

    model = lively(config_of(GPT2))
    found = against(model, Folded(model, wrong).steps(IDS), tmp_path)
    assert found.first is not None
    assert found.first.name == "L1.q"
    assert found.cause is not None
    assert found.cause.in_words == "it is 1.5 times as large"
    assert "centred streams" in [gauge.words for gauge in found.gauges]


def test_a_gain_that_is_left_out_is_no_gauge(tmp_path: Path) -> None:
    """It looks like a folded one, and the step that reads it tells them apart."""
    first, second = changed(GPT2, lambda m: [m.blocks[0].norm1.weight.fill_(1), m.blocks[0].norm1.bias.zero_()])
    trace = asked(second, 2).trace(TEXT)
    steps = {name: trace.step(name, 0).numpy() for name in ("norm1", "q", "k", "v", "attn", "mid")}
    found = against(first, {f"L0.{name}": numbers for name, numbers in steps.items()}, tmp_path)
    assert found.gauges == ()
    assert found.first is not None
    assert found.first.name == "L0.norm1"


def test_what_was_tried_is_a_record_of_the_search(tmp_path: Path) -> None:
    model = lively(config_of(GPT2))
    noise = np.random.default_rng(0).normal(size=(4, len(IDS), 6))
    found = against(model, {"L0.q": noise}, tmp_path)
    assert found.cause is not None
    assert not found.cause.found
    assert [tried.step for tried in found.tried] == ["L0.q"]
    assert "the weights are rounded to bfloat16" in found.tried[0].words
    assert not any("expert" in words for words in found.tried[0].words)  # it has none


def test_two_models_of_other_sizes_are_not_searched() -> None:
    found = compare_weights(lively(config_of(GPT2)), lively(config_of(GPT2, d_model=32)))
    assert found.in_words() == "the weights have nothing in common"
    assert found.tried == ()


def test_embeddings_that_hold_their_scale_are_no_cause(tmp_path: Path) -> None:
    """An exported model: B reads what A multiplies, so that only what is wrong besides is said."""
    first = load("tiny")
    first.export(tmp_path / "exported")
    second = load(str(tmp_path / "exported"))
    assert first.diff("The cat sat", second).sentence == "No number differs."
    with torch.no_grad():
        second.transformer.blocks[1].attention.q.weight.mul_(1.01)
    found = first.diff("The cat sat", second).sentence
    assert found.startswith("They differ from L1.q on: B's L1.W_Q is A's, 1.01 times as large; both expect ")


def test_a_weight_that_is_not_finite_is_named() -> None:
    def broken(model: Transformer) -> None:
        model.blocks[1].ffn.down.weight[2, 3] = torch.nan

    first, second = changed(LLAMA, broken)
    said = asked(first).diff(TEXT, asked(second)).sentence
    assert ": B's L1.ffn.W_down is not finite: 1 of its " in said
