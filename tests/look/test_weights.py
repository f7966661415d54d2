"""Heads as circuits, beside float64 numpy on whole matrices, and beside what heads do to a text."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively

from tinytf.errors import AddressError, TinytfError, UsageError
from tinytf.loading import Model, load
from tinytf.look.weights.composition import ABOVE, Composition, composition_score, random_composition
from tinytf.look.weights.copying import COPIES, own_map
from tinytf.look.weights.factors import (
    HeadKey,
    Product,
    Vocabulary,
    circuit_heads,
    circuits,
    queries_and_keys,
)
from tinytf.look.weights.head import TOP, HeadWeights
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.record import record

IDS = [3, 14, 15, 9, 2, 6, 5]
LINEAR = ["gpt2", "llama, grouped", "one key head for all", "qwen3, normed queries and wide heads"]
"""Kinds whose logits are a linear reading of the stream, but for the final norm's scale: LayerNorm and RMSNorm."""


def with_circuits() -> list[tuple[str, Transformer]]:
    """Every kind of model with heads that are products of matrices."""
    found = []
    for kind in KINDS:
        model = lively(config_of(kind))
        try:
            circuit_heads(table_of(model.config))
        except UsageError:
            continue
        found.append((kind, model))
    return found


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def normed(x: np.ndarray, model: Transformer) -> np.ndarray:
    """A norm without gain and bias."""
    x = x - x.mean(-1, keepdims=True) if model.config.norm == "layernorm" else x
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + model.config.norm_eps)


def whole(model: Transformer, key: HeadKey) -> tuple[np.ndarray, np.ndarray]:
    """The OV and QK circuits of a head on all tokens, (V, V) each, by hand; QK without biases."""
    config, block = model.config, model.blocks[key.layer]
    e = numbers(model.embed.tokens.weight) * config.embed_scale
    u = numbers(model.unembedding)
    g1, gf = numbers(block.norm1.weight), numbers(model.final_norm.weight)
    width, group = config.d_head, key.head // config.heads_per_kv
    mine, shared = slice(key.head * width, (key.head + 1) * width), slice(group * width, (group + 1) * width)
    attention: Any = block.attention
    read = normed(e, model) * g1
    value = read @ numbers(attention.v.weight)[shared].T
    added = value @ numbers(attention.o.weight)[:, mine].T
    added = added - added.mean(-1, keepdims=True) if config.norm == "layernorm" else added
    logits = (added * gf) @ u.T
    query, keys = read @ numbers(attention.q.weight)[mine].T, read @ numbers(attention.k.weight)[shared].T
    return logits - logits.mean(-1, keepdims=True), query @ keys.T


def without_biases(kind: str) -> Transformer:
    model = lively(config_of(kind, vocab_size=37))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
    return model


@pytest.mark.parametrize("kind", LINEAR)
def test_what_attending_to_a_token_promotes_is_its_row_of_the_whole_circuit(kind: str) -> None:
    model = without_biases(kind)
    key = HeadKey(1, 2)
    full, _ = whole(model, key)
    report = asked(model).head_weights(str(key), rows=4, top=6)
    sizes = np.linalg.norm(full, axis=1)
    assert [row.token for row in report.sources] == np.argsort(-sizes)[:4].tolist()
    for row in report.sources:
        assert row.size == pytest.approx(sizes[row.token], rel=1e-4)
        assert [token for token, _ in row.most] == np.argsort(-full[row.token])[:6].tolist()
        assert [token for token, _ in row.least] == np.argsort(full[row.token])[:6].tolist()
        np.testing.assert_allclose([value for _, value in row.most], -np.sort(-full[row.token])[:6], atol=2e-4)


