"""The notebook of docs/notebook.md runs from top to bottom, and each cell gives what torch or numpy does by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from notebook import CELLS, PAGE, of_lens
from safetensors.torch import load_file
from torch import Tensor

Names = dict[str, Any]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Names:
    """What the cells leave behind."""
    found: Names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        for _, _, code in CELLS:
            exec(code, found)
        found["saved"] = load_file("run.safetensors")
    return found


def plain_logits(names: Names, ids: Any = None) -> Tensor:
    """Logits (T, V) of the model's own modules."""
    with torch.no_grad():
        return names["model"].transformer(torch.as_tensor(names["ids"] if ids is None else ids)[None])[0]


def close(found: Any, expected: Any, atol: float = 1e-4) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=atol)


def loaded(names: Names) -> None:
    assert names["model"].config.n_layers == 4


def cached(names: Names) -> None:
    close(names["logits"], plain_logits(names))
    assert {"L0.q", "L3.out", "final.norm"} < set(names["names"])


def strings(names: Names) -> None:
    assert names["strings"] == ["The", "·cat", "·sat", "·on", "·the"]
    assert names["model"].tokenizer.decode(names["ids"].tolist()) == names["text"]


def pattern_by_hand(trace: Any, layer: int, head: int) -> np.ndarray:
    """softmax(q·kᵀ / √d) of what comes before it, in float64."""
    q, k = (trace[f"L{layer}H{head}.{name}"].double().numpy() for name in ("q_rot", "k_rot"))
    scores = q @ k.T / np.sqrt(q.shape[-1])
    scores[np.triu_indices(len(q), 1)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def pattern(names: Names) -> None:
    close(names["pattern"], pattern_by_hand(names["trace"], 1, 2), 1e-5)
    assert torch.equal(names["pattern"], names["same"])
    assert torch.equal(names["pattern"], names["every"][1, 2])


def heat_map(names: Names) -> None:
    (shown,) = names["attended"].to_dict()["heads"]
    assert (shown["layer"], shown["head"]) == (1, 2)
    assert "pre" in names["attended"]._repr_html_()


def most_probable(names: Names) -> None:
    shares = plain_logits(names)[-1].double().softmax(-1)
    values, places = shares.topk(5)
    assert [one.id for one in names["best"]] == places.tolist()
    close([one.probability for one in names["best"]], values)
    mat = names["model"].find_token("mat")
    assert int(names["rank"]) == 1 + int((shares > shares[mat]).sum())


def losses(names: Names) -> None:
    close(names["losses"], F.cross_entropy(plain_logits(names)[:-1], names["ids"][1:], reduction="none"))


def decomposed(names: Names) -> None:
    close(names["parts"].sum(0), names["trace"]["L3.out"])
    normed = names["model"].transformer.final_norm(names["parts"].sum(0)).detach()
    close(names["model"].transformer.unembed(normed).detach(), plain_logits(names), 1e-3)


def lens(names: Names) -> None:
    model, trace = names["model"].transformer, names["trace"]
    stream = [trace["embed.out"], *(trace[f"L{layer}.out"] for layer in range(4))]
    with torch.no_grad():
        expected = [int(model.unembed(model.final_norm(one[-1])).argmax()) for one in stream]
    assert [int(one) for one in names["guesses"]] == expected


def attributed(names: Names) -> None:
    row, model = plain_logits(names)[-1], names["model"]
    lead = float(row[model.find_token("mat")] - row[model.find_token("rug")])
    assert sum(part.value for part in names["attributed"].parts) == pytest.approx(lead, abs=1e-3)
    head = next(part.value for part in names["attributed"].parts if part.name == "L1H2")
    transformer, trace = model.transformer, names["trace"]
    added = trace["L1H2.head_out"][-1].double() @ transformer.blocks[1].attention.o.weight[:, 64:96].T.double()
    stream, gain = trace["L3.out"][-1].double(), transformer.final_norm.weight.double()
    scale = torch.sqrt((stream**2).mean() + model.config.norm_eps)
    direction = transformer.unembedding[model.find_token("mat")] - transformer.unembedding[model.find_token("rug")]
    assert head == pytest.approx(float(((added / scale * gain) @ direction.double()).detach()), abs=1e-4)


def patched(names: Names) -> None:
    model, recovered = names["model"], names["swept"].recovered
    answer, versus = model.find_token("ball"), model.find_token("hat")

    def lead(row: Tensor) -> float:
        return float(row[answer] - row[versus])

    clean, corrupt = (model.trace(names[name]) for name in ("clean", "corrupt"))
    layer, place = 1, 3

    def put(stream: Tensor) -> None:
        stream[place] = clean[f"L{layer}.in"][place]

    with model.edited({f"L{layer}.in": put}):
        found = lead(model.trace(names["corrupt"]).logits_at(-1))
    ends = lead(corrupt.logits_at(-1)), lead(clean.logits_at(-1))
    assert float(recovered[layer, place]) == pytest.approx((found - ends[0]) / (ends[1] - ends[0]), abs=1e-3)


def ablated(names: Names) -> None:
    model = names["model"]
    weight = model.transformer.blocks[1].attention.o.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[:, 64:96] = 0
        cut = plain_logits(names)[-1].double().log_softmax(-1)
        weight.copy_(before)
    whole = plain_logits(names)[-1].double().log_softmax(-1)
    assert names["ablation"].effect.kl == pytest.approx(float((whole.exp() * (whole - cut)).sum()), abs=1e-4)


def edited(names: Names) -> None:
    values = names["edited"]["L1H2.v"].numpy()
    close(names["edited"]["L1H2.head_out"], [values[: place + 1].mean(0) for place in range(len(values))], 1e-5)
    assert not torch.equal(names["edited"]["logits"], names["logits"])


def generated(names: Names) -> None:
    """Against hooks of torch, and the whole text for each token."""
    model, ids = names["model"], names["ids"].tolist()
    handles = [
        model.transformer.blocks[1].ffn.down.register_forward_hook(lambda module, args, out: out * 0),
        model.transformer.blocks[2].register_forward_hook(lambda module, args, out: out * 1.5),
    ]
    for _ in range(8):
        ids.append(int(plain_logits(names, ids)[-1].argmax()))
    for handle in handles:
        handle.remove()
    assert names["text"] + names["continued"] == model.tokenizer.decode(ids)


def induction(names: Names) -> None:
    found, length = names["induction"], names["length"]
    for layer, head in ((0, 0), (1, 2), (3, 3)):
        weights = pattern_by_hand(names["repeated"], layer, head)
        expected = np.mean([weights[place, place - length + 1] for place in range(length - 1, 2 * length)])
        assert float(found[layer, head]) == pytest.approx(expected, abs=1e-5)


def batch(names: Names) -> None:
    for text, trace, score in zip(names["texts"], names["traces"], names["scores"], strict=True):
        alone = plain_logits(names, names["model"].encode(text).ids)
        close(trace["logits"], alone)
        assert score.loss == pytest.approx(float(F.cross_entropy(alone[:-1], trace["ids"][1:])), abs=1e-5)


def gradients(names: Names) -> None:
    model, found = names["model"], names["found"]
    name = "blocks.1.attention.v.weight"
    value = names["metric"](model.transformer(names["ids"][None])[0])
    (expected,) = torch.autograd.grad(value, dict(model.transformer.named_parameters())[name])
    close(found.parameters[name], expected)
    step = 1e-2
    with model.edited({"L1H2.weights": lambda weights: weights * (1 + step)}):
        up = float(names["metric"](model.trace(names["text"])["logits"]))
    with model.edited({"L1H2.weights": lambda weights: weights * (1 - step)}):
        down = float(names["metric"](model.trace(names["text"])["logits"]))
    assert float(names["by_pattern"].sum()) == pytest.approx((up - down) / (2 * step), abs=2e-3)


def weights(names: Names) -> None:
    attention, table = names["model"].transformer.blocks[1].attention, names["model"].transformer.embed.tokens.weight
    q, k = (part.weight.detach()[64:96].numpy() for part in (attention.q, attention.k))
    rows = table.detach()[:50].numpy()
    close(names["circuit"].detach(), rows @ q.T @ k @ rows.T, 1e-3)


def beside_transformers(names: Names) -> None:
    with torch.no_grad():
        expected = names["theirs"](torch.tensor([[3, 14, 15, 92, 65]])).logits[0]
    close(names["ours"]["logits"], expected, 1e-5)
    own = {one.untyped_storage().data_ptr() for one in names["theirs"].parameters()}
    assert {one.untyped_storage().data_ptr() for one in names["ours"].model.parameters()} <= own


def saved(names: Names) -> None:
    for name in ("L1.weights", "L3.out", "logits"):
        assert torch.equal(names["saved"][name], names["trace"][name])


def streams(names: Names) -> None:
    close(names["streams"], np.stack([names["trace"][f"L{layer}.out"].numpy() for layer in range(4)]))


def as_table(names: Names) -> None:
    table, parts = names["table"], names["attributed"].parts
    assert list(table["part"]) == [part.name for part in parts]
    close(table["value"], [part.value for part in parts])
    close(names["arrays"]["parts"], table["value"])
    assert names["arrays"]["heads"].shape == (4, 4)


def gradients_of_a_lead(names: Names) -> None:
    model = names["model"]
    mat, rug = model.find_token("mat"), model.find_token("rug")
    stream = names["trace"]["L3.out"].clone().requires_grad_()
    row = model.transformer.unembed(model.transformer.final_norm(stream))[-1]
    (expected,) = torch.autograd.grad(row[mat] - row[rug], stream)
    close(names["at_layers"][3], expected)
    assert names["difference"].loss == pytest.approx(float((row[mat] - row[rug]).detach()), abs=1e-4)


def run_on(names: Names, stream: Tensor, first: int) -> Tensor:
    """Logits (T, V) of the blocks from ``first`` on, for a stream (T, C)."""
    transformer = names["model"].transformer
    with torch.no_grad():
        x = stream[None]
        for block in transformer.blocks[first:]:
            x = block(x, 0, None, None, None)
        return transformer.unembed(transformer.final_norm(x))[0]


def swapped(names: Names) -> None:
    close(names["swapped"]["logits"], run_on(names, names["source"]["L1.out"], 2))


def skipped(names: Names) -> None:
    close(names["skipped"]["logits"], run_on(names, names["trace"]["L1.out"], 3))


def frozen(names: Names) -> None:
    patched, source = names["values_alone"], names["source"]
    for layer in range(4):
        by_hand = source[f"L{layer}.weights"] @ patched[f"L{layer}.v"]
        close(patched[f"L{layer}.head_out"], by_hand, 1e-5)
    assert not torch.equal(patched["L3.v"], source["L3.v"])


def torch_hook(names: Names) -> None:
    (seen,) = names["seen"]
    close(seen[0].unflatten(-1, (4, 32)).transpose(0, 1).detach(), names["trace"]["L1.q"])


def strongest(names: Names) -> None:
    model, trace = names["model"].transformer, names["trace"]
    with torch.no_grad():
        back = trace["L3.ffn.act"] @ model.blocks[3].ffn.down.weight.T
    close(back, trace["L3.ffn"])
    assert names["strongest"].indices[0] == trace["L3.ffn.act"][-1].abs().argmax()
    assert f"L3.{int(names['strongest'].indices[0])}" in str(names["neurons"].to_dict())


def streamed(names: Names) -> None:
    ids = names["ids"].tolist()
    for step, shares in zip(names["steps"], names["probabilities"], strict=True):
        close(shares, plain_logits(names, ids)[-1].double().softmax(-1).topk(5).values, 1e-5)
        ids += names["model"].tokenizer.encode(step.text).ids


def at_mean(names: Names) -> None:
    model, texts = names["model"], ["The dog ran to the park.", "A bird sings in the tree."]
    mean = torch.cat([trace["L1H2.head_out"] for trace in model.traces(texts)]).mean(0)
    with model.edited({"L1H2.head_out": lambda value: mean.expand_as(value)}):
        after = model.trace(names["text"]).logits_at(-1).double().log_softmax(-1)
    before = plain_logits(names)[-1].double().log_softmax(-1)
    assert names["at_mean"].effect.kl == pytest.approx(float((before.exp() * (before - after)).sum()), abs=1e-5)


CHECKS: tuple[Callable[[Names], None], ...] = (
    loaded, cached, strings, pattern, heat_map, most_probable, losses, decomposed, lens, attributed, patched, ablated,
    edited, generated, induction, batch, gradients, weights, beside_transformers, saved, streams, as_table,
    gradients_of_a_lead, swapped, skipped, frozen, torch_hook, strongest, streamed, at_mean,
)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_cell_gives_what_torch_or_numpy_gives(check: Callable[[Names], None], names: Names) -> None:
    check(names)


def test_every_cell_says_how_transformer_lens_and_nnsight_spell_it() -> None:
    assert [int(number) for number, _, _ in CELLS] == list(range(1, 31))
    assert len(CHECKS) == len(CELLS) == PAGE.count("```python")
    assert all(compile(of_lens(code), "TransformerLens", "exec") for _, _, code in CELLS)
