"""Every lesson on models of every kind: right answers against numpy in float64, and no number that is not the run's."""

import copy
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from architectures import KINDS, bias_of_distance, lively, rows_of_distance
from small_models import OTHER, TEXT, small

from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.learn import OF_ANY, OF_TWO_STACKS, find
from tinytf.learn.course import lesson
from tinytf.learn.lesson import Lesson
from tinytf.learn.live import Live
from tinytf.loading import Model
from tinytf.model.without import removable


def lessons(live: Live) -> Iterator[Lesson]:
    return (lesson(name, live) for name in live.lessons)


MODELS = ("tiny", "tiny-encoder", "llama, grouped")
ALL = (*MODELS, "tiny-translator", *(kind for kind in KINDS if kind not in MODELS))


@pytest.fixture(params=ALL)
def live(request: pytest.FixtureRequest, opened: Callable[[str], Model]) -> Live:
    model = opened(request.param)
    told = {"scaling", "positions", *(["mask"] if model.config.causal else [])}
    if not told <= {*removable(model.config)}:
        with pytest.raises(UsageError, match=r"one lesson is about .*, which this model lacks"):
            Live(model, TEXT)
        pytest.skip("it lacks what a lesson is about")
    plain = all(block.feed_forward.d_ff and not block.norms.norm_below for block in model.config.blocks)
    if not plain or any(block.norms.shortcut for block in model.config.blocks):
        with pytest.raises(UsageError, match="lessons are about layers with a norm, attention and a feed-forward each"):
            Live(model, TEXT)
        pytest.skip("its layers are not alike")
    if model.config.extra_streams:
        with pytest.raises(UsageError, match="lessons are about one residual stream, and this model has several"):
            Live(model, TEXT)
        pytest.skip("it has several streams")
    if model.config.index_keys:
        with pytest.raises(UsageError, match=r"all earlier tokens, and an indexer chooses \d here"):
            Live(model, TEXT)
        pytest.skip("not all earlier tokens are seen")
    return Live(model, None if request.param in MODELS else TEXT)


def test_every_question_has_one_right_answer_among_choices_that_differ(live: Live) -> None:
    for one in lessons(live):
        asked = one.question
        assert 2 <= len(asked.choices) <= 4, one.name
        assert len(set(asked.choices)) == len(asked.choices), one.name
        assert 0 <= asked.answer < len(asked.choices)
        assert asked.text.endswith("?")
        assert len(asked.reasons) == len(asked.choices)
        for choice, reason in enumerate(asked.reasons):
            assert re.fullmatch("" if choice == asked.answer else r"\S.{5,120}\.", reason), (one.name, reason)


