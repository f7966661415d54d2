"""The corrections of attribution patching by AtP*, beside plain hooks on models of every kind in float64."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively, some_ids
from torch import Tensor, nn

import tinytf
from tinytf.api import Model
from tinytf.errors import UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.table import table_of
from tinytf.trace.hooks import module_of
from tinytf.trace.record import record

A, B = 3, 4
"""The tokens whose logits are compared."""
Changed = Callable[[Tensor], Tensor]
WITH_TOKENS = [kind for kind in KINDS if config_of(kind).head.kind in ("lm", "mlm")]
LENGTH = 9
HEAD, ENDS = 2, (0.35, 0.7)
"""A head, and two scales of the layer above between which its estimate changes its sign."""
PAGE = (Path(__file__).parents[2] / "docs" / "patching.md").read_text("utf-8")


@contextmanager
def hooked(changes: Sequence[tuple[nn.Module, Changed]]) -> Iterator[None]:
    """Pass what modules give through changes."""
    handles = [module.register_forward_hook(lambda _m, _a, out, c=change: c(out)) for module, change in changes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Texts:
    """Two texts of a model in float64, that differ in one token, and how to run it with plain hooks."""

    def __init__(self, kind: str, n_layers: int | None = None) -> None:
        config = config_of(kind) if n_layers is None else config_of(kind, n_layers=n_layers)
        self.model: Transformer = lively(config).double()
        self.table, mask = table_of(config), None if config.causal else 1
        ids = some_ids(config, 1, LENGTH, seed=5)[0].tolist()
        ids = [2 if token == mask else token for token in ids]
        ids = ids if mask is None else [*ids[:-1], mask]
        at = 6 if "window" in kind else 2  # where the last token still sees it
        other = [*ids[:at], (ids[at] + 5) % config.vocab_size, *ids[at + 1 :]]
        self.ids = [ids, [2 if token == mask else token for token in other[:-1]] + [other[-1]]]
        self.ours: Model = asked(self.model, mask)
        self.clean, self.corrupt = (record(self.model, encoding_of(ids), mask) for ids in self.ids)
        self.streams: list[tuple[Tensor, ...]] = []

    @torch.no_grad()
    def lead(self, changes: Sequence[tuple[nn.Module, Changed]] = (), ids: Sequence[int] = ()) -> float:
        with hooked(changes):
            logits = self.model(torch.tensor([list(ids) or self.ids[1]]))[0, -1]
        return float(logits[A] - logits[B])

    def module(self, step: str, layer: int) -> nn.Module:
        return module_of(self.model, self.table.at(step, layer), layer)

    def outputs(self, modules: Sequence[nn.Module], ids: Sequence[int], changes: Any = ()) -> list[Tensor]:
        """What modules give in a run."""
        given: dict[int, Tensor] = {}

        def keep(number: int) -> Changed:
            return lambda out: given.setdefault(number, out.clone()) is None or out

        self.lead([*changes, *((module, keep(number)) for number, module in enumerate(modules))], ids)
        return [given[number] for number in range(len(modules))]

    def swap(self, step: str, layer: int, head: int, n_heads: int, value: Tensor) -> Changed:
        """A change that puts one head of ``value`` into what a step's module gives."""
        side_by_side = self.table.at(step, layer).operation.side_by_side

        def change(out: Tensor) -> Tensor:
            out = out.clone()
            view = out.unflatten(-1, (n_heads, -1)).transpose(-3, -2) if side_by_side else out
            new = value.unflatten(-1, (n_heads, -1)).transpose(-3, -2) if side_by_side else value
            view[:, head] = new[:, head]
            return out

        return change


