"""Attribution patching beside finite differences and autograd on transformers' own model, in float64."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import asked, config_of, lively
from torch import Tensor

import tinytf
from tinytf.errors import UsageError
from tinytf.estimate import rank_correlation
from tinytf.pairs.pair import PairSet

CLEAN, CORRUPT = "The cat lost the ball. The cat lost the", "The cat lost the hat. The cat lost the"
PAIRS = [
    {"clean": CLEAN, "corrupt": CORRUPT, "answer": " ball", "versus": " hat"},
    {"clean": "The dog lost the hat. The dog lost the", "corrupt": "The dog lost the ball. The dog lost the",
     "answer": " hat", "versus": " ball"},
    {"clean": "The dog found the hat. Then the dog lost the",
     "corrupt": "The dog found the ball. Then the dog lost the", "answer": " hat", "versus": " ball"},
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def theirs(model: tinytf.Model, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same weights in transformers, in float64."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("exported") / "tiny"
    model.export(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval().requires_grad_(False)


@contextmanager
def inputs_of_o(theirs: Any, change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Pass what each layer's output projection takes, the heads side by side, through ``change``."""
    handles = [
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args, number=number: (change(number, args[0]),))
        for number, layer in enumerate(theirs.model.layers)
    ]
    yield
    for handle in handles:
        handle.remove()


def heads_and_lead(model: tinytf.Model, theirs: Any, text: str, **inputs: Any) -> tuple[list[Tensor], Tensor]:
    """What the heads of each layer give, (1, T, H·D), and the logit of ball less that of hat."""
    heads: list[Tensor] = []
    inputs = inputs or {"input_ids": torch.tensor([model.encode(text).ids])}
    with inputs_of_o(theirs, lambda _, tensor: heads.append(tensor) or tensor):
        logits = theirs(**inputs).logits[0, -1]
    return heads, logits[model.find_token("ball")] - logits[model.find_token("hat")]


def by_head(effects: list[Tensor], n_heads: int) -> Tensor:
    return torch.stack([effect[0].unflatten(-1, (n_heads, -1)).sum((0, 2)) for effect in effects])


def test_the_estimate_of_a_head_is_the_slope_of_patching_it_a_little(model: tinytf.Model, theirs: Any) -> None:
    found = model.patch_estimate(CLEAN, CORRUPT, "heads", answer="ball", versus="hat")
    clean, corrupt = (heads_and_lead(model, theirs, text)[0] for text in (CLEAN, CORRUPT))
    ids, width = torch.tensor([model.encode(CORRUPT).ids]), 32
    step = 0.01  # their norms round to float32, which a smaller step would magnify

    def lead_at(layer: int, head: int, share: float) -> float:
        columns = slice(head * width, (head + 1) * width)

        def patched(number: int, tensor: Tensor) -> Tensor:
            tensor = tensor.clone()
            if number == layer:
                tensor[..., columns] += share * (clean[layer] - corrupt[layer])[..., columns]
            return tensor

        with inputs_of_o(theirs, patched):
            logits = theirs(input_ids=ids).logits[0, -1]
        return float(logits[found.contrast.metric.answer[0]] - logits[found.contrast.metric.versus[0]])

    for layer, head in product(range(4), range(4)):
        slope = (lead_at(layer, head, step) - lead_at(layer, head, -step)) / (2 * step)
        estimated = float(found.values[layer, head]) - found.contrast.corrupt
        assert estimated == pytest.approx(slope, abs=1e-3), (layer, head)


def test_integrated_estimates_are_mean_gradients_between_the_embeddings(model: tinytf.Model, theirs: Any) -> None:
    steps = 4
    found = model.patch_estimate(CLEAN, CORRUPT, "heads", how="integrated", steps=steps, answer="ball", versus="hat")
    clean, corrupt = (heads_and_lead(model, theirs, text)[0] for text in (CLEAN, CORRUPT))
    ends = [theirs.model.embed_tokens(torch.tensor([model.encode(text).ids])) for text in (CORRUPT, CLEAN)]
    means = [torch.zeros_like(tensor) for tensor in clean]
    for k in range(steps):
        point = (ends[0] + (k + 0.5) / steps * (ends[1] - ends[0])).requires_grad_()
        heads, lead = heads_and_lead(model, theirs, "", inputs_embeds=point)
        for mean, gradient in zip(means, torch.autograd.grad(lead, heads), strict=True):
            mean += gradient / steps
    expected = by_head([(a - b) * mean for a, b, mean in zip(clean, corrupt, means, strict=True)], 4)
    assert torch.allclose(found.values - found.contrast.corrupt, expected, atol=1e-4)


