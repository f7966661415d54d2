"""One question over many pairs: each number is that of its pair alone, and of transformers; means, claims, refusals."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import KINDS, asked, config_of, lively
from torch import Tensor

import tinytf
from tinytf.cause.interventions import Intervention, hook_points, intervening
from tinytf.cause.interventions.controls import Control
from tinytf.cause.over_pairs import OverPairs, running
from tinytf.errors import AddressError, UsageError
from tinytf.estimate import Estimate, estimates, mean_of
from tinytf.pairs.pair import PairSet
from tinytf.report import Progress

PLACES = Path(__file__).parents[2] / "samples" / "places.jsonl"
QUESTIONS: dict[str, dict[str, Any]] = {
    "attribute": {}, "lens": {}, "attention": {}, "heads": {}, "score": {}, "ablate": {"sweep": "heads"},
    "patch": {"sweep": "heads"},
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny() -> tinytf.Model:
    return tinytf.load("tiny")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of several lengths, so that padding matters."""
    rows = [json.loads(line) for line in PLACES.read_text("utf-8").splitlines()[::4]]
    rows += [
        {**row, "clean": f"It was late. {row['clean']}", "corrupt": f"It was late. {row['corrupt']}"} for row in rows
    ]
    path = tmp_path_factory.mktemp("pairs") / "mixed.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def ask(model: tinytf.Model, question: str, pairs: Any, **settings: Any) -> OverPairs:
    report: OverPairs = getattr(model, f"{question}_over")(pairs, **{**QUESTIONS[question], **settings})
    return report


def lead(model: tinytf.Model, text: str, answer: str, versus: str) -> float:
    logits = model.trace(text).logits_at(len(model.encode(text).ids) - 1).double()
    return float(logits[model.find_token(answer)] - logits[model.find_token(versus)])


UNEVEN: dict[str, dict[str, Any]] = {
    "attention": {}, "ablate": {"sweep": "heads", "how": "resample"}, "patch": {"sweep": "heads"},
}  # fmt: skip
"""The questions that compare both texts of a pair token by token, beside circuits."""


@pytest.mark.parametrize("corrupt", ["Oh. {corrupt}", "{clean}"])
@pytest.mark.parametrize("question", UNEVEN)
def test_one_uneven_pair_of_a_file_is_left_out_and_counted(tiny: tinytf.Model, question: str, corrupt: str) -> None:
    rows = [json.loads(line) for line in PLACES.read_text("utf-8").splitlines()[:4]]
    uneven = {**rows[0], "corrupt": corrupt.format(**rows[0])}
    whole = ask(tiny, question, rows, **UNEVEN[question])
    report = ask(tiny, question, [*rows[:2], uneven, *rows[2:]], **UNEVEN[question])
    assert torch.equal(report.quantities[0].values, whole.quantities[0].values)
    assert (whole.uneven, report.uneven) == ((), (3,))
    assert report.to_dict()["pairs"]["uneven"] == [3]
    assert report.sentence.replace("4 of 5 pairs", "4 pairs") == whole.sentence != report.sentence


def test_a_circuit_leaves_out_an_uneven_pair(tiny: tinytf.Model) -> None:
    rows = [json.loads(line) for line in PLACES.read_text("utf-8").splitlines()[:2]]
    uneven = {**rows[0], "corrupt": f"Oh. {rows[0]['corrupt']}"}
    one, other = (tiny.circuit(some, method="gradient", level="nodes", left_out=0) for some in (rows, [*rows, uneven]))
    assert (other.n_pairs, other.uneven) == (2, (3,))
    assert other.to_dict()["uneven"] == [3]
    assert other.sentence == one.sentence.replace("the pairs have", "2 of 3 pairs have")


# Against transformers