@contextmanager
def holding(model: Transformer, inputs: Sequence[Tensor]) -> Iterator[None]:
    """Let each block read the stream that it is given here."""
    blocks: Any = model.blocks
    handles = [
        block.register_forward_pre_hook(lambda _, args, x=x: (x, *args[1:]))
        for block, x in zip(blocks, inputs, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def block_inputs(texts: Texts, ids: Sequence[int]) -> list[Tensor]:
    kept: list[Tensor] = []
    blocks: Any = texts.model.blocks
    handles = [block.register_forward_pre_hook(lambda _, args: kept.append(args[0].clone())) for block in blocks]
    texts.lead(ids=ids)
    for handle in handles:
        handle.remove()
    return kept


def slope(texts: Texts, moves: Sequence[tuple[nn.Module, Tensor]]) -> float:
    """The derivative of the lead as what modules give moves: autograd in one plain run."""
    share = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with hooked([(module, lambda out, move=move: out + share * move) for module, move in moves]):
        logits = texts.model(torch.tensor([texts.ids[1]]))[0, -1]
    return float(torch.autograd.grad(logits[A] - logits[B], share)[0])


@pytest.mark.parametrize("over", ["queries", "keys"])
@pytest.mark.parametrize("kind", WITH_TOKENS)
def test_a_corrected_query_or_key_is_the_slope_along_its_own_change_of_the_weights(kind: str, over: str) -> None:
    texts, step = Texts(kind), over[0]
    found = texts.ours.patch_estimate(texts.clean, texts.corrupt, over, qk_correction=True, answer=A, versus=B)
    assert all(check.holds for check in found.checks)
    held, config = block_inputs(texts, texts.ids[1]), texts.model.config
    maps = [
        texts.module(row.name, layer)
        for layer in range(config.n_layers)
        for row in texts.table.in_layer(layer)
        if row.name in ("weights", "block.weights") and row.holds_shares
    ]
    before = texts.outputs(maps, texts.ids[1])
    tried = 0
    for layer, head in product(range(config.n_layers), (0, 3)):
        own, site = config.at(layer), found.values[layer, min(head, found.values.shape[1] - 1)]
        if layer in found.uncorrected or site.isnan():
            continue
        n_heads = own.n_kv_heads if "kv head" in texts.table.at(step, layer).axes else own.n_heads
        module = texts.module(step, layer)
        (value,) = texts.outputs([module], texts.ids[0])
        swap = texts.swap(step, layer, head * n_heads // own.n_heads, n_heads, value)
        with holding(texts.model, held):  # so that only the maps that read this query or key move
            after = texts.outputs(maps, texts.ids[1], [(module, swap)])
        expected = slope(texts, [(weights, b - a) for weights, a, b in zip(maps, before, after, strict=True)])
        assert float(site) - found.contrast.corrupt == pytest.approx(expected, abs=1e-7, rel=1e-6)
        tried += 1
    assert tried or set(found.uncorrected) >= set(texts.table.attention_layers)


@pytest.mark.parametrize("over", ["queries", "keys"])
@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "talking heads", "gpt-oss, sinks and windows by layer"])
def test_the_correction_is_exact_where_all_is_linear_after_the_softmax(kind: str, over: str) -> None:
    texts = Texts(kind, n_layers=1)
    texts.ids[1] = some_ids(texts.model.config, 1, LENGTH, seed=6)[0].tolist()  # other queries at the last token too
    texts.model.final_norm = nn.Identity()
    for name, parameter in texts.model.blocks[0].named_parameters():
        if name.startswith(("ffn", "experts")):
            parameter.data.zero_()
    tokens = {"answer": A, "versus": B}
    clean, corrupt = (record(texts.model, encoding_of(ids)) for ids in texts.ids)
    exact = texts.ours.patch_sweep(clean, corrupt, over, **tokens).values
    plain, corrected = (
        texts.ours.patch_estimate(clean, corrupt, over, qk_correction=on, **tokens).values for on in (False, True)
    )
    assert torch.allclose(corrected, exact, atol=1e-9, equal_nan=True)
    assert float((plain - exact).abs().nan_to_num().max()) > 1e-3


def sizes_by_hand(texts: Texts, modules: Sequence[nn.Module], moves: Sequence[Tensor]) -> list[list[Tensor]]:
    """For each dropped layer, each module's (move · gradient), with what the layer adds to the stream detached."""
    table, result = texts.table, []
    for layer in range(texts.model.config.n_layers):
        added = [texts.module(table.summand(step, layer).name, layer) for step in table.added_in(layer)]
        given: dict[int, Tensor] = {}

        def keep(number: int, given: dict[int, Tensor] = given) -> Changed:
            return lambda out: given.setdefault(number, out.detach().requires_grad_() if not out.requires_grad else out)

        changes = [(module, keep(number)) for number, module in enumerate(modules)]
        with hooked([*changes, *((module, torch.Tensor.detach) for module in added)]):
            logits = texts.model(torch.tensor([texts.ids[1]]))[0, -1]
        lead, sites = logits[A] - logits[B], [given[number] for number in range(len(modules))]
        gradients = (
            torch.autograd.grad(lead, sites, allow_unused=True, materialize_grads=True) if lead.requires_grad else sites
        )
        result.append([move * gradient for move, gradient in zip(moves, gradients, strict=True)])
    return result


@pytest.mark.parametrize("kind", WITH_TOKENS)
def test_grad_drop_averages_the_sizes_that_plain_hooks_give(kind: str) -> None:
    texts = Texts(kind)
    config, table = texts.model.config, texts.table
    found = texts.ours.patch_estimate(texts.clean, texts.corrupt, "heads", how="grad-drop", answer=A, versus=B)
    outputs = [table.head_output(layer) for layer in range(config.n_layers)]
    layers = [layer for layer, step in enumerate(outputs) if step is not None]
    modules = [texts.module(outputs[layer].name, layer) for layer in layers]
    clean, corrupt = (texts.outputs(modules, ids) for ids in texts.ids)
    products = sizes_by_hand(texts, modules, [a - b for a, b in zip(clean, corrupt, strict=True)])
    sign = math.copysign(1.0, found.contrast.clean - found.contrast.corrupt)
    for place, layer in enumerate(layers):
        own, side_by_side = config.at(layer), outputs[layer].operation.side_by_side
        by_head = [
            of_drop[place][0].unflatten(-1, (own.n_heads, -1)).sum((0, 2))
            if side_by_side
            else of_drop[place][0].sum((1, 2))
            for of_drop in products
        ]
        others = [effects.abs() for dropped, effects in enumerate(by_head) if dropped != layer]
        expected = torch.stack(others).mean(0) if others else by_head[0].abs()
        sizes = (found.values[layer, : own.n_heads] - found.contrast.corrupt) * sign
        assert torch.allclose(sizes, expected, atol=1e-8, rtol=1e-6)


SATURATED = "The dog found the ball. Then the dog found the", "The dog found the hat. Then the dog found the"


def test_a_saturated_query_is_found_by_the_correction_alone() -> None:
    model = tinytf.load("tiny")
    exact = float(model.patch_sweep(*SATURATED, "queries").recovered[0, 2])
    plain, corrected = (
        float(model.patch_estimate(*SATURATED, "queries", qk_correction=on).recovered[0, 2]) for on in (False, True)
    )
    assert abs(plain) < 0.2 * abs(exact)
    assert corrected == pytest.approx(exact, rel=0.05)
    row = f"| `L0H2.q` of `tiny`, saturated | {plain:.3f} | {corrected:.3f} | {exact:.3f} |"
    assert row in PAGE


def test_effects_that_cancel_are_found_by_grad_drop_alone() -> None:
    """The second layer is scaled until what the head adds and what that layer makes of it cancel, to first order."""
    texts = Texts("llama, grouped")
    block: Any = texts.model.blocks[1]
    last = [block.attention.o.weight, block.ffn.down.weight]
    whole = [weight.detach().clone() for weight in last]

    def estimate(scale: float, how: str = "gradient") -> tinytf.EstimatedSweep:
        for weight, unscaled in zip(last, whole, strict=True):
            weight.data = unscaled * scale
        clean, corrupt = (record(texts.model, encoding_of(ids)) for ids in texts.ids)
        return texts.ours.patch_estimate(clean, corrupt, "heads", how=how, answer=A, versus=B, exact=True)

    def share(scale: float) -> float:
        return float(estimate(scale).recovered[0, HEAD])

    low, high = ENDS
    assert share(low) * share(high) < 0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle) * share(low) > 0 else (low, middle)
    plain, dropped = estimate(low), estimate(low, "grad-drop")
    assert plain.beside is not None
    values = (float(of[0, HEAD]) for of in (plain.recovered, dropped.recovered, plain.beside.recovered))
    estimated, size, exact = values
    assert abs(estimated) < 1e-5
    assert abs(exact) > 0.1
    assert size > 0.1
    numbers = f"{abs(estimated):.3f} | {size:.3f} | {exact:.3f}"
    assert f"| `L0H{HEAD}` of a model of the tests, two effects that cancel | {numbers} |" in PAGE


