"""The pairs of every task: what they ask is right, they fit the tokenizer, and a seed gives them again."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import tokenizers
import torch
from architectures import asked, config_of, lively
from transformers import AutoModelForCausalLM
from year_tokens import two_digits

import tinytf
from tinytf.errors import UsageError
from tinytf.pairs.pair import Pair, PairSet
from tinytf.pairs.tasks import TASKS, Words, tasks
from tinytf.text.tokenizer import Tokenizer

MADE = ("ioi", "greater-than", "agreement", "gender", "induction", "docstring")
"""The tasks that the built-in decoder's tokenizer has the words for."""


@pytest.fixture(scope="module")
def model() -> tinytf.Model:
    return tinytf.load("tiny")


def _in_ioi(pair: Pair) -> None:
    for text, recipient, giver in ((pair.clean, pair.answer, pair.versus), (pair.corrupt, pair.versus, pair.answer)):
        assert len(re.findall(rf"\b{recipient}\b", text)) == 1
        assert len(re.findall(rf"\b{giver}\b", text)) == 2
    first = min((pair.answer, pair.versus), key=pair.clean.index)
    assert pair.labels["order"] == ("ABBA" if first == pair.answer else "BABA")


def _in_greater_than(pair: Pair) -> None:
    start, century = re.search(r"year (\d\d)(\d\d) to the year (\d\d)$", pair.clean).group(2, 3)
    assert pair.labels == {"century": century, "start": start}
    assert pair.corrupt == pair.clean.replace(f"{century}{start}", f"{century}01")
    digits = len(pair.answer)
    assert pair.versus < start[:digits] < pair.answer


def _in_agreement(pair: Pair) -> None:
    subjects = [text.split()[1] for text in (pair.clean, pair.corrupt)]
    plural = pair.labels["number"] == "plural"
    assert subjects[plural] + "s" == subjects[not plural] or subjects[not plural] + "s" == subjects[plural]
    assert subjects[0].endswith("s") == plural
    assert (pair.answer in ("are", "were", "have")) == plural
    attractor = pair.clean.split()[-1]
    where = {"none": len(pair.clean.split()) == 2, "same": attractor.endswith("s") == plural}
    assert where.get(pair.labels["attractor"], attractor.endswith("s") != plural)


def _in_gender(pair: Pair) -> None:
    assert {pair.answer, pair.versus} == {"he", "she"}
    assert (pair.answer == "she") == (pair.labels["gender"] == "female")
    female = {"Mary", "Alice", "Anna", "Emma", "Susan", "Kate", "Helen", "Grace", "Lucy", "Julia", "Jane", "Maria"}
    female |= {"queen", "girl", "woman", "aunt", "princess", "mother", "grandmother", "sister", "witch", "daughter"}
    assert bool(female & {*re.findall(r"\w+", pair.clean)}) == (pair.answer == "she")


def _in_induction(pair: Pair) -> None:
    for text, answer in ((pair.clean, pair.answer), (pair.corrupt, pair.versus)):
        *words, last = text.split()
        assert words[words.index(last) + 1] == answer
    assert pair.clean.split()[:-1] == pair.corrupt.split()[:-1]


def _in_docstring(pair: Pair) -> None:
    for text, answer in ((pair.clean, pair.answer), (pair.corrupt, pair.versus)):
        arguments = [argument.arg for argument in ast.parse(text + '"""').body[0].args.args]
        assert re.findall(r":param (\w+)", text) == arguments[1:3]
        assert answer == arguments[3]


RIGHT = {
    "ioi": _in_ioi, "greater-than": _in_greater_than, "agreement": _in_agreement, "gender": _in_gender,
    "induction": _in_induction, "docstring": _in_docstring,
}  # fmt: skip


@pytest.mark.parametrize("task", MADE)
def test_the_answer_is_right_and_one_token_in_its_text(task: str, model: tinytf.Model) -> None:
    made = model.pairs(task, 40, seed=1)
    assert len(made.pairs) == 40
    assert len({(pair.clean, pair.corrupt, pair.answer) for pair in made.pairs}) == 40
    plain = tokenizers.Tokenizer.from_file(str(Path(tinytf.__file__).parent / "assets" / "tiny" / "tokenizer.json"))
    for pair, encoded in zip(made.pairs, made.encoded(model), strict=True):
        RIGHT[task](pair)
        clean, corrupt = (plain.encode(text).ids for text in (pair.clean, pair.corrupt))
        assert len(clean) == len(corrupt)
        space = "" if task == "greater-than" else " "
        for answer, token in ((pair.answer, encoded.answer), (pair.versus, encoded.versus)):
            assert plain.encode(f"{pair.clean}{space}{answer}").ids == [*clean, token]


def test_an_encoder_fills_its_mask_with_the_answer() -> None:
    encoder = tinytf.load("tiny-encoder")
    for task in ("ioi", "agreement", "gender", "induction"):
        for pair, encoded in zip((made := encoder.pairs(task, 10)).pairs, made.encoded(encoder), strict=True):
            filled = encoder.encode(pair.clean.replace("[MASK]", pair.answer)).ids
            assert filled == [
                encoded.answer if token == encoder.tokenizer.mask_id else token for token in encoded.clean.ids
            ]