def test_integrated_estimates_of_the_embeddings_add_up_to_the_lead(model: tinytf.Model) -> None:
    for steps, within in ((10, 0.01), (40, 0.002)):
        found = model.patch_estimate(CLEAN, CORRUPT, "residual", how="integrated", steps=steps)
        assert found.added_up == pytest.approx(1.0, abs=within)
        assert float(found.recovered[0].sum()) == pytest.approx(found.added_up, abs=1e-4)


@pytest.mark.parametrize("over", ["heads", "attn", "ffn", "residual", "neurons"])
def test_every_sweep_is_estimated_where_exact_patching_runs(model: tinytf.Model, over: str) -> None:
    found = model.patch_estimate(CLEAN, CORRUPT, over, exact=over != "neurons")
    assert all(check.holds for check in found.checks)
    if over == "neurons":  # all units of a layer together are its feed-forward, whose output is linear in them
        whole = model.patch_estimate(CLEAN, CORRUPT, "ffn")
        lead = found.contrast.clean - found.contrast.corrupt
        sums = (found.values - found.contrast.corrupt).sum(1) / lead
        assert torch.allclose(sums, whole.recovered.sum(1), atol=1e-4)
        return
    exact = model.patch_sweep(CLEAN, CORRUPT, over)
    beside = found.beside
    assert beside is not None
    assert torch.allclose(beside.recovered, exact.recovered, atol=1e-6)
    assert found.values.shape == exact.values.shape
    ran = (map_of[:, found.first :].flatten().tolist() for map_of in (found.recovered, exact.recovered))
    pairs = [(round(a, 5), round(b, 5)) for a, b in zip(*ran, strict=True)]
    assert beside.rank_correlation == pytest.approx(rank_correlation(*zip(*pairs, strict=True)), abs=1e-3)
    largest = max(abs(a - b) for a, b in pairs)
    assert abs(beside.worst_estimated - beside.worst_exact) == pytest.approx(largest, abs=2e-5)


def test_the_heads_that_gradients_rank_first_are_those_of_exact_patching(model: tinytf.Model) -> None:
    found = model.patch_estimate(CLEAN, CORRUPT, "heads", exact=True)
    exact = model.patch_sweep(CLEAN, CORRUPT, "heads")
    assert [site[:2] for site in found.strongest(2)] == [site[:2] for site in exact.strongest(2)]
    assert found.beside is not None
    assert (found.beside.rank_correlation or 0) > 0.9
    assert found.sentence.startswith("Estimated by gradients, L1H0 of the clean run moves the lead of ·ball over ·hat")


def test_the_weights_learn_as_before_and_no_hook_stays(model: tinytf.Model) -> None:
    parameters = list(model.transformer.parameters())
    parameters[3].requires_grad_(False)
    model.patch_estimate(CLEAN, CORRUPT)
    assert [parameter.requires_grad for parameter in parameters[2:5]] == [True, False, True]
    parameters[3].requires_grad_(True)
    assert not any(module._forward_hooks for module in model.transformer.modules())
    assert all(parameter.grad is None for parameter in parameters)