@pytest.fixture(scope="module")
def original(tiny: tinytf.Model, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("exported") / "tiny"
    tiny.export(folder)
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


@contextmanager
def head_replaced(original: Any, layer: int, head: int, value: Tensor | float) -> Iterator[None]:
    """Transformers' model, with what a head gives to the output projection replaced at every position."""
    projection = original.model.layers[layer].self_attn.o_proj
    width = projection.in_features // original.config.num_attention_heads

    def replace(module: Any, args: Any) -> Any:
        x = args[0].clone()
        x[..., head * width : (head + 1) * width] = (
            value[..., head * width : (head + 1) * width] if isinstance(value, Tensor) else value
        )
        return (x,)

    handle = projection.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def test_every_number_is_that_of_transformers_text_by_text(tiny: tinytf.Model, original: Any, mixed: Path) -> None:
    reports = {name: ask(tiny, name, mixed) for name in ("attribute", "ablate", "patch", "lens", "attention", "score")}
    resampled = ask(tiny, "ablate", mixed, how="resample")
    values = {name: report.quantities[0].values for name, report in reports.items()}
    table = original.lm_head.weight
    for index, pair in enumerate(PairSet.read(mixed).encoded(tiny)):
        inputs: list[Tensor] = []
        handles = [
            layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args, kept=inputs: kept.append(args[0]))
            for layer in original.model.layers
        ]
        ffn, stream = list[Tensor](), list[Tensor]()
        handles += [
            layer.mlp.register_forward_hook(lambda *call, kept=ffn: kept.append(call[2]))
            for layer in original.model.layers
        ]
        handles.append(original.model.norm.register_forward_pre_hook(lambda _, args, kept=stream: kept.append(args[0])))
        runs = [
            original(torch.tensor([text.ids]), output_hidden_states=True, output_attentions=True)
            for text in (pair.clean, pair.corrupt)
        ]
        for handle in handles:
            handle.remove()
        depth = len(original.model.layers)

        def leads(logits: Tensor, pair: Any = pair) -> float:
            return float(logits[0, -1, pair.answer] - logits[0, -1, pair.versus])

        clean, corrupt = (leads(run.logits) for run in runs)
        assert reports["score"].examples[index].clean_lead == pytest.approx(clean, abs=1e-4)
        assert reports["score"].examples[index].corrupt_lead == pytest.approx(corrupt, abs=1e-4)
        scale = original.model.norm.weight / (stream[0][0, -1].square().mean() + original.config.rms_norm_eps).sqrt()
        question = scale * (table[pair.answer] - table[pair.versus])
        for row, name in enumerate(reports["attribute"].rows):
            if name.column is not None:
                columns = slice(name.column * 32, (name.column + 1) * 32)
                out = original.model.layers[name.layer].self_attn.o_proj.weight[:, columns]
                added = out @ inputs[name.layer][0, -1, columns]
            else:
                added = (runs[0].hidden_states if name.layer is None else ffn)[name.layer or 0][0, -1]
            assert float(values["attribute"][index, row]) == pytest.approx(float(added @ question), abs=1e-4)
        stages = [*runs[0].hidden_states[:-1]]
        for row, hidden in enumerate(stages):
            logits = original.model.norm(hidden[0, -1]) @ table.T
            expected = float(logits[pair.answer] - logits[pair.versus])
            assert float(values["lens"][index, row]) == pytest.approx(expected, abs=1e-3)
        differs = torch.tensor(pair.clean.ids) != torch.tensor(pair.corrupt.ids)
        for row, name in enumerate(reports["attention"].rows):
            weights = runs[0].attentions[name.layer or 0][0, name.column, -1]
            assert float(values["attention"][index, row]) == pytest.approx(float(weights[differs].sum()), abs=1e-5)
        for row, name in list(enumerate(reports["patch"].rows))[index::5]:
            layer, head = name.layer or 0, name.column or 0
            with head_replaced(original, layer, head, 0.0):
                zeroed = leads(original(torch.tensor([pair.clean.ids])).logits)
            with head_replaced(original, layer, head, inputs[depth + layer]):
                from_corrupt = leads(original(torch.tensor([pair.clean.ids])).logits)
            with head_replaced(original, layer, head, inputs[layer]):
                patched = leads(original(torch.tensor([pair.corrupt.ids])).logits)
            assert float(values["ablate"][index, row]) == pytest.approx(zeroed - clean, abs=2e-4)
            assert float(resampled.quantities[0].values[index, row]) == pytest.approx(from_corrupt - clean, abs=2e-4)
            assert float(values["patch"][index, row]) == pytest.approx(patched - corrupt, abs=2e-4)


# Against the single commands, in every kind of model

