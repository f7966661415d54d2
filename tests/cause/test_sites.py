"""Every step with a row a token can be replaced: queries, keys, maps, units; cells of attention weights are blocked."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively, some_ids
from torch import Tensor

import tinytf
from tinytf.cause.interventions import Intervention, hook_points, intervening
from tinytf.cause.interventions.grid import Grid
from tinytf.cause.interventions.hooks import logits_with, not_yet_added, point_names
from tinytf.cause.interventions.sweep import sweep
from tinytf.errors import AddressError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.steps.operations import Add
from tinytf.steps.table import table_of
from tinytf.trace.record import record
from tinytf.trace.trace import Trace

WITH_HEAD = [kind for kind in KINDS if config_of(kind).head.kind != "none"]
kinds = pytest.mark.parametrize("kind", WITH_HEAD)
LENGTH, MASK, CLOSE = 9, 5, 2e-4


def traced(model: Transformer, seed: int) -> Trace:
    """A trace of random tokens; of an encoder with the mask at 5."""
    ids = some_ids(model.config, 1, LENGTH, seed)[0].tolist()
    if not model.config.causal:
        ids = [token if token != 30 else 0 for token in ids]
        ids[MASK] = 30
    return record(model, encoding_of(ids), None if model.config.causal else 30)


@kinds
def test_every_step_takes_the_value_of_another_text_alone_and_in_a_batch(kind: str) -> None:
    model = lively(config_of(kind))
    clean, corrupt = traced(model, 5), traced(model, 6)
    position = corrupt.recording.logit_rows[-1]
    rows: dict[str, Any] = {}
    for step in clean.steps.in_layer(1):
        if not step.can_intervene:
            continue
        (*points,) = hook_points([f"L1.{step.name}"], clean.steps)
        for point in points[:1]:
            assert [str(point)] == [str(same) for same in hook_points([str(point)], clean.steps)]
            rows[str(point)] = (Intervention(point, point.value(clean)),)
            (own,) = logits_with(corrupt, [Intervention(point, point.value(corrupt))], [position])
            assert torch.allclose(own, corrupt.logits_at(position), atol=CLOSE), point
    found, check = sweep(
        corrupt, rows, [position], lambda logits: list(logits[:, 0].double()), lambda row: float(row.abs().max()),
        resume=None, subject="", from_data=lambda data: data,
    )  # fmt: skip
    assert check.holds
    for (name, interventions), logits in zip(rows.items(), found, strict=True):
        alone = logits_with(corrupt, interventions, [position])[0].double()
        assert torch.allclose(alone, logits, atol=CLOSE), name
        point = interventions[0].point

        def put(tensor: Tensor, value: Tensor = interventions[0].value) -> Tensor:
            return value

        with asked(model).edited({point.full_name if point.shared == 1 else str(point): put}):
            edited = model(torch.tensor([corrupt.encoding.ids]))[0, position].detach().double()
        assert torch.allclose(alone, edited, atol=CLOSE), name


@kinds
def test_an_estimate_is_the_slope_of_a_patch_in_every_kind_of_model(kind: str) -> None:
    model = lively(config_of(kind)).double()
    clean, corrupt, share = traced(model, 5), traced(model, 6), 1e-4
    ours, position = asked(model), corrupt.recording.logit_rows[-1]
    for over in ("heads", "ffn"):
        found = ours.patch_estimate(clean, corrupt, over, answer=3, versus=4)
        assert all(check.holds for check in found.checks)
        effects = found.values - found.contrast.corrupt
        grid = Grid.of(over, clean.steps, LENGTH)
        layer, column = found.strongest(1)[0][:2]
        site = grid.intervention(clean, layer, column)
        own = grid.intervention(corrupt, layer, column)
        leads = []
        for side in (share, -share):
            put = replace(site, value=own.value + side * (site.value - own.value))
            leads += found.contrast.of(logits_with(corrupt, [put], [position])[None])
        slope = (leads[0] - leads[1]) / (2 * share)
        assert float(effects[layer, column]) == pytest.approx(slope, rel=1e-4, abs=1e-6), over


CLEAN, CORRUPT, WIDTH = "The cat lost the ball. The cat lost the", "The cat lost the hat. The cat lost the", 32


@pytest.fixture(scope="module")
def tiny() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def theirs(tiny: tinytf.Model, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same weights in transformers, in float64, whose attention takes a mask to add."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("exported") / "tiny"
    tiny.export(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()


@torch.no_grad()
def logits_of(theirs: Any, ids: list[int], hooks: dict[str, Callable[[Tensor], Tensor]]) -> Tensor:
    """Their logits at the last position, with the outputs of some modules passed through functions."""
    handles = [
        theirs.get_submodule(path).register_forward_hook(lambda _, args, result, change=change: change(result))
        for path, change in hooks.items()
    ]
    logits: Tensor = theirs(input_ids=torch.tensor([ids])).logits[0, -1]
    for handle in handles:
        handle.remove()
    return logits


@pytest.mark.parametrize(("address", "layers"), [("L1-2.weights[-1,1]", (1, 2)), ("L1.weights[3:,cat]", (1,))])
def test_a_blocked_key_is_a_score_of_minus_infinity(
    tiny: tinytf.Model, theirs: Any, address: str, layers: tuple[int, ...]
) -> None:
    text = "The cat sat on the"
    ids = list(tiny.encode(text).ids)
    rows = [len(ids) - 1] if "-1," in address else list(range(3, len(ids)))

    def block(module: Any, args: Any, kwargs: Any) -> Any:
        mask = kwargs["attention_mask"]
        seen = torch.ones(len(ids), len(ids), dtype=torch.bool).tril() if mask is None else mask[0, 0] == 0
        seen = seen.clone()
        seen[rows, 1] = False
        added = torch.zeros(1, 1, len(ids), len(ids), dtype=torch.float64).masked_fill(~seen, -torch.inf)
        return args, {**kwargs, "attention_mask": added}

    handles = [
        theirs.model.layers[layer].self_attn.register_forward_pre_hook(block, with_kwargs=True) for layer in layers
    ]
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    for handle in handles:
        handle.remove()
    found = tiny.ablate(text, address)
    assert found.effect.after == pytest.approx(float(expected[found.target]), abs=2e-5)
    assert abs(found.effect.after - found.effect.before) > 1e-4
    assert found.source == "by a score of −∞"
    assert found.sentence.startswith(f"With {point_names(found.sites)[0]} blocked, ·mat ")
    assert len(point_names(found.sites)) == 1
    points = [replace(point, step="masked") for point in found.sites]
    cut = [Intervention(point, torch.tensor(-torch.inf)) for point in points]
    with intervening(tiny.transformer, cut):
        weights = tiny.trace(text)[f"L{layers[0]}.weights"]
    assert weights[:, rows, 1].abs().max() == 0
    assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-6)


def test_a_unit_is_a_column_before_the_last_matrix(tiny: tinytf.Model, theirs: Any) -> None:
    text, ids = "The cat sat on the", list(tiny.encode("The cat sat on the").ids)
    down = theirs.model.layers[2].mlp.down_proj
    cut = down.weight.detach().clone()
    cut[:, [17, 40]] = 0
    kept, down.weight.data = down.weight.data, cut
    expected = logits_of(theirs, ids, {}).log_softmax(-1)
    down.weight.data = kept
    found = tiny.ablate(text, ["L2.17", "L2.40"])
    assert [str(site) for site in found.sites] == ["L2.17", "L2.40"]
    assert found.effect.after == pytest.approx(float(expected[found.target]), abs=2e-5)
    whole = tiny.ablate(text, "L2.ffn.act[:,:]")
    assert whole.effect.after == pytest.approx(tiny.ablate(text, "L2.ffn").effect.after, abs=1e-5)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_queries_keys_and_values_of_a_head_are_patched_where_they_are_projected(
    tiny: tinytf.Model, theirs: Any, name: str
) -> None:
    path, columns = f"model.layers.1.self_attn.{name}_proj", slice(0, WIDTH)
    clean, corrupt = (list(tiny.encode(text).ids) for text in (CLEAN, CORRUPT))
    kept: list[Tensor] = []
    logits_of(theirs, clean, {path: lambda tensor: kept.append(tensor) or tensor})

    def put(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor[..., columns] = kept[0][..., columns]
        return tensor

    expected = logits_of(theirs, corrupt, {path: put})
    found = tiny.patch(CLEAN, CORRUPT, f"L1H0.{name}")
    difference = float(expected[found.contrast.metric.answer[0]] - expected[found.contrast.metric.versus[0]])
    assert found.value == pytest.approx(difference, abs=5e-5)


def test_a_sweep_of_units_or_of_heads_at_one_position_is_a_patch_for_each() -> None:
    model = lively(config_of("llama, grouped"))
    clean, corrupt, tokens = traced(model, 5), traced(model, 6), {"answer": 3, "versus": 4}
    ours = asked(model)
    units = ours.patch_sweep(clean, corrupt, "neurons", **tokens)
    heads = ours.patch_sweep(clean, corrupt, "heads", positions=[6], **tokens)
    assert units.values.shape == (model.config.n_layers, model.config.d_ff)
    for layer, column in ((0, 3), (1, 7)):
        alone = ours.patch(clean, corrupt, f"L{layer}.{column}", **tokens)
        assert float(units.values[layer, column]) == pytest.approx(alone.value, abs=1e-4)
        alone = ours.patch(clean, corrupt, f"L{layer}H{column % 4}", positions=[6], **tokens)
        assert float(heads.values[layer, column % 4]) == pytest.approx(alone.value, abs=1e-4)
    assert heads.positions == (6,)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("L1.weights[0,0]", "blocks all that token 0 The sees"),
        ("L1.weights[1,3]", "is masked already"),
        ("L1.weights[-1,bear]", "no token is 'bear'"),
        ("L1.9999", "there is no unit 9999"),
        ("L1H0.q[1,99]", "d_head 99 is out of range"),
    ],
)
def test_a_cell_that_is_not_there_is_refused(tiny: tinytf.Model, address: str, said: str) -> None:
    with pytest.raises((UsageError, AddressError), match=said.replace("(", "\\(")):
        tiny.ablate("The cat sat on the", address)


def test_a_step_at_one_token_has_the_mean_of_each_head(tiny: tinytf.Model) -> None:
    found = tiny.ablate("The cat sat on the", "L1.q[cat]", how="mean")
    assert [str(site) for site in found.sites] == [f"L1H{head}.q[1]" for head in range(4)]
    heads = tiny.ablate("The cat sat on the", [f"L1H{head}.q[1]" for head in range(4)], how="mean")
    assert found.effect == heads.effect
    alone = tiny.patch(CLEAN, CORRUPT, "L1.attn[4]")
    assert alone.value == tiny.patch(CLEAN, CORRUPT, "L1.attn", positions=[4]).value


def test_only_cells_are_said_to_be_blocked(tiny: tinytf.Model) -> None:
    found = tiny.ablate("The cat sat on the", ["L1-2.weights[-1,1]", "L3.ffn"])
    assert found.sentence.startswith("Without L1-2.weights[4,1] and L3.ffn, ")
    assert found.source == "(cells of attention weights by a score of −∞)"


def test_a_cell_is_of_one_text_and_a_map_has_no_mean(tiny: tinytf.Model) -> None:
    with pytest.raises(AddressError, match="is a cell of one text"), tiny.ablated("L1.weights[-1,0]"):
        pass
    for how in ("mean", "resample"):
        with pytest.raises(UsageError, match=f"has no {how} over texts"):
            tiny.ablate("The cat sat on the", "L1H0.weights", how=how)
    with tiny.ablated("L1H0.q"):  # a trace shows the replaced values, and its check leaves them out
        trace = tiny.trace("The cat sat on the")
        assert trace["L1H0.q"].abs().max() == 0
        assert trace["L1H0.weights"][-1].tolist() == pytest.approx([1 / len(trace.tokens)] * len(trace.tokens))


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_layer_are_what_its_stream_gains(kind: str) -> None:
    trace = traced(lively(config_of(kind)), 5)
    for layer in range(trace.config.n_layers):
        stream, parts = trace.steps.stream(layer), trace.steps.added_in(layer)
        between = [trace.steps.at(name, layer).operation for name in stream[:-1]]
        if not parts or not all(isinstance(operation, Add) for operation in between):
            continue  # a norm, a scale or several streams make something else of the sum
        added = sum(trace[f"L{layer}.{part.name}.added"] for part in parts)
        after, before = trace.step(stream[0], layer), trace.step(stream[-1], layer)
        size = max(1.0, float(after.abs().max()))  # whose last digits a difference of two streams has
        assert torch.allclose(after - before, added, atol=1e-6 * size, rtol=1e-5), layer
        everything = {point.step for point in hook_points(f"L{layer}", trace.steps)}
        assert everything >= {trace.steps.summand(part, layer).name for part in parts}


def test_questions_about_parts_change_what_is_added_and_say_where_a_named_step_is_not() -> None:
    table = table_of(config_of("llama, grouped", norm_order="both"))
    assert Grid.of("ffn", table, 3).steps == ("ffn_norm",) * table.config.n_layers
    assert [str(point) for point in hook_points("L1", table)] == ["L1.attn_norm", "L1.ffn_norm"]
    assert not_yet_added(hook_points("L1.attn.added", table), table) == ""
    said = "L1.attn is not yet what the layer adds: that is L1.attn_norm = RMSNorm(attn)"
    assert not_yet_added(hook_points("L1.attn", table), table) == said
