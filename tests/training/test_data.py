"""Examples to train on: what is asked, what is hidden, and that a step always sees the same ones."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import config_of, lively
from in_memory import paragraphs, sentence_stream, split_held_out, token_stream

sys.path.insert(0, str(Path(__file__).parent))
from training_command import trained

from tinytf.errors import TrainingError
from tinytf.text.corpus import Reading, find_files
from tinytf.text.train import train_bpe, train_characters, train_wordpiece
from tinytf.text.weighted import weighted
from tinytf.training.data.examples import IGNORED, Batch, NextToken
from tinytf.training.data.masked import MaskedTokens
from tinytf.training.data.setup import prepare
from tinytf.training.recipe import Recipe
from tinytf.training.remembered import find_remembered_corpus
from tinytf.training.tuning.losses import batch_loss, thorough_batches

SENTENCES = [
    f"{a} {b} {c}." for a in ("The cat", "A dog") for b in ("sat", "ran", "hid") for c in ("down", "there", "on")
]
STORY = "\n\n".join(" ".join(SENTENCES[i : i + 6]) for i in range(0, 18, 3))


def windows_of(stream, block=8, batch=4, **changes) -> NextToken:
    vocab_size, end = changes.pop("vocab_size", 1000), changes.pop("end", None)
    recipe = Recipe(**{"block": block, "batch": batch, "seed": 1, **changes})
    return NextToken(np.asarray(stream), np.asarray([1]), recipe, vocab_size, end)


def masked(block=48, batch=32, seed=1) -> MaskedTokens:
    tokenizer = train_wordpiece([STORY], 150)
    streams = (sentence_stream(documents, tokenizer) for documents in (paragraphs(STORY), [SENTENCES[0]]))
    return MaskedTokens(*streams, Recipe(block=block, batch=batch, seed=seed), tokenizer)


def same(one: Batch, other: Batch) -> bool:
    return torch.equal(one.ids, other.ids) and torch.equal(one.targets, other.targets)


# Next token


def test_a_target_is_the_token_that_follows():
    examples = windows_of(np.arange(100, 400))
    batch = examples.batch(0)
    assert batch.ids.shape == batch.targets.shape == (4, 8)
    assert torch.equal(batch.targets, batch.ids + 1)
    assert torch.equal(batch.targets[:, :-1], batch.ids[:, 1:])


def test_every_window_comes_up_and_none_leaves_the_stream():
    examples = windows_of(np.arange(12), batch=64)
    assert set(examples.batch(0).ids[:, 0].tolist()) == {0, 1, 2, 3}
    assert windows_of(np.arange(9)).batch(0).targets[0].tolist() == list(range(1, 9))


@pytest.mark.parametrize("make", [lambda seed: windows_of(np.arange(500), seed=seed), lambda seed: masked(seed=seed)])
def test_a_batch_depends_on_seed_and_step_alone(make):
    first, again, other = make(1), make(1), make(2)
    for step in range(5):
        again.batch(step + 7)  # whatever was asked for before
    assert all(same(first.batch(step), again.batch(step)) for step in (3, 0, 3))
    assert not same(first.batch(0), first.batch(1))
    assert not same(first.batch(0), other.batch(0))
    assert all(same(*pair) for pair in zip(first.held_out(), again.held_out(), strict=True))


def test_too_short_a_text_says_both_numbers():
    with pytest.raises(TrainingError, match=r"^the text has 8 tokens to train on, but a block needs 9$"):
        windows_of(np.arange(8))


def test_held_out_windows_ask_for_each_token_once():
    examples = NextToken(np.arange(20), np.arange(100, 134), Recipe(block=8, batch=3), 200)
    batches = list(examples.held_out())
    asked = torch.cat([batch.targets.flatten() for batch in batches]).tolist()
    assert asked == list(range(101, 133))
    assert [len(batch.ids) for batch in batches] == [3, 1]
    assert len(list(examples.held_out(limit=1))) == 1


def test_a_held_out_text_shorter_than_a_block_is_asked_whole():
    examples = NextToken(np.arange(20), np.arange(3), Recipe(block=8, batch=3), 20)
    assert [batch.targets.tolist() for batch in examples.held_out()] == [[[1, 2]]]


def test_of_repeats_what_is_asked_followed_the_same_token_before():
    examples = windows_of(np.zeros(100, dtype=np.int64), block=32, batch=64, repeats=0.5, vocab_size=1_000_000)
    batch = examples.batch(0)
    repeated = [row for row in range(64) if batch.ids[row].any()]
    assert 20 <= len(repeated) <= 44
    for row in repeated:
        ids, targets = batch.ids[row].tolist(), batch.targets[row].tolist()
        asked = [place for place in range(32) if targets[place] != IGNORED]
        assert asked
        for place in asked:
            assert targets[place] in [ids[before + 1] for before in range(place) if ids[before] == ids[place]]


def test_repeats_come_back_at_no_fixed_distance():
    examples = windows_of(np.zeros(300, dtype=np.int64), block=128, batch=32, repeats=0.99, vocab_size=1_000_000)
    batch = examples.batch(0)
    for row in range(32):
        ids = batch.ids[row].tolist()
        places = {token: [i for i, other in enumerate(ids) if other == token] for token in ids}
        distances = {b - a for found in places.values() for a, b in itertools.pairwise(found)}
        assert len(distances) != 1


@pytest.mark.parametrize(("share", "fewest", "most"), [(0.0, 0, 14), (0.5, 160, 245)])
def test_windows_begin_anywhere_but_for_a_share_that_begins_where_a_document_does(share, fewest, most):
    """Of 400 windows 1 in 100 begins there by chance; the bounds leave four deviations."""
    stream = np.arange(1, 2001)
    stream[99::100] = 0  # an end token after every 99
    examples = windows_of(stream, block=8, batch=400, end=0, document_starts=share)
    firsts = examples.batch(0).ids[:, 0]
    assert fewest <= int(((firsts - 1) % 100 == 0).sum()) <= most


@pytest.mark.parametrize(("block", "first"), [(2, 0), (4, 100)])
def test_repeats_in_short_blocks_still_ask_for_something(block, first):
    examples = windows_of(np.zeros(100, dtype=np.int64), block=block, batch=64, repeats=0.9, repeats_first=first)
    assert int((examples.batch(0).targets != IGNORED).any(dim=1).sum()) > 8


def test_at_first_all_windows_repeat_and_of_few_phrases():
    stream = np.zeros(200, dtype=np.int64)
    examples = windows_of(stream, block=64, batch=64, repeats=0.25, repeats_first=100, vocab_size=1_000_000)
    first, after = examples.batch(0).ids, examples.batch(100).ids
    assert first.any(dim=1).all()
    assert 4 <= int(after.any(dim=1).sum()) <= 30
    assert max(len(row.unique()) for row in first) <= 5 * 8
    early, late = ([len(row.unique()) for s in range(n, n + 5) for row in examples.batch(s).ids] for n in (0, 94))
    assert sum(late) > 1.1 * sum(early)


# Masked tokens


def test_fifteen_percent_are_asked_for_of_which_most_are_masked():
    """Devlin et al. 2019, section 3.1; over some 9,000 tokens, within bounds that chance leaves once in 10,000."""
    examples = masked()
    asked = fillable = hidden = kept = changed = 0
    for step in range(40):
        batch = examples.batch(step)
        asks = batch.targets != IGNORED
        whole = torch.where(asks, batch.targets, batch.ids)
        may = batch.padding_mask & (whole != examples.cls) & (whole != examples.sep)
        assert not (asks & ~may).any(), "[CLS], [SEP] and [PAD] are never asked for"
        assert torch.equal(batch.padding_mask, whole != examples.pad)
        assert asks.any(dim=1).all(), "every row asks for something"
        long = may.sum(1) >= 20  # where "at least one" hardly adds any
        asked, fillable = asked + int(asks[long].sum()), fillable + int(may[long].sum())
        hidden += int((asks & (batch.ids == examples.mask)).sum())
        kept += int((asks & (batch.ids == batch.targets)).sum())
        changed += int((asks & (batch.ids != batch.targets) & (batch.ids != examples.mask)).sum())
    assert fillable > 8_000
    deviation = (0.15 * 0.85 / fillable) ** 0.5
    assert abs(asked / fillable - 0.15) < 4 * deviation + 0.85**20 / 20
    total = hidden + kept + changed
    same_by_chance = 0.1 / len(examples.words)  # a random token can be the one that stood there
    expected = (0.8, 0.1 + same_by_chance, 0.1 - same_by_chance)
    chi_square = sum(
        (found - total * share) ** 2 / (total * share)
        for found, share in zip((hidden, kept, changed), expected, strict=True)
    )
    assert chi_square < 18.4  # p = 0.0001 with two degrees of freedom


def test_tokens_not_asked_for_stand_as_they_were():
    examples = masked()
    batch = examples.batch(0)
    known = {tuple(examples.train[number]) for number in range(len(examples.train))}
    whole = torch.where(batch.targets != IGNORED, batch.targets, batch.ids)
    for row, real in zip(whole, batch.padding_mask, strict=True):
        ids = row[real].tolist()
        assert (ids[0], ids[-1]) == (examples.cls, examples.sep)
        inner, stop = [], examples.train[0][-1]
        for token in ids[1:-1]:
            inner.append(token)
            if token == stop:
                assert tuple(inner) in known
                inner = []
        assert inner == []


@pytest.mark.parametrize("block", [8, 12, 48])
def test_a_masked_example_never_leaves_its_block(block):
    examples = masked(block=block)
    assert all(examples.batch(step).ids.shape[1] <= block for step in range(10))


def test_the_masked_objective_needs_its_special_tokens():
    with pytest.raises(TrainingError, match=r"needs a tokenizer with \[CLS\], \[SEP\], \[MASK\] and \[PAD\]"):
        sentence_stream([STORY], train_bpe([STORY], 300))


def test_padding_never_influences_the_loss():
    examples = masked()
    model = lively(config_of("bert with a masked head", vocab_size=150, context=128))
    batch = examples.batch(0)
    more = 9
    wider = Batch(
        torch.nn.functional.pad(batch.ids, (0, more), value=examples.pad),
        torch.nn.functional.pad(batch.targets, (0, more), value=IGNORED),
        torch.nn.functional.pad(batch.padding_mask, (0, more), value=False),
    )
    with torch.no_grad():
        assert float(batch_loss(model, wider)) == pytest.approx(float(batch_loss(model, batch)), abs=1e-6)
        one_by_one, asked = 0.0, 0
        for ids, targets, real in zip(batch.ids, batch.targets, batch.padding_mask, strict=True):
            count = int((targets != IGNORED).sum())
            alone = Batch(ids[real][None], targets[real][None], None)
            one_by_one, asked = one_by_one + float(batch_loss(model, alone)) * count, asked + count
        assert float(batch_loss(model, batch)) == pytest.approx(one_by_one / asked, abs=1e-5)


def test_the_loss_is_the_mean_surprise_of_what_is_asked():
    model = lively(config_of("gpt2"))
    batch = windows_of(np.arange(300) % 31).batch(0)
    batch.targets[0, :5] = IGNORED
    with torch.no_grad():
        surprise = -model(batch.ids).double().log_softmax(-1)
        asked = [
            float(surprise[row, place, batch.targets[row, place]])
            for row in range(4)
            for place in range(8)
            if batch.targets[row, place] != IGNORED
        ]
        assert len(asked) == 27
        assert float(batch_loss(model, batch)) == pytest.approx(sum(asked) / 27, abs=1e-5)


# Documents


def test_paragraphs_are_what_blank_lines_separate():
    assert paragraphs("a\nb\n\nc\n \t\n\n\nd\n") == ["a\nb", "c", "d\n"]
    assert paragraphs(" \n\n\n ") == []


@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\r\n \t\r\n", "\n\r\n", "\r\n\n"])
def test_a_blank_line_is_one_however_lines_end(blank):
    assert paragraphs(f"a\r\nb{blank}c") == ["a\r\nb", "c"]


@pytest.mark.parametrize(
    ("sizes", "share", "held_out"),
    [([10] * 10, 0.2, 2), ([10] * 10, 0.05, 1), ([9] * 9, 0.0, 1), ([1, 99], 0.5, 1), ([99, 1], 0.5, 2), ([5], 0.5, 1)],
)
def test_the_last_documents_are_held_out(sizes, share, held_out):
    documents = ["x" * size for size in sizes]
    train, kept = split_held_out(documents, share)
    assert "".join(train + kept) == "".join(documents)
    assert len(kept) == held_out


def test_an_end_token_stands_after_each_document():
    tokenizer = train_bpe([STORY], 300)
    stream = token_stream(["The cat", "sat"], tokenizer).tolist()
    end = tokenizer.end_id
    assert stream == [*tokenizer.encode("The cat").ids, end, *tokenizer.encode("sat").ids, end]
    assert token_stream(["ab", "c"], train_characters(["abc"])).tolist() == [0, 1, 2]


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_held_out_text_never_comes_up_in_training(tokenizer, tmp_path):
    """The held-out end of the text is of other letters than its beginning: none of them may be seen."""
    text = "\n\n".join(["abc acb bca " * 4] * 18 + ["xyz zyx yxz " * 4] * 2)
    model = {"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}
    recipe = Recipe(model=model, tokenizer=tokenizer, block=16, batch=64, held_out=0.1)
    setup = prepare(find_files(text), recipe, tmp_path)
    seen = torch.cat([setup.examples.batch(step).ids.flatten() for step in range(40)])
    assert not set("xyz") & set(setup.tokenizer.decode(seen.tolist()))
    kept = torch.cat([batch.targets.flatten() for batch in setup.examples.held_out()])
    assert not set("abc") & set(setup.tokenizer.decode(kept.tolist()))
    assert set("xyz") <= set(setup.tokenizer.decode(kept.tolist()))


def test_held_out_sentences_never_come_up_in_training(tmp_path):
    text = "\n\n".join(["The cat sat down. A dog ran."] * 18 + ["Hens fly up. Foxes jump."] * 2)
    model = {"d_model": 8, "n_layers": 1, "n_heads": 1, "d_ff": 8, "context": 16}
    fields = {"tokenizer": "wordpiece", "objective": "masked", "held_out": 0.08}
    setup = prepare(find_files(text), Recipe(model=model, block=16, batch=8, **fields), tmp_path)
    assert isinstance(setup.examples, MaskedTokens)
    sentences = setup.examples.train
    trained = {setup.tokenizer.decode(sentences[number]) for number in range(len(sentences))}
    assert trained == {"the cat sat down.", "a dog ran."}
    assert len(setup.examples.held_out_set) == 4
    assert "fly" not in setup.tokenizer.library.get_vocab(), "the vocabulary is of the training text alone"


@pytest.mark.parametrize("held_out", [0, 1, 2, 8, 9, 34, 200])
def test_held_out_batches_are_counted_before_they_are_made(held_out):
    examples = NextToken(np.arange(20), np.arange(held_out), Recipe(block=8, batch=3), 200)
    batches = list(examples.held_out())
    assert examples.held_out_batches == len(batches)
    assert masked().held_out_batches == len(list(masked().held_out()))


def test_a_few_held_out_batches_come_from_all_over_the_text():
    examples = NextToken(np.arange(20), np.arange(1 + 8 * 3 * 10), Recipe(block=8, batch=3), 400)
    assert [int(batch.ids[0, 0]) for batch in examples.held_out(4)] == [24 * number for number in (0, 2, 5, 7)]
    assert len(list(examples.held_out(11))) == 10


def test_nothing_may_be_held_out_of_masked_training():
    tokenizer = train_wordpiece([STORY], 150)
    stream, recipe = sentence_stream([STORY], tokenizer), Recipe(block=48, batch=4, seed=1)
    examples = MaskedTokens(stream, np.zeros(0, dtype="<u2"), recipe, tokenizer)
    assert list(examples.held_out()) == []
    assert examples.held_out_batches == 0


def test_the_last_measure_is_bounded_by_the_training():
    assert [thorough_batches(Recipe(steps=steps)) for steps in (100, 400, 10_000)] == [25, 100, 2_500]


# Several corpora


def test_of_several_corpora_as_many_windows_are_drawn_as_their_weights_say(tmp_path):
    """Each is held out at its own end; of 640 windows four deviations are 44."""
    for name, letters, size in (("small", "abc", 20), ("large", "xyz", 200)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"{letters} {letters[::-1]} " * 6 for _ in range(size)))
    corpus = weighted([(find_files([tmp_path / "small.txt"]), 3.0), (find_files([tmp_path / "large.txt"]), 1.0)])
    setup = prepare(corpus, Recipe(model={"n_layers": 1}, block=16, batch=64), tmp_path / "tokens")
    texts = [setup.tokenizer.decode(row.tolist()) for step in range(10) for row in setup.examples.batch(step).ids]
    assert all(bool(set(text) & set("abc")) != bool(set(text) & set("xyz")) for text in texts), "never across two"
    assert abs(sum("a" in text for text in texts) - 480) < 44
    kept = setup.tokenizer.decode(np.asarray(setup.examples.held_out_set).tolist())
    assert "abc" in kept
    assert "xyz" in kept


def test_a_corpus_that_is_shorter_than_a_block_is_refused_whatever_its_weight():
    with pytest.raises(TrainingError, match="one of the texts has 5 tokens to train on, but a block needs 9"):
        NextToken(np.arange(105), np.arange(3), Recipe(block=8, batch=3), 200, None, [(100, 1.0), (5, 2.0)])


def test_weights_are_said_at_the_files_and_remembered(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text(f"{name} {STORY}", "utf-8")
    run, few = tmp_path / "run", ("--tokenizer", "char", "--block", "8", "--batch", "2", "--d-model", "8")
    corpora = (f"{tmp_path / 'one.txt'}=3", str(tmp_path / "two.txt"))
    assert trained(*corpora, "--out", str(run), "--steps", "2", *few).status == 0
    assert find_remembered_corpus(run, Reading()).weights == ((1, 3.0), (1, 1.0))
    assert trained("--out", str(run), "--resume", "--steps", "3").status == 0
    ran = trained(f"{tmp_path / 'one.txt'}=4", corpora[1], "--out", str(run), "--resume", "--steps", "4")
    assert (ran.status, "was trained on another text" in ran.said) == (2, True)
    assert "a weight is above 0" in trained(f"{corpora[1]}=0", "--out", str(tmp_path / "none")).said