@pytest.mark.parametrize("kind", LINEAR)
def test_copying_scores_are_those_of_the_whole_circuit(kind: str) -> None:
    model = without_biases(kind)
    table = asked(model).weights()
    assert [row.head for row in table.heads] == [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
    for row, key in zip(table.heads, table.keys, strict=True):
        full, _ = whole(model, key)
        values = np.linalg.eigvals(full)
        assert row.copying == pytest.approx(values.sum().real / np.abs(values).sum(), abs=1e-5)
        assert row.own == pytest.approx((np.diag(full) > 0).mean())
    report = asked(model).head_weights(str(key))
    ranks = (full > np.diag(full)[:, None]).sum(-1)
    assert (report.copying, report.own) == (pytest.approx(row.copying), pytest.approx(row.own))
    assert report.own_first.value == pytest.approx((ranks < TOP).mean())


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped"])
def test_what_a_query_prefers_is_its_row_of_the_whole_circuit(kind: str) -> None:
    model = without_biases(kind)
    key = HeadKey(0, 3)
    scores = whole(model, key)[1] / model.config.d_head**0.5
    for row in asked(model).head_weights(str(key), tokens=["#5", "#7"], top=4).queries:
        assert [token for token, _ in row.most] == np.argsort(-scores[row.token])[:4].tolist()
        np.testing.assert_allclose([value for _, value in row.most], -np.sort(-scores[row.token])[:4], atol=1e-4)


@pytest.mark.exhaustive
def test_a_query_scores_its_own_token_as_the_first_layer_of_a_text_does() -> None:
    """At a distance of 0, with biases, norms of queries and keys, and grouped heads."""
    seen = 0
    for kind, model in with_circuits():
        config = model.config
        if config.positions not in ("rotary", "alibi", "none") or config.n_token_types or config.query_scale:
            continue
        try:
            vocabulary = Vocabulary(model)
        except UsageError:
            continue
        trace = record(model, encoding_of(IDS))
        for key in (one for one in circuit_heads(table_of(config)) if one.layer == 0):
            queries, keys = (queries_and_keys(model, key, torch.tensor(IDS), vocabulary, which) for which in (0, 1))
            own = trace.step("scores", 0)[key.head].diagonal()
            alike = (
                slice(1) if config.qk_norm_last else slice(None)
            )  # a gain after the rotation depends on the position
            torch.testing.assert_close((queries * keys).sum(-1)[alike], own[alike], atol=2e-4, rtol=1e-4, msg=kind)
        seen += 1
    assert seen > 8


@pytest.mark.exhaustive
def test_a_head_moves_in_a_text_what_its_circuit_says() -> None:
    """In any layer, what it adds at two positions differs by the weights times the circuit: biases cancel."""
    seen = 0
    for kind, model in with_circuits():
        config, table = model.config, table_of(model.config)
        if config.v_norm or config.clip_qkv or config.norm_order == "both" or config.attention_sinks:
            continue
        trace = record(model, encoding_of(IDS))
        for key in circuit_heads(table)[-2:]:
            layer = key.layer
            attn = table.at("attn", layer)
            if len(table.to_stream(attn, layer)) > 1:
                continue
            source = table.at("norm1", layer) if table.has("norm1", layer) and config.norm_order == "pre" else None
            into = "in" if source is None else source.inputs[0]
            if source is not None and source.below:
                continue
            x = numbers(trace.step(into, layer))
            x = x if source is None else normed(x, model)
            weights = numbers(trace.step(table.weights, layer))[key.head]
            ov = circuits(model, key).ov
            expected = weights @ x @ numbers(ov.left) @ numbers(ov.right)
            output: Any = numbers(model.blocks[layer].attention.o.weight)
            out = numbers(trace.step(table.head_out, layer))[key.head]
            added = out @ output[:, key.head * out.shape[1] : (key.head + 1) * out.shape[1]].T
            if config.norm == "layernorm" and config.norm_order == "pre":  # no LayerNorm reads the mean
                added = added - added.mean(-1, keepdims=True)
            np.testing.assert_allclose(added[1:] - added[0], expected[1:] - expected[0], atol=2e-3, err_msg=kind)
            seen += 1
    assert seen > 20


def test_every_kind_of_model_has_circuits_or_says_why_not() -> None:
    answered, reasons = 0, list[str]()
    for kind in KINDS:
        model = asked(lively(config_of(kind)))
        try:
            report = model.weights(feed_forwards=True)
        except UsageError as error:
            reasons.append(error.message)
            continue
        assert all(abs(row.copying) <= 1 + 1e-9 and row.ov_norm > 0 for row in report.heads), kind
        assert model.head_weights(report.heads[-1].head).sentence
        answered += 1
    assert (answered > 15, len(reasons) > 15) == (True, True)
    assert all(reasons)


def test_singular_directions_are_those_of_numpy() -> None:
    model = without_biases("llama, grouped")
    found = circuits(model, HeadKey(1, 0)).ov
    matrix = numbers(found.left) @ numbers(found.right)
    found = Product(found.left.detach(), found.right.detach())
    read, sizes, wrote = (numbers(part) for part in found.singular())
    expected = np.linalg.svd(matrix, compute_uv=False)[: len(sizes)]
    np.testing.assert_allclose(sizes, expected, atol=1e-10)
    np.testing.assert_allclose(read * sizes @ wrote, matrix, atol=1e-10)
    shares = expected / expected.sum()
    assert found.spectrum.rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert found.norm == pytest.approx(np.linalg.norm(matrix))
    report = asked(model).head_weights("L1H0", top=3)
    logits = (wrote * numbers(model.final_norm.weight)) @ numbers(model.unembedding).T
    for direction, row in zip(report.directions, logits, strict=False):
        row = row - row.mean()
        row = row if row.max() >= -row.min() else -row
        assert [token for token, _ in direction.writes] == np.argsort(-row)[:3].tolist()


def test_composition_is_that_of_whole_matrices() -> None:
    model = without_biases("gpt2")
    report = asked(model).composition("L0H1")

    def matrix(product: Product) -> np.ndarray:
        return numbers(product.left) @ numbers(product.right)

    first = matrix(circuits(model, HeadKey(0, 1)).ov)
    for head in range(4):
        later = circuits(model, HeadKey(1, head))
        for way, second in {"q": matrix(later.qk), "k": matrix(later.qk).T, "v": matrix(later.ov)}.items():
            expected = np.linalg.norm(first @ second) / np.linalg.norm(first) / np.linalg.norm(second)
            assert float(report.scores[way][1, head]) == pytest.approx(expected, rel=1e-9)
    assert report.scores["q"][0].isnan().all()
    back = asked(model).composition("L1H2", into=True)
    assert float(back.scores["k"][0, 1]) == pytest.approx(float(report.scores["k"][1, 2]))


def test_the_baseline_is_what_random_heads_compose_at() -> None:
    generator = torch.Generator().manual_seed(8)
    like = Product(torch.ones(48, 6, dtype=torch.float64), torch.ones(6, 48, dtype=torch.float64))
    mean, deviation = random_composition(like, 0)
    assert random_composition(like, 0) == (mean, deviation)
    drawn = [torch.randn(48, 48, 2, generator=generator, dtype=torch.float64).unbind(-1) for _ in range(20)]
    others = [composition_score(Product(a[:, :6], b[:6]), Product(b[:, 6:12], a[6:12])) for a, b in drawn]
    assert abs(np.mean(others) - mean) < 3 * deviation
    assert deviation < mean / 5


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load("tiny", device="cpu")


def test_the_induction_heads_of_tiny_read_its_previous_token_head_by_their_keys(tiny: Model) -> None:
    labels = tiny.heads(random_only=True, count=4).labels
    assert labels[0][1].name == "previous"
    assert {label.name for label in labels[1]} == {"induction"}
    report = tiny.composition("L0H1")
    first = report.composed[:4]
    assert {(row.head, row.way) for row in first} == {(f"L1H{head}", "k") for head in range(4)}
    assert report.sentence.startswith("L0H1 is read most by the keys of L1H")


def test_sentences_say_what_the_numbers_hold(tiny: Model) -> None:
    table = tiny.weights()
    copying = [row.copying for row in table.heads]
    count = sum(score >= COPIES for score in copying)
    assert f"of 16 heads {count} copy what they attend to;" in table.sentence
    flipped = replace(table, heads=tuple(replace(row, copying=-abs(row.copying)) for row in table.heads))
    assert " suppress it;" in flipped.sentence
    assert " copy what" not in flipped.sentence
    weak = replace(table, heads=tuple(replace(row, copying=0.49) for row in table.heads))
    assert "none copies or suppresses what it attends to" in weak.sentence
    head: HeadWeights = tiny.head_weights("L1H2", tokens=["cat"])
    assert head.sentence.startswith("L1H2 copies what it attends to")
    assert replace(head, copying=-0.5).sentence.startswith("L1H2 suppresses what it attends to")
    assert replace(head, copying=0.4).sentence.startswith("L1H2 neither copies nor suppresses")
    assert "attending to ·cat promotes ·cat" in head.sentence
    composed: Composition = tiny.composition("L0H1")
    most = composed.composed[0]
    assert composed.beyond(most)
    assert most.above > ABOVE * composed.deviation
    noisy = replace(composed, deviation=most.above / ABOVE)
    assert noisy.sentence.startswith("No later head composes with L0H1 more than random heads do")


def test_the_seed_draws_the_tokens(tiny: Model) -> None:
    assert tiny.weights(seed=3).heads == tiny.weights(seed=3).heads
    assert [row.own for row in tiny.weights(seed=3).heads] != [row.own for row in tiny.weights(seed=4).heads]


def test_a_head_of_zeros_moves_nothing_and_composes_with_none() -> None:
    model = asked(without_biases("gpt2"))
    with torch.no_grad():
        model.transformer.blocks[0].attention.v.weight.zero_()
    report = model.head_weights("L0H1", tokens=["#5"])
    assert report.sentence == "L0H1 moves nothing: its W_V·W_O is 0."
    assert (report.own, report.own_first.value, report.ov.rank) == (0, 0, 0)
    assert (report.sources, report.directions) == ((), ())
    assert report.queries
    for ask in (lambda: model.composition("L0H1"), lambda: model.composition("L1H0", into=True)):
        with pytest.raises(UsageError, match="composes with no head: the weights of one side are 0"):
            ask()
    assert model.weights().heads[0].ov_rank == 0


def test_what_has_no_circuits_is_refused_with_the_reason(tiny: Model) -> None:
    with pytest.raises(AddressError, match="'L1' is not one head"):
        tiny.head_weights("L1")
    with pytest.raises(AddressError, match="there is no layer 9"):
        tiny.composition("L9H0")
    with pytest.raises(UsageError, match="no layer after layer 3 has heads that compose with L3H0"):
        tiny.composition("L3H0")
    with pytest.raises(UsageError, match=r"no attention weights, so its heads have no OV and QK circuits"):
        load("preset:mamba-tiny", device="cpu").weights()
    with pytest.raises(UsageError, match=r"head\.act .* is not linear"):
        load("tiny-encoder", device="cpu").weights()
    assert load("tiny-encoder", device="cpu").composition("L0H0").sentence
    broken = asked(without_biases("gpt2"))
    broken.transformer.blocks[0].attention.v.weight.data[0, 0] = torch.nan
    with pytest.raises(TinytfError, match="L0H0 has weights that are not finite"):
        broken.weights()


def test_nothing_as_large_as_a_circuit_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a table of heads needs of V × V circuits is a sum over tokens, a few at a time."""
    model = without_biases("llama, grouped")
    at_once = own_map(Vocabulary(model))
    monkeypatch.setattr("tinytf.look.weights.factors.CHUNK", 5)
    torch.testing.assert_close(own_map(Vocabulary(model)), at_once, atol=1e-4, rtol=1e-4)