_ROWS = [
    {"clean": "3 14 15 9 2 6 30", "corrupt": "3 14 16 9 2 6 30", "answer": "#0", "versus": "#1"},
    {"clean": "7 8 9 10 30", "corrupt": "11 8 9 10 30", "answer": "#1", "versus": "#0"},
    {"clean": "5 4 3 2 1 9 8 7 6 30", "corrupt": "5 4 3 2 1 9 12 7 6 30", "answer": "#0", "versus": "#1"},
]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if config_of(kind).head.kind not in ("none", "token")])
def test_a_padded_batch_gives_what_each_pair_gives_alone(kind: str) -> None:
    model = asked(lively(config_of(kind)), None if config_of(kind).causal else 30)
    if model.config.encoder is not None:
        with pytest.raises(UsageError, match="this model has two"):
            model.score_over(_ROWS)
        return
    try:
        model.ablate(_ROWS[0]["clean"], "L0")
    except UsageError as error:
        pytest.skip(error.message)  # the head predicts no one thing
    layered, swept = model.ablate_over(_ROWS, sweep="layers"), model.patch_over(_ROWS, sweep="residual")
    parts, scores = model.attribute_over(_ROWS), model.score_over(_ROWS)
    for report in (layered, swept, parts, scores):
        assert report.holds, report.checks
    for index, row in enumerate(_ROWS):
        tokens = {"answer": row["answer"], "versus": row["versus"]}
        patched = model.patch(
            row["clean"], row["corrupt"], "L0.in", positions=[len(model.encode(row["clean"]).ids) - 1], **tokens
        )
        single = model.attribute(row["clean"], token=row["answer"], versus=row["versus"])
        assert float(parts.quantities[0].values[index].sum()) == pytest.approx(single.sum, abs=1e-4)
        at = 0 if model.config.causal else patched.contrast.position
        if model.config.causal:
            moved = patched.value - patched.contrast.corrupt
            assert float(swept.quantities[0].values[index, at]) == pytest.approx(moved, abs=1e-4)


def test_steps_named_together_are_ablated_and_patched_together(tiny: tinytf.Model, mixed: Path) -> None:
    at = ["L1H1", "L2.ffn", "L3H0"]
    ablated, patched = tiny.ablate_over(mixed, at), tiny.patch_over(mixed, at)
    assert [row.name for row in ablated.rows] == ["L1H1 + L2.ffn + L3H0"]
    for index, pair in enumerate(PairSet.read(mixed).pairs):
        with tiny.ablated(at):
            without = lead(tiny, pair.clean, pair.answer, pair.versus)
        clean = tiny.trace(pair.clean)
        values = [Intervention(point, point.value(clean)) for point in hook_points(at, clean.steps)]
        with intervening(tiny.transformer, values):
            with_clean = lead(tiny, pair.corrupt, pair.answer, pair.versus)
        example = ablated.examples[index]
        assert float(ablated.quantities[0].values[index, 0]) == pytest.approx(without - example.clean_lead, abs=1e-4)
        assert float(patched.quantities[0].values[index, 0]) == pytest.approx(
            with_clean - example.corrupt_lead, abs=1e-4
        )
        assert float(patched.quantities[1].values[index, 0]) == (with_clean > 0)


def test_measures_of_heads_are_means_over_the_clean_texts(tiny: tinytf.Model, mixed: Path) -> None:
    report = tiny.heads_over(mixed, by="distance")
    texts = [tiny.attention(pair.clean).measured("distance").double() for pair in PairSet.read(mixed).pairs]
    values = [mean.value for mean in report.quantities[0].means]
    torch.testing.assert_close(report.map_of(values), torch.stack(texts).mean(dim=0), atol=1e-5, rtol=1e-5)