def test_every_lesson_says_what_for_in_two_to_five_sentences_and_shows_numbers(live: Live) -> None:
    for one in lessons(live):
        assert 2 <= len(re.findall(r"[.?](?: |$)", one.why)) <= 5, one.name
        assert one.shown or one.figures or one.maps, one.name
        for address in (*one.shown, *one.revealed):
            assert live.at(address).size, address
        assert live.model.explain(live.trace, one.cell)[0].holds, one.cell


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def most_to_the_token_before(
    q: np.ndarray, k: np.ndarray, added: np.ndarray, config: ModelConfig, d: float, talk: np.ndarray, sinks: np.ndarray
) -> int:
    """The head, of the four that look most clearly somewhere, with the largest mean weight left of the diagonal."""
    before, clearest = [], []
    each = np.stack([queries @ k[head // config.heads_per_kv].T / d for head, queries in enumerate(q)])
    each = np.einsum("hqk,hg->gqk", each, talk)
    for head, scores in enumerate(each):
        if config.attention_cap:
            scores = config.attention_cap * np.tanh(scores / config.attention_cap)
        weights = np.array([softmax(np.append(row, sinks[head]))[: len(row)] for row in scores + added[head]])
        before.append(np.diag(weights, -1).mean())
        clearest.append(max(before[-1], weights[1:, 0].mean(), np.diag(weights).mean()))
    return max(np.argsort(clearest)[-4:], key=lambda head: before[head])


def clearest_of_a_word(live: Live) -> float:
    """The largest weight of any token of the target on a word of the source, from the recorded queries and keys."""
    words = [i for i, token in enumerate(live.trace.source.tokens) if not token.special]
    largest = []
    for layer in range(live.config.n_layers):
        config = live.config.at(layer)
        q, k = (live.trace[f"L{layer}.cross.{name}"].double().numpy() for name in "qk")
        for head, queries in enumerate(q):
            scores = queries @ k[head // config.heads_per_kv].T / config.score_divisor
            cap = config.attention_cap
            scores = cap * np.tanh(scores / cap) if cap else scores
            largest.append(max(softmax(row)[words].max() for row in scores))
    return max(largest)


_SLOPE = 2 ** (-8 / 4)
"""ALiBi's, of head 0 of 6: the first four are those of four heads (Press et al. 2022)."""


def numbers_of(live: Live) -> dict[str, list[float]]:
    """The right answers, computed here from the recorded q, k, v, block inputs and weights, in float64."""
    config, trace, row, here = live.config, live.trace, live.row, live.here
    at = live.layer
    model, length = live.model.transformer, live.length
    width, divisor = config.d_head, config.attention_divisor or math.sqrt(config.d_head)
    query, key = (trace.steps.at("scores", at).inputs[i] for i in (0, 1))
    v = trace[f"L{at}.{trace.steps.at('head_out', at).inputs[1]}"].double().numpy()
    q, k = (trace[f"L{at}.{name}"].double().numpy() for name in (query, key))
    allowed = np.ones((length, length), dtype=bool)
    if config.causal:
        allowed = np.tril(allowed)
        window = dict(config.by_layer).get("window", (config.window,))[0]
        if window:
            allowed &= ~np.tril(allowed, -window)
    scores = q[0] @ k[0].T
    to_position = to_content = np.zeros((config.n_heads, length, length))
    if config.distances:
        rows = rows_of_distance(config.distances, config.farthest, length)
        pos_k = trace[f"L{at}.pos_k"].double().numpy()
        of_distances = trace[f"L{at}.q_position"].double().numpy() if config.query_biases else q
        to_position = np.stack([(of_distances[h, :, None] * pos_k[h][rows]).sum(-1) for h in range(config.n_heads)])
        if config.distance_queries:
            pos_q = trace[f"L{at}.pos_q"].double().numpy()
            to_content = np.stack([(k[h][None] * pos_q[h][rows]).sum(-1) for h in range(config.n_heads)])
        if config.segments:  # the text is one
            of_segments, own = (
                trace[f"L{at}.q_segment"].double(),
                trace[f"L{at}.G"][0].double().view(config.n_heads, -1, 1),
            )
            to_content = to_content + (of_segments @ own).detach().numpy()
    scaled, cap = scores[row] / divisor, config.attention_cap
    has_sinks = config.at(at).attention_sinks
    sinks = trace[f"L{at}.sink.logit"].double().numpy()[:, None] if has_sinks else np.zeros((config.n_heads, 0))
    added = (to_position + to_content) / divisor
    if config.relative_buckets:
        added = bias_of_distance(trace[f"L{at}.B"].double().numpy(), length)
    distant = (to_position + to_content)[0, row] / divisor
    added = np.where(allowed, added, -np.inf)  # (H, Q, K)
    if config.positions == "alibi":
        scaled = scaled - _SLOPE * config.alibi_scale * (row - np.arange(length))
    seen = (cap * np.tanh(scaled / cap) if cap else scaled) + added[0, row]
    mixed = softmax(np.append(seen, sinks[0]))[:length]
    weights = mixed
    talk = np.eye(config.n_heads)
    if config.talking_heads:
        talk, after = (trace[f"L{at}.{name}"].double().numpy() for name in ("W_TL", "W_TW"))
        each = np.stack([one[row] @ k[h // config.at(at).heads_per_kv].T for h, one in enumerate(q)]) / divisor
        each = [softmax(one) for one in np.where(allowed[row], talk.T @ each, -np.inf)]
        weights, mixed = each[0], after[:, 0] @ np.stack(each)
    if start := config.at(at).lambda_init:
        q1, k1, q2, k2 = (
            trace[f"L{at}.difference.lambda_{name}"].double().numpy() for name in ("q1", "k1", "q2", "k2")
        )
        half = config.n_heads // 2
        other = np.where(allowed[row], q[half][row] @ k[half // config.heads_per_kv].T / divisor, -np.inf)
        mixed = mixed - (np.exp(q1 @ k1) - np.exp(q2 @ k2) + start) * softmax(other)
    seen = [i for i in range(length) if allowed[row][i]]
    kept = sorted(sorted(seen, key=lambda i: -weights[i])[:3])
    place = min(2, length - 1)
    E = model.embed.tokens.weight.detach().double().numpy()
    own = next(t.id for t in reversed(live.encoding.tokens) if not t.special and t.id != live.model.tokenizer.mask_id)
    cosines = E @ E[own] / np.maximum(np.linalg.norm(E, axis=1) * np.linalg.norm(E[own]), 1e-300)
    of_blocks = {name: p.numel() for name, p in model.named_parameters() if name.startswith("blocks.")}
    blocks = [
        size
        for name, size in of_blocks.items()
        if not re.search("relative|distances", name) or re.sub(r"\.\d+\.", ".1.", name, count=1) in of_blocks
    ]
    experts = config.at(at).experts  # of which a token has a few, and the rest of the feed-forward
    ffn = [
        p.numel() * (config.experts_per_token / experts if name.startswith(f"blocks.{at}.ffn.experts.") else 1)
        for name, p in model.named_parameters()
        if name.startswith(f"blocks.{at}.ffn.")
    ]
    first = {"post": "mid", "output": "attn"}.get(config.at(at).norm_order, "in")  # what the first norm takes
    first = first if config.at(at).input_norm else "mid"
    x = trace[f"L{at}.{first}"].double().numpy()[here]
    centred = x - x.mean() if config.norm == "layernorm" else x
    normed = centred / math.sqrt((centred**2).mean() + config.norm_eps)
    attn = trace[f"L{at}.attn_norm" if "attn_norm" in trace.steps.by_name else f"L{at}.attn"].double().numpy()[here]
    encoded = live.model.tokenizer.encode(live.encoding.text)
    if config.encoder is not None:  # a target has a start and no end
        encoded = replace(encoded, tokens=(None, *encoded.open_ended(live.model.tokenizer.end_ids).tokens))
    right: dict[str, list[float]] = {
        "tokens": [len(encoded.tokens)],
        "embeddings": [float(model.embed.tokens.weight.detach()[live.encoding.ids[here], 0]) * config.embed_scale],
        "neighbours": [np.delete(cosines, own).max()],
        "qkv": [32, *torch.zeros(32, length, config.n_heads, width).transpose(1, 2).shape[1:]],
        "scores": [2 * max((scores[row][i] for i in seen), key=abs)],
        "scaling": [scores[row][i] / divisor + distant[i] for i in kept],
        "mask": list(np.flatnonzero(allowed[place])),
        "softmax": [weights[i] for i in kept],
        "values": [float(mixed @ v[0][:, 0])],
        "heads": [most_to_the_token_before(q, k, added, config.at(at), divisor, talk, sinks)],
        "residual": [float(trace[f"L{at}.in"][here, int(np.abs(attn[:4]).argmax())])],
        "norm": [normed[np.abs(centred[:4]).argmax()]],
        "feed-forward": [sum(ffn)],
        "stack": [live.model.n_parameters + sum(blocks)],
        "cache": [
            sum(
                trace[f"L{n}.{trace.steps.at(step, n).inputs[1]}"][:, 0].numel()
                for n in trace.steps.attention_layers
                for step in ("scores", "head_out")
            )
            if config.causal
            else length + 1
        ],
    }
    if config.encoder is not None:
        source = trace["source"].double().numpy()
        right["encoder-decoder"] = [source.size]
        right["cross-attention"] = [clearest_of_a_word(live)]
    if config.positions == "rotary":
        config = config.at(config.rotary_layers[0])
        turned = config.rope_width or width
        pair = min(1, turned // 2 - 1)
        if config.rope_scaling == "none":
            right["positions"] = [here * config.rope_theta ** (-2 * pair / turned)]
    elif config.positions == "alibi":
        row, key = live.row, max(0, live.row - 3)
        right["positions"] = [float(trace[f"L{at}H0.scaled"][row, key]) - _SLOPE * config.alibi_scale * (row - key)]
    elif config.positions == "none":
        row, key = live.row, max(0, live.row - 3)
        right["positions"] = [scores[row, key] + to_position[0, row, key]]
    else:
        tokens = "tokens" if config.embed_norm or not config.d_embed else "projected"
        tokens = "norm" if config.positions_unnormed else tokens
        parts = [name for name in (tokens, "types", "positions") if f"embed.{name}" in trace.steps.by_name]
        right["positions"] = [sum(float(trace[f"embed.{name}"][here, 0]) for name in parts)]
    if config.head.kind == "none":
        right["logits"] = [length * config.vocab_size]
        right["sampling"] = [1 / config.vocab_size]
        right["loss"] = [math.log(config.vocab_size)]
        right["optimiser"] = [3 * live.model.n_parameters]
        right["schedule"] = [3e-3 * 25 / 100]
        return right
    logits = live.logits
    order = np.sort(logits)[::-1]
    right["logits"] = [math.exp(order[0] - order[1])]
    right["sampling"] = [softmax(logits / 0.5).max()]
    position, token, _ = live.target
    found = live.gradients
    with torch.no_grad():
        again = model(torch.tensor([found.encoding.ids]))[0, position].double().numpy()
    p = softmax(again)[token]
    right["loss"] = [-math.log(p)]
    norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in found.parameters.values()))
    right["schedule"] = [min(1.0, 1 / norm)]
    right["backward"] = [(p - 1) / len(found.targets.ids)]
    return right


def test_the_right_answers_are_those_of_float64_numpy(live: Live) -> None:
    expected = numbers_of(live)
    assert len(expected) >= 17
    for name, right in expected.items():
        found = lesson(name, live).question.value
        assert found == pytest.approx(right, rel=2e-4, abs=2e-5), name


def test_the_first_step_of_adam_is_that_of_the_paper(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny"))
    asked = lesson("optimiser", live).question
    gradient = live.gradients.parameters["blocks.3.ffn.down.weight"].double()
    largest = gradient.flatten()[gradient.abs().argmax()]
    mean, square = 0.1 * largest, 0.05 * largest**2  # of Kingma and Ba 2015, with betas 0.9 and 0.95
    assert asked.value[0] == pytest.approx(float(-3e-3 * (mean / 0.1) / ((square / 0.05).sqrt() + 1e-8)), rel=1e-6)


def test_what_is_left_without_the_scaling_is_what_larger_queries_give(opened: Callable[[str], Model]) -> None:
    """Queries √d_head times as long, divided by √d_head, are scores that were never divided."""
    live = Live(opened("tiny"))
    figures = lesson("without", live).revealed_figures
    rows = {row[0]: row for row in figures.rows}
    assert list(rows) == ["as it is", "without scaling", "without mask", "without positions"]
    longer = copy.deepcopy(live.model.transformer)
    with torch.no_grad():
        for name, parameter in longer.named_parameters():
            if ".attention.q." in name:
                parameter *= math.sqrt(live.config.d_head)
        shares = [
            one(torch.tensor([live.encoding.ids]))[0, live.predicted_at].softmax(-1)
            for one in (live.model.transformer, longer)
        ]
    token = int(shares[0].argmax())
    assert rows["as it is"][1] == pytest.approx(float(shares[0][token]), rel=1e-4)
    assert rows["without scaling"][1] == pytest.approx(float(shares[1][token]), rel=1e-4)
    assert lesson("without", live).question.value == (min(row[1] for row in figures.rows),)


def test_the_heads_that_are_drawn_do_what_is_said_of_them(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny"))
    one = lesson("heads", live)
    places = {"previous": lambda w: np.diag(w, -1), "first": lambda w: w[1:, 0], "self": np.diag}
    assert [drawn.title for drawn in one.maps] == [f"head {head}" for head in range(4)]
    for drawn in one.revealed_maps[:4]:
        weights = live.at(f"L0H{drawn.title[-1]}.weights")
        means = {word: of(weights).mean() for word, of in places.items()}
        best = max(means, key=means.__getitem__)
        spread = -(weights[weights > 0] * np.log(weights[weights > 0])).sum() / live.length
        said = f"{best} {means[best]:.2f}" if means[best] >= 0.5 else f"many, {spread:.2f} nats"
        assert drawn.word == said
        assert drawn.weights[0][0] == pytest.approx(1)
        assert drawn.weights[0][1:] == (None,) * (live.length - 1)


def test_the_mask_of_an_encoder_whose_first_block_sees_near_tokens_alone() -> None:
    windows = (("input_norm", (False, True)), ("rope_theta", (900.0, 100.0)), ("window", (2, 0)))
    whole = small("modernbert, windows to both sides")
    model = replace(whole, transformer=lively(whole.config.but(by_layer=windows)))
    live = Live(model, TEXT)
    found = lesson("mask", live)
    seen = np.isfinite(live.at("L0H0.masked"))
    assert found.question.value == tuple(np.flatnonzero(seen[2])) == (1, 2, 3)
    assert f"{(~seen).sum():,} of {seen.size:,} scores" in found.question.reveal
    assert "less than 2 away" in found.why
    assert live.model.explain(live.trace, found.cell)[0].holds


def test_the_feed_forward_lesson_of_experts_says_who_works_on_the_token(opened: Callable[[str], Model]) -> None:
    live = Live(opened("experts, two a token"), TEXT)
    found = lesson("feed-forward", live)
    routes = live.at("L0.ffn.routes")[live.here]
    sent = re.findall(r"(\d) \(([\d.]+)\)", found.why)
    assert {int(number): float(weight) for number, weight in sent} == pytest.approx(
        {number: routes[number] for number in np.flatnonzero(routes)}, abs=1e-3
    )
    assert "only 2 of them work on it" in found.why
    assert found.formula.startswith("ffn = Σ expert.added")
    assert sum(row[2] for row in found.revealed_figures.rows) == live.parameters("blocks.0.ffn")


def test_the_feed_forward_lesson_says_what_the_model_does(opened: Callable[[str], Model]) -> None:
    gated = lesson("feed-forward", Live(opened("tiny")))
    assert gated.formula == "ffn = (SiLU(gate) ⊙ hidden)·W_down,  gate = n·W_gate, hidden = n·W_up"
    assert gated.pytorch == "ffn = W_down(F.silu(W_gate(n)) * W_up(n))"
    plain = lesson("feed-forward", Live(opened("gpt2"), TEXT))
    assert plain.pytorch == 'ffn = W_2(F.gelu(W_1(n), approximate="tanh"))'
    assert plain.formula == "ffn = GELU(tanh)(hidden)·W₂ + b"


def test_learning_leaves_the_weights_as_they_are(opened: Callable[[str], Model]) -> None:
    model = opened("llama, grouped")
    before = {name: tensor.clone() for name, tensor in model.transformer.state_dict().items()}
    list(lessons(Live(model, TEXT)))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.transformer.state_dict().items())
    assert all(parameter.grad is None for parameter in model.transformer.parameters())


_OF_THE_MODEL = {"heads", "feed-forward", "stack", "cache"}
"""Their questions are about sizes, or change with the text in what they quote alone."""


@pytest.mark.parametrize("name", MODELS)
def test_another_text_gives_other_numbers(opened: Callable[[str], Model], name: str) -> None:
    model = opened(name)
    one, other = Live(model, TEXT), Live(model, OTHER)
    for first, second in zip(lessons(one), lessons(other), strict=True):
        if first.name not in _OF_THE_MODEL:
            assert first.question.text != second.question.text, first.name
        shown = [
            [live.at(address).tolist() for address in made.shown] for live, made in ((one, first), (other, second))
        ]
        assert not first.shown or shown[0] != shown[1], first.name


def test_the_seed_orders_the_choices_and_nothing_else(opened: Callable[[str], Model]) -> None:
    model = opened("tiny")

    def asked(seed: int, text: str = TEXT) -> list[Lesson]:
        live = Live(model, text, seed=seed)
        return [lesson(name, live) for name in live.lessons if name != "concat"]  # whose column is drawn

    assert asked(3) == asked(3)
    orders = [[one.question.choices for one in asked(seed)] for seed in (0, 1)]
    assert orders[0] != orders[1]
    assert [set(one) for one in orders[0]] == [set(one) for one in orders[1]]
    assert len({one.question.answer for one in asked(0)}) > 1


def test_a_text_of_one_token_has_all_lessons(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny"), "The")
    assert live.length == 1
    assert lesson("mask", live).question.text.startswith("Of 1 token, ")
    assert "32 texts of 1 token each" in lesson("qkv", live).question.text
    assert [one.name for one in lessons(live)] == list(OF_ANY)
    assert lesson("mask", live).question.value == (0,)


def test_a_lesson_costs_only_what_it_shows(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny"))
    lesson("tokens", live)
    assert "trace" not in vars(live)
    lesson("softmax", live)
    assert "gradients" not in vars(live)


def test_a_lesson_that_there_is_not_names_the_nearest() -> None:
    assert find("8") == find("mask") == 8
    with pytest.raises(UsageError, match="no lesson 'sofmax'") as raised:
        find("sofmax")
    assert raised.value.hint == "did you mean softmax?"


def test_the_six_questions_of_the_attention_guide_are_among_them(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny"))
    wanted = {
        "qkv": "What is the shape of Q, of K and of V",
        "scaling": "What are the values after scaling?",
        "softmax": "What are their weights?",
        "concat": "what is d_k",
        "feed-forward": "How many parameters",
        "mask": "attend to with the causal mask?",
    }
    for name, words in wanted.items():
        assert words in lesson(name, live).question.text


def test_positions_drown_embeddings_only_where_they_are_added_to_them(opened: Callable[[str], Model]) -> None:
    why = {name: lesson(find("embeddings"), Live(opened(name))).why for name in ("tiny", "tiny-encoder")}
    assert all("multiplies the vector by √128 = 11.31" in said for said in why.values())
    assert "drown" in why["tiny-encoder"]
    assert "position" not in why["tiny"]


def test_the_schedule_lesson_ends_in_the_picture_of_a_dry_run(opened: Callable[[str], Model]) -> None:
    """The pace of the lesson has the rates that torch's own schedulers give, and clips as torch does."""
    found = lesson("schedule", Live(opened("tiny")))
    pace, weight = found.pace, torch.nn.Parameter(torch.zeros(1))
    assert pace is not None
    optimiser = torch.optim.AdamW([weight], lr=3e-3)
    warm = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / 100, total_iters=99)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 900, eta_min=3e-4)
    rates = dict(pace.schedule)
    every = torch.optim.lr_scheduler.SequentialLR(optimiser, [warm, cosine], [100])
    for step in range(1, 1001):
        if step in rates:
            assert rates[step] == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-6), step
        optimiser.step()
        every.step()
    weight.grad = torch.tensor([pace.gradient_norm])
    torch.nn.utils.clip_grad_norm_([weight], pace.recipe.clip)
    assert found.question.value[0] == pytest.approx(float(weight.grad) / pace.gradient_norm, rel=1e-6)
    norms, factors = zip(*pace.clipping, strict=True)
    assert max(norms) > pace.gradient_norm
    assert factors == tuple(min(1.0, 1 / (norm + 1e-6)) for norm in norms)
    assert [row[1] for row in found.figures.rows] == [rates.get(row[0], row[1]) for row in found.figures.rows]


def test_the_default_text_shows_an_induction_head_and_another_one_none(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny"))
    found = lesson("heads", live)
    words, here = [token.shown for token in live.encoding.tokens], live.here
    after = [position for position in range(1, here) if words[position - 1] == words[here]]
    weights = np.stack([live.trace[f"L{layer}.weights"].double().numpy() for layer in range(live.config.n_layers)])
    shares = weights[:, :, here, after].sum(-1)
    layer, head = np.unravel_index(shares.argmax(), shares.shape)
    assert shares.max() >= 0.5
    assert f"L{layer}H{head} gives {shares.max():.4g} to what followed it before" in found.question.reveal
    assert found.revealed_maps[-1].title == f"L{layer}H{head}"
    assert found.revealed_maps[-1].weights[here] == pytest.approx(list(weights[layer, head, here]))
    plain = lesson("heads", Live(opened("tiny"), "The cat sat on a mat"))
    assert "induction" not in plain.question.reveal
    assert len(plain.revealed_maps) == 4


def test_lessons_of_two_stacks_are_the_last_and_only_such_a_model_has_them(opened: Callable[[str], Model]) -> None:
    one, two = Live(opened("tiny"), TEXT), Live(opened("tiny-translator"), TEXT)
    assert two.lessons == (*one.lessons, *OF_TWO_STACKS)
    for name in OF_TWO_STACKS:
        with pytest.raises(UsageError, match=f"lesson {name} is about two stacks, and tiny has one") as raised:
            lesson(name, one)
        assert raised.value.hint == f"tinytf learn {name} -m tiny-translator"


def test_teacher_forcing_asks_for_the_next_token_of_the_right_target(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny-translator"), "1994-05-04")  # the model itself would write 03
    found = lesson("teacher-forcing", live)
    given, asked = ([row[column] for row in found.revealed_figures.rows] for column in (0, 1))
    assert "".join(asked) == "1994-05-04"
    assert [one.partition(" ")[2] for one in given] == [live.token(0), *asked[:-1]]
    assert found.revealed_figures.rows[-1][3] == "3"
    assert live.encoding.ids[found.focus + 1] == found.question.value[0]
    assert found.question.choices[found.question.answer] == asked[found.focus]


def test_cross_attention_asks_for_the_word_that_the_surest_head_looks_at(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny-translator"), "1994-05-03")
    found = lesson("cross-attention", live)
    weights = live.at(found.revealed[0])[found.focus]
    words = [f"{key} {token.shown}" for key, token in enumerate(live.trace.source.tokens)]
    assert found.question.choices[found.question.answer] == words[int(weights.argmax())]
    assert found.question.value == (pytest.approx(weights.max()),)
    followed = Live(opened("tiny-translator"), "1994-05-03", place=(0, 1))
    assert lesson("cross-attention", followed).revealed == ("L0H1.cross.weights",)


def test_a_target_of_its_start_alone_has_all_lessons(opened: Callable[[str], Model]) -> None:
    live = Live(opened("tiny-translator"), "")
    assert live.length == 1
    for one in lessons(live):
        assert len(one.question.choices) >= 2, one.name


@pytest.mark.parametrize("name", MODELS)
def test_the_product_that_the_cache_lesson_shows_is_its_answer(opened: Callable[[str], Model], name: str) -> None:
    live = Live(opened(name), TEXT)
    if live.config.causal:
        found = re.match(r"Keys and values: ([\d ×+()]+) = ([\d,]+) ", lesson("cache", live).question.reveal)
        assert found is not None
        assert eval(found[1].replace("×", "*")) == int(found[2].replace(",", ""))
