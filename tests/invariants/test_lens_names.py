"""Every name of TransformerLens gives the tensor that it names there, worked out by hand with numpy in float64.

``tests/peer/test_names_peer.py`` holds the same names against TransformerLens itself, where it is installed.
"""

import math
from functools import cache

import numpy as np
import pytest
import torch
from architectures import KINDS as ALL
from architectures import config_of, encoding_of, lively
from numpy.typing import NDArray

from tinytf.errors import AddressError
from tinytf.steps.table import StepTable
from tinytf.trace.address import parse_tensor
from tinytf.trace.lens_names import IN_BLOCKS, OUTSIDE, Lens, known_names
from tinytf.trace.parameters import parse_any
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

A = NDArray[np.float64]
KINDS = ("gpt2", "llama, grouped", "bert with a masked head")
IDS = (3, 14, 15, 9, 2, 6, 5)
LEAST = float(np.finfo(np.float32).min)
erf = np.vectorize(math.erf)


@cache
def trace_of(kind: str) -> Trace:
    return record(lively(config_of(kind)), encoding_of(IDS))


class ByHand:
    """A forward pass, which writes down what passes every hook of TransformerLens; tensors (T, …), without a batch."""

    def __init__(self, trace: Trace) -> None:
        self.config = trace.config
        self.weights = {name: one.detach().double().numpy() for name, one in trace.model.state_dict().items()}
        self.seen: dict[str, A] = {}
        self.run()

    def linear(self, x: A, path: str) -> A:
        return x @ self.weights[f"{path}.weight"].T + self.weights.get(f"{path}.bias", 0.0)

    def norm(self, hook: str, x: A, path: str) -> A:
        centred = x - x.mean(-1, keepdims=True) if self.config.norm == "layernorm" else x
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.norm_eps)
        out = centred / scale * self.weights[f"{path}.weight"] + self.weights.get(f"{path}.bias", 0.0)
        for name, value in (("in", x), ("scale", scale), ("normalized", centred / scale), ("out", out)):
            self.seen[f"{hook}.hook_{name}"] = value
        return out

    def note(self, names: str, value: A) -> A:
        self.seen |= dict.fromkeys(names.split(), value)
        return value

    def run(self) -> None:
        weights, config, ids = self.weights, self.config, np.array(IDS)
        encoder, last = config.norm_order == "post", config.n_layers - 1
        self.note("embed.hook_in", ids.astype(float))
        x = tokens = self.note("embed.hook_out", weights["embed.tokens.weight"][ids])
        if config.positions == "learned":
            x = x + self.note("pos_embed.hook_out hook_pos_embed", weights["embed.positions.weight"][: len(ids)])
        else:
            self.note("rotary_emb.hook_in", x)
        if encoder:
            x = x + self.note("token_type_embed.hook_out", weights["embed.types.weight"][np.zeros_like(ids)])
            x = self.norm("embed_ln", x, "embed.norm")
        self.note("hook_embed", x if encoder else tokens)
        for layer in range(config.n_layers):
            x = self.block(layer, x)
        if encoder:
            dense = self.note("mlm_head.hook_out", self.linear(self.note("mlm_head.hook_in", x), "head.dense"))
            x = self.norm("ln_final", 0.5 * dense * (1 + erf(dense / math.sqrt(2))), "head.norm")
        else:
            x = self.norm("ln_final", x, "final_norm")
        assert last > 0
        table = weights.get("head.decoder.weight", weights["embed.tokens.weight"])
        logits = self.note("unembed.hook_in", x) @ table.T + weights.get("head.decoder.bias", 0.0)
        self.note("unembed.hook_out hook_unembed", logits)

    def block(self, layer: int, x: A) -> A:
        at, inside = f"blocks.{layer}.", f"blocks.{layer}"
        encoder = self.config.norm_order == "post"

        def named(names: str, value: A) -> A:
            return self.note(" ".join(at + name for name in names.split()), value)

        named("hook_in hook_resid_pre", x)
        for names, count in (("attn q", self.config.n_heads), ("k v", self.config.n_kv_heads)):
            inputs = ["hook_attn_in" if name == "attn" else f"hook_{name}_input" for name in names.split()]
            each = np.repeat(x[:, None], count, axis=1)  # (T, H, C)
            named(" ".join(f"{name} attn.{name}" for name in inputs), each)
        read = x if encoder else self.norm(f"{at}ln1", x, f"{inside}.norm1")
        named("attn.hook_in attn.q.hook_in attn.k.hook_in attn.v.hook_in", read)
        out = named("attn.o.hook_out", self.attention(layer, read))
        mid = x + out
        if encoder:
            out = mid = self.norm(f"{at}ln1", mid, f"{inside}.norm1")  # their attention ends with the norm
        named("attn.hook_out attn.hook_hidden_states hook_attn_out", out)
        wide = mid if encoder else self.norm(f"{at}ln2", mid, f"{inside}.norm2")
        named("mlp.hook_in mlp.in.hook_in", wide)
        named("hook_mlp_in", wide if encoder else mid)
        hidden = named("mlp.in.hook_out", self.linear(wide, f"{inside}.ffn.up"))
        if self.config.gated:
            named("mlp.gate.hook_in", wide)
            gate = named("mlp.gate.hook_out mlp.hook_pre", self.linear(wide, f"{inside}.ffn.gate"))
            act = gate / (1 + np.exp(-gate)) * named("mlp.hook_pre_linear", hidden)
        else:
            named("mlp.hook_pre", hidden)
            exact, cubed = erf(hidden / math.sqrt(2)), math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
            act = 0.5 * hidden * (1 + (exact if self.config.activation == "gelu" else np.tanh(cubed)))
        named("mlp.hook_post mlp.out.hook_in", act)
        added = self.linear(act, f"{inside}.ffn.down")
        named("mlp.out.hook_out mlp.hook_out hook_mlp_out", added)
        if encoder:
            after = named("hook_resid_mid", mid + added)
            after = self.norm(f"{at}ln2", after, f"{inside}.norm2")
        else:
            named("hook_resid_mid", mid)
            after = mid + added
        return named("hook_out hook_resid_post", after)

    def attention(self, layer: int, read: A) -> A:
        config, at, count = self.config, f"blocks.{layer}.attn.", len(read)

        def heads(name: str, n: int) -> A:
            made = self.linear(read, f"blocks.{layer}.attention.{name}").reshape(count, n, -1)
            return self.note(f"{at}hook_{name} {at}{name}.hook_out", made)  # (T, H, D)

        q, k, v = heads("q", config.n_heads), heads("k", config.n_kv_heads), heads("v", config.n_kv_heads)
        if config.positions == "rotary":
            q, k = (self.note(f"{at}hook_rot_{name}", self.turned(one)) for name, one in (("q", q), ("k", k)))
        shared = config.n_heads // config.n_kv_heads
        k, v = k.repeat(shared, axis=1), v.repeat(shared, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        if config.causal:
            scores = np.where(np.tril(np.ones((count, count), bool)), scores, LEAST)
            self.note(f"{at}hook_attn_scores", scores)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        pattern = self.note(f"{at}hook_pattern", shares / shares.sum(-1, keepdims=True))
        z = self.note(f"{at}hook_z {at}o.hook_in", np.einsum("hqk,khd->qhd", pattern, v))
        by_head = np.split(self.weights[f"blocks.{layer}.attention.o.weight"], config.n_heads, axis=1)
        self.note(f"{at}hook_result", np.stack([z[:, h] @ one.T for h, one in enumerate(by_head)], axis=1))
        return self.linear(z.reshape(count, -1), f"blocks.{layer}.attention.o")

    def turned(self, x: A) -> A:
        half = x.shape[-1] // 2
        angles = np.arange(len(x))[:, None] * self.config.rope_theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@cache
def by_hand(kind: str) -> dict[str, A]:
    return ByHand(trace_of(kind)).seen


def answered(table: StepTable) -> dict[str, Lens]:
    """Every name that is answered for a model, in full."""
    named = dict(known_names(table, None))
    for layer in range(table.config.n_layers):
        named |= {f"blocks.{layer}.{name}": lens for name, lens in known_names(table, layer).items()}
    return {name: lens for name, lens in named.items() if isinstance(lens, Lens)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_that_is_answered_was_worked_out_by_hand(kind: str) -> None:
    assert set(answered(trace_of(kind).steps)) == set(by_hand(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_gives_its_numbers_on_its_axes(kind: str) -> None:
    trace = trace_of(kind)
    for name, expected in by_hand(kind).items():
        found = trace[name]
        assert tuple(found.shape) == expected.shape, name
        assert np.allclose(found.double().numpy(), expected, atol=1e-4, rtol=1e-4), name
        where = parse_any(name, trace.steps)
        sizes = {**dict.fromkeys(("token", "query", "key"), len(IDS)), **trace.config.sizes, "scale": 1}
        assert [sizes[axis] for axis in where.axes] == list(expected.shape), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_is_not_answered_is_refused_with_a_reason(kind: str) -> None:
    trace = trace_of(kind)
    names = {n for row in OUTSIDE for n in row.names.split()}
    names |= {f"blocks.1.{n}" for row in IN_BLOCKS for n in row.names.split()}
    for name in names - set(by_hand(kind)):
        with pytest.raises(AddressError, match=r"is refused: |is not a name that this model has"):
            trace[name]


@pytest.mark.every
@pytest.mark.parametrize("kind", ALL)
def test_what_the_heads_add_and_the_bias_sum_to_attention_in_every_kind(kind: str) -> None:
    trace = trace_of(kind)
    for layer in range(trace.config.n_layers):
        if not trace.config.at(layer).n_heads:
            continue
        added, bias = trace[f"blocks.{layer}.attn.hook_result"], getattr(attention_of(trace, layer), "bias", None)
        total = added.sum(1) if bias is None else added.sum(1) + bias.detach()  # (T, H, C) -> (T, C)
        torch.testing.assert_close(total, trace[f"L{layer}.attn"], atol=1e-4, rtol=1e-4)


def attention_of(trace: Trace, layer: int) -> torch.nn.Module:
    """The module of attention's output."""
    return trace.model.get_submodule(f"blocks.{layer}.{trace.steps.at('attn', layer).module}")


def test_the_tensors_of_several_blocks_are_stacked_and_cut_as_numpy_does() -> None:
    trace, expected = trace_of("gpt2"), by_hand("gpt2")
    z = np.stack([expected[f"blocks.{layer}.attn.hook_z"] for layer in (0, 1)])
    for name, cut in (
        ("L0,1.attn.hook_z", np.s_[:]),
        ("blocks.*.attn.hook_z[2]", np.s_[:, 2]),
        ("L0-1.attn.hook_z[1:5:2,-1]", np.s_[:, 1:5:2, -1]),
        ("L*.attn.hook_z[-3:,:,0]", np.s_[:, -3:, :, 0]),
    ):
        assert np.allclose(trace[name].double().numpy(), z[cut], atol=1e-5), name


def test_a_name_reads_the_same_from_what_it_is_printed_as() -> None:
    table = trace_of("gpt2").steps
    for name in answered(table):
        for cell in ("", "[0]", "[-2:]"):
            where = parse_any(name + cell, table)
            assert parse_any(str(where), table) == where
            assert str(where) == name + cell


def test_a_name_that_is_mistyped_is_answered_with_the_nearest() -> None:
    with pytest.raises(AddressError) as caught:
        trace_of("gpt2")["L1.attn.hook_patern"]
    assert caught.value.message == "'blocks.1.attn.hook_patern' is not a name that this model has"
    assert caught.value.hint == "did you mean attn.hook_pattern?"
    with pytest.raises(AddressError) as caught:
        trace_of("gpt2")["L1H2.attn.hook_z"]
    assert caught.value.hint == "write the head in the cell: [:,2]"


@pytest.mark.parametrize(("word", "heads"), [("1", (1,)), ("::-1", (3, 2, 1, 0)), ("1:", (1, 2, 3)), ("::2", (0, 2))])
def test_the_heads_that_a_cell_takes_are_those_of_our_step(word: str, heads: tuple[int, ...]) -> None:
    table = StepTable(config_of("gpt2", n_heads=4))
    assert parse_tensor(f"blocks.0.attn.hook_q[:,{word}]", table).plain(table).heads == heads