def test_lengths_decide_between_positions_and_the_predicting_token(tiny: tinytf.Model, mixed: Path) -> None:
    even, uneven = tiny.patch_over(PLACES, sweep="residual"), tiny.patch_over(mixed, sweep="residual")
    assert [row.name for row in uneven.rows] == ["L0.in", "L1.in", "L2.in", "L3.in"]
    assert "differ in length" in uneven.words
    assert even.map_axes == ("layer", "position")
    shares = even.map_of([mean.value for mean in even.quantities[0].means])
    assert shares.shape == (4, 18)
    assert shares[:, :7].eq(0).all()  # the tokens before the place are the same
    # The last token's stream into the last layer decides all but what this layer brings, in both.
    assert float(shares[3, 17]) == pytest.approx(uneven.quantities[0].means[3].value, abs=0.05)
    pair = PairSet.read(PLACES).pairs[3]
    single = tiny.patch_sweep(pair.clean, pair.corrupt, answer=pair.answer, versus=pair.versus)
    moved = even.map_of(even.quantities[0].values[3])
    torch.testing.assert_close(moved, single.values - single.contrast.corrupt, atol=1e-4, rtol=1e-4)


# Means, intervals, examples


def test_a_share_is_a_ratio_of_sums_and_other_numbers_are_means(tiny: tinytf.Model) -> None:
    report = tiny.patch_over(PLACES, sweep="heads")
    moved = report.quantities[0].values
    lost = sum(example.clean_lead - example.corrupt_lead for example in report.examples)
    assert [mean.value for mean in report.quantities[0].means] == pytest.approx((moved.sum(dim=0) / lost).tolist())
    attributed = tiny.attribute_over(PLACES).quantities[0]
    spread = attributed.values.std(dim=0) / math.sqrt(len(attributed.values))
    for mean, values, error in zip(attributed.means, attributed.values.T, spread.tolist(), strict=True):
        assert mean.value == pytest.approx(float(values.mean()))
        assert mean.low is not None
        assert mean.high is not None
        assert mean.high - mean.low == pytest.approx(2 * 1.96 * error, rel=0.25)  # of a normal distribution


def test_pairs_without_a_number_are_left_out_of_its_mean(tiny: tinytf.Model) -> None:
    rows = [
        {"clean": "The cat lost the hat", "corrupt": "The dog lost the hat", "answer": " cat", "versus": " dog"},
        {"clean": "The cat lost the hat", "corrupt": "The dog lost the hat", "answer": " ball", "versus": " dog"},
    ]
    differing, on_answer, _ = tiny.attention_over(rows).quantities
    assert on_answer.values[1].isnan().all()
    assert [mean.value for mean in on_answer.means] == pytest.approx(differing.values[0].tolist())
    assert tiny.attention_over(rows).to_dict()["rows"][0]["answer"]["low"] is None  # one text has no interval


def test_conditions_choose_pairs_and_examples_keep_their_lines(tiny: tinytf.Model) -> None:
    report = tiny.score_over(PLACES, where=["verb=hid", "name=Tom"])
    assert [example.pair.number for example in report.examples] == [3, 11, 19]
    leads = [lead(tiny, e.pair.clean, e.pair.answer, e.pair.versus) for e in report.examples]
    assert [example.clean_lead for example in report.examples] == pytest.approx(leads, abs=1e-4)
    assert report.order() == sorted(range(3), key=lambda index: -leads[index])
    whole = tiny.score_over(PLACES)
    assert [e.pair.number for e in whole.examples if e.pair.labels["name"] == "Tom"] == [3, 4, 11, 12, 19, 20]


def test_a_median_takes_ranks_as_they_are(tiny: tinytf.Model, mixed: Path) -> None:
    report = tiny.lens_over(mixed)
    pairs = PairSet.read(mixed).pairs
    singles = [tiny.lens(pair.clean, position="-1", track=[pair.answer]) for pair in pairs]
    ranks = torch.stack([torch.stack([stage.ranks[0, 0] for stage in single.stages]) for single in singles]).double()
    assert [mean.value for mean in report.quantities[2].means] == ranks.quantile(0.5, dim=0).tolist()


# Claims


def changed(report: OverPairs, *means: Estimate, **members: Any) -> OverPairs:
    """The report with other means of its first quantity."""
    first, *others = report.quantities
    quantities = (dataclasses.replace(first, means=means or first.means), *others)
    return dataclasses.replace(report, quantities=quantities, **members)


