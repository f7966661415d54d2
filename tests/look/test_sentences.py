"""The sentence of each report says what its numbers hold, recomputed here from tensors, and stops when they do not."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tinytf.cause.importance import Importance, TensorImportance
from tinytf.cause.interventions.prediction import Choice, Effect
from tinytf.certification.card import Card, TensorOfFile, TypeOfTensors
from tinytf.certification.certify import Certificate
from tinytf.certification.contents import Shared
from tinytf.certification.kept import Kept, Mean
from tinytf.certification.sides import Check
from tinytf.generate.samplers import Sampling
from tinytf.loading import Model, load
from tinytf.look.info import Info
from tinytf.presets import preset
from tinytf.report import About
from tinytf.sentences import changed, choices, first_of, from_where_on, listed, percent, several
from tinytf.verify import ExampleScores, open_example, verify

TEXT = "The dog lost the red ball. The dog lost the red"


@pytest.fixture(scope="module")
def model() -> Model:
    return load("tiny", device="cpu")


def shares_by_layer(model: Model, text: str, position: int = -1) -> torch.Tensor:
    """The probabilities that the stream after the embedding and after each layer would give, (stages, V)."""
    trace, transformer = model.trace(text), model.transformer
    places = [(trace.steps.embedded, None), *((trace.steps.output, n) for n in range(model.config.n_layers))]
    rows = [transformer.unembed(transformer.final_norm(trace.step(*place)))[position] for place in places]
    return torch.stack(rows).softmax(-1)


def first_of_the_end(held: list[bool]) -> int:
    """The begin of the last run of true entries, counted from the end."""
    count = 0
    for one in reversed(held):
        if not one:
            break
        count += 1
    return len(held) - count


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.7725, "77 %"), (0.0645, "6.5 %"), (0.0004, "under 0.1 %"), (0.0006, "0.1 %"), (0.9999, "over 99 %"),
     (0.994, "99 %"), (1.0, "100 %"), (0.0, "0 %"), (0.0994, "9.9 %"), (0.0996, "10 %")],
)  # fmt: skip
def test_a_share_is_said_as_a_person_says_it(share: float, said: str) -> None:
    assert percent(share) == said


def test_from_where_on_something_holds_is_the_begin_of_its_last_run() -> None:
    assert from_where_on([True, False, True, True]) == 2
    assert from_where_on([True, True]) == 0
    assert from_where_on([True, False]) is None
    assert from_where_on([]) is None


def test_one_does_what_several_do() -> None:
    assert several(1, "look at it") == "1 looks at it"
    assert several(1, "have no pattern") == "1 has no pattern"
    assert several(1200, "rest") == "1,200 rest"
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_a_probability_falls_rises_or_stays_as_it_reads() -> None:
    assert changed(0.77, 0.14) == "falls from 77 % to 14 %"
    assert changed(0.14, 0.77) == "rises from 14 % to 77 %"
    assert changed(0.7701, 0.7699) == "stays at 77 %"


def test_the_lens_says_from_which_layer_on_a_token_is_first(model: Model) -> None:
    best = shares_by_layer(model, TEXT).argmax(-1).tolist()
    first = first_of_the_end([token == best[-1] for token in best])
    assert 0 < first < len(best)
    names = ["the embedding", *(f"L{n}" for n in range(model.config.n_layers))]
    after = model.encode(TEXT).tokens[-1].shown
    assert model.lens(TEXT).sentence == (
        f"After {after}, the model's guess is {model.shown(best[-1])} from {names[first]} on; "
        f"at {names[first - 1]} it is still {model.shown(best[first - 1])}."
    )


@pytest.mark.parametrize("word", [" ball", " dog", " hat", " sat"])
def test_the_lens_says_when_a_tracked_token_comes_near(model: Model, word: str) -> None:
    shares = shares_by_layer(model, TEXT)
    (token,) = model.encode(word).ids
    ranks = (1 + (shares > shares[:, token, None]).sum(-1)).tolist()
    names = ["the embedding", *(f"L{n}" for n in range(model.config.n_layers))]
    found = model.lens(TEXT, track=[word]).sentence
    if ranks[-1] > 10:
        assert f"ends as number {ranks[-1]:,}" in found
        assert "top 10" not in found
        assert "first from" not in found
        return
    near = names[first_of_the_end([rank <= 10 for rank in ranks])]
    assert f"is in the top 10 from {near} on" in found or f"is first from {near} on" in found
    if ranks[-1] == 1:
        assert f"first from {names[first_of_the_end([rank == 1 for rank in ranks])]} on" in found
    else:
        assert f"ends as number {ranks[-1]}" in found


def test_a_trace_says_what_is_expected_from_where_on_and_which_head_adds_most(model: Model) -> None:
    shares, found = shares_by_layer(model, TEXT), model.traced(TEXT)
    best = shares.argmax(-1).tolist()[1:]
    said = re.fullmatch(
        r"The model expects (\S+) after (\S+) \((.*)\); it is the best guess from L(\d) on, "
        r"and L(\d)H(\d), which looks at (\S+), adds most to it\.",
        found.sentence,
    )
    assert said is not None, found.sentence
    tokens = [token.shown for token in model.encode(TEXT).tokens]
    assert said[1] == model.shown(best[-1])
    assert said[2] == tokens[-1]
    assert said[3] == percent(float(shares[-1].max()))
    assert int(said[4]) == first_of_the_end([token == best[-1] for token in best])
    parts = model.attribute(TEXT).heads()
    layer, head = divmod(int(parts.argmax()), parts.shape[1])
    assert (int(said[5]), int(said[6])) == (layer, head)
    assert said[7] == tokens[int(model.trace(TEXT).step("weights", layer)[head, -1].argmax())]


def test_attention_counts_the_heads_that_have_half_of_their_weight_at_one_place(model: Model) -> None:
    found, trace = model.attention(TEXT), model.trace(TEXT)
    counts = dict.fromkeys(("rests? on the first token", "looks? at the token before", "looks? at the token itself"), 0)
    for layer in range(model.config.n_layers):
        for head in trace.step("weights", layer).double():
            size = len(head)
            places = (
                sum(head[q, 0] for q in range(1, size)) / (size - 1),
                sum(head[q, q - 1] for q in range(1, size)) / (size - 1),
                sum(head[q, q] for q in range(size)) / size,
            )
            means = dict(zip(counts, map(float, places), strict=True))
            name = max(means, key=lambda name: means[name])
            counts[name] += means[name] >= 0.5
    assert sum(counts.values()) > 0
    for name, count in counts.items():
        said = re.search(rf"(\d+) {name}", found.sentence)
        assert (said is not None) == bool(count), found.sentence
        assert said is None or int(said[1]) == count
    assert found.sentence.startswith(f"Of {model.config.n_layers * model.config.n_heads} heads ")
    assert model.attention(TEXT, heads=((0, 0), (0, 1))).sentence == ""
    assert "heads look from" in model.attention("The dog").sentence  # of two tokens the first is also the one before


def test_one_head_is_said_to_have_a_habit_where_half_of_its_weight_is_at_one_place(model: Model) -> None:
    trace = model.trace(TEXT)
    for layer in range(model.config.n_layers):
        for head, weights in enumerate(trace.step("weights", layer).double()):
            size, sentence = len(weights), model.attention(TEXT, heads=((layer, head),)).sentence
            means = {
                "rests on the first token": sum(float(weights[q, 0]) for q in range(1, size)) / (size - 1),
                "looks at the token before": sum(float(weights[q, q - 1]) for q in range(1, size)) / (size - 1),
                "looks at the token itself": sum(float(weights[q, q]) for q in range(size)) / size,
            }
            habit, share = max(means.items(), key=lambda mean: mean[1])
            key = int(weights[-1].argmax())
            assert sentence.startswith(
                f"L{layer}H{head} mostly {habit}: {percent(share)} of its weight;"
                if share >= 0.5
                else f"L{layer}H{head} has no habit here;"
            )
            at = "itself" if key == size - 1 else trace.tokens[key].shown
            assert sentence.endswith(f"looks most at {at} ({percent(float(weights[-1, key]))}).")


def test_ablation_says_what_becomes_of_the_target(model: Model) -> None:
    found = model.ablate(TEXT, "L1")
    before, after = math.exp(found.effect.before), math.exp(found.effect.after)
    assert before == pytest.approx(float(shares_by_layer(model, TEXT)[-1].max()), rel=1e-4)
    assert f"{model.shown(found.target)} {changed(before, after)}" in found.sentence
    other = next(choice.id for choice in found.choices if choice.id != found.target)
    was = tuple(replace(choice, before=0.9 * (choice.id == found.target)) for choice in found.choices)
    effect = Effect(0.1, math.log(0.5), math.log(0.25), found.target)
    assert "falls from 50 % to 25 %, and is still first." in replace(found, effect=effect, choices=was).sentence
    fallen = replace(found, effect=replace(effect, best=other), choices=was).sentence
    assert fallen.endswith(f"and {model.shown(other)} comes first.")
    second = (*was, Choice(other, 0.99, 0.1))
    assert replace(found, effect=effect, choices=second).sentence.endswith("and is first now.")
    failed = replace(found, check=replace(found.check, difference=1.0))
    assert failed.sentence == ""  # what is not checked is not claimed


def test_a_sweep_names_the_ablation_that_moves_the_target_most(model: Model) -> None:
    found = model.ablate_sweep(TEXT, "heads")
    changes = {
        f"L{layer}H{head}": model.ablate(TEXT, f"L{layer}H{head}").effect
        for layer in range(model.config.n_layers)
        for head in range(model.config.n_heads)
    }
    most = max(changes, key=lambda name: abs(changes[name].change))
    assert f"Of {len(changes)} heads, {most} matters most" in found.sentence
    shares = (math.exp(value) for value in (changes[most].before, changes[most].after))
    assert changed(*shares) in found.sentence


def test_patching_says_up_to_where_and_from_where_on_half_comes_back(model: Model) -> None:
    clean, corrupt = "The cat lost the ball. The cat lost the", "The cat lost the hat. The cat lost the"
    found = model.patch_sweep(clean, corrupt)
    said = re.search(r"is at (\S+) up to L(\d+) and at (\S+) from L(\d+) on", found.sentence)
    assert said is not None, found.sentence
    assert said[1] == "·ball"
    assert said[3] == "·the"
    half = {
        (layer, position): model.patch(clean, corrupt, f"L{layer}.in", positions=[position]).recovered >= 0.5
        for layer in range(model.config.n_layers)
        for position in (found.first, found.contrast.position)
    }
    until, reached = int(said[2]), int(said[4])
    assert all(half[layer, found.first] for layer in range(until + 1))
    assert not half.get((until + 1, found.first), False)
    assert all(half[layer, found.contrast.position] for layer in range(reached, model.config.n_layers))
    assert not half.get((reached - 1, found.contrast.position), False)
    single = model.patch(clean, corrupt, "L0.in", positions=[found.first])
    assert f"brings back {percent(single.recovered)} of the lead of ·ball over ·hat" in single.sentence
    ends = single.contrast
    below = replace(single, value=ends.corrupt - 0.2 * (ends.clean - ends.corrupt))
    assert "takes away another 20 % of the lead of ·ball over ·hat" in below.sentence
    less = replace(found, values=torch.full_like(found.values, below.value))
    assert less.sentence.endswith("moves the lead of ·ball over ·hat most: it takes away another 20 %.")


def test_attribution_names_the_parts_that_add_and_take_away_most(model: Model) -> None:
    found = model.attribute(TEXT)
    values = {part.name: part.value for part in found.parts}
    most, least = max(values, key=lambda name: values[name]), min(values, key=lambda name: values[name])
    logit = float(model.trace(TEXT).step("logits")[-1, found.token])
    assert found.sentence.startswith(
        f"The logit of {model.shown(found.token)} is {logit:.4g}: {most} adds most to it (+"
    )
    assert f", {least} takes most away (-" in found.sentence
    only = replace(found, parts=tuple(part for part in found.parts if part.value > 0), allowed=1e9)
    assert "takes" not in only.sentence


def test_a_score_names_the_choices_and_the_surprise(model: Model) -> None:
    text = "The dog sat on the moon."
    found, ids = model.score(text), model.encode(text).ids
    logits = model.trace(text).step("logits").double().log_softmax(-1)
    losses = [-float(logits[at, ids[at + 1]]) for at in range(len(ids) - 1)]
    assert f"among {math.exp(sum(losses) / len(losses)):,.0f} equally" in found.sentence.replace(".0 ", " ") or (
        f"among {math.exp(sum(losses) / len(losses)):.1f} equally" in found.sentence
    )
    worst = max(range(len(losses)), key=losses.__getitem__)
    assert f"{model.encode(text).tokens[worst + 1].shown} surprises it most" in found.sentence


def test_a_gradient_names_the_hardest_target_and_the_token_that_the_loss_depends_on(model: Model) -> None:
    found, ids = model.backward(TEXT), model.encode(TEXT).ids
    tokens = [token.shown for token in model.encode(TEXT).tokens]
    logits = model.trace(TEXT).step("logits").log_softmax(-1)
    worst = min(range(len(ids) - 1), key=lambda at: float(logits[at, ids[at + 1]]))
    share = percent(float(logits[worst, ids[worst + 1]].exp()))
    assert found.sentence.startswith(f"Hardest to predict is {tokens[worst + 1]} after {tokens[worst]} ({share}); ")
    largest = max(range(len(ids)), key=lambda at: abs(found.first_order[at]))
    assert found.sentence.endswith(f"the loss depends most on token {largest}, {tokens[largest]}.")


def test_the_census_counts_every_head_once(model: Model) -> None:
    found = model.heads(random_only=True)
    names = [named.name for row in found.labels for named in row]
    counts = [int(number) for number in re.findall(r"(\d+) (?:\w+)", found.sentence)]
    assert counts[0] == len(names) == sum(counts[1:])
    assert f"{names.count('induction')} repeat" in found.sentence


@pytest.mark.parametrize("words", [["cat", "dog", "ball"]])
def test_neighbours_names_the_nearest_and_the_two_most_alike(model: Model, words: list[str]) -> None:
    found: Any = model.neighbours(words)
    table = model.transformer.embed.tokens.weight.double()
    table = table / table.norm(dim=-1, keepdim=True)
    ids = [token for token in found.tokens if token is not None]
    cosines = table @ table[ids[0]]
    cosines[ids[0]] = -1
    assert f" to {found.names[0]} is {model.tokenizer.shown(int(cosines.argmax()))} (" in found.sentence
    pairs = {(a, b): float(table[ids[a]] @ table[ids[b]]) for a in range(3) for b in range(a + 1, 3)}
    a, b = max(pairs, key=lambda pair: pairs[pair])
    assert f"{found.names[a]} and {found.names[b]} are most alike ({pairs[a, b]:.2f})" in found.sentence


def test_the_sentence_is_the_first_line_and_in_the_data(model: Model) -> None:
    found = model.lens(TEXT)
    assert found.to_dict()["sentence"] == found.sentence
    assert list(found.to_dict())[2] == "sentence"
    assert next(found.events())["sentence"] == found.sentence


def test_activations_say_how_much_is_below_0_and_how_much_is_nearly_0(model: Model) -> None:
    trace = model.trace(TEXT)
    before, after = trace.step("ffn.gate", 1), trace.step("ffn.act", 1)
    below, silent = (before < 0).double().mean().item(), (after.abs() < 0.01).double().mean().item()
    said = model.activations(TEXT, layer=1).sentence
    assert said == (
        f"{percent(below)} of the {before.numel():,} inputs to the units of L1 are below 0; "
        f"{percent(silent)} of the outputs are within 0.01 of 0."
    )


def test_a_difference_says_from_where_on_and_what_comes_next(model: Model) -> None:
    other = TEXT.replace("dog", "cat")
    found = model.diff(TEXT, other)
    best = [
        (model.shown(int(probabilities.argmax())), percent(probabilities.max().item()))
        for probabilities in (shares_by_layer(model, text)[-1] for text in (TEXT, other))
    ]
    (one, p), (two, q) = best
    if one == two:
        shares = p if p == q else f"A {p}, B {q}"
        assert found.sentence == f"They differ from embed.tokens on; both expect {one} next ({shares})."
    else:
        assert found.sentence == f"They differ from embed.tokens on; A expects {one} next ({p}), B {two} ({q})."
    assert model.diff(TEXT, TEXT).sentence == "No number differs."
    found = model.diff(TEXT, other, fail_over=0.001)
    assert not found.holds
    assert found.sentence.startswith("They differ from embed.tokens on")  # which is the answer, failing or not


def heads_by_what_they_add(model: Model, text: str) -> list[tuple[float, int, int, int]]:
    """What each head adds to the predicted logit, its layer and number, and where the last token looks; most first."""
    parts, trace = model.attribute(text).heads(), model.trace(text)
    seen = [trace.step("weights", layer)[:, -1].argmax(-1).tolist() for layer in range(len(parts))]
    heads = [(float(v), n, h, seen[n][h]) for n, row in enumerate(parts) for h, v in enumerate(row)]
    return sorted(heads, reverse=True)


@pytest.mark.parametrize("text", ["The", "The cat sat on", "One day the cat", "The dog lost the red ball. The", TEXT])
def test_a_head_that_adds_most_but_looks_at_the_first_token_gives_way_to_one_that_looks_past_it(
    model: Model, text: str
) -> None:
    sentence, beyond = model.traced(text).sentence, " among the heads that do not rest on the first token."
    added, layer, head, at = heads_by_what_they_add(model, text)[0]
    past = [(n, h) for value, n, h, where in heads_by_what_they_add(model, text) if where and value > 0]
    assert added > 0
    if at == 0 and past:
        (layer, head) = past[0]
        assert f", and L{layer}H{head}, which looks at " in sentence
        assert sentence.endswith(f" adds most to it{beyond}")
    else:
        assert beyond not in sentence
        assert f"L{layer}H{head}{', which looks at' if at else ' adds most'}" in sentence


def test_a_generation_names_its_least_sure_token_its_rival_and_why_it_ended(model: Model) -> None:
    found = model.generation("The cat", max_tokens=5, top=2)
    ids, prompt = found.text_ids, len(model.encode("The cat").ids)
    rows = model.trace_of(model.encode("The cat" + found.text())).step("logits").double().softmax(-1)
    assert model.encode("The cat" + found.text()).ids == ids
    shares = [float(rows[at - 1, ids[at]]) for at in range(prompt, len(ids))]
    worst = prompt + min(range(len(shares)), key=shares.__getitem__)
    rival, other = next((float(p), int(i)) for p, i in zip(*rows[worst - 1].topk(2), strict=True) if i != ids[worst])
    assert found.sentence == (
        f"The model added 5 tokens, least sure of {model.shown(ids[worst])} ({percent(min(shares))} beside "
        f"{percent(rival)} for {model.shown(other)}); it reached the limit of new tokens."
    )
    stopped = model.generation("The cat", max_tokens=5, stops=["on"])
    assert stopped.sentence.endswith("; the text came to --stop.")


@pytest.mark.parametrize("address", ["L0H0.scores[2,1]", "L0.ffn[1,2]", "L0.mid[2,1]"])
def test_an_explanation_gives_the_largest_summand_its_share_of_what_all_add_and_take(
    model: Model, address: str
) -> None:
    trace = model.trace(TEXT)
    summands = {
        "L0H0.scores[2,1]": lambda: trace.step("q_rot", 0)[0, 2] * trace.step("k_rot", 0)[0, 1],
        "L0.ffn[1,2]": lambda: trace.step("ffn.act", 0)[1] * model.transformer.blocks[0].ffn.down.weight[2],
        "L0.mid[2,1]": lambda: torch.stack((trace.step("in", 0)[2, 1], trace.step("attn", 0)[2, 1])),
    }[address]().double()
    whole, largest = float(summands.abs().sum()), float(summands[summands.abs().argmax()])
    found = model.explain(TEXT, address)
    sentence = found.sentence
    start = (
        f"{address} ({found[0].place}) is {float(summands.sum()):.4g}: the largest of its {len(summands):,} summands"
    )
    assert sentence.startswith(start)
    assert f" ({largest:+.3g}), {percent(abs(largest) / whole)} of their absolute sum" in sentence
    assert ("most of the sum cancels" in sentence) == (abs(float(summands.sum())) < whole / 2)
    assert model.explain(TEXT, "L0H0.weights[2,1]").sentence == ""


def test_tokens_name_the_word_that_became_most_tokens() -> None:
    tiny = load("tiny", device="cpu")
    text = "The unbelievable cat sat"
    counts = {word: len(tiny.encode(f" {word}").ids) for word in text.split()[1:]}
    assert tiny.tokens(text).sentence == (
        f"4 words, split at spaces, became {1 + sum(counts.values())} tokens; "
        f"unbelievable became the most, {counts['unbelievable']}."
    )
    assert tiny.tokens("The cat sat").sentence.endswith("became 3 tokens; no word was split.")
    assert tiny.tokens("unbelievable").sentence == ""


def test_rollout_names_the_token_with_the_largest_share(model: Model) -> None:
    shares = torch.eye(len(model.encode(TEXT).ids), dtype=torch.float64)
    trace = model.trace(TEXT)
    for layer in range(model.config.n_layers):
        mixed = trace.step("weights", layer).double().mean(0) + torch.eye(len(shares))
        shares = mixed / mixed.sum(-1, keepdim=True) @ shares
    most = trace.tokens[int(shares[-1].argmax())].shown
    assert f"brings {trace.tokens[-1].shown} most from {most} ({percent(float(shares[-1].max()))})" in (
        model.rollout(TEXT).sentence
    )


def test_neurons_name_the_unit_that_is_furthest_from_0_and_what_it_promotes(model: Model) -> None:
    trace, sentence = model.trace(TEXT), model.neurons(TEXT).sentence
    active = torch.stack([trace.step("ffn.act", layer)[-1] for layer in range(model.config.n_layers)])
    layer, unit = divmod(int(active.abs().argmax()), active.shape[1])
    value = float(active[layer, unit])
    assert f"At {trace.tokens[-1].shown}, L{layer}.{unit} is the most active unit ({value:+.3g}); " in sentence
    row = model.transformer.blocks[layer].ffn.down.weight[:, unit] * model.transformer.final_norm.weight
    pushed = model.transformer.embed.tokens.weight @ row * value
    assert sentence.endswith(f"it speaks for {listed([str(model.shown(int(i))) for i in pushed.topk(3).indices])}.")


def test_experts_name_the_busiest_with_its_share_of_the_routes_of_its_layer() -> None:
    mixture = load("preset:mixtral-tiny", device="cpu")
    found, trace = mixture.experts(TEXT), mixture.trace(TEXT)
    shares = torch.stack([(trace.step("ffn.routes", n) != 0).double().mean(0) for n in range(mixture.config.n_layers)])
    shares = shares / shares.sum(-1, keepdim=True)
    layer, expert = divmod(int(shares.argmax()), shares.shape[1])
    assert found.sentence.startswith(
        f"Expert {expert} of layer {layer} is the busiest: {percent(float(shares.max()))} of its layer's choices, "
    )


def test_info_says_what_a_model_does_how_large_it_is_and_what_sets_its_layers_apart() -> None:
    config = load("tiny", device="cpu").config
    sentence = Info("tiny", config).sentence
    assert sentence.startswith("The decoder predicts the next token: 4 layers, 1.06 M parameters, 4.0 MiB in float32")
    assert sentence.endswith("it predicts with its token embeddings.")
    untied = Info("tiny", config.but(tied_head=False)).sentence
    assert "embeddings" not in untied
    assert "; all its layers see a window of the text only; " in Info("tiny", config.but(window=8)).sentence
    some = Info("tiny", config.but(by_layer=[("window", [8, 0, 0, 0])]))
    assert "; of its layers 1 sees a window of the text only; " in some.sentence
    assert "; all its layers lack attention; " in Info("mamba", preset("mamba-tiny")).sentence


def test_a_loss_is_as_many_choices_as_its_power_of_e() -> None:
    assert choices(math.log(12)) == "12"
    assert choices(math.log(3.44)) == "3.4"
    assert choices(math.log(9.96)) == "10"
    assert choices(math.log(123_456_789)) == "123,456,789"
    assert choices(348.5) == "10^151"
    assert choices(math.log(65432)) == "65,432"
    assert first_of("abc", 3) == "a, b, c"
    assert first_of("abcde", 3) == "a, b, c and 2 more"


def test_texts_say_how_many_tokens_they_share_and_how_they_go_on(model: Model) -> None:
    found = model.generation("The cat sat", max_tokens=6, samples=4, sampling=Sampling(temperature=1.2), seed=3)
    texts = [[step.id for step in found.steps if step.sample == sample] for sample in range(1, 5)]
    shared = next(length for length in range(7) if len({tuple(text[: length + 1]) for text in texts}) > 1)
    said = re.fullmatch(
        r"The 4 texts begin with (?:the same (?:(\d+) tokens|token) and go on with )?(.*)\.", found.sentence
    )
    assert said is not None, found.sentence
    assert int(said[1] or ("same token" in found.sentence)) == shared
    counts = dict(re.fullmatch(r"(\S+) \((\d)\)", words).groups() for words in said[2].split(", "))
    assert counts == {str(model.shown(token)): str([text[shared] for text in texts].count(token))
                      for token in {text[shared] for text in texts}}  # fmt: skip
    assert model.generation("The cat sat", max_tokens=3, samples=2).sentence == "All 2 texts are the same."


def test_beams_give_the_joint_probabilities_of_the_two_best_and_where_they_part(model: Model) -> None:
    found = model.beam_search("The cat sat", beams=3, max_tokens=5)
    best, second = (hypothesis.ids for hypothesis in found.best[:2])

    def share(ids: tuple[int, ...]) -> str:
        whole = model.trace_of(model.encode("The cat sat" + model.tokenizer.decode(list(ids))))
        logits = whole.step("logits").double().log_softmax(-1)
        begin = len(model.encode("The cat sat").ids)
        assert list(whole.encoding.ids[begin:]) == list(ids)
        return percent(math.exp(sum(float(logits[begin - 1 + i, token]) for i, token in enumerate(ids))))

    assert replace(found, count=1).sentence == found.sentence
    at = next(i for i, (a, b) in enumerate(zip(best, second, strict=False)) if a != b)
    assert found.sentence == (
        f"The best text that the 3 beams found has a probability of {share(best)}, the next {share(second)}; "
        f"new token {at + 1} is {model.shown(best[at])} in one and {model.shown(second[at])} in the other."
    )


def test_a_cache_saves_the_share_of_the_multiplications_that_the_steps_add_up_to(model: Model) -> None:
    found = model.compare_cache("The cat sat", max_tokens=4)
    steps = found.to_dict()["steps"]
    cached, plain = (sum(step[way]["multiply_adds"] for step in steps) for way in ("with_cache", "without_cache"))
    keys = 2 * 4 * model.config.n_kv_heads * model.config.d_head * 4  # K and V, 4 layers, 4 bytes
    assert f"saves {percent(1 - cached / plain)} of the multiplications of 4 new tokens" in found.sentence
    assert found.sentence.endswith(f" new tokens, for {keys * steps[-1]['tokens'] / 1024:.1f} KiB of memory.")


def test_a_model_without_a_part_says_what_becomes_of_its_best_guess(model: Model) -> None:
    found = model.compare_without("The cat sat", "positions")
    whole, less = (trace.step("logits")[-1].double().softmax(-1) for trace in found.traces)
    was, now = int(whole.argmax()), int(less.argmax())
    then = "is still first" if was == now else f"{model.shown(now)} comes first"
    does = changed(float(whole[was]), float(less[was]))
    assert found.sentence == f"Without positions, {model.shown(was)} {does}, and {then}."


def test_blame_names_the_tensor_that_does_most_and_what_restoring_it_undoes(model: Model) -> None:
    other = load("tiny", device="cpu")
    with torch.no_grad():
        other.transformer.blocks[1].ffn.down.weight.mul_(1.3)
        other.transformer.blocks[2].attention.o.weight.mul_(1.1)
    found = model.blame(TEXT, other)

    def apart(changed: Model) -> float:
        p, q = (each.trace(TEXT).step("logits").double().log_softmax(-1) for each in (model, changed))
        return float((p.exp() * (p - q)).sum(-1).mean())

    both = apart(other)
    with torch.no_grad():
        other.transformer.blocks[1].ffn.down.weight.copy_(model.transformer.blocks[1].ffn.down.weight)
    assert found.sentence == (
        f"2 differ between the models, and {found.blamed[0].address} alone changes the predictions most; "
        f"restoring it undoes {percent((both - apart(other)) / both)} of the change."
    )
    assert model.blame(TEXT, load("tiny", device="cpu")).sentence == "No tensor differs: the models predict the same."
    errors = [TensorImportance("", "", 1.0, 1.0, error, 1.0, float(error)) for error in range(3)]
    for measured, verdict in (
        (errors, "agrees"),
        ([replace(one, error=-one.error) for one in errors], "does not agree"),
    ):
        also = replace(found, importance=Importance((), None, None, tuple(measured), ())).sentence
        assert also == f"{found.sentence[:-1]}, and the importance matrix {verdict} with this ranking."


def test_a_verified_example_counts_its_wrong_numbers_and_names_the_first_step_that_has_one() -> None:
    found = verify(open_example("cat-sleeps"))
    steps = [(step.step.name, step) for step in found.steps if step.holds is not None]
    wrong = [(name, int((~step.holds & ~step.carried).sum())) for name, step in steps]
    follow = sum(int(step.carried.sum()) for _, step in steps)
    assert found.sentence == (
        f"Of the {sum(step.holds.size for _, step in steps)} numbers of cat-sleeps, {sum(n for _, n in wrong)} are "
        f"wrong, the first in {next(name for name, n in wrong if n)}; {follow} follow from wrong ones."
    )
    right = replace(
        found, steps=tuple(replace(step, holds=step.holds | True, carried=~step.holds & False) for _, step in steps)
    )
    assert right.sentence == f"None of the {right.claims} numbers of cat-sleeps is wrong."
    scores = ExampleScores((found, right)).sentence
    most = f"{found.wrong} are wrong, the most in cat-sleeps ({found.wrong})."
    assert scores == f"Of {2 * found.claims} claimed numbers {most}"


def test_a_certificate_gives_the_largest_difference_of_each_dtype_and_the_check_that_fails() -> None:
    checks = (
        Check("ids", "", 9, 99, 0, "", 0),
        Check("every layer", "float32", 9, 99, 3e-7, "L1.out, token 3, emoji", 1e-4),
        Check("logits", "float32", 9, 99, 2e-7, "logits, token 1, long", 1e-4),
        Check("logits", "bfloat16", 9, 99, 4e-2, "logits, token 2, long", 1e-1),
    )
    found = Certificate(Path("x"), "5", "2", checks, ())
    assert found.sentence == (
        "On 9 texts the model has the tokens and numbers of transformers; relative to a token's largest number they "
        "are apart by at most 3e-07 in float32 and 4e-02 in bfloat16."
    )
    failing = replace(found, checks=(*checks[:1], replace(checks[1], difference=0.25), *checks[2:]))
    assert failing.sentence == (
        "The model and transformers differ at L1.out, token 3, emoji, by 2e-01 of a token's largest number where 1e-04 "
        "is allowed."
    )
    tokens = replace(found, checks=(replace(checks[0], difference=1), *checks[1:]))
    assert tokens.sentence == "Of 9 texts, 1 has other tokens in transformers."


def test_a_card_says_how_often_the_prediction_is_kept_what_differs_and_the_worst_tensor(model: Model) -> None:
    file, original = replace(model, name="a.gguf"), replace(model, name="b")
    checks = [Shared("ids", "9 in 2 hard texts", 2, ()), Shared("template", "writes 40 of 54 conversations", 54, ()),
              Shared("special tokens", "3", 8, ()), Shared("pooling", "none", 5, ())]  # fmt: skip
    numbers = torch.linspace(0.1, 3, 200).double()
    same = (torch.arange(200) < 142).double()
    tensors = (TensorOfFile("blk.1.ffn_down", "Q4_0", "L1.ffn.W_down", 9, 0.1, 0.2, 0.3, 0.3),
               TensorOfFile("token_embd", "Q8_0", "E", 9, 0.2))  # fmt: skip
    types = (TypeOfTensors("Q4_0", 1, 100, 50, 0.1), TypeOfTensors("F32", 1, 100, 400, 0.0))
    found = Card(
        tuple(checks), types, tensors, 512, 1, 200, Mean(12.4, 1.0), Kept.of(numbers / 100, numbers, numbers, same),
        versus=About(original), about=About(file),
    )  # fmt: skip
    kept = "a.gguf keeps the prediction of b at 71 % of 200 tokens (mean KL 0.016)"
    assert found.sentence == f"{kept}; ids, template and special tokens agree; worst tensor blk.1.ffn_down."
    assert (float(same.mean()), float((numbers / 100).mean())) == (0.71, pytest.approx(0.0155))
    wrong = (
        replace(
            checks[0],
            differing=(
                "trace",
                "--code",
            ),
        ),
        *checks[1:3],
        replace(checks[3], differing=("pooling",)),
    )
    assert replace(found, checks=wrong).sentence == f"{kept}; ids and pooling differ; worst tensor blk.1.ffn_down."
    other = replace(found, kept=None, weights=tensors[1:], checks=(checks[0], replace(checks[1], items=0), *checks[2:]))
    assert other.sentence == "a.gguf and b agree in ids and special tokens."
    alone = replace(other, versus=None)
    assert alone.sentence == (
        "a.gguf stores a number in 18.0 bits; it has no chat template; its perplexity on a text is 12."
    )
    assert replace(alone, types=()).sentence.startswith("a.gguf is no GGUF file; it has no chat template; ")
