"""Feed-forward units beside float64 numpy, and the strongest places of a corpus beside a look at all of them."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import KINDS, asked, config_of, encoding_of, lively
from caught_gradients import model_of

from tinytf.bulk.windows import Window, windows_of
from tinytf.errors import AddressError, TokenizerError, UsageError
from tinytf.loading import load
from tinytf.look.examples import AFTER, BEFORE, Strongest, columns_of, strongest_places
from tinytf.look.neurons import Unit, parse_unit
from tinytf.model.transformer import Transformer
from tinytf.text.corpus import find_files
from tinytf.text.train import train_bpe, train_wordpiece
from tinytf.trace.record import record

IDS = [3, 14, 15, 9, 2, 6, 5]
DENSE = [kind for kind in KINDS if not config_of(kind).experts]
DIRECT = ["gpt2", "llama, grouped", "one key head for all", "qwen3, normed queries and wide heads"]
CORPUS = ["The cat sat on the mat. The dog saw the cat, and the cat ran away from the big red dog. " * 8]


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


def activations(model: Transformer, ids: list[int]) -> np.ndarray:
    """(layers, T, the units of the widest layer), 0 where a layer has fewer."""
    trace = record(model, encoding_of(ids))
    found = np.zeros((model.config.n_layers, len(ids), widest(model)))
    for layer in range(model.config.n_layers):
        if trace.steps.has("ffn.act", layer):
            into = trace.steps.at("ffn", layer).inputs[0]
            found[layer, :, : model.config.at(layer).d_ff] = numbers(trace.step(into, layer))
    return found


def widest(model: Transformer) -> int:
    return max(model.config.at(layer).d_ff for layer in range(model.config.n_layers))


@pytest.mark.parametrize("kind", DENSE)
def test_the_units_of_a_token_are_those_of_the_largest_activations(kind: str) -> None:
    model = model_of(kind, torch.float32)
    act = activations(model, IDS)
    found = asked(model).neurons(record(model, encoding_of(IDS)), top=4)
    for token in found.tokens:
        sizes = np.abs(act[:, token.position]).ravel()
        expected = np.argsort(-sizes, kind="stable")[:4]
        places = [divmod(int(i), widest(model)) for i in expected]
        assert [(a.unit.layer, a.unit.index) for a in token.units] == places
        assert [a.activation for a in token.units] == [act[layer, token.position, i] for layer, i in places]


@pytest.mark.parametrize("kind", DENSE)
def test_the_prediction_is_that_of_the_model_or_none(kind: str) -> None:
    model = model_of(kind, torch.float32)
    found = asked(model).neurons(record(model, encoding_of(IDS)))
    if model.head is None:
        assert {token.predicted for token in found.tokens} == {None}
        assert not found.directions
        assert "no language-model head" in found.reading
    else:
        best = model(torch.tensor([IDS]))[0].max(dim=-1)
        assert [token.predicted for token in found.tokens] == best.indices.tolist()
        assert [token.logit for token in found.tokens] == pytest.approx(best.values.tolist(), rel=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DENSE])
def test_experts_have_units_of_their_own_and_are_refused(kind: str) -> None:
    model = model_of(kind, torch.float32)
    with pytest.raises(UsageError, match="experts, and each has units of its own"):
        asked(model).neurons(record(model, encoding_of(IDS)))


@pytest.mark.parametrize("kind", DIRECT)
def test_contributions_of_all_units_add_up_to_what_the_feed_forward_adds_to_the_logit(kind: str) -> None:
    """By numpy: the output of W₂ without its bias, normed with the scale of the whole stream, times the row of y."""
    model = model_of(kind, torch.float64)
    trace = record(model, encoding_of(IDS))
    config = model.config
    found = asked(trace.model).neurons(trace, top=config.d_ff * config.n_layers)
    x = numbers(trace.step("out", config.n_layers - 1))
    gain, unembedding = numbers(model.final_norm.weight), numbers(model.unembedding)
    layered = config.norm == "layernorm"
    centred = x - x.mean(axis=-1, keepdims=True) if layered else x
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + config.norm_eps)
    for layer in range(config.n_layers):
        down = model.blocks[layer].ffn.down
        out = numbers(trace.step("ffn", layer)) - (numbers(down.bias) if down.bias is not None else 0)
        part = (out - out.mean(axis=-1, keepdims=True) if layered else out) * gain / scale
        for token in found.tokens:
            expected = part[token.position] @ unembedding[token.predicted]
            added = sum(a.contribution for a in token.units if a.unit.layer == layer and a.contribution is not None)
            assert added == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", [*DIRECT, "bert with a masked head", "narrow heads, after the sum"])
def test_a_direction_is_the_row_of_the_output_weights_in_the_vocabulary(kind: str) -> None:
    model = model_of(kind, torch.float32)
    unit = Unit(1, 7)
    (direction,) = asked(model).neurons(record(model, encoding_of(IDS)), units=[str(unit)], tokens=5).directions
    row = numbers(model.blocks[1].ffn.down.weight)[:, 7]
    assert direction.norm == pytest.approx(np.linalg.norm(row))
    if kind in DIRECT:
        row = (row - row.mean() if model.config.norm == "layernorm" else row) * numbers(model.final_norm.weight)
    logits = numbers(model.unembedding) @ row
    order = np.argsort(-logits)
    assert [i for i, _ in direction.promoted] == order[:5].tolist()
    assert [i for i, _ in direction.suppressed] == order[::-1][:5].tolist()
    assert [value for _, value in direction.promoted] == pytest.approx(logits[order[:5]].tolist(), rel=1e-5)


def test_chosen_units_are_followed_over_all_tokens() -> None:
    model = model_of("gpt2", torch.float32)
    act = activations(model, IDS)
    found = asked(model).neurons(record(model, encoding_of(IDS)), units=["L1.3", "L0.5", "L1.3"])
    assert found.units == (Unit(1, 3), Unit(0, 5))
    assert [token.units[1].activation for token in found.tokens] == act[0, :, 5].tolist()


def test_contribution_may_decide_the_order() -> None:
    trace = record(model_of("gpt2", torch.float32), encoding_of(IDS))
    found = asked(trace.model).neurons(trace, top=3, by="contribution")
    every = asked(trace.model).neurons(trace, top=80)
    for few, all_of in zip(found.tokens, every.tokens, strict=True):
        sizes = sorted((abs(a.contribution or 0) for a in all_of.units), reverse=True)
        assert [abs(a.contribution or 0) for a in few.units] == pytest.approx(sizes[:3])


def test_the_sentence_claims_only_what_was_looked_at() -> None:
    model = load("tiny")
    trace = model.trace("The cat sat")
    acts = trace.step("ffn.act", 1)
    best, at = int(acts[-1].abs().argmax()), int(acts[:, 17].abs().argmax())
    of_layer = model.neurons("The cat sat", layer=1).sentence
    assert of_layer.startswith(f"At ·sat, L1.{best} is the most active unit of layer 1 ({acts[-1, best]:+.3g})")
    chosen = model.neurons("The cat sat", units=["L1.17", "L1.18"]).sentence
    assert chosen.startswith(f"L1.17 is most active at {trace.tokens[at].shown} ({acts[at, 17]:+.3g})")
    report = model.neurons("The cat sat", by="contribution")
    first, predicted = report.tokens[-1].units[0], model.shown(report.tokens[-1].predicted or 0)
    words = f"At ·sat, {first.unit} is the unit that moves the logit of {predicted} most ({first.contribution:+.3g})"
    assert report.sentence.startswith(words)
    silent = replace(first, activation=0.0)
    tokens = (replace(report.tokens[-1], units=(silent,)),)
    assert replace(report, tokens=tokens).in_a_sentence() == "At ·sat, no unit is active."
    assert replace(report, tokens=tokens, chosen=(first.unit,)).in_a_sentence() == (
        f"{first.unit} is not active in this text."
    )
    tokens = (replace(report.tokens[-1], units=(replace(first, activation=float("nan")),)),)
    assert replace(report, tokens=tokens).in_a_sentence() == f"At ·sat, {first.unit} is not finite."


def test_where_norms_come_between_there_are_no_contributions() -> None:
    trace = record(model_of("bert with a masked head", torch.float32), encoding_of(IDS))
    assert {a.contribution for token in asked(trace.model).neurons(trace).tokens for a in token.units} == {None}
    with pytest.raises(UsageError, match="no direct part"):
        asked(trace.model).neurons(trace, by="contribution")
    with pytest.raises(UsageError, match="not ordered by 'size'"):
        asked(trace.model).neurons(trace, by="size")


@pytest.mark.parametrize("text", ["L9.1", "L0.40", "L0", "17", "L0H1", "L0.ffn", "L0.-41", "", "L0.1.2"])
def test_what_is_no_unit_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        parse_unit(text, config_of("gpt2"))
    assert parse_unit(" L1.39 ", config_of("gpt2")) == Unit(1, 39)


def some_windows(seed: int, count: int, vocab: int = 31) -> list[Window]:
    """Windows of random lengths; of some the first and the last token were added."""
    chance = random.Random(seed)
    found, start = [], 0
    for document in range(count):
        ids = [chance.randrange(vocab) for _ in range(chance.randint(3, 20))]
        own = range(1, len(ids) - 1) if document % 3 == 0 else range(len(ids))
        found.append(Window(ids, own, document, start))
        start = chance.randint(0, 50)
    return found


@pytest.mark.parametrize("kind", ["gpt2", "llama, grouped", "bert with a masked head", "rotary and both ways"])
def test_the_strongest_places_are_those_of_a_look_at_the_whole_corpus(kind: str) -> None:
    model = model_of(kind, torch.float64)
    windows = some_windows(1, 37)
    units = [Unit(1, 3), Unit(0, 11), Unit(1, 20)]
    found = strongest_places(model, iter(windows), columns_of(units, model.config), top=6)
    assert (found.documents, found.tokens) == (37, sum(len(window.own) for window in windows))
    everywhere: dict[Unit, list[tuple[float, int, int]]] = {unit: [] for unit in units}
    for number, window in enumerate(windows):
        act = activations(model, window.ids)
        for unit in units:
            everywhere[unit] += [(act[unit.layer, at, unit.index], number, at) for at in window.own]
    for unit in units:
        expected = sorted(everywhere[unit], key=lambda one: -abs(one[0]))[:6]
        assert len(found.units[unit]) == 6
        for one, (value, number, at) in zip(found.units[unit], expected, strict=True):
            window = windows[number]
            assert one.activation == pytest.approx(value, rel=1e-5)
            assert one.document == number
            assert one.position == window.start + at - window.own.start
            assert one.ids[one.at] == window.ids[at]
            assert list(one.ids) == window.ids[max(0, at - BEFORE) : at + AFTER + 1]


def test_what_is_kept_does_not_grow_with_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    add = Strongest.add

    def watched(kept: Strongest, *args: object) -> None:
        add(kept, *args)  # type: ignore[arg-type]
        storages = [one.untyped_storage().nbytes() for one in vars(kept).values() if isinstance(one, torch.Tensor)]
        sizes.append(sum(storages))

    monkeypatch.setattr(Strongest, "add", watched)
    model = lively(config_of("gpt2"))
    strongest_places(model, some_windows(2, 200), columns_of([Unit(0, 1), Unit(1, 2)], model.config), top=5)
    assert len(sizes) == 25
    assert set(sizes) == {2 * 5 * (4 + 2 * 8 + (BEFORE + 1 + AFTER) * 8)}


def test_the_stream_is_read_a_few_windows_at_a_time() -> None:
    model = lively(config_of("gpt2"))
    read, ahead = 0, []
    passes = model.embed.register_forward_hook(lambda *_: ahead.append(read))

    def stream() -> Iterator[Window]:
        nonlocal read
        for window in some_windows(3, 60):
            read += 1
            yield window

    strongest_places(model, stream(), columns_of([Unit(0, 1)], model.config))
    passes.remove()
    assert ahead == [8, 16, 24, 32, 40, 48, 56, 60]


def test_a_corpus_of_fewer_places_gives_them_all() -> None:
    columns = columns_of([Unit(0, 1)], config_of("gpt2"))
    found = strongest_places(lively(config_of("gpt2")), [Window([1, 2], range(2), 0, 0)], columns, top=5)
    assert [one.position for one in sorted(found.units[Unit(0, 1)], key=lambda one: one.position)] == [0, 1]


def test_windows_cover_each_token_once_and_never_two_documents() -> None:
    tokenizer = train_bpe(CORPUS, 300)
    pieces = [("The cat sat on", False), (" the mat.", True), ("The dog ran away.", True)]
    windows = list(windows_of(tokenizer, pieces, 3, 300))
    for document, parts in ((0, pieces[:2]), (1, pieces[2:])):
        ids = [i for text, _ in parts for i in tokenizer.encode(text).ids]
        own = [window for window in windows if window.document == document]
        assert [i for window in own for i in window.ids] == ids
        starts = [window.start for window in own]
        assert starts == list(np.cumsum([0, *(len(window.ids) for window in own)])[:-1])
    assert max(len(window.ids) for window in windows) == 3


def test_added_tokens_are_in_every_window_and_are_no_places() -> None:
    tokenizer = train_wordpiece(CORPUS, 120)
    windows = list(windows_of(tokenizer, [("the cat sat on the mat", True)], 5, 120))
    first, last = (tokenizer.library.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    assert len(windows) > 1
    assert {(window.ids[0], window.ids[-1]) for window in windows} == {(first, last)}
    own = [window.ids[i] for window in windows for i in window.own]
    assert own == tokenizer.encode("the cat sat on the mat", special=False).ids
    with pytest.raises(UsageError, match="no room"):
        list(windows_of(tokenizer, [("the cat", True)], 2, 120))
    with pytest.raises(TokenizerError, match="the model knows 7 tokens"):
        list(windows_of(tokenizer, [("the cat", True)], 5, 7))


def test_the_methods_of_a_model_stream_files(tmp_path: Path) -> None:
    model = load("tiny", device="cpu")
    found = model.neurons("The cat sat", layer=2, top=1)
    assert {unit.layer for unit in found.units} == {2}
    path = tmp_path / "corpus.txt"
    path.write_text("The cat sat on the mat.\n\nThe dog ran to the cat.\n" * 20, "utf-8")
    told: list[tuple[int, int]] = []
    corpus = find_files([path])
    names = [str(unit) for unit in found.units]
    examples = model.top_examples(corpus, names, top=3, window=8, on_progress=lambda *one: told.append(one))
    assert told[-1][0] == told[-1][1]
    every = [
        (abs(float(model.trace(text)["L2.ffn.act"][at, found.units[0].index])), at)
        for text in ("The cat sat on the mat.", "The dog ran to the cat.")
        for at in range(len(model.encode(text).ids))
    ]
    assert abs(examples.units[found.units[0]][0].activation) == pytest.approx(max(every)[0], rel=1e-3)
    with pytest.raises(UsageError, match="more than the model's context"):
        model.top_examples(corpus, names, window=10**6)