def measured(report: OverPairs, seed: int = 3, **rows: float) -> OverPairs:
    """The report with other values: noise around 0 in every row, and around the numbers given by name."""
    first, *others = report.quantities
    noise = torch.randn(first.values.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    middle = torch.tensor([rows.get(row.name, 0.0) for row in report.rows], dtype=torch.float64)
    leads = torch.tensor([[one.clean_lead, one.corrupt_lead] for one in report.examples], dtype=torch.float64)
    changed = first.with_values(middle + 0.1 * noise, leads)
    return dataclasses.replace(report, quantities=(changed, *others), by=changed.ranked[0])


def test_what_is_most_of_many_is_measured_on_pairs_that_did_not_pick_it(tiny: tinytf.Model) -> None:
    report = measured(tiny.attribute_over(PLACES), L1H3=1.0, L0H2=-1.0)
    row, mean, others = report.confirmed(1)
    own = report.quantities[0].values[1::2, row]  # every other pair picks, from the first on
    assert (report.rows[row].name, others) == ("L1H3", 12)
    assert mean.value == pytest.approx(float(own.mean()))
    assert f"L1H3 adds most to the answer's lead, {mean.value:+.3g} (" in report.sentence
    assert "L0H2 takes most away, -" in report.sentence
    unsure = measured(tiny.attribute_over(PLACES), L1H3=1.0, L1H2=1.0, L0H2=-1.0).sentence
    assert re.search(r"L1H[23] adds to the answer's lead, .*, not clearly more than L1H[23]; L0H2 takes most", unsure)
    assert report.sentence.count("over the 12 that did not pick it") == 2
    twice = dataclasses.replace(report, examples=report.examples[:1] * 24)  # one pair, which is on one side
    assert twice.confirmed(1)[1].low is None


def test_nothing_is_said_to_matter_where_all_is_noise(tiny: tinytf.Model) -> None:
    assert measured(tiny.attribute_over(PLACES)).sentence == ""
    assert "none clearly matters" in measured(tiny.ablate_over(PLACES, sweep="heads")).sentence
    assert "matters most" in measured(tiny.ablate_over(PLACES, sweep="heads"), L2H1=-0.5).sentence


@pytest.mark.parametrize("near", [("L2H1", "L1H3"), ("L2H1", "L1H3", "L0H0", "L3H2")])
def test_of_equal_rows_none_is_called_the_most_in_19_of_20_draws(tiny: tinytf.Model, near: Sequence[str]) -> None:
    """The rows have one mean, and others none: that one of them is more than each other is always false."""
    report = tiny.ablate_over(PLACES, sweep="heads")
    sizes = tiny.patch_estimate_pairs(PLACES, "heads", how="grad-drop")
    for of, mean, words in ((report, -0.2, "matters most"), (sizes, 1.0, "the most")):
        claimed = [words in measured(of, draw, **dict.fromkeys(near, mean)).sentence for draw in range(200)]
        assert sum(claimed) / 200 <= 0.05


def test_a_row_is_called_the_most_where_it_clearly_exceeds_every_other(tiny: tinytf.Model) -> None:
    report = measured(tiny.ablate_over(PLACES, sweep="heads"), L2H1=-0.5, L1H3=0.2)
    row, mean, others = report.confirmed()
    halves = report.quantities[0].values[1::2]
    differences = halves[:, [row]].neg() - halves * halves.mean(0).sign()  # L2H1 is below 0
    clear = [other for other in range(16) if other != row and mean_of(differences[:, other]).is_clear]
    sizes = sorted(abs(float(halves[:, other].mean())) for other in range(16) if other != row)
    assert (report.rows[row].name, others, len(clear)) == ("L2H1", 12, 15)
    assert "that of L2H1 matters most: it moves" in report.sentence
    assert report.control == Control(
        "other ablations", 15, mean.value, 0, pytest.approx(sizes[7]), pytest.approx(sizes[-1]), exceeded=15
    )
    unsure = measured(tiny.ablate_over(PLACES, sweep="heads"), L2H1=-0.5, L1H3=0.5)
    assert "over the 12 that did not pick it, not clearly more than L" in unsure.sentence
    assert "most" not in unsure.sentence
    assert unsure.control is not None
    assert (unsure.control.exceeded, unsure.control.count) == (14, 15)


def test_too_few_pairs_call_nothing_the_most(tiny: tinytf.Model) -> None:
    pairs = [
        {name: vars(pair)[name] for name in ("clean", "corrupt", "answer", "versus")}
        for pair in PairSet.read(PLACES).pairs[:11]
    ]
    for some in (pairs, pairs[:1]):
        of_heads = [question(some, sweep="heads") for question in (tiny.patch_over, tiny.ablate_over)]
        for report in (*of_heads, tiny.attribute_over(some)):
            assert "; too few pairs to call it the most" in report.sentence
            assert report.sentence.count("most") == 1
            assert report.control is not None
            assert report.control.exceeded is None
            assert report.control.words.startswith(f"the largest of {len(report.rows)} ")


def test_an_address_stands_beside_the_other_heads_of_its_layer(tiny: tinytf.Model, original: Any) -> None:
    rows = [vars(pair) for pair in PairSet.read(PLACES).pairs[:8]]
    pairs = [{name: row[name] for name in ("clean", "corrupt", "answer", "versus")} for row in rows]
    ablated, patched = tiny.ablate_over(pairs, "L1H0"), tiny.patch_over(pairs, "L1H0")
    changes, moved, lost = torch.empty(8, 4).double(), torch.empty(8, 4).double(), torch.empty(8).double()
    for index, pair in enumerate(PairSet.of(pairs).encoded(tiny)):

        def lead(ids: Sequence[int], pair: Any = pair) -> float:
            with torch.no_grad():
                logits = original(torch.tensor([ids])).logits[0, -1]
            return float(logits[pair.answer] - logits[pair.versus])

        inputs: list[Tensor] = []
        projection = original.model.layers[1].self_attn.o_proj
        handle = projection.register_forward_pre_hook(lambda _, args, kept=inputs: kept.append(args[0]))
        clean, corrupt = lead(pair.clean.ids), lead(pair.corrupt.ids)
        handle.remove()
        lost[index] = clean - corrupt
        for head in range(4):
            with head_replaced(original, 1, head, 0.0):
                changes[index, head] = lead(pair.clean.ids) - clean
            with head_replaced(original, 1, head, inputs[0]):
                moved[index, head] = lead(pair.corrupt.ids) - corrupt
    for report, values, counts in ((ablated, changes, torch.ones_like(lost)), (patched, moved, lost)):
        means = (values.sum(0) / counts.sum()).tolist()
        differences = means[0] / abs(means[0]) * values[:, [0]] - values * torch.tensor(means).sign()
        lows = [estimate.low or 0.0 for estimate in estimates(differences[:, 1:], counts, 0)]
        others = sorted(map(abs, means[1:]))
        control = report.control
        assert control is not None
        assert len(report.rows) == 1
        assert control.what == "other heads of L1"
        assert (control.count, control.exceeded) == (3, sum(low > 0 for low in lows))
        sizes = control.effect, control.median, control.largest
        assert sizes == pytest.approx((means[0], others[1], others[2]), abs=1e-4)
        assert control.reached == sum(other >= abs(means[0]) for other in others)
        assert report.random.shape == (8, 3)
    assert tiny.ablate_over(pairs, "L1H0", controls=0).control is None
    assert tiny.ablate_over(pairs, "L1H0-3").control is None
    whole, encoded = tiny.ablate_over(pairs, "L1.ffn", controls=3, seed=5), PairSet.of(pairs).encoded(tiny)
    assert whole.random_sets == "changes of the same length in random directions"
    for pair, found in zip(encoded, whole.random.tolist(), strict=True):
        own = tiny.ablate(
            pair.pair.clean, "L1.ffn", target=pair.answer, versus=pair.versus, controls=3, seed=5 + pair.pair.number
        ).control
        assert own is not None
        sizes = sorted(map(abs, found))
        assert (sizes[1], sizes[2]) == pytest.approx((own.median, own.largest), abs=1e-4)
    several = tiny.patch_over(pairs, ["L1H0", "L2H1"], controls=4, seed=1).control
    assert several is not None
    assert (several.what, several.count) == ("random sets of 2 heads of the same layers", 4)
    single = tiny.ablate_over(pairs[:1], "L1H0").control
    assert single is not None
    assert single.exceeded is None
    assert single.words == f"{single.reached} of 3 other heads of L1 reach{'es' * (single.reached == 1)} it"


def test_pairs_that_change_nothing_have_no_share(tiny: tinytf.Model) -> None:
    rows = [vars(pair) for pair in PairSet.read(PLACES).pairs]
    turned = [
        {**row, "clean": row["corrupt"], "corrupt": row["clean"]} if number % 2 else row
        for number, row in enumerate(rows)
    ]
    pairs = [{name: row[name] for name in ("clean", "corrupt", "answer", "versus")} for row in turned]
    report = tiny.patch_over(pairs, sweep="heads")
    assert not report.effect.is_clear
    assert report.effect == mean_of([one.clean_lead - one.corrupt_lead for one in report.examples])
    assert "the pairs have no clear effect" in report.sentence
    assert "the pairs have no clear effect" in tiny.circuit(pairs, left_out=0).sentence


@pytest.mark.parametrize("count", [6, 12, 40])
def test_the_interval_of_nothing_has_0_in_19_of_20_draws(count: int) -> None:
    draws = torch.randn(1000, count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    clear = sum(mean_of(draw, seed).is_clear for seed, draw in enumerate(draws))
    assert clear / 1000 < 0.075  # four deviations above the 5 % that are meant


def test_the_answer_leads_from_where_the_whole_interval_is_above_0_to_the_end(tiny: tinytf.Model) -> None:
    report, clear, unsure = tiny.lens_over(PLACES), Estimate(1.0, 0.5, 1.5), Estimate(1.0, -0.5, 2.5)
    assert "from L2.out on" in changed(report, clear, unsure, unsure, clear, clear).sentence
    assert "no clear lead in the end" in changed(report, clear, clear, clear, clear, unsure).sentence
    values = report.quantities[0].values
    for share in (0.5, 0.9):
        name = report.leads_in(share)
        start = [row.name for row in report.rows].index(str(name))
        for_good = [(values[:, first:] > 0).all(dim=1).double().mean() for first in range(len(report.rows))]
        assert for_good[start] >= share
        assert start == 0 or for_good[start - 1] < share


def test_the_stream_is_said_to_move_where_half_of_the_lead_comes_back(tiny: tinytf.Model) -> None:
    report = tiny.patch_over(PLACES, sweep="residual")
    shares = report.map_of([mean.value for mean in report.quantities[0].means])
    assert "at position 7 up to L1 and at position 17 ·the from L2 on" in report.sentence
    assert (shares[:2, 7] >= 0.5).all()
    assert shares[2, 7] < 0.5
    assert (shares[2:, 17] >= 0.5).all()
    assert shares[1, 17] < 0.5
    attention = tiny.patch_over(PLACES, sweep="attn")  # what a layer adds does not move
    assert "the most of 72 patches" in attention.sentence


def test_patching_claims_no_share_of_a_lead_that_is_not_there(tiny: tinytf.Model) -> None:
    pairs = [vars(pair) for pair in PairSet.read(PLACES).pairs[:3]]
    swapped = [{**pair, "answer": pair["versus"], "versus": pair["answer"]} for pair in pairs]
    columns = ("clean", "corrupt", "answer", "versus")
    report = tiny.patch_over([{name: row[name] for name in columns} for row in swapped], sweep="heads")
    assert "lead no more after the clean texts" in report.sentence
    assert report.right == 0


def test_a_share_below_0_is_said_by_its_size(tiny: tinytf.Model) -> None:
    report = tiny.patch_over(PLACES, sweep="heads")
    less = changed(report, Estimate(-0.35, -0.4, 0.1), rows=report.rows[:1], by=0).sentence
    assert "L0H0 of the clean run takes away another 35 % (-10 to 40 %) of the answer's lead" in less
    none = measured(report).sentence
    assert none == "Over 24 pairs, no patch brings back or takes away as much as 0.1 % of the answer's lead."


def test_the_share_answered_right_counts_positive_leads(tiny: tinytf.Model) -> None:
    flipped = [
        {"clean": pair.clean, "corrupt": pair.corrupt, "answer": pair.versus, "versus": pair.answer}
        for pair in PairSet.read(PLACES).pairs[:2]
    ]
    rows = [vars(pair) for pair in PairSet.read(PLACES).pairs[:6]] + flipped
    report = tiny.score_over([{name: row[name] for name in ("clean", "corrupt", "answer", "versus")} for row in rows])
    assert report.right == 6 / 8
    assert report.sentence.startswith("The model answers 6 of 8 pairs right")


def test_a_batch_that_changes_the_numbers_fails_the_check_and_takes_the_sentence_away(
    tiny: tinytf.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_all = running.record_all

    def wrong(model: Any, encodings: Any, *rest: Any, **settings: Any) -> Any:
        traces = record_all(model, encodings, *rest, **settings)
        for trace in traces if len(encodings) > 1 else ():
            trace.recording.tensors["logits"] += torch.linspace(0, 1e-2, model.config.vocab_size)
        return traces

    assert tiny.score_over(PLACES).sentence
    monkeypatch.setattr(running, "record_all", wrong)
    report = tiny.score_over(PLACES)
    assert not report.holds
    assert not report.sentence


# Interrupts, and files to resume from


def after(pairs: int) -> Progress:
    def interrupt(done: int, of: int) -> None:
        if done == pairs:
            raise KeyboardInterrupt

    return interrupt


@pytest.mark.parametrize("question", ["ablate", "patch"])
def test_an_interrupt_keeps_the_pairs_so_far_and_a_file_continues_them(
    question: str, tiny: tinytf.Model, tmp_path: Path
) -> None:
    path, whole = tmp_path / "kept.jsonl", ask(tiny, question, PLACES)
    part = ask(tiny, question, PLACES, resume=path, on_progress=after(5))
    assert part.interrupted
    assert len(part.examples) == 5
    assert list(part.events())[-1] == {"type": "interrupted"}
    measured: list[int] = []
    again = ask(tiny, question, PLACES, resume=path, on_progress=lambda done, of: measured.append(done))
    assert measured == list(range(6, 25))
    assert again.to_dict()["rows"] == whole.to_dict()["rows"]
    assert not again.interrupted
    del measured[:]
    ask(tiny, question, PLACES, where=["verb=hid"], resume=path, on_progress=lambda done, of: measured.append(done))
    assert not measured  # every pair is kept by itself
    other = ask(tiny, question, PLACES, sweep="ffn", resume=path, on_progress=after(3))
    assert len(other.examples) == 3  # another question takes nothing from the file


def test_progress_is_by_the_batch_where_a_pair_takes_no_run_of_its_own(tiny: tinytf.Model) -> None:
    """Else the first pair of a batch would be held to take as long as all of them."""
    done: list[int] = []
    ask(tiny, "score", PLACES, on_progress=lambda count, of: done.append(count))
    assert done == [24]


# Refusals

Asked = Callable[[tinytf.Model], object]
_ROW = {"clean": "The cat sat", "corrupt": "The dog sat", "answer": " on", "versus": " in"}
REFUSED: dict[str, Asked] = {
    "line 1 of pairs: the texts have 4 and 3 tokens": lambda m: m.patch_over(
        [{**_ROW, "clean": "The old cat sat"}], "L0"
    ),
    "line 1 of pairs: answer and versus are one token": lambda m: m.score_over([{**_ROW, "versus": " on"}]),
    "line 2 of pairs has no versus": lambda m: m.lens_over([_ROW, {**_ROW, "versus": math.nan}]),
    "choose steps, or a sweep": lambda m: m.ablate_over([_ROW], "L0H1", sweep="heads"),
    "there is no sweep over 'experts' with pairs": lambda m: m.ablate_over([_ROW], sweep="experts"),
    "there is no way to ablate 'best'": lambda m: m.ablate_over([_ROW], "L0H1", how="best"),
    "only a mean takes other texts": lambda m: m.ablate_over([_ROW], "L0H1", reference="x.txt"),
    "there is no score 'induction'": lambda m: m.heads_over([_ROW], by="induction"),
    "has a number for previous": lambda m: m.heads_over([{**_ROW, "clean": "the", "corrupt": "a"}]),
    "there is no layer 9": lambda m: m.ablate_over([_ROW], "L9H1"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_asked_is_refused_by_name(message: str, tiny: tinytf.Model) -> None:
    with pytest.raises((UsageError, AddressError)) as raised:
        REFUSED[message](tiny)
    assert message in str(raised.value)
    assert raised.value.hint or "one token" in message
