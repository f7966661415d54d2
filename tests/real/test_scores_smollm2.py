"""An attention score of SmolLM2 in pairs of parts, beside plain hooks on the model of transformers in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tinytf.loading import Model

pytestmark = pytest.mark.real

LAYER, HEAD, QUERY, KEY = 9, 4, 13, 1
TEXT = "When Mary and John went to the store, John gave a drink to"


@torch.no_grad()
def parts_of(theirs: Any, ids: list[int]) -> tuple[dict[str, Tensor], Tensor]:
    """What the embeddings, heads and feed-forwards below LAYER add, (T, C) each, and the stream there, in float64."""
    kept: dict[str, Tensor] = {}
    handles, layers, heads = [], theirs.model.layers[:LAYER], theirs.config.num_attention_heads
    for number, layer in enumerate(layers):
        keep_z = lambda module, args, n=number: kept.update({f"z{n}": args[0][0].double()})  # noqa: E731
        keep_ffn = lambda module, args, out, n=number: kept.update({f"L{n}.ffn": out[0].double()})  # noqa: E731
        handles += [layer.self_attn.o_proj.register_forward_pre_hook(keep_z), layer.mlp.register_forward_hook(keep_ffn)]
    states = theirs(torch.tensor([ids]), output_hidden_states=True).hidden_states
    for handle in handles:
        handle.remove()
    parts = {"embed.tokens": states[0][0].double()}
    for number, layer in enumerate(layers):
        weight = layer.self_attn.o_proj.weight.double().unflatten(1, (heads, -1))  # (C, H·D) -> (C, H, D)
        z = kept[f"z{number}"].unflatten(1, (heads, -1))  # (T, H·D) -> (T, H, D)
        parts |= {f"L{number}H{head}": z[:, head] @ weight[:, head].T for head in range(heads)}
        parts[f"L{number}.ffn"] = kept[f"L{number}.ffn"]
    return parts, states[LAYER][0].double()


@torch.no_grad()
def given(theirs: Any, rows: Tensor, stream: Tensor, projection: Any, head: int, at: int) -> Tensor:
    """What parts (N, C) give a query or key of a head, (N, D): the norm's scale held, a matrix, and RoPE."""
    norm, width = theirs.model.layers[LAYER].input_layernorm, theirs.config.head_dim
    scale = (stream[at].square().mean() + norm.variance_epsilon).sqrt()
    x = (rows / scale * norm.weight.double()) @ projection.weight.double()[head * width : (head + 1) * width].T
    cos, sin = (wave[0, 0].double() for wave in theirs.model.rotary_emb(stream[None], torch.tensor([[at]])))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def test_every_pair_is_that_of_plain_hooks_on_transformers(model: Model, theirs: Any) -> None:
    report = model.attribute_score(TEXT, f"L{LAYER}H{HEAD}.scores[{QUERY},{KEY}]")
    parts, stream = parts_of(theirs, [token.id for token in model.encode(TEXT).tokens])
    attention = theirs.model.layers[LAYER].self_attn
    shared = theirs.config.num_attention_heads // theirs.config.num_key_value_heads
    rows = {at: torch.stack([part[at] for part in parts.values()]) for at in (QUERY, KEY)}
    queries = given(theirs, rows[QUERY], stream, attention.q_proj, HEAD, QUERY)
    keys = given(theirs, rows[KEY], stream, attention.k_proj, HEAD // shared, KEY)
    expected = queries @ keys.T  # (N, M)
    ours = {part.name: number for number, part in enumerate(report.queries)}
    order = [ours[name] for name in parts]
    torch.testing.assert_close(report.values[order][:, order], expected, atol=2e-3, rtol=1e-3)
    assert float(expected.sum()) == pytest.approx(report.score, abs=1e-3)
    assert report.check.holds