def test_grad_drop_says_sizes_and_compares_sizes() -> None:
    model = tinytf.load("tiny")
    found = model.patch_estimate(*SATURATED, "heads", how="grad-drop", exact=True)
    assert bool((found.recovered >= 0).all())
    assert found.beside is not None
    assert found.beside.worst_exact >= 0
    assert ", up or down" in found.sentence
    assert "bring" not in found.sentence


def test_an_estimate_is_called_the_most_where_exact_patching_finds_the_same_site_first() -> None:
    """Of 60 sweeps: keys move 1 to 10 % of the lead, and their largest estimate is often not the largest effect."""
    model, agree = tinytf.load("tiny"), {True: [], False: []}
    pairs = tinytf.PairSet.read(Path(__file__).parents[2] / "samples" / "places.jsonl").pairs
    for over, pair in product(("heads", "keys", "ffn"), pairs[:20]):
        tokens = {"answer": pair.answer, "versus": pair.versus}
        found = model.patch_estimate(pair.clean, pair.corrupt, over, how="grad-drop", exact=True, **tokens)
        assert found.beside is not None
        estimated, exact = (of.abs().nan_to_num(0.0).flatten() for of in (found.recovered, found.beside.recovered))
        first, second = estimated.topk(2).values.tolist()
        claimed = "no patch clearly moves" not in found.sentence
        assert claimed == (first >= 0.05 and first >= 1.25 * second)
        agree[claimed].append(bool(estimated.argmax() == exact.argmax()))
    assert len(agree[True]) >= 10
    assert sum(agree[True]) / len(agree[True]) >= 0.9
    assert sum(agree[False]) / len(agree[False]) < 0.8  # nothing is held back for no reason


@pytest.mark.parametrize("over", ["heads", "residual", "values", "neurons"])
def test_only_queries_and_keys_are_corrected(over: str) -> None:
    with pytest.raises(UsageError, match="of queries and keys"):
        tinytf.load("tiny").patch_estimate(*SATURATED, over, qk_correction=True)


def test_the_correction_is_not_of_an_integrated_gradient() -> None:
    with pytest.raises(UsageError, match="takes the gradient at the corrupt run"):
        tinytf.load("tiny").patch_estimate(
            "The cat sat", "The dog sat", "queries", how="integrated", qk_correction=True
        )
