"""Direct logit attribution: the parts sum to the logit, and each is what autograd says of its direct path."""

from typing import Any

import pytest
import torch
from architectures import asked, config_of, encoding_of, lively, mixer_of, output_matrix
from caught_gradients import IDS, MODELS, model_of
from covering import along
from torch import Tensor

from tinytf.errors import TinytfError, UsageError
from tinytf.loading import Model, load
from tinytf.look.attribute import KINDS, Attribution
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

models = pytest.mark.parametrize("name", MODELS)


def traced(name: str, dtype: torch.dtype = torch.float64) -> Trace:
    return record(model_of(name, dtype).requires_grad_(False), encoding_of(IDS))


def attribute(trace: Trace, position: int, token: int, versus: int | None = None) -> Attribution:
    return asked(trace.model).attribute(trace, token=token, versus=versus, position=str(position))


def unembedded(trace: Trace) -> Tensor:
    """What the head's matrix gives in a plain forward pass, (T, V): the logits, before any cap."""
    kept: list[Tensor] = []
    decoder: Any = trace.model.head
    handle = decoder.decoder.register_forward_hook(lambda module, args, result: kept.append(result[0].double()))
    with torch.no_grad():
        trace.model(torch.tensor([IDS]))
    handle.remove()
    return kept[0]


def values(found: Attribution) -> dict[str, float]:
    named = {part.name: part.value for part in found.parts}
    assert len(named) == len(found.parts)
    return named


@along({"name": MODELS, "dtype, limit": [(torch.float64, 1e-12), (torch.float32, 1e-5)]})
def test_the_parts_sum_to_the_logit_and_to_the_difference_of_two(name: str, dtype: torch.dtype, limit: float) -> None:
    trace = traced(name, dtype)
    logits = unembedded(trace)
    for position in range(len(IDS)):
        alone, lead = attribute(trace, position, 7), attribute(trace, position, 7, 21)
        assert sum(part.value for part in alone.parts) == pytest.approx(float(logits[position, 7]), abs=limit)
        difference = float(logits[position, 7] - logits[position, 21])
        assert sum(part.value for part in lead.parts) == pytest.approx(difference, abs=limit)
        assert alone.holds
        assert lead.holds


@along({"name": MODELS, "dtype": [torch.bfloat16, torch.float16]})
def test_in_half_precision_they_sum_within_what_it_rounds(name: str, dtype: torch.dtype) -> None:
    trace = traced(name, dtype)
    for position in range(len(IDS)):
        assert attribute(trace, position, 7, 21).holds


def _frozen(norm: Any, x: Tensor) -> Tensor:
    """A norm whose scale is a constant for autograd."""
    bias = getattr(norm, "bias", None)
    x = x - x.mean() if isinstance(norm, torch.nn.LayerNorm) else x
    scale = (x.detach().square().mean() + norm.eps).rsqrt()
    gain = 1.0 if norm.weight is None else norm.weight
    return x * scale * gain + (0.0 if bias is None else bias)


def _of_one_size(x: Tensor, others: Tensor) -> Tensor:
    """The first of some streams and the others (n, C), these scaled to its size by a constant."""
    size, sizes = (rows.detach().square().mean(-1, keepdim=True).sqrt() for rows in (x, others))
    return torch.cat((x[None], others * size / sizes))


def _through_streams(trace: Trace, position: int, layer: int, x: Tensor, leaf: Any) -> Tensor:
    """A layer of several streams (n, C), whose weights are constants."""
    block: Any = trace.model.blocks[layer]
    config, active = trace.config, trace.config.active_stream
    weights, gains = (trace.step(f"altup.{name}", layer)[position] for name in ("weights", "gains"))
    predicted = x + weights.view(len(x), len(x)) @ x
    names = ["attn", *["laurel.out"] * (config.laurel_rank > 0), "ffn", "ple.out"]
    own = {name: leaf(f"L{layer}.{name}", trace.step(name, layer)) for name in names}
    middle = predicted[active] + _frozen(block.attn_norm, own["attn"])
    middle = (middle + own["laurel.out"]) / 2**0.5 if config.laurel_rank else middle
    error = middle + _frozen(block.ffn_norm, own["ffn"]) - predicted[active]
    corrected = predicted + (1 + gains)[:, None] * error
    return torch.cat((corrected[:1], corrected[1:] + _frozen(block.ple.out_norm, own["ple.out"])))