def test_a_seed_gives_the_same_pairs_again_and_another_one_others(model: tinytf.Model) -> None:
    first, again, other = (model.pairs("ioi", 20, seed=seed).pairs for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert model.pairs("ioi", 30, seed=3).pairs[:20] == first


def test_an_interrupt_keeps_the_pairs_that_were_scored_and_says_so(
    model: tinytf.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(done: int, of: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    whole, some = model.pairs("agreement", 9, score=True), model.pairs("agreement", 9, score=True, progress=stop)
    assert some.interrupted
    assert not whole.interrupted
    assert some.pairs == whole.pairs[:3]
    assert some.scores.corrupt == whole.scores.corrupt[:3]
    some.show()
    whole.where(["number=plural"]).show()
    shown = capsys.readouterr().out
    assert "stopped after 3 of 9 pairs" in shown
    assert "asked for" not in shown
    model.pairs("gender", 300).show()
    assert "300 were asked for, and no more different ones were found" in capsys.readouterr().out


def test_what_does_not_fit_is_left_out_and_counted(model: tinytf.Model) -> None:
    made = model.pairs("ioi", 5)
    (words,) = made.left_out
    assert words.count == len(words.examples) > 0
    assert all(len(model.tokenizer.encode(f" {word}", special=False).tokens) > 1 for word in words.examples)
    few = model.pairs("gender", 300)
    assert len(few.pairs) < few.asked == 300
    uneven = next(part for part in few.left_out if part.noun == "pair")
    assert "different numbers of tokens" in str(uneven)


def test_two_digits_that_are_one_token_are_asked_for_as_years(tmp_path: Path) -> None:
    """As in GPT-2, where Hanna et al. 2023 ask for them; digits are single tokens in the built-in models."""
    base = two_digits(tmp_path / "tokenizer.json")
    small = tinytf.load("preset:gpt2-tiny", tokenizer=str(tmp_path / "tokenizer.json"))
    assert isinstance(small.tokenizer, Tokenizer)
    made = small.pairs("greater-than", 10)
    for pair, encoded in zip(made.pairs, made.encoded(small), strict=True):
        assert len(pair.answer) == len(pair.versus) == 2
        _in_greater_than(pair)
        assert base.encode(pair.clean + pair.answer).ids == [*encoded.clean.ids, encoded.answer]


def test_the_scores_are_those_of_transformers(model: tinytf.Model, tmp_path: Path) -> None:
    model.export(tmp_path / "tiny")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny").eval()
    made = model.pairs("ioi", 12, score=True)
    scores = made.scores
    for index, encoded in enumerate(made.encoded(model)):
        for text, lead in ((encoded.clean, scores.clean[index]), (encoded.corrupt, scores.corrupt[index])):
            with torch.no_grad():
                logits = theirs(torch.tensor([text.ids])).logits[0, -1].double()
            assert lead == pytest.approx(float(logits[encoded.answer] - logits[encoded.versus]), abs=1e-4)
    right = sum(lead > 0 for lead in scores.clean) / 12
    back = sum(lead < 0 for lead in scores.corrupt) / 12
    assert (scores.right, scores.reversed) == (right, back)
    assert f"tiny is right in {100 * right:.0f} % of 12 pairs of ioi" in made.sentence
    assert f"the other way round after {100 * back:.0f} % of the corrupt texts" in made.sentence
    assert " % of 1 pair of ioi" in model.pairs("ioi", 1, score=True).sentence


def test_the_induction_heads_of_the_built_in_model_answer_induction(model: tinytf.Model) -> None:
    scores = model.pairs("induction", 30, score=True).scores
    assert scores.right > 0.9
    assert scores.reversed > 0.9
    without = model.without([f"L1H{head}" for head in range(4)])  # its induction heads, says the census
    assert without.pairs("induction", 30, score=True).scores.right < 0.7


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("tiny", "capitals", "the pairs of capitals cannot be made for tiny: its tokenizer splits Paris, Rome"),
        ("tiny", "iio", "there is no task 'iio'"),
        ("tiny-encoder", "greater-than", "the pairs of greater-than are for decoders"),
    ],
)
def test_a_task_that_cannot_be_made_says_why(name: str, task: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        tinytf.load(name).pairs(task, 5)


def test_a_vocabulary_with_too_few_words_for_a_docstring_says_so(
    model: tinytf.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Words, "_is_one_token", lambda words, word: word in ("load", "size", "files", "last", "first"))
    with pytest.raises(UsageError, match="cannot be made for tiny: its tokenizer splits page, date, order and"):
        model.pairs("docstring", 3)


def test_a_model_without_a_head_has_no_answers(model: tinytf.Model) -> None:
    headless = asked(lively(config_of("bert with a pooler")), 30)
    with pytest.raises(UsageError, match="no language-model head, so it answers no pairs"):
        headless.pairs("ioi")


def test_every_task_is_listed_with_its_source() -> None:
    listed = tasks()
    assert [task.name for task in listed.tasks] == list(TASKS)
    assert all(re.search(r"[A-Z].* \d{4}$", task.source) for task in listed.tasks)
    data: Mapping = listed.to_dict()
    assert set(data["tasks"][0]) == {"name", "asks", "source", "reverses", "decoders_only"}


def test_a_set_is_a_report_that_a_subset_keeps_its_scores_of(model: tinytf.Model) -> None:
    made = model.pairs("agreement", 20, score=True)
    plural = made.where(["number=plural"])
    assert isinstance(plural, PairSet)
    chosen = [index for index, pair in enumerate(made.pairs) if pair.labels["number"] == "plural"]
    assert plural.scores.clean == tuple(made.scores.clean[index] for index in chosen)
    data = plural.to_dict()
    assert data["kind"] == "pairs"
    assert [pair["scores"]["clean"] for pair in data["pairs"]] == list(plural.scores.clean)