@pytest.mark.parametrize("how", ["gradient", "integrated"])
def test_over_pairs_each_site_has_the_share_of_its_estimates(model: tinytf.Model, how: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in PAIRS), "utf-8")
    found = model.patch_estimate_pairs(file, "heads", how=how, exact=True)
    tokens = [{"answer": row["answer"], "versus": row["versus"]} for row in PAIRS]
    lead = 0.0
    for index, (row, its_tokens) in enumerate(zip(PAIRS, tokens, strict=True)):
        estimate = model.patch_estimate(row["clean"], row["corrupt"], "heads", how=how, **its_tokens)
        exact = model.patch_sweep(row["clean"], row["corrupt"], "heads", **its_tokens)
        lead += estimate.contrast.clean - estimate.contrast.corrupt
        for quantity, single in zip(found.quantities, (estimate, exact), strict=True):
            effects = found.map_of(quantity.values[index])
            assert torch.allclose(effects, single.values - single.contrast.corrupt, atol=1e-4)
    for quantity in found.quantities:
        assert [mean.value for mean in quantity.means] == pytest.approx((quantity.values.sum(0) / lead).tolist())
    assert not found.interrupted
    agreement = found.agreement
    assert agreement is not None
    assert agreement.sites == 16
    estimated, exact_shares = ([mean.value for mean in quantity.means] for quantity in found.quantities)
    assert agreement.rank_correlation == pytest.approx(rank_correlation(estimated, exact_shares), abs=1e-3)
    assert "estimated by gradients, L1H0 of the clean run would bring back" in found.sentence
    assert found.holds


def test_whole_feed_forwards_are_estimated_over_pairs_and_the_stream_is_refused(model: tinytf.Model) -> None:
    found = model.patch_estimate_pairs(PairSet.of(PAIRS[:1]), "ffn")
    by_position = model.patch_estimate(CLEAN, CORRUPT, "ffn", answer="ball", versus="hat")
    shares = torch.tensor([mean.value for mean in found.quantities[0].means], dtype=torch.float64)
    assert torch.allclose(shares, by_position.recovered.sum(1), atol=1e-5)
    with pytest.raises(UsageError, match="the whole stream"):
        model.patch_estimate_pairs(PairSet.of(PAIRS), "residual")


def test_a_pair_without_a_lead_adds_nothing_and_alone_has_no_share() -> None:
    transformer = lively(config_of("gpt2"))
    with torch.no_grad():
        transformer.embed.tokens.weight[1] = transformer.embed.tokens.weight[0]  # one logit for both tokens
    tied, usual = (
        {"clean": "3 14 15 9 30", "corrupt": "3 14 16 9 30", "answer": answer, "versus": versus}
        for answer, versus in (("#0", "#1"), ("#0", "#2"))
    )
    both, alone = (asked(transformer).patch_estimate_pairs(rows).quantities[0] for rows in ([tied, usual], [usual]))
    assert both.values[0].tolist() == [0.0] * 8
    assert [mean.value for mean in both.means] == pytest.approx([mean.value for mean in alone.means], abs=1e-6)
    with pytest.raises(UsageError, match="lead alike"):
        asked(transformer).patch_estimate_pairs([tied])


def test_units_over_pairs_add_up_to_their_feed_forward(model: tinytf.Model) -> None:
    found = model.patch_estimate_pairs(PairSet.of(PAIRS), "neurons")
    assert (found.axis, len(found.rows), found.rows[-1].name) == ("unit", 4 * 344, "L3.343")
    whole = model.patch_estimate_pairs(PairSet.of(PAIRS), "ffn").quantities[0].values
    assert torch.allclose(found.quantities[0].values.unflatten(1, (4, -1)).sum(-1), whole, atol=1e-4)
    leads = torch.tensor([[example.clean_lead, example.corrupt_lead] for example in found.examples])
    alone = found.quantities[0].with_values(found.quantities[0].values[:, 1200:1201], leads.double()).means[0]
    together = found.quantities[0].means[1200]  # of which a thousand are resampled at a time
    assert (together.value, together.low, together.high) == pytest.approx((alone.value, alone.low, alone.high))


def test_an_exact_sweep_that_was_interrupted_is_called_so(model: tinytf.Model, monkeypatch: Any) -> None:
    monkeypatch.setattr("tinytf.cause.interventions.sweep.most_tokens", lambda _: 40)

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    found = model.patch_estimate(CLEAN, CORRUPT, "heads", exact=True, on_progress=stop)
    assert found.beside is not None
    assert 0 < found.beside.sites < found.exact_sites == 16
    assert found.interrupted
    assert not found.sentence
    assert list(found.events())[-1] == {"type": "interrupted"}
    by_position = model.patch_estimate(CLEAN, CORRUPT, "attn", exact=True)
    assert by_position.beside is not None
    assert by_position.exact_sites == by_position.beside.sites == 4 * 6
    assert not by_position.interrupted