def _through_gates(trace: Trace, position: int, layer: int, x: Tensor, leaf: Any) -> Tensor:
    """A layer of several streams (n, C), each of which takes what is added times a constant."""
    if trace.steps.has("ngram.out", layer):
        x = x + leaf(f"L{layer}.ngram.out", trace.step("ngram.out", layer)).view(x.shape)
    for name, weights in (("attn", "write1.weight"), ("ffn", "write2.weight")):
        own = leaf(f"L{layer}.{name}", trace.step(name, layer))
        x = x + trace.step(weights, layer)[position][:, None] * own
    return x


def _read(trace: Trace, position: int, x: Tensor) -> Tensor:
    """The mean of some streams (n, C), each normed by a constant, times constant gates."""
    norm: Any = trace.model.final_norm.streams
    scale = (x.detach().square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    gates = trace.step("final.gate")[position].sigmoid()
    return (x * scale * (norm.weight * gates).view(x.shape)).mean(0)


def _through_hyper(trace: Trace, position: int, layer: int, x: Tensor, leaf: Any) -> Tensor:
    """A layer of hyper-connections, whose streams (n, C) are mixed and written by constants."""
    rounds, eps = trace.config.sinkhorn_rounds, trace.config.hyper_eps
    for half, name in (("hyper1", "attn"), ("hyper2", "ffn")):
        write = trace.step(f"{half}.write", layer)[position] + (0.0 if rounds else eps)
        x = trace.step(f"{half}.mix", layer)[position].view(len(x), len(x)) @ x if rounds else x
        x = x + write[:, None] * leaf(f"L{layer}.{name}", trace.step(name, layer))
    return x


def _convolved(trace: Trace, position: int, layer: int, name: str, own: Tensor, leaf: Any) -> Tensor:
    """What attention or the feed-forward gives, through a convolution: what earlier tokens give of it is a leaf."""
    if not trace.config.added_conv:
        return own
    block: Any = trace.model.blocks[layer]
    before = "ffn_gain" if name == "ffn" else name
    gain = block.ffn.gain if trace.config.at(layer).experts else block.ffn_gain
    own = own * gain.weight if name == "ffn" else own
    last = getattr(block, f"{name}_conv").weight[:, -1].detach()
    earlier = trace.step(f"{name}_conv", layer) - trace.step(before, layer) * last
    return own * last + leaf(f"L{layer}.{name}_conv", earlier)


def _direct_path(trace: Trace, position: int, token: int) -> tuple[Tensor, dict[str, Tensor]]:
    """The logit by the residual stream alone, and what was added to that, each a leaf to ask the gradient of.

    Whatever attention and feed-forwards computed is taken as it was recorded.
    """
    model: Any = trace.model
    leaves: dict[str, Tensor] = {}

    def leaf(name: str, value: Tensor) -> Tensor:
        return leaves.setdefault(name, value[position].clone().requires_grad_())

    total = trace.steps.by_name["embed.sum" if "embed.sum" in trace.steps.by_name else "embed.out"]
    x = torch.stack([leaf(name, trace.step(name)) for name in total.inputs]).sum(0)
    if total.name == "embed.sum":
        x = _frozen(model.embed.norm, x)
        x = model.embed.projection(x) if trace.config.d_embed else x
    scale, normed = trace.config.residual_scale, trace.config.residual_of == "normed"
    others, several = trace.config.extra_streams, trace.config.extra_streams > 0
    gated = trace.config.stream_rank > 0
    if gated or trace.config.hyper:
        x = x.expand(others + 1, -1)
    elif several:
        x = _of_one_size(x, model.streams.projection(x).view(others, -1))
    for layer, block in enumerate(model.blocks):
        if several:
            through = _through_gates if gated else _through_hyper if trace.config.hyper else _through_streams
            x = through(trace, position, layer, x, leaf)
            continue
        order = trace.config.at(layer).norm_order
        post, added = order == "post", order in ("both", "output")
        for name, norm in (("attn", "norm1"), ("ffn", "norm2")):
            if trace.steps.has(name, layer) and trace.steps.added_in(layer):
                own = leaf(f"L{layer}.{name}", trace.step(name, layer))
                own = _convolved(trace, position, layer, name, own, leaf)
                x = trace.config.kept_scale * _frozen(getattr(block, norm), x) if normed else x
                x = x + scale * (_frozen(getattr(block, f"{name}_norm"), own) if added else own)
                x = _frozen(getattr(block, norm), x) if post else x
            if name == "attn" and trace.config.encoder is not None:
                own = leaf(f"L{layer}.cross.attn", trace.step("cross.attn", layer))
                x = x + (_frozen(block.cross.attn_norm, own) if added else own)
                x = _frozen(block.cross.norm, x) if post else x
        if trace.steps.has("ple.out", layer):
            x = x + _frozen(block.ple.out_norm, leaf(f"L{layer}.ple.out", trace.step("ple.out", layer)))
        if trace.steps.has("side", layer):
            own = trace.step("side", layer)
            gate = (trace.step("side_act", layer) / own)[position].detach()
            x = _frozen(block.side.norm, x + gate * leaf(f"L{layer}.side", own))
        x = x * block.scale.weight if trace.config.layer_scale else x
    if gated:
        x = _read(trace, position, x)
    elif trace.config.hyper:
        mean = trace.config.streams_averaged
        shares = (
            trace.step("final.read")[position] + trace.config.hyper_eps
            if not mean
            else torch.full((others + 1,), 1 / (others + 1), dtype=x.dtype)
        )
        x = _frozen(model.final_norm.norm, shares @ x)
    elif several:
        matrices = model.final_norm.projection.weight.view(others, *[x.shape[1]] * 2)
        x = _frozen(model.final_norm.norm, _of_one_size(x[0], torch.einsum("nc,nec->ne", x[1:], matrices)).mean(0))
    elif trace.config.final_norm:
        x = _frozen(model.final_norm, x)
    if trace.config.head.kind == "mlm":
        dense = model.head.dense(x)
        gate = torch.where(dense == 0, 0.0, model.head.act(dense) / dense).detach()
        x = _frozen(model.head.norm, dense * gate)
    if "head.projected" in trace.steps.by_name:
        x = model.head.projection(x)
    return model.head.decoder(x, model.embed.tokens.weight)[token], leaves


def _along(leaf: Tensor) -> float:
    """What a leaf adds: itself times its gradient."""
    assert leaf.grad is not None
    return float(leaf.grad @ leaf.detach())


@models
def test_each_part_is_its_vector_times_the_gradient_of_the_direct_path(name: str) -> None:
    """Autograd's gradient through norms of frozen scale, and each head's columns of the output matrix."""
    trace, position, token = traced(name), 6, 11
    logit, leaves = _direct_path(trace, position, token)
    assert float(logit.detach()) == pytest.approx(float(unembedded(trace)[position, token]), abs=1e-12)
    logit.backward()
    found = attribute(trace, position, token)
    part = values(found)
    for embedding in ("embed.tokens", "embed.positions", "embed.types"):
        if embedding in leaves:
            assert part[embedding] == pytest.approx(_along(leaves[embedding]), abs=1e-12)
    for layer, block in enumerate(trace.model.blocks):
        fed = ("feed-forward", "feed-forward bias", "expert")
        both = sum(one.value for one in found.parts if one.layer == layer and one.kind in fed)
        names = (f"L{layer}.{name}" for name in ("ffn", "ple.out", "laurel.out", "side"))
        fed_by = [leaves[name] for name in names if name in leaves]
        if (ngrams := f"L{layer}.ngram.out") in leaves:
            assert part[ngrams] == pytest.approx(_along(leaves[ngrams]), abs=1e-12)
        if fed_by:
            assert both == pytest.approx(sum(map(_along, fed_by)), abs=1e-12)
        if (attention := mixer_of(block)) is None or not trace.steps.added_in(layer):
            continue
        width = trace.config.at(layer).value_width
        into = "concat" if trace.config.o_rank else trace.steps.at("attn", layer).inputs[0]
        concat, to = trace.step(into, layer)[position], leaves[f"L{layer}.attn"].grad
        for head in range(trace.config.at(layer).n_heads):
            columns = slice(head * width, (head + 1) * width)
            own = output_matrix(attention)[:, columns] @ concat[columns]
            assert part[f"L{layer}H{head}"] == pytest.approx(float(to @ own), abs=1e-12)
        if attention.o.bias is not None:
            assert part[f"L{layer}.attn bias"] == pytest.approx(float(to @ attention.o.bias), abs=1e-12)


@models
def test_a_lead_is_the_one_attribution_less_the_other_part_by_part(name: str) -> None:
    trace = traced(name)
    one, other, lead = (values(attribute(trace, 4, *tokens)) for tokens in ((7,), (21,), (7, 21)))
    assert lead == pytest.approx({part: one[part] - other[part] for part in one}, abs=1e-12)


@models
def test_the_map_of_the_heads_and_the_kinds_are_the_parts_again(name: str) -> None:
    trace = traced(name)
    found = attribute(trace, 4, 7)
    named, heads = values(found), found.heads()
    layers = range(trace.config.n_layers)
    counts = [trace.config.at(layer).n_heads if trace.steps.added_in(layer) else 0 for layer in layers]
    assert heads.shape == (len(counts), max(counts))
    assert heads.isfinite().sum(dim=1).tolist() == counts
    assert all(float(heads[int(p[1]), int(p[3])]) == v for p, v in named.items() if p[0] == "L" and p[2] == "H")
    assert sum(found.by_kind().values()) == pytest.approx(found.sum, abs=1e-12)
    assert list(found.by_kind()) == [kind for kind in KINDS if any(part.kind == kind for part in found.parts)]


def test_a_bias_is_a_part_only_where_the_model_has_one() -> None:
    llama = attribute(traced("llama, grouped"), 4, 7)
    assert set(llama.by_kind()) == {"embedding", "head", "feed-forward"}
    biased = attribute(traced("llama, grouped, tied, with biases"), 4, 7)
    assert set(biased.by_kind()) == {*llama.by_kind(), "attention bias", "feed-forward bias"}
    names = {part.name for part in attribute(traced("bert with a masked head"), 4, 7).parts}
    assert names >= {"embed.types", "embed.norm bias", "L0.norm1 bias", "L1.norm2 bias", "head.dense bias",
                     "head.norm bias", "logits bias"}  # fmt: skip
    assert "final.norm bias" not in names
    assert "final.norm bias" in values(attribute(traced("gpt2"), 4, 7))


def test_a_scaled_embedding_is_one_part_with_its_scale() -> None:
    """Of a model whose blocks add nothing, the token's row of the table is all there is."""
    model = lively(config_of("gpt2", embed_scale=3.0, positions="rotary", tied_head=False)).double()
    with torch.no_grad():
        for block in model.blocks:
            for part in (block.attention.o, block.ffn.down):
                part.weight.zero_()
                part.bias.zero_()
        model.final_norm.bias.zero_()
    found = attribute(record(model, encoding_of(IDS)), 2, 7)
    row = 3.0 * model.embed.tokens.weight[IDS[2]].detach()
    normed = (row - row.mean()) / (row.var(unbiased=False) + model.config.norm_eps).sqrt()
    expected = float((normed * model.final_norm.weight).detach() @ model.unembedding[7].detach())
    assert values(found)["embed.tokens"] == pytest.approx(expected, abs=1e-12)
    assert found.logit == pytest.approx(expected, abs=1e-12)


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load("tiny", device="cpu")


@pytest.fixture(scope="module")
def encoder() -> Model:
    return load("tiny-encoder", device="cpu")


def test_left_out_the_token_is_the_predicted_one_and_the_place_the_last_or_the_mask(
    tiny: Model, encoder: Model
) -> None:
    trace = tiny.trace("The cat sat")
    found = tiny.attribute(trace)
    assert (found.position, found.token) == (2, int(trace.logits_at(2).argmax()))
    masked = encoder.trace("The [MASK] sat.")
    there = encoder.attribute(masked)
    assert (there.position, there.token) == (2, int(masked.logits_at(2).argmax()))
    assert found.holds
    assert there.holds


def test_words_name_tokens_and_places(tiny: Model) -> None:
    on, under = (tiny.tokenizer.encode(word).ids[0] for word in (" on", " under"))
    found = tiny.attribute("The cat sat", token="on", versus="·under", position="sat")
    assert (found.token, found.versus, found.position) == (on, under, 2)
    assert found.frozen == "the final norm's scale"


def test_what_is_not_there_or_not_one_is_named(tiny: Model, encoder: Model) -> None:
    refused: list[tuple[Model, str, dict[str, str], str]] = [
        (tiny, "The cat sat", {"position": "3"}, "no position 3"),
        (tiny, "The cat sat", {"position": "0-1"}, "is 2 positions"),
        (tiny, "The cat sat", {"position": "dog"}, "no token is 'dog'"),
        (tiny, "The cat sat", {"token": "catastrophically"}, "--token 'catastrophically' is 7 tokens"),
        (tiny, "The cat sat", {"versus": ""}, "--versus is empty"),
        (tiny, "The cat sat", {"token": "on", "versus": "on"}, "compared with itself"),
        (encoder, "The [MASK] sat on the [MASK].", {}, r"2 \[MASK\], at 2, 6"),
        (encoder, "The cat sat.", {}, r"no \[MASK\]"),
        (encoder, "The [MASK] sat.", {"token": "☃"}, "not in the vocabulary"),
    ]
    for model, text, words, said in refused:
        with pytest.raises(UsageError, match=said):
            model.attribute(text, **words)
    with pytest.raises(UsageError, match="there is no token 2,048"):
        tiny.attribute("The cat sat", token=2048)
    with pytest.raises(UsageError, match="no language-model head"):
        attribute(record(lively(config_of("bert with a pooler")), encoding_of(IDS)), 0, 0)


def test_a_part_that_is_wrong_is_seen_in_the_sum() -> None:
    trace = traced("gpt2", torch.float32)
    trace.recording.tensors["L0.head_out"][1, 4] += 0.1
    assert not attribute(trace, 4, 7).holds


def test_large_parts_that_cancel_may_leave_four_of_their_roundings() -> None:
    """A token 300,000 long that the first layer's bias takes back: few digits are left."""
    model = model_of("gpt2", torch.float32).requires_grad_(False)
    away = 3e5 * torch.nn.functional.normalize(torch.randn(model.config.d_model, generator=torch.manual_seed(1)), dim=0)
    model.embed.tokens.weight[7] += away
    model.blocks[0].attention.o.bias -= away
    trace = record(model, encoding_of([3, 4, 7]))
    found = attribute(trace, 2, 5)
    together = sum(abs(part.value) for part in found.parts)
    assert found.difference > 1e-4
    assert found.allowed == pytest.approx(4 * 2**-23 * together)
    assert found.holds
    trace.recording.tensors["L0.head_out"][1, 2] += 10
    assert not attribute(trace, 2, 5).holds


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(wrong: float) -> None:
    model = model_of("gpt2").requires_grad_(False)
    model.embed.tokens.weight[7, :2] = torch.tensor([wrong, -wrong])
    with pytest.raises(TinytfError, match="first at logits"):
        attribute(record(model, encoding_of([3, 4, 5])), 2, 7)
